"""Sampled prompts: who has a task of its own, prompts of every length, mirror images, test sets, and what a softmax does to padding."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

from simulate import loss as losses
from simulate.attention import MergedAttention, Prompt, SeparateAttention
from simulate.tasks import BATCH, Prompts, Sampler, fixed, mirrors, prefixes
from spectral_ode import Problem
from spectral_ode.problem import MergedHeads, Regression, Training
from spectral_ode.systems.linear.data import shared_task

D, N = 3, 7
BASE = Problem(
    system="linear.blocks",
    task=Regression(spectrum=(0.8, 0.5, 0.3), context=N, rotation=2),
    attention=MergedHeads(heads=2),
    training=Training(sequences=50, dtype="float64"),
)


def _with(**changes) -> Problem:
    return replace(BASE, task=replace(BASE.task, **changes))


@eqx.filter_jit
def _draw(problem: Problem, number: int, sequences: int) -> Prompts:
    return Sampler.from_problem(problem)(number, sequences)


@eqx.filter_jit
def _set(problem: Problem, sequences: int, **which) -> Prompts:
    return fixed(Sampler.from_problem(problem, **which), sequences)


def _tasks(prompts: Prompts, *, query: bool = True) -> np.ndarray:
    """The task of each sequence, recovered by least squares from its labels; without noise the fit is exact."""
    found = []
    for tokens, target in zip(np.asarray(prompts.tokens), np.asarray(prompts.target), strict=True):
        x, y = tokens[:-1], np.append(tokens[-1, :-1], target)
        w, residual, _, _ = np.linalg.lstsq(x.T if query else x[:, :-1].T, y if query else y[:-1])
        assert residual.size == 0 or residual[0] < 1e-20
        found.append(w)
    return np.array(found)


@pytest.mark.parametrize(("share", "own"), [(0.5, 25), (0.29, 14), (0.99, 49), (0.01, 0)])
def test_the_first_share_of_sequences_has_tasks_of_its_own_and_the_others_one_in_common(share, own):
    problem = _with(in_context=share)
    prompts = _set(problem, 50)
    w, w0 = _tasks(prompts), np.asarray(shared_task(problem))
    assert int(share * 50) == own
    assert_close(np.linalg.norm(w0), np.sqrt(D))
    assert_close(w[own:], np.broadcast_to(w0, (50 - own, D)))
    assert np.min(np.linalg.norm(w[:own] - w0[None], axis=1), initial=1.0) > 1e-3
    assert len(np.unique(np.round(w[:own], 9), axis=0)) == own


def test_with_a_share_of_one_every_sequence_has_its_own_task_of_the_priors_variance():
    problem = replace(_with(prior=(4.0, 1.0, 0.25), rotation=0), training=replace(BASE.training, sequences=4000))
    w = _tasks(_set(problem, 4000))
    # Directions are numbered by falling rate, lam^2 sig: 2.56, 0.25, 0.0225, as they were given.
    assert_close(np.var(w, axis=0), [4, 1, 0.25], rtol=0.1)  # 4000 draws: 2.2 % standard error
    assert np.abs(np.corrcoef(w.T) - np.eye(D)).max() < 0.08


def test_the_share_counts_over_batches_and_not_within_each():
    sequences = BATCH + 100
    problem = replace(_with(in_context=0.99), training=replace(BASE.training, sequences=sequences))
    data = _set(problem, sequences)
    own = int(0.99 * sequences)
    tail = jax.tree.map(lambda leaf: leaf[own - 3 : own + 3], data)
    same = np.linalg.norm(_tasks(tail) - np.asarray(shared_task(problem))[None], axis=1) < 1e-9
    assert same.tolist() == [False] * 3 + [True] * 3
    summary = eqx.filter_jit(losses.summary)(Sampler.from_problem(problem), sequences)
    assert_close(summary.moments.M, losses.summarize(losses.gram(data)).moments.M, rtol=1e-9, atol=1e-12)  # sums in another order


def test_with_a_share_of_zero_context_labels_are_noise_and_only_the_query_knows_the_task():
    problem = replace(_with(in_context=0.0), training=replace(BASE.training, sequences=20_000))
    data = _set(problem, 20_000)
    x, labels = np.asarray(data.tokens[:, :-1]), np.asarray(data.tokens[:, -1, :-1])
    assert_close(data.target, x[:, :, -1] @ np.asarray(shared_task(problem)))
    # 140,000 labels: standard errors 0.0019 of the variance relative to sqrt 2, 0.0027 of a correlation.
    assert_close(np.var(labels), 1.0, rtol=0.02)
    for d in range(D):
        assert abs(np.corrcoef(x[:, d, :-1].ravel(), labels.ravel())[0, 1]) < 0.015
        assert abs(np.corrcoef(x[:, d, -1], labels[:, 0])[0, 1]) < 0.03


def test_the_shared_task_is_the_same_in_every_run_and_another_for_another_seed():
    problem = _with(in_context=0.0)
    first, second = (Sampler.from_problem(problem, run=run) for run in (0, 1))
    assert_close(first.shared, second.shared, rtol=0, atol=0)
    assert float(jnp.max(jnp.abs(first(0, 4).tokens - second(0, 4).tokens))) > 0.1
    other = replace(problem, seed=replace(problem.seed, task=5))
    assert float(jnp.max(jnp.abs(shared_task(problem) - shared_task(other)))) > 0.01


@pytest.mark.parametrize("units", ["paper", "script"])
def test_prompts_of_all_lengths_are_the_truncated_sequences(units):
    problem = replace(_with(lengths="all", noise=0.4), units=units, horizon=100.0)
    every = jax.tree.map(np.asarray, _draw(problem, 3, 5))
    whole = _draw(replace(problem, units="paper", task=replace(problem.task, lengths="full")), 3, 5)
    tokens, clean = np.asarray(whole.tokens), _tasks(_draw(_with(), 3, 5))
    assert every.target.shape == (5 * N,)
    for sequence in range(5):
        for n in range(1, N + 1):
            index = sequence * N + n - 1
            found = every.tokens[index]
            assert_close(found[:, :n], tokens[sequence, :, :n], rtol=0, atol=0)
            assert np.abs(found[:, n:-1]).max(initial=0.0) == 0
            assert_close(found[:-1, -1], tokens[sequence, :-1, n], rtol=0, atol=0)
            assert found[-1, -1] == 0
            assert every.present[index].tolist() == [True] * n + [False] * (N - n) + [True]
            assert_close(every.factor[index], 1 / n if units == "paper" else 1 / (n + 1))
            # The query's label has no noise, also where the same token has a noisy one in longer prompts.
            assert_close(every.target[index], clean[sequence] @ tokens[sequence, :-1, n])


@eqx.filter_jit
def _loss(problem: Problem, method: str) -> losses.AbstractLoss:
    return losses.of_data_set(Sampler.from_problem(problem), 50, method)


def test_moments_over_all_lengths_are_the_average_over_the_lengths():
    problem = _with(lengths="all")
    every = _loss(problem, "moments").moments
    data = _set(_with(), 50)
    y = jnp.einsum("sd,sdn->sn", jnp.asarray(_tasks(data)), data.tokens[:, :-1])
    single = [losses.summarize(losses.gram(prefixes(data.tokens, y, (n,), (1 / n,)))).moments for n in range(1, N + 1)]
    for name in ("M", "b", "power"):
        assert_close(getattr(every, name), np.mean([getattr(moments, name) for moments in single], axis=0), rtol=1e-9, atol=1e-12)
    for method in ("gram", "attention"):
        assert_close(_loss(problem, method)(_dense()), losses.Summary(every)(_dense()), rtol=1e-9)


def _dense(*, softmax: bool = False) -> MergedAttention:
    keys = jax.random.split(jax.random.key(3), 2)
    return MergedAttention(*(jax.random.normal(key, (2, D + 1, D + 1)) for key in keys), softmax)


@pytest.mark.parametrize("kind", ["merged", "separate"])
def test_a_softmax_over_a_padded_prompt_is_that_over_the_short_one(kind):
    model = _dense(softmax=True)
    if kind == "separate":
        keys = jax.random.split(jax.random.key(4), 2)
        model = SeparateAttention(model.value, *(jax.random.normal(key, (2, 2, D + 1)) for key in keys), True)
    padded = _draw(_with(lengths="all", noise=0.4), 0, 1)
    for index in (0, 3, N - 1):
        kept = np.flatnonzero(padded.present[index])
        long = Prompt(padded.tokens[index], padded.present[index], padded.factor[index])
        short = Prompt(padded.tokens[index][:, kept], jnp.ones(kept.size, bool), padded.factor[index])
        assert_close(model.predict(long), model.predict(short))
        assert_close(model(long)[:, -1], model(short)[:, -1])
        seen = Prompt(long.tokens, jnp.ones(N + 1, bool), long.factor)
        if kept.size < N + 1:  # zero tokens take part in a softmax unless they are left out
            assert abs(float(model.predict(seen) - model.predict(short))) > 1e-6


def test_a_softmax_shares_one_among_all_tokens_the_query_included():
    prompt = jax.tree.map(lambda leaf: leaf[0], Sampler.from_problem(BASE)(0, 1).each())
    model = _dense(softmax=True)
    X, total = np.asarray(prompt.tokens), 0.0
    for V, W in zip(np.asarray(model.value), np.asarray(model.key_query), strict=True):
        share = np.exp(X.T @ W @ X[:, -1])
        total += V[-1] @ X @ (share / share.sum())
    assert_close(model.predict(prompt), float(prompt.factor) * total)
    assert_close(model(prompt)[-1, -1], model.predict(prompt))


@pytest.mark.parametrize("test", ["in-weight", "in-context"])
def test_test_sets_are_other_sequences_on_the_full_context_with_their_own_law(test):
    problem = replace(_with(in_context=0.5, lengths="all"), training=replace(BASE.training, test_sequences=50, sampling="mirrored"))
    data = _set(problem, 50, test=test)
    assert data.target.shape == (50,)  # one prompt per sequence: the full context
    assert np.asarray(data.present).all()
    known = np.asarray(_set(problem, 50).tokens[:, :-1, 0]).ravel()
    assert not np.isin(np.asarray(data.tokens[:, :-1]).ravel(), known).any()
    w0 = np.asarray(shared_task(problem))
    if test == "in-weight":
        assert_close(data.target, np.asarray(data.tokens[:, :-1, -1]) @ w0)
    else:
        assert len(np.unique(np.round(_tasks(data), 9), axis=0)) == 50


def test_the_two_test_sets_differ_from_each_other_and_from_run_to_run():
    problem = replace(_with(in_context=0.5), training=replace(BASE.training, test_sequences=20))
    sets = [Sampler.from_problem(problem, run=run, test=test)(0, 20) for run in (0, 1) for test in ("in-weight", "in-context")]
    for i, one in enumerate(sets):
        for two in sets[i + 1 :]:
            assert float(jnp.min(jnp.abs(one.tokens[:, 0, 0] - two.tokens[:, 0, 0]))) > 0


def test_mirrored_sequences_come_in_pairs_with_the_same_labels():
    problem = replace(_with(noise=0.4), training=replace(BASE.training, sampling="mirrored"))
    data = Sampler.from_problem(problem)(0, 51)  # an odd number cuts the last pair
    x, y = np.asarray(data.tokens[:, :-1]), np.asarray(data.tokens[:, -1])
    assert data.target.shape == (51,)
    assert_close(x[0:50:2], -x[1:50:2], rtol=0, atol=0)
    assert_close(y[0:50:2], y[1:50:2], rtol=1e-12)
    assert_close(data.target[0:50:2], data.target[1:50:2], rtol=1e-12)
    assert len(np.unique(np.round(np.abs(x[:, 0, 0]), 9))) == 26


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_signs_of_even_mirror_images_are_orthogonal_columns(d):
    signs = mirrors("even", d)
    assert set(np.unique(signs)) <= {-1, 1}
    assert_close(signs.T @ signs, len(signs) * np.eye(d))
    assert mirrors("mirrored", d).tolist() == [[1.0] * d, [-1.0] * d]
    assert mirrors("iid", d).tolist() == [[1.0] * d]
