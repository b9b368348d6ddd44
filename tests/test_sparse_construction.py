"""The transformer that is the algorithm, and how many heads it needs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

from simulate import construction, heads
from simulate.linear_transformer import Layer, LinearTransformer, prompt, random
from spectral_ode.systems.sparse import _algorithms
from spectral_ode.systems.sparse.data import Law, Sample

CASES = [(3, 1, 5, 4, 0), (16, 4, 40, 12, 1), (7, 2, 4, 9, 2), (1, 1, 3, 3, 3)]  # d, s, n, steps, seed; n < d too
LAW = Law(6, 2, 15, 0.5)
SAMPLE = LAW.sample(jax.random.key(7))
ETA = 0.5 * _algorithms.diagonalize(SAMPLE.moments(), "pto").largest_step


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"d{case[0]}-n{case[2]}")
@pytest.mark.parametrize("algorithm", _algorithms.ALGORITHMS)
def test_the_construction_is_the_algorithm_at_every_depth(case, algorithm, dtype, bound):
    d, s, n, steps, seed = case
    sample = Law(d, s, n, 0.5).sample(jax.random.key(seed))
    moments = sample.moments()
    eta = 0.5 * _algorithms.diagonalize(moments, algorithm).largest_step
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), (jnp.ones(d), eta, sample))
    found = construction.read_out(*narrow, steps, preprocess=algorithm == "pto")
    expected = _algorithms.iterate(moments, algorithm, eta, steps)
    assert found.dtype == dtype
    assert float(jnp.max(jnp.abs(found.astype(float) - expected)) / jnp.maximum(1.0, jnp.max(jnp.abs(expected)))) <= bound


def test_slots_hold_the_preprocessed_tokens_and_labels_the_residuals():
    queries = jax.random.normal(jax.random.key(1), (3, LAW.d))
    depths = construction.construct(jnp.ones(LAW.d), ETA, 5).depths(prompt(SAMPLE.x, SAMPLE.y, queries), LAW.n)
    r = SAMPLE.moments().r
    w = _algorithms.iterate(SAMPLE.moments(), "pto", ETA, 5)
    assert_close(depths[1][LAW.d : 2 * LAW.d], r[:, None] * jnp.concatenate([SAMPLE.x, queries]).T)
    for step in range(6):
        assert_close(depths[1 + step][-1, : LAW.n], SAMPLE.y - SAMPLE.x @ w[step])
        assert_close(-depths[1 + step][-1, LAW.n :], queries @ w[step])


def test_without_the_mask_it_is_another_algorithm_from_the_second_step_on():
    with_mask, without = (construction.read_out(jnp.ones(LAW.d), ETA, SAMPLE, 3, masked=masked) for masked in (True, False))
    assert_close(without[:2], with_mask[:2])
    assert float(jnp.max(jnp.abs(without[2] - with_mask[2]))) > 1e-3


def test_the_order_of_the_context_does_not_matter():
    order = jax.random.permutation(jax.random.key(3), LAW.n)
    shuffled = Sample(SAMPLE.x[order], SAMPLE.y[order], SAMPLE.w)
    read = lambda sample: construction.read_out(jnp.ones(LAW.d), ETA, sample, 8)
    assert_close(read(shuffled), read(SAMPLE))


@pytest.mark.parametrize("j", range(LAW.d))
def test_without_head_j_coordinate_j_is_not_estimated_and_the_others_ignore_it(j):
    model = construction.construct(jnp.ones(LAW.d), ETA, 6)
    headless = eqx.tree_at(lambda model: model.layers[0], model, model.layers[0].only(jnp.ones(LAW.d).at[j].set(0.0)))
    tokens = prompt(SAMPLE.x, SAMPLE.y, jnp.eye(LAW.d))
    found = headless.predict(tokens, LAW.n)
    assert found[j] == 0
    keep = jnp.delete(jnp.arange(LAW.d), j)
    small = Sample(SAMPLE.x[:, keep], SAMPLE.y, SAMPLE.w[keep])
    assert_close(found[keep], _algorithms.iterate(small.moments(), "pto", ETA, 6)[-1])


def test_gains_are_a_diagonal_preprocessing():
    gains = jnp.linspace(0.5, 1.5, LAW.d)
    found = construction.read_out(gains, jnp.asarray(0.2), SAMPLE, 1)[-1]
    assert_close(found, 0.2 * gains**2 * SAMPLE.moments().r ** 3)


def test_a_layer_is_attention_token_by_token():
    model = random(jax.random.key(0), d=2, layers=1, heads=3, scale=0.7, dtype="float64")
    tokens = jax.random.normal(jax.random.key(1), (5, 9))
    expected, layer = np.array(tokens), model.layers[0]
    for m in range(9):
        for h in range(3):
            for i in range(6):
                score = tokens[:, i] @ layer.key_query[h] @ tokens[:, m]
                expected[:, m] += np.asarray(layer.value[h] @ tokens[:, i] * score / 6)
    assert_close(layer(tokens, 6), expected)


def mixed(layer: Layer, key) -> Layer:
    """The same layer with its heads mixed."""
    M = jnp.eye(layer.value.shape[0]) + 0.3 * jax.random.normal(key, (layer.value.shape[0],) * 2)
    return Layer(jnp.einsum("gh,hab->gab", M, layer.value), jnp.einsum("gh,hab->gab", jnp.linalg.inv(M).T, layer.key_query))


def test_the_schmidt_spectrum_does_not_depend_on_how_heads_are_mixed():
    layer = random(jax.random.key(0), d=2, layers=1, heads=4, scale=0.7, dtype="float64").layers[0]
    other = mixed(layer, jax.random.key(1))
    tokens = jax.random.normal(jax.random.key(2), (5, 9))
    assert float(jnp.max(jnp.abs(layer.value - other.value))) > 0.1
    assert_close(other(tokens, 7), layer(tokens, 7), rtol=1e-9)
    assert_close(heads.schmidt(other), heads.schmidt(layer), rtol=1e-9)


def test_canonical_heads_are_the_layer_and_the_best_of_fewer():
    layer = random(jax.random.key(0), d=2, layers=1, heads=4, scale=0.7, dtype="float64").layers[0]
    gram = jnp.cov(jax.random.normal(jax.random.key(2), (5, 20)))
    assert_close(heads.canonical(layer, 4).operator(gram), layer.operator(gram), rtol=1e-9)
    vector = lambda layer: jnp.einsum("hab,hcd->abcd", layer.value, layer.key_query)
    for keep in (1, 2, 3):
        gap = jnp.sum((vector(heads.canonical(layer, keep)) - vector(layer)) ** 2)
        assert_close(gap, jnp.sum(heads.schmidt(layer)[keep:] ** 2), rtol=1e-9)
    pruned = heads.prune(LinearTransformer((layer, layer)), (4, 2))
    assert [each.value.shape[0] for each in pruned.layers] == [4, 2]


def test_preprocessing_counts_d_heads_and_a_step_one():
    assert_close(heads.effective(heads.schmidt(construction.preprocessing(jnp.ones(5)))), 5.0)
    assert_close(heads.effective(heads.schmidt(construction.step(jnp.asarray(0.3), 5))), 1.0)


@pytest.mark.parametrize(("d", "count"), [(3, 1), (3, 2), (3, 3), (4, 2), (4, 4)])
def test_best_fit_of_preprocessing_with_h_heads_leaves_one_minus_h_over_d(d, count):
    assert_close(heads.fit(jax.random.key(0), d, count), 1 - count / d, rtol=1e-4, atol=1e-12)
