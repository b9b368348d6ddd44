"""Trained models: what they compute, what the masks do, and that probes do not read what they must not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

from simulate import adam, importance, in_context, linear_transformer, softmax_transformer
from simulate.in_context import Episodes
from spectral_ode.systems.sparse.data import Law

LAW = Law(4, 1, 12, 0.3)
EPISODES = Episodes.draw(LAW, jax.random.key(0), tasks=40, queries=5)


@pytest.fixture(scope="module")
def model() -> softmax_transformer.SoftmaxTransformer:
    return softmax_transformer.random(jax.random.key(1), d=4, layers=2, heads=2, width=8)


def _answers(model, episodes=EPISODES):
    return eqx.filter_jit(lambda model, episodes: episodes.answers(model))(model, episodes)


def test_queries_see_the_context_and_not_each_other(model):
    both = _answers(model)
    alone = _answers(model, Episodes(EPISODES.context, EPISODES.queries[:, :1]))
    assert_close(alone[:, 0], both[:, 0], rtol=1e-4, atol=1e-5)  # float32
    order = jax.random.permutation(jax.random.key(2), LAW.n)
    context = jax.tree.map(lambda leaf: leaf[:, order] if leaf.ndim == 3 or leaf.shape[1] == LAW.n else leaf, EPISODES.context)
    assert_close(_answers(model, Episodes(context, EPISODES.queries)), both, rtol=1e-4, atol=1e-5)  # float32


def test_a_masked_head_is_a_head_without_output(model):
    mask = jnp.ones((2, 2), "float32").at[1, 0].set(0.0)
    silent = eqx.tree_at(lambda model: model.blocks[1].output, model, model.blocks[1].output.at[0].set(0.0))
    assert_close(_answers(model.masked(mask)), _answers(silent), rtol=1e-5, atol=1e-6)  # float32
    assert float(jnp.max(jnp.abs(_answers(silent) - _answers(model)))) > 1e-3


def test_importance_is_the_risk_that_a_head_saves(model):
    found = eqx.filter_jit(importance.importance)(model, EPISODES)
    for layer, head in ((0, 1), (1, 0)):
        off = model.masked(jnp.ones((2, 2), "float32").at[layer, head].set(0.0))
        assert_close(found[layer, head], EPISODES.risk(off) - EPISODES.risk(model), rtol=1e-3, atol=1e-5)  # float32


def test_shares_heads_used_and_pruning():
    found = jnp.asarray([[3.0, 3.0, -1.0], [1.0, 5.0, 0.0]])
    shares = importance.shares(found)
    assert_close(shares, [[0.5, 0.5, 0.0], [1 / 6, 5 / 6, 0.0]])
    assert_close(importance.used(shares), [2.0, 36 / 26])
    assert_close(importance.pruned(found, (1,)), [[1, 1, 1], [0, 1, 0]])
    assert_close(importance.pruned(found, ()), jnp.ones((2, 3)))


@pytest.mark.parametrize("tasks", [2, 8, 40])
def test_few_test_tasks_are_enough_for_everything_that_is_recorded(model, tasks):
    few = Episodes.draw(LAW, jax.random.key(7), tasks=tasks, queries=1)
    for name, seen in adam.observe(model, few).items():
        assert np.isfinite(seen).all(), name


def test_states_that_are_all_alike_tell_a_probe_nothing():
    class Blind:
        def states(self, x, y, queries):
            return jnp.ones((2, queries.shape[0], 3))

    risks = importance.probes(Blind(), EPISODES, EPISODES)
    assert_close(risks, [jnp.mean(jnp.minimum(EPISODES.targets.astype(float) ** 2, in_context.CLIP))] * 2, rtol=1e-6)  # float32


def test_training_moves_what_it_should_and_not_the_mask(model):
    mask = jnp.ones((2, 2), "float32").at[1, 0].set(0.0)
    optimizer = in_context.adam(3e-3, 60)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    settings = {"tasks": 32, "queries": 4}
    trained, _ = in_context.advance(model.masked(mask), state, optimizer, LAW, jax.random.key(3), jnp.arange(60), **settings)
    assert_close(trained.mask, mask)
    assert_close(trained.blocks[1].output[0], model.blocks[1].output[0])
    assert float(EPISODES.risk(trained)) < 0.9 * float(EPISODES.risk(model.masked(mask)))


def test_a_probe_of_the_embedding_knows_nothing_and_of_the_label_everything(model):
    train, test = (Episodes.draw(LAW, jax.random.key(seed), tasks=300, queries=6) for seed in (4, 5))
    found = eqx.filter_jit(importance.probes)(model, train, test)
    assert_close(found[0], 1.0, rtol=0.2)  # E y^2 = 1, a few hundred tasks: the embedding of a query says nothing of its task

    class Knows(eqx.Module):
        """The states are x, then x beside the label that least squares finds."""

        def states(self, x, y, queries):
            w = jnp.linalg.lstsq(x, y)[0]
            empty = jnp.zeros((queries.shape[0], 1), x.dtype)
            return jnp.stack([jnp.concatenate([queries, last], axis=1) for last in (empty, queries @ w[:, None])])

    nothing, everything = importance.probes(Knows(), train, test)
    assert everything < 0.1 < 0.8 < nothing


def test_the_preprocessing_probe_reads_no_label_and_is_descent_where_phi_is_x():
    class Same(eqx.Module):
        """A first block that hands x on (and would show the label if it were fed)."""

        def states(self, x, y, queries):
            return jnp.stack([queries, queries])

    steps = jnp.asarray([1, 5, 40])
    episodes = Episodes.draw(Law(4, 1, 400, 0.3), jax.random.key(0), tasks=20, queries=5, dtype="float64")
    found = importance.preprocessing_probe(Same(), episodes, steps)
    assert_close(found["phi"], found["x"], rtol=0, atol=1e-3)  # phi is centered, and the mean label has noise: sigma^2/n
    assert found["x"][0] > found["x"][-1]
    assert set(found) == {"phi", "x", "R x"}


def test_a_linear_transformer_learns(model):
    start = linear_transformer.random(jax.random.key(0), d=4, layers=2, heads=2, scale=0.2)
    optimizer = in_context.adam(5e-3, 200)
    end, _ = in_context.advance(start, optimizer.init(start), optimizer, LAW, jax.random.key(1), jnp.arange(200), tasks=64, queries=4)
    assert float(EPISODES.risk(end)) < 0.5 * float(EPISODES.risk(start))
    assert np.isfinite(np.asarray(_answers(end))).all()


def test_an_unlucky_context_counts_no_more_than_the_ceiling():
    wild = linear_transformer.random(jax.random.key(0), d=4, layers=3, heads=2, scale=5.0)
    assert float(EPISODES.risk(wild)) <= in_context.CLIP
