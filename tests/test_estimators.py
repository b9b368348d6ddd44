"""Every estimator has the mean of the plain squared error, and the chunked gradient is the gradient of the whole."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

from simulate import estimators
from simulate.episodes import Batch, Contexts
from simulate.full_attention import FullAttention

SIGMAS = 4.5  # of a mean over draws with fixed keys: a right estimator fails one of the about 60 bounds with probability 4e-4
HEADS, TASKS, D, E = 2, 2, 5, 6


def dense(*, blind: bool = False, seed: int = 0) -> FullAttention:
    """Every matrix full, and large enough that every term of the loss matters."""
    shapes = {"output": (HEADS, TASKS, E), "value": (HEADS, E, D + TASKS), "key": (HEADS, E, D + TASKS), "query": (HEADS, E, D + TASKS)}
    keys = jax.random.split(jax.random.key(seed), 4)
    model = FullAttention(**{name: 0.5 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)})
    return eqx.tree_at(lambda model: model.key, model, model.key.at[..., D:].set(0)) if blind else model


def contexts(*, noise: float = 0.6, **changes) -> Contexts:
    return Contexts.build((2, 3), 7, jax.random.key(8), signal=(0.7, 1.9), noise=noise, dtype="float64", **changes)


def plain(model: FullAttention, batch: Batch):
    """Squared errors by the forward pass itself: contexts x tasks."""
    tokens = jnp.concatenate([batch.x, batch.labels], axis=1)
    queries = jnp.pad(batch.q, ((0, 0), (0, 0), (0, TASKS)))
    predicted = jax.vmap(lambda context, asked: jax.vmap(lambda query: model(context, query))(asked))(tokens, queries)
    return jnp.mean((batch.targets - predicted) ** 2, axis=1)


def redrawn(batch: Batch, sampler: Contexts, draws: int) -> Batch:
    """The same x and q again and again, each time with other tasks and noise."""
    many = sampler(99, 0, draws * batch.x.shape[0], 1)
    again = lambda part: jnp.tile(part, (draws, 1, 1))
    return eqx.tree_at(lambda b: (b.x, b.q), many, (again(batch.x), again(batch.q)))


def deviations(found, expected=0.0):
    """Of the mean over the first axis, in standard errors."""
    found = np.asarray(found)
    return (found.mean(0) - expected) / (found.std(0, ddof=1) / np.sqrt(found.shape[0]))


@pytest.mark.parametrize("noise", [0.0, 0.6])
@pytest.mark.parametrize("queries", [1, 4])
def test_sampled_is_the_error_of_the_forward_pass(noise, queries):
    model, batch = dense(), contexts(noise=noise)(0, 0, 20, queries)
    assert_close(estimators.sampled(*estimators.products(model), batch), plain(model, batch), rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_integrated_is_the_expectation_of_sampled(noise):
    sampler, weights = contexts(noise=noise), estimators.products(dense(blind=True))
    batch = sampler(0, 0, 4, 2)
    found = jax.jit(estimators.sampled)(*weights, redrawn(batch, sampler, 40_000)).reshape(-1, 4, TASKS)
    expected = estimators.integrated(*weights, batch)
    assert np.abs(deviations(found, expected)).max() < SIGMAS
    assert np.max(np.std(found, axis=0) / np.sqrt(len(found)) / expected) < 0.01  # the test resolves a percent


def test_controlled_is_unbiased_where_scores_see_labels_and_integrated_is_not():
    sampler, weights = contexts(), estimators.products(dense())
    batch = sampler(0, 0, 4, 2)
    many = redrawn(batch, sampler, 40_000)
    sampled, controlled = (jax.jit(kind)(*weights, many).reshape(-1, 4, TASKS) for kind in (estimators.sampled, estimators.controlled))
    assert np.abs(deviations(controlled - sampled)).max() < SIGMAS
    assert np.abs(deviations(sampled, estimators.integrated(*weights, batch))).max() > 10 * SIGMAS


def test_controlled_has_little_variance_where_scores_hardly_see_labels():
    model = dense()
    model = eqx.tree_at(lambda m: m.key, model, model.key.at[..., D:].multiply(0.01))
    sampler, weights = contexts(), estimators.products(model)
    batch = redrawn(sampler(0, 0, 1, 2), sampler, 2000)
    assert 100 * jnp.var(estimators.controlled(*weights, batch), axis=0).max() < jnp.var(estimators.sampled(*weights, batch), axis=0).min()


def test_controlled_is_integrated_where_scores_do_not_see_labels():
    weights, batch = estimators.products(dense(blind=True)), contexts()(0, 0, 20, 2)
    assert_close(estimators.controlled(*weights, batch), estimators.integrated(*weights, batch), rtol=1e-12)


@pytest.mark.parametrize("name", estimators.ESTIMATORS)
def test_slope_over_chunks_is_the_gradient_of_the_whole(name):
    model, sampler, sizes = dense(), contexts(), (4, 4, 2)
    chunks = [sampler(3, number, size, 2) for number, size in enumerate(sizes)]
    whole = jax.tree.map(lambda first, *rest: jnp.concatenate([first, *rest]) if first.ndim > 1 else first, *chunks)
    each = plain if name == "sampled" else lambda model, batch: estimators.ESTIMATORS[name](*estimators.products(model), batch)
    expected = jax.grad(lambda model: jnp.sum(jnp.mean(each(model, whole), axis=0)))(model)
    told = {"contexts": 10, "queries": 2, "estimator": name, "chunk": 4}
    losses, gradient = jax.jit(lambda model: estimators.slope(model, sampler, 3, **told))(model)
    jax.tree.map(lambda one, two: assert_close(one, two, rtol=1e-11), gradient, expected)
    assert_close(losses, jnp.mean(each(model, whole), axis=0), rtol=1e-12)
    mean, error = estimators.losses(model, sampler, 3, **told)
    assert_close(mean, losses, rtol=1e-12)
    assert_close(error, np.std(each(model, whole), axis=0, ddof=1) / np.sqrt(10))


def test_pairs_of_queries_are_unbiased():
    model, sampler = dense(), contexts()
    found = [
        estimators.losses(model, sampler, step, contexts=20_000, queries=queries, chunk=2000) for step, queries in enumerate((1, 2, 4))
    ]
    for mean, error in found[1:]:
        assert np.all(np.abs(mean - found[0][0]) < SIGMAS * np.hypot(error, found[0][1]))


def per_context(name, model, batch):
    """The gradient of each context alone: contexts x parameters, without K_Y and Q_Y."""

    def one(x, g, q):
        alone = Batch(x[None], g[None], None, q[None], batch.signal, None, batch.dimensions)
        return jax.grad(lambda model: jnp.sum(estimators.ESTIMATORS[name](*estimators.products(model), alone)))(model)

    found = jax.vmap(one)(batch.x, batch.g, batch.q)
    parts = (found.output, found.value, found.key[..., : batch.x.shape[1]], found.query[..., : batch.x.shape[1]])
    return jnp.concatenate([part.reshape(batch.x.shape[0], -1) for part in parts], axis=1)


def test_integrating_tasks_out_and_pairing_queries_reduce_the_variance():
    d, L, heads = 4, 40, 2  # one head for each of two tasks of four coordinates, at the end of training
    omega, mu = d**-0.5, d**0.5 * L / (L + np.e * d)
    own = np.kron(np.eye(heads), np.ones(d))
    key = np.stack([np.diag(np.r_[own[h], 0, 0]) for h in range(heads)]) * np.sqrt(omega) * 10**0.25
    value = np.stack([np.diag(np.r_[np.zeros(2 * d), np.eye(heads)[h]]) for h in range(heads)]) * np.sqrt(mu)
    model = FullAttention(*(jnp.asarray(part) for part in (value[:, 2 * d :], value, key, key)))
    sampler = Contexts.build((d, d), L, jax.random.key(5), dtype="float64")
    variance = lambda name, queries: float(jnp.var(per_context(name, model, sampler(0, 0, 1000, queries)), axis=0).sum())
    one, pair = variance("sampled", 1), variance("sampled", 2)
    assert one / pair > 1.4
    assert pair / variance("integrated", 2) > 5


def test_integrated_leaves_the_keys_of_labels_alone():
    model = dense(blind=True)
    _, gradient = estimators.slope(model, contexts(), 0, contexts=10, queries=2, estimator="integrated")
    assert np.all(gradient.key[..., D:] == 0)
    assert np.all(gradient.query[..., D:] == 0)
    assert np.all(gradient.key[..., :D] != 0)


@pytest.mark.parametrize("reads", ["y", "x and y"])
def test_the_keys_of_labels_have_a_true_gradient_only_if_values_read_tokens(reads):
    model = dense(blind=True)
    if reads == "y":
        model = eqx.tree_at(lambda m: m.value, model, model.value.at[..., :D].set(0))
    sampler = contexts()
    slope = lambda step: estimators.slope(model, sampler, step, contexts=200, queries=2)[1].key[..., D:]
    largest = np.abs(deviations(jax.lax.map(slope, jnp.arange(200)))).max()
    assert largest < SIGMAS if reads == "y" else largest > 2 * SIGMAS


def test_float32_stays_float32():
    model = jax.tree.map(lambda part: part.astype(jnp.float32), dense())
    sampler = Contexts.build((2, 3), 7, jax.random.key(8), noise=0.6, normals="box-muller")
    for name in estimators.ESTIMATORS:
        found = jax.eval_shape(lambda name=name: estimators.slope(model, sampler, 0, contexts=10, queries=2, estimator=name, chunk=4))
        assert {leaf.dtype.name for leaf in jax.tree.leaves(found)} == {"float32"}


def test_unknown_estimators_are_refused():
    with pytest.raises(ValueError, match="integrated"):
        estimators.losses(dense(), contexts(), 0, contexts=3, estimator="exact")


def test_shares_are_losses_over_the_signal_of_the_same_queries_and_a_silent_model_has_one():
    sampler = Contexts.build((2, 3), 12, jax.random.key(3), signal=(1.0, 0.5), noise=0.3, dtype="float32")
    silent = FullAttention(*(jnp.zeros(shape, "float32") for shape in ((2, 2, 6), (2, 6, 7), (2, 6, 7), (2, 6, 7))))
    for name in estimators.ESTIMATORS:
        each, share, error = estimators.shares(silent, sampler, 0, contexts=300, queries=2, estimator=name, chunk=100)
        assert_close(each, np.ones(2), rtol=1e-5)  # float32
        assert_close(share, 1.0, rtol=1e-5)
        assert 0 <= float(error) < 1e-3
    keys = jax.random.split(jax.random.key(4), 4)
    model = FullAttention(
        *(0.3 * jax.random.normal(key, part.shape, "float32") for key, part in zip(keys, jax.tree.leaves(silent), strict=True))
    )
    one = lambda step: estimators.shares(model, sampler, step, contexts=200, queries=2, estimator="sampled")[1:]
    shares, errors = jax.jit(lambda: jax.lax.map(one, jnp.arange(40)))()
    assert 0.7 < np.std(shares) / np.mean(errors) < 1.4  # the spread of 40 sets is known to about a tenth
