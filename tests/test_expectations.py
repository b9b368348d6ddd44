"""Softmax averages for finite L against other roads: quadrature in another form, Monte Carlo, raw data, limits and published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from scipy.optimize import minimize

from spectral_ode.systems.softmax import _tables
from spectral_ode.systems.softmax._expectations import Expectations, expectations, query_rule, reach
from spectral_ode.systems.softmax._leading import Spectrum

# Variances and correlation of two heads: apart, opposite, parallel, one of them silent, far out.
HEADS = [
    (0.5, 0.3, 0.5),
    (1.0, 2.0, -0.6),
    (1.0, 1.0, 1.0),
    (2.0, 1.0, -1.0),
    (3.0, 2.0, 0.9),
    (6.0, 1e-3, 0.7),
    (6.0, 5.0, 0.95),
    (4.0, 4.0, 1.0),
]


def _arrays(*numbers):
    return tuple(jnp.asarray(float(number)) for number in numbers)


def _two_heads(L, v_h, v_g, k, nodes=80, steps=130):
    """C and T by Gauss-Hermite on correlated scores, s' = (k / v_h) s + rest: no Mehler, no Stein, no table."""
    x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = np.outer(weight, weight).ravel() / weight.sum() ** 2
    s = np.repeat(np.sqrt(v_h) * x, nodes)
    other = k / v_h * s + np.sqrt(max(v_g - k**2 / v_h, 0.0)) * np.tile(x, nodes)
    s, other, weight = (a[weight > 1e-22] for a in (s, other, weight))
    grid = lambda v: np.linspace(-np.log(L) - 32 - v, 8.0, steps)  # log t
    t, u = (np.exp(grid(v)[:, None] + score[None]) for v, score in ((v_h, s), (v_g, other)))
    area = np.diff(grid(v_h))[0] * np.diff(grid(v_g))[0]
    mean = lambda a, b, factor=1.0: (a * np.exp(-t) * (weight * factor)) @ (b * np.exp(-u)).T
    f, sigma = mean(1.0, 1.0), (s, other)
    C = area * L * np.sum(mean(t, u) * f ** (L - 1))
    T = [
        [area * L * np.sum(mean(t, u, a * b) * f ** (L - 1) + (L - 1) * mean(t, 1.0, a) * mean(1.0, u, b) * f ** (L - 2)) for b in sigma]
        for a in sigma
    ]
    return C, np.asarray(T)


def test_concentration_has_the_published_values():
    found = expectations(100).concentration(jnp.asarray([0.5, 1, 2, 3, 4, 6, 8]))
    assert_close(found[:2], [0.01625, 0.02554], rtol=0, atol=5e-6)
    assert_close(found[2:4], [0.0531, 0.0885], rtol=0, atol=5.1e-5)  # to the digits given
    assert_close(found[4:], [0.126, 0.198, 0.260], rtol=0, atol=5e-4)


