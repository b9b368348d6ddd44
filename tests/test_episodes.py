"""Contexts have the law they should, and are functions of their numbers alone."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from scipy import stats

from simulate.episodes import Contexts
from simulate.normals import NORMALS, box_muller, words

SIGMAS = 5  # a right generator fails one of the about 60 bounds below with probability 4e-5, and keys are fixed


def build(**changes) -> Contexts:
    told = {"signal": (0.7, 1.9), "noise": 0.6, "dtype": "float64"} | changes
    return Contexts.build((2, 3), 7, jax.random.key(3), **told)


def correlation(one, two) -> float:
    """In standard errors of the correlation of independent numbers."""
    return np.mean(one * two) / np.sqrt(np.mean(one**2) * np.mean(two**2)) * np.sqrt(one.size)


@pytest.fixture(params=NORMALS, scope="module")
def normals(request):
    """Three million numbers, as a chunk of contexts has them."""
    sampler = Contexts.build((10, 20), 100, jax.random.key(1), normals=request.param)
    return np.asarray(jax.jit(lambda: sampler(5, 2, 1000, 1).x)(), np.float64)


@pytest.mark.parametrize(("power", "mean", "square"), [(1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105), (6, 15, 10395)])
def test_moments_are_those_of_a_normal(normals, power, mean, square):
    error = np.sqrt((square - mean**2) / normals.size)  # square = E z^(2 power)
    assert abs(np.mean(normals**power) - mean) < SIGMAS * error


@pytest.mark.parametrize("beyond", [1.0, 2.0, 3.0, 4.0, 4.5])
def test_tails_are_those_of_a_normal(normals, beyond):
    for share in (np.mean(normals > beyond), np.mean(normals < -beyond)):
        expected = stats.norm.sf(beyond)
        assert abs(share - expected) < SIGMAS * np.sqrt(expected / normals.size)


def test_the_whole_distribution_is_normal(normals):
    assert stats.kstest(normals.ravel(), "norm").pvalue > 1e-4
    assert abs(normals).max() > 4.8  # probability 0.008 that three million are all below


def test_neighbors_and_partners_are_independent(normals):
    half = normals.shape[1] // 2  # the two normals that Box-Muller makes of one pair of words
    pairs = [
        (normals[:, :half], normals[:, half:]),
        *((np.moveaxis(normals, axis, 0)[1:], np.moveaxis(normals, axis, 0)[:-1]) for axis in range(3)),
    ]
    for one, two in pairs:
        assert abs(correlation(one, two)) < SIGMAS
        assert abs(correlation(one**2 - 1, two**2 - 1)) < SIGMAS
        assert abs(correlation(one**3 - 3 * one, two)) < SIGMAS


def test_words_are_those_of_jax():
    key, shape = jax.random.key(11), (3, 5, 2)
    ours = words(key, shape)
    counter = jnp.concatenate([jnp.zeros(30, jnp.uint32), jnp.arange(30, dtype=jnp.uint32)])
    theirs = jax.extend.random.threefry_2x32(jax.random.key_data(key), counter).reshape(2, *shape)
    assert np.array_equal(jnp.stack(ours), theirs)


def test_box_muller_is_accurate_in_float32():
    key, shape = jax.random.key(2), (50, 40, 50)
    found = np.asarray(box_muller(key, shape), np.float64)
    assert_close(found, box_muller(key, shape, jnp.float64), rtol=0)
    a, b = (np.asarray(word, np.float64) for word in words(key, (50, 20, 50)))
    r, quarter = np.sqrt(-2 * np.log((a + 0.5) / 2**32)), np.mod(b, 2**30)
    angle = np.where(quarter < 2**29, quarter, quarter - 2**30) * np.pi / 2**31
    near, far = np.cos(angle), np.sin(angle)
    swap, sign = np.mod(b, 2**31) < 2**30, np.where(b < 2**31, 1, -1)
    expected = np.concatenate([sign * r * np.where(swap, far, near), sign * r * np.where(swap, near, far)], axis=1)
    # u near one is rounded to 6e-8, which moves a small r = sqrt(2 (1 - u)) by up to 3e-4.
    assert np.abs(found - expected).max() < 4e-4
    assert np.abs(found - expected)[np.concatenate([r, r], axis=1) > 0.1].max() < 2e-6


def test_a_chunk_is_a_function_of_its_numbers():
    sampler = build()
    one, same = sampler(4, 1, 3, 2), jax.jit(lambda step, chunk: sampler(step, chunk, 3, 2))(4, 1)
    assert_close(one.x, same.x)
    for other in (
        sampler(5, 1, 3, 2),
        sampler(4, 2, 3, 2),
        Contexts.build((2, 3), 7, jax.random.key(4), noise=0.6, dtype="float64")(4, 1, 3, 2),
    ):
        for name in ("x", "g", "noise", "q"):
            assert not np.any(np.isclose(getattr(one, name), getattr(other, name), rtol=1e-9))
    many = jax.vmap(lambda chunk: sampler(4, chunk, 3, 2).x)(jnp.arange(3))
    assert_close(many[1], one.x)


@pytest.mark.parametrize("normals", NORMALS)
def test_labels_follow_the_model(normals):
    batch = build(normals=normals)(0, 0, 20_000, 2)
    x, g, q = (np.asarray(part) for part in (batch.x, batch.g, batch.q))
    noise = np.asarray(batch.noise)
    assert_close(batch.labels[:, 0] - noise[:, 0], np.einsum("cd,cdl->cl", g[:, :2], x[:, :2]), atol=1e-12)
    assert_close(batch.labels[:, 1] - noise[:, 1], np.einsum("cd,cdl->cl", g[:, 2:], x[:, 2:]), atol=1e-12)
    assert_close(batch.targets[..., 1], np.einsum("cd,cmd->cm", g[:, 2:], q[..., 2:]), atol=1e-12)
    assert_close(q[:, 1], -q[:, 0])
    within = SIGMAS * np.sqrt(2 / 20_000)  # relative, for the variance of one entry; sums of several have less
    assert_close(np.var(noise), 0.36, rtol=within)
    assert_close(np.mean(g**2, axis=0), [0.7, 0.7, 1.9, 1.9, 1.9], rtol=within)
    assert_close(
        np.mean(batch.targets[:, 0] ** 2, axis=0), [1.4, 5.7], rtol=3 * within
    )  # a product: (9 / 1 - 1) / 2 times the variance at most
    assert batch.signal.tolist() == [0.7, 1.9]


def test_without_noise_none_is_drawn():
    batch = build(noise=0.0)(0, 0, 3, 1)
    assert batch.noise is None
    assert_close(batch.labels, build()(0, 0, 3, 1).labels - build()(0, 0, 3, 1).noise)


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="pairs"):
        build()(0, 0, 3, 5)
    with pytest.raises(ValueError, match="ziggurat"):
        build(normals="ziggurat")
    with pytest.raises(ValueError, match="bfloat16"):
        build(dtype="bfloat16")
