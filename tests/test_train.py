"""Training: three roads to one loss, data as a pure function of seeds, agreement with the flow."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from close import assert_close
from small import SMALL, with_training

import simulate
from simulate import loss as losses
from simulate.attention import SeparateAttention
from simulate.tasks import Prompts, Sampler, fixed
from spectral_ode import Problem, draw, solve_problem
from spectral_ode.flow import PopulationFlow
from spectral_ode.problem import Regression, Seed, SeparateHeads, Start
from spectral_ode.systems.linear import Separate

WIDE = replace(with_training(sampling="iid"), task=Regression(spectrum=(0.5, 0.3, 0.2), context=6, noise=0.3, rotation=2))


def _dense(seed: int, heads: int = 3, rank: int = 2, d: int = 3) -> SeparateAttention:
    """Every block of order one, also those that theory sets to zero."""
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = ((heads, d + 1, d + 1), (heads, rank, d + 1), (heads, rank, d + 1))
    return SeparateAttention(*(jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)))


def test_forward_pass_is_the_paper_word_by_word():
    model, prompt = _dense(0), jax.tree.map(lambda leaf: leaf[0], Sampler.from_problem(WIDE)(0, 1).each())
    X = np.asarray(prompt.tokens)
    N = X.shape[1] - 1
    expected = X.copy()
    for V, K, Q in zip(model.value, model.key, model.query, strict=True):
        expected += np.asarray(V) @ X @ X.T @ np.asarray(K).T @ np.asarray(Q) @ X / N
    assert_close(model(prompt), expected)
    assert_close(model.predict(prompt), expected[-1, -1])


def test_gram_matrices_give_the_prediction_of_the_attention_layer_for_every_block():
    prompts = Sampler.from_problem(WIDE)(0, 50)
    for seed in range(3):
        model = _dense(seed)
        direct = jax.vmap(model.predict)(prompts.each())
        assert_close(
            losses.gram(prompts).phi @ losses.coefficients(*model.bilinear()), direct, rtol=1e-10, atol=1e-10
        )  # entries of order 1e2


def test_without_the_query_token_the_identity_fails():
    prompts = Sampler.from_problem(WIDE)(0, 50)
    cut = Prompts(prompts.tokens.at[:, :, 0].set(0.0), prompts.present, prompts.factor, prompts.target)
    difference = losses.gram(cut).phi @ losses.coefficients(*_dense(0).bilinear()) - jax.vmap(_dense(0).predict)(prompts.each())
    assert float(jnp.max(jnp.abs(difference))) > 0.1


@pytest.mark.parametrize("sampling", ["iid", "even"])
@pytest.mark.parametrize("sequences", [1, 100, 5000])
def test_moments_are_those_of_the_fixed_data_set(sampling, sequences):
    problem = replace(WIDE, training=replace(WIDE.training, sampling=sampling, sequences=sequences))
    sampler, model = Sampler.from_problem(problem), _dense(1)
    data = fixed(sampler, sequences)
    assert data.target.shape == (sequences,)
    direct = losses.Tokens(data)(model)
    assert_close(losses.gram(data)(model), direct)
    assert_close(losses.summary(sampler, sequences)(model), direct, rtol=1e-9)  # cancellation between moments


def test_prompts_have_their_layout_and_law():
    prompts = Sampler.from_problem(WIDE)(0, 40_000)
    assert float(jnp.max(jnp.abs(prompts.tokens[:, -1, -1]))) == 0.0
    x = prompts.tokens[:, :-1]
    covariance = jnp.einsum("san,sbn->ab", x, x) / (x.shape[0] * x.shape[2])
    assert_close(covariance, Separate.from_problem(WIDE).data.covariance, rtol=0, atol=0.005)  # Monte Carlo, 280,000 tokens


def test_labels_are_linear_in_the_tokens_up_to_their_noise():
    clean = replace(WIDE, task=replace(WIDE.task, noise=0.0))
    exact, noisy = (Sampler.from_problem(problem)(0, 20_000) for problem in (clean, WIDE))
    x, y = np.asarray(exact.tokens[0, :-1]), np.append(exact.tokens[0, -1, :-1], exact.target[0])
    w = np.linalg.lstsq(x.T, y)[0]
    assert_close(w @ x, y)
    difference = noisy.tokens[:, -1, :-1] - exact.tokens[:, -1, :-1]
    assert_close(jnp.std(difference), WIDE.task.noise, rtol=0.01)  # 120,000 draws: 0.2 % standard error
    assert_close(noisy.target, exact.target, rtol=0, atol=0)


def test_even_sampling_cancels_the_off_diagonal_error_and_keeps_the_law():
    problem = with_training(sampling="even")
    features = {}
    for sampling in ("iid", "even"):
        data = fixed(Sampler.from_problem(with_training(sampling=sampling)), 8192)
        beta = jnp.einsum("sdn,sn->sd", data.tokens[:, :-1, :-1], data.tokens[:, -1, :-1]) / problem.task.context
        features[sampling] = np.asarray(jnp.einsum("s,sa,sb->ab", data.target, beta, data.tokens[:, :-1, -1]) / 8192)
    exact = np.diag(np.square(problem.task.spectrum))
    assert abs(features["even"][0, 1]) < 1e-15
    assert abs(features["iid"][0, 1]) > 1e-4
    assert np.abs(features["even"] - exact).max() < 0.03 * exact.max()


def test_a_batch_is_a_pure_function_of_seeds_and_number():
    sampler = Sampler.from_problem(WIDE)
    first, again, other = sampler(3, 8), Sampler.from_problem(WIDE)(3, 8), sampler(4, 8)
    assert_close(first.tokens, again.tokens, rtol=0, atol=0)
    assert float(jnp.max(jnp.abs(first.tokens - other.tokens))) > 0.1


@pytest.mark.parametrize("stream", ["task", "data", "noise", "start"])
def test_each_seed_moves_its_own_stream_only(stream):
    changed = replace(WIDE, seed=replace(WIDE.seed, **{stream: 9}))
    before, after = Sampler.from_problem(WIDE)(0, 8), Sampler.from_problem(changed)(0, 8)
    x_moved, y_moved = (bool(jnp.any(before.tokens[:, part] != after.tokens[:, part])) for part in (slice(0, -1), slice(-1, None)))
    target_moved = bool(jnp.any(before.target != after.target))
    start_moved = bool(jnp.any(draw(WIDE).value != draw(changed).value))
    expected = {"task": (False, True, True, False), "data": (True, True, True, False), "noise": (False, True, False, False)}
    assert (x_moved, y_moved, target_moved, start_moved) == expected.get(stream, (False, False, False, True))


def test_training_follows_the_population_flow_and_reports_the_same_names():
    trained = simulate.train(SMALL)
    flow = solve_problem(PopulationFlow(Separate.from_problem(SMALL)), SMALL, draw(SMALL))
    assert set(flow.observables) <= set(trained.observables)
    assert_close(trained.time[0], SMALL.times)
    for d in (1, 2):
        shift = float(trained.phases[f"half {d}"][0]) / float(flow.phases[f"half {d}"]) - 1
        assert abs(shift) < 0.03
    assert abs(float(trained["loss"][0, -1] / flow["loss"][-1]) - 1) < 0.02  # finite sample


def test_descent_approaches_its_flow_at_first_order_in_the_learning_rate():
    times = []
    for eta in (0.8, 0.4, 0.2):
        times.append(float(simulate.train(with_training(learning_rate=eta)).phases["half 2"][0]))
    assert (times[0] - times[1]) / (times[1] - times[2]) == pytest.approx(2, rel=0.15)


def test_runs_together_are_runs_alone_and_repeatable():
    short = replace(SMALL, horizon=300.0, points=40)
    together = simulate.train(replace(short, runs=2))
    alone = simulate.train(replace(short, seed=Seed(start=1, task=1, data=1, noise=1)))
    assert_close(together["loss"][1], alone["loss"][0], rtol=1e-9)  # batched products may round differently
    again = simulate.train(replace(short, runs=2))
    assert_close(together["loss"], again["loss"], rtol=0, atol=0)


def test_recording_schedule_does_not_change_the_course():
    coarse, fine = (simulate.train(replace(SMALL, horizon=400.0, points=n)) for n in (11, 101))
    assert_close(coarse["loss"][0], fine["loss"][0, ::10], rtol=1e-12)
    assert_close(coarse.phases["half 1"], fine.phases["half 1"], rtol=1e-12)


def test_single_precision_agrees_with_double():
    single, double = (simulate.train(replace(with_training(dtype=dtype), horizon=400.0, points=20)) for dtype in ("float32", "float64"))
    assert single.provenance["dtype"] == "float32"
    # The two draw different normals: each may be off by the 3 % of 80,000 evenly sampled sequences.
    assert_close(single.phases["half 1"], double.phases["half 1"], rtol=0.03)


@pytest.mark.parametrize("method", ["gram", "attention"])
def test_fresh_data_is_learned_from(method):
    problem = replace(
        with_training(data="fresh", sampling="iid", sequences=200, method=method, learning_rate=0.1),
        horizon=60.0,
        points=10,
        start=Start(scale=2.0),
    )
    trained = simulate.train(problem)
    assert float(trained["population loss"][0, -1]) < 0.8 * float(trained["population loss"][0, 0])


def test_fresh_batches_by_gram_and_by_attention_are_the_same_training():
    base = replace(with_training(data="fresh", sampling="iid", sequences=50), horizon=20.0, points=5, start=Start(scale=2.0))
    gram, attention = (
        simulate.train(replace(base, training=replace(base.training, method=method)))["loss"] for method in ("gram", "attention")
    )
    assert_close(gram, attention, rtol=1e-10)


def test_any_optax_optimizer():
    with jax.numpy_dtype_promotion("standard"):  # Adam raises a float to an integer power
        trained = simulate.train(replace(SMALL, horizon=200.0, points=10), optimizer=optax.adam(1e-2))
    assert float(trained["loss"][0, -1]) < 0.5 * float(trained["loss"][0, 0])


def test_a_learning_rate_that_explodes_is_told():
    trained = simulate.train(replace(with_training(learning_rate=20.0), start=Start(scale=5.0)))
    assert not trained.ok
    assert "--training.learning-rate" in trained.stopped
    assert all(np.isfinite(np.asarray(array)).all() for array in trained.observables.values())


def test_progress_is_told_and_ends_at_one():
    told = []
    simulate.train(replace(SMALL, horizon=100.0, points=30), progress=lambda share, time, loss: told.append((share, time, loss)))
    assert told[-1][0] == 1.0
    assert [share for share, _, _ in told] == sorted(share for share, _, _ in told)


def test_more_heads_and_ranks_train():
    problem = replace(SMALL, horizon=50.0, points=5, attention=SeparateHeads(heads=3, rank=2))
    assert isinstance(problem, Problem)
    assert simulate.train(problem)["key"].shape == (1, 5, 3, 2, 2)