@pytest.mark.parametrize("L", [3, 30, 100])
def test_one_head_table_is_the_direct_integral(L):
    v = np.linspace(0, _tables.LARGEST, 23)
    direct = np.asarray([_tables.one_head(L, each, 200) for each in v])
    # The polynomials end where the integrals' own errors begin: 1e-9, and 1e-7 for three tokens at the far end.
    tolerance = 1e-9 if L >= 30 else 1e-6
    assert_close(expectations(L).concentration(jnp.asarray(v)), direct[:, 0], rtol=0, atol=tolerance)
    assert_close(expectations(L).spread(jnp.asarray(v)), direct[:, 1], rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("L", [10, 100])
@pytest.mark.parametrize(("v_h", "v_g", "rho"), HEADS)
def test_two_heads_are_the_double_integral(L, v_h, v_g, rho):
    k = rho * np.sqrt(v_h * v_g)
    C, T = _two_heads(L, v_h, v_g, k)
    arguments = _arrays(v_h, v_g, k)
    # The series stops at z^56, which is felt above v = 4.
    assert_close(expectations(L).pair(*arguments).C, C, rtol=0, atol=1e-9 if max(v_h, v_g) < 4 else 2e-7)
    scale = np.sqrt(v_h * v_g)
    assert_close(expectations(L).moment(*arguments) / scale, T / scale, rtol=0, atol=2e-9 if max(v_h, v_g) < 4 else 4e-6)


@pytest.mark.parametrize(("v_h", "v_g", "rho"), HEADS[:5])
def test_averages_agree_with_monte_carlo(v_h, v_g, rho):
    L, rng = 30, np.random.default_rng(1)
    x, y = rng.normal(size=(2, 40000, L))
    s = np.sqrt(v_h) * x
    other = np.sqrt(v_g) * (rho * x + np.sqrt(1 - rho**2) * y)
    p, q = (np.exp(score) / np.exp(score).sum(1, keepdims=True) for score in (s, other))
    along = lambda weight, score: np.sum(weight * score, axis=1)
    samples = [np.sum(p**2, 1), along(p, s) ** 2, np.sum(p * q, 1)]
    samples += [along(p, a) * along(q, b) for a in (s, other) for b in (s, other)]
    e, arguments = expectations(L), _arrays(v_h, v_g, rho * np.sqrt(v_h * v_g))
    exact = [e.concentration(arguments[0]), e.second(arguments[0]), e.pair(*arguments).C, *e.moment(*arguments).ravel()]
    for sample, value in zip(samples, exact, strict=True):
        assert abs(sample.mean() - float(value)) < 4 * sample.std() / np.sqrt(sample.size)


def test_one_head_is_two_parallel_ones():
    e, v = expectations(100), jnp.linspace(0.0, 4.0, 9)
    x = e.pair(v, v, v)
    assert_close(x.C, e.concentration(v), rtol=0, atol=1e-8)
    assert_close(4 * x.C_h + x.C_k + x.K, e.spread(v), rtol=0, atol=1e-8)


@pytest.mark.parametrize("L", [10, 100])
def test_silent_and_uncorrelated_heads(L):
    e = expectations(L)
    zero, v = jnp.zeros(()), jnp.asarray([0.0, 0.5, 3.0, 6.0])
    # c = 1/L + v (L-1)/L^2 + ..., since C = e^k / (L-1+e^k) to first order; g = 1 - 1/L + ...: nothing is divided by v.
    assert_close(e.concentration(zero), 1 / L, rtol=1e-8)
    assert_close(jax.grad(e.concentration)(zero), (L - 1) / L**2, rtol=1e-6)
    assert_close(e.spread(zero), 1 - 1 / L, rtol=1e-8)
    assert_close(e.second(zero), 0.0)
    apart = e.pair(v, jnp.full(4, 2.0), jnp.zeros(4))
    assert_close(apart.C, np.full(4, 1 / L), rtol=1e-8)
    assert_close(apart.C_h, np.zeros(4), atol=1e-8)
    assert_close(apart.K, (1 - e.concentration(v)) * (1 - e.concentration(jnp.asarray(2.0))), rtol=1e-12)


def test_exchange_of_the_heads():
    e = expectations(100)
    one, other = e.pair(*_arrays(2, 3, -1)), e.pair(*_arrays(3, 2, -1))
    assert_close([one.C, one.C_h, one.C_g, one.C_k, one.K], [other.C, other.C_g, other.C_h, other.C_k, other.K])
    assert one.C_h != one.C_g
    # T exchanges the heads and the scores: both indices turn over, and the transpose remains.
    assert_close(e.moment(*_arrays(2, 3, -1)), e.moment(*_arrays(3, 2, -1))[::-1, ::-1].T)


def _spectrum(omega, mu):
    """Weights that are written tasks x heads here."""
    return Spectrum(mu.T, omega.T)


def _raw_loss(omega, mu, dimensions, signal, noise, L, count, seed):
    """Squared errors per task of the softmax model itself, W = diag(omega) on the blocks, on fresh data: [count, tasks]."""
    rng, d = np.random.default_rng(seed), sum(dimensions)
    block = np.repeat(np.arange(len(dimensions)), dimensions)
    X, q, G = rng.normal(size=(count, L, d)), rng.normal(size=(count, d)), rng.normal(size=(count, d))
    G *= np.sqrt(signal / np.asarray(dimensions))[block]
    member = np.eye(len(dimensions))[block]
    y = (X * G[:, None]) @ member + np.sqrt(noise) * rng.normal(size=(count, L, len(dimensions)))
    out = 0.0
    for h in range(omega.shape[1]):
        score = np.einsum("nld,nd->nl", X, omega[block, h] * q)
        p = np.exp(score - score.max(1, keepdims=True))
        out = out + mu[:, h] * np.einsum("nl,nli->ni", p / p.sum(1, keepdims=True), y)
    return (out - (G * q) @ member) ** 2


def _weights(heads, seed, tasks=2, size=0.25):
    rng = np.random.default_rng(seed)
    return size * rng.normal(size=(tasks, heads)), rng.normal(size=(tasks, heads)) * 1.5


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_loss_is_that_of_the_model_on_raw_data(heads, noise):
    dimensions, signal, L = (5, 3), np.asarray([5.0, 2.0]), 20
    omega, mu = _weights(heads, heads)
    mu[:, 1:2] = -np.sign(mu[:, :1]) * np.abs(mu[:, 1:2])  # mixed signs
    sample = _raw_loss(omega, mu, dimensions, signal, noise, L, 40000, 5)
    exact = expectations(L).loss(_spectrum(jnp.asarray(omega), jnp.asarray(mu)), dimensions, jnp.asarray(signal), jnp.asarray(noise))
    error = np.abs(sample.mean(0) - np.asarray(exact))
    assert (error < 4 * sample.std(0) / np.sqrt(len(sample))).all()
    assert (sample.std(0) / np.sqrt(len(sample)) < 0.02 * np.asarray(exact)).all()  # sharp enough to fail


@pytest.mark.parametrize("heads", [1, 3])
def test_loss_is_never_below_the_bayes_risk(heads):
    # Without noise and with L >= d a task is known exactly; with noise E (g.q)^2 given the context is at least S / (1 + S L / (d sigma^2)).
    dimensions, signal, noise, L = (6, 4), jnp.asarray([6.0, 2.0]), 1.0, 30
    floor = signal / (1 + signal * L / (jnp.asarray(dimensions, float) * noise))  # Jensen: E 1/(a + x) >= 1/(a + E x)
    e = expectations(L)
    evaluate = jax.jit(jax.vmap(lambda omega, mu, noise: e.loss(_spectrum(omega, mu), dimensions, signal, noise), in_axes=(0, 0, None)))
    draws = [_weights(heads, seed, size=0.2) for seed in range(100)]
    omega, mu = (jnp.asarray(np.stack(part)) for part in zip(*draws, strict=True))
    mu = mu * jnp.geomspace(0.1, 10, 100)[:, None, None]
    assert (evaluate(omega, mu, jnp.asarray(0.0)) > 0).all()
    assert (evaluate(omega, mu, jnp.asarray(noise)) > floor[None]).all()


def test_a_pair_that_breaks_the_delta_method():
    # The best mu of mixed signs at these weights: the truth is .397, the delta method says -1.12.
    e, omega = expectations(30), jnp.asarray([[0.2, 0.15]])
    loss = lambda mu: e.loss(_spectrum(omega, mu[None]), (10,), jnp.ones(1), jnp.zeros(()))[0]
    best = -jnp.linalg.solve(jax.hessian(loss)(jnp.zeros(2)), jax.grad(loss)(jnp.zeros(2)))  # the loss is quadratic in mu
    assert best[0] * best[1] < 0
    assert_close(loss(best), 0.397, rtol=0, atol=6e-4)


@pytest.mark.parametrize(("L", "value"), [(30, 0.4885), (100, 0.2356), (300, 0.0961)])
def test_the_best_head_has_the_known_loss(L, value):
    e = expectations(L)
    function = jax.jit(jax.value_and_grad(lambda y: e.loss(_spectrum(y[:1, None], y[1:, None]), (10,), jnp.ones(1), jnp.zeros(()))[0]))
    found = minimize(lambda y: tuple(map(np.asarray, function(jnp.asarray(y)))), [0.3, 2.5], jac=True, method="BFGS")
    assert_close(found.fun, value, rtol=0, atol=2e-4)  # the sheet rounds, and says .2354 for L = 100 in another place


def test_many_tokens():
    # L loss / S -> (1-2x)^{-d/2} (1/x + 1/(1-2x)) at the best mu, x = omega^2; corrections fall as 1/L.
    d, x = 10, 0.05
    limit = (1 - 2 * x) ** (-d / 2) * (1 / x + 1 / (1 - 2 * x))

    def best(L):
        at = lambda mu, x=x: _spectrum(jnp.sqrt(jnp.full((1, 1), x)), jnp.full((1, 1), mu))
        loss = lambda mu, L=L, at=at: expectations(L).loss(at(mu), (d,), jnp.ones(1), jnp.zeros(()))[0]
        B = (loss(1.0) + loss(-1.0)) / 2 - 1
        return L * (1 - ((loss(-1.0) - loss(1.0)) / 4) ** 2 / B)

    near, far = (abs(float(best(L)) / limit - 1) for L in (1000, 10000))
    assert far < 0.02
    assert far < 0.15 * near


@pytest.mark.parametrize("heads", [1, 3])
def test_gradients_are_finite_differences(heads):
    e, (omega, mu) = expectations(100), map(jnp.asarray, _weights(heads, 3))
    loss = lambda omega, mu: jnp.sum(e.loss(_spectrum(omega, mu), (10, 10), jnp.asarray([10.0, 5.0]), jnp.asarray(0.5)))
    for at in (omega, jnp.zeros_like(omega)):  # silent heads too: nothing has a root there
        gradients = jax.grad(loss, (0, 1))(at, mu)
        direction = [jnp.asarray(part) for part in _weights(heads, 7)]
        step = 1e-4
        ahead, behind = (loss(at + sign * step * direction[0], mu + sign * step * direction[1]) for sign in (1, -1))
        slope = sum(jnp.sum(a * b) for a, b in zip(gradients, direction, strict=True))
        assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)  # error of the difference itself


def test_two_equal_heads_are_one():
    e, omega, mu = expectations(100), jnp.asarray([[0.3], [0.1]]), jnp.asarray([[2.0], [0.5]])
    loss = lambda omega, mu: e.loss(_spectrum(omega, mu), (10, 10), jnp.asarray([10.0, 10.0]), jnp.asarray(0.5))
    assert_close(loss(jnp.tile(omega, (1, 2)), jnp.tile(mu / 2, (1, 2))), loss(omega, mu), rtol=1e-7)  # series against table


def test_six_queries_per_task_are_enough():
    e, (omega, mu) = expectations(100), map(jnp.asarray, _weights(3, 11, tasks=3, size=0.15))
    loss = lambda queries: e.loss(_spectrum(omega, mu), (10, 10, 10), jnp.full(3, 10.0), jnp.asarray(0.5), queries=queries)
    assert_close(loss(None), loss(10), rtol=1e-6)


def test_query_rule_is_the_chi_squared_law():
    square, weight = query_rule((3, 10), 8)
    assert_close(weight.sum(), 1.0, rtol=1e-10)
    assert_close(weight @ square, [3, 10], rtol=1e-8)
    assert_close(weight @ square**2, [3 * 5, 10 * 12], rtol=1e-7)  # the corners left out
    assert_close(weight @ (square[:, 0] * square[:, 1]), 30, rtol=1e-7)


def test_weights_beyond_the_tables_are_told():
    assert reach(jnp.full((1, 1), 0.316), (10,)) < 1
    assert reach(jnp.full((1, 1), 0.7), (10,)) > 1
    with pytest.raises(ValueError, match="L >= 2"):
        _tables.tables(1)


def test_a_module_of_arrays():
    assert isinstance(expectations(100), Expectations)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(expectations(100)))
