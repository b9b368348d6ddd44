"""Sparse regression, the closed forms: algorithms against their iteration, risks against simulation, moments against Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from scipy.integrate import quad
from scipy.stats import norm

from spectral_ode import marchenko_pastur
from spectral_ode.systems.sparse import _algorithms, _moments, _risk, _two_groups
from spectral_ode.systems.sparse.data import Law

KEY = jax.random.key(5)
WIDE, TALL = Law(12, 3, 7, 0.3), Law(8, 2, 40, 0.5, "normal")


@pytest.mark.parametrize("law", [WIDE, TALL], ids=["n<d", "n>d"])
@pytest.mark.parametrize("algorithm", _algorithms.ALGORITHMS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.95], ids=["small step", "half", "close to divergence"])
def test_closed_form_is_the_iteration(law, algorithm, share):
    moments = law.sample(KEY).moments()
    spectral = _algorithms.diagonalize(moments, algorithm)
    eta = share * spectral.largest_step
    found = jax.vmap(lambda t: _algorithms.after_steps(spectral, eta, t))(jnp.arange(26))
    assert_close(found, _algorithms.iterate(moments, algorithm, eta, 25), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("algorithm", _algorithms.ALGORITHMS)
def test_past_the_largest_step_descent_diverges(algorithm):
    moments = TALL.sample(KEY).moments()
    eta = _algorithms.diagonalize(moments, algorithm).largest_step
    sizes = [float(jnp.max(jnp.abs(_algorithms.iterate(moments, algorithm, share * eta, 4000)[-1]))) for share in (0.99, 1.01)]
    assert sizes[0] < 10 < 1e6 < sizes[1]


@pytest.mark.parametrize("law", [WIDE, TALL], ids=["n<d", "n>d"])
@pytest.mark.parametrize("algorithm", _algorithms.ALGORITHMS)
def test_flow_solves_its_equation_and_steps_approach_it_at_first_order(law, algorithm):
    moments = law.sample(KEY).moments()
    spectral = _algorithms.diagonalize(moments, algorithm)
    R2 = _algorithms.preprocessing(moments, algorithm) ** 2
    tau = jnp.asarray(1.7)
    w, slope = jax.jvp(lambda t: _algorithms.after_flow(spectral, t), (tau,), (jnp.ones(()),))
    assert_close(slope, -R2 * (moments.S @ w - moments.r), rtol=1e-9, atol=1e-12)
    gaps = [float(jnp.linalg.norm(_algorithms.after_steps(spectral, tau / k, jnp.asarray(k)) - w)) for k in (200, 400, 800)]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.02)
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.01)


def test_a_null_space_is_never_learned_by_descent():
    sample = WIDE.sample(KEY)
    w = _algorithms.after_flow(_algorithms.diagonalize(sample.moments(), "gd"), jnp.asarray(1e6))
    assert_close(w, np.linalg.pinv(np.asarray(sample.x)) @ np.asarray(sample.y), rtol=1e-6)
    assert_close(_algorithms.least_squares(sample.moments()), w, rtol=1e-6)


def test_one_step_is_the_cube_of_the_correlation():
    moments = TALL.sample(KEY).moments()
    for algorithm, expected in (("pto", moments.r**3), ("gd", moments.r)):
        assert_close(_algorithms.after_steps(_algorithms.diagonalize(moments, algorithm), jnp.asarray(0.1), jnp.asarray(1)), 0.1 * expected)


def test_referees_minimize_what_they_say():
    sample = TALL.sample(KEY)
    x, y = np.asarray(sample.x), np.asarray(sample.y)
    stacked = np.concatenate([x, np.sqrt(0.3 * TALL.n) * np.eye(TALL.d)]), np.concatenate([y, np.zeros(TALL.d)])
    assert_close(_algorithms.ridge(sample.moments(), jnp.asarray(0.3)), np.linalg.lstsq(*stacked)[0])
    support = np.asarray(sample.w) != 0
    found = np.asarray(_algorithms.oracle(sample.moments(), jnp.asarray(support)))
    assert_close(found[support], np.linalg.lstsq(x[:, support], y)[0])
    assert (found[~support] == 0).all()


@pytest.mark.parametrize("gamma", [0.1, 0.9, 1.0, 1.1, 3.0])
@pytest.mark.parametrize("p", [0.01, 0.3, 5.0])
def test_spectrum_of_marchenko_and_pastur_has_its_resolvent(gamma, p):
    lam, weight = marchenko_pastur.spectrum(gamma)
    atom = max(1 - 1 / gamma, 0.0)
    assert_close(weight.sum(), min(1, 1 / gamma), rtol=1e-11)
    first, second = marchenko_pastur.resolvent(jnp.asarray(gamma), jnp.asarray(p))
    assert_close(first, np.sum(weight * p / (lam + p)) + atom, rtol=1e-10)
    assert_close(second, np.sum(weight * (p / (lam + p)) ** 2) + atom, rtol=1e-10)


@pytest.mark.parametrize("gamma", [0.25, 2.0])
def test_gradient_flow_begins_at_the_signal_and_ends_at_least_squares(gamma):
    found = marchenko_pastur.flow_risk(jnp.asarray([0.0, 1e6]), gamma, S=3.0, sigma2=0.25)
    end = 0.25 * gamma / (1 - gamma) if gamma < 1 else 3 * (1 - 1 / gamma) + 0.25 / (gamma - 1)
    assert_close(found, [3.0, end], rtol=1e-9)


@pytest.mark.parametrize("law", [Law(64, 4, 256, 0.5), Law(96, 4, 48, 0.5)], ids=["n>d", "n<d"])
def test_gradient_flow_of_samples_follows_marchenko_and_pastur(law):
    tau = jnp.concatenate([jnp.linspace(0, 5, 11), jnp.geomspace(6, 300, 10)])
    mean = jnp.mean(jax.lax.map(lambda key: _algorithms.flow_curve(law.sample(key), "gd", tau), jax.random.split(KEY, 60)), axis=0)
    theory = marchenko_pastur.flow_risk(tau, law.d / law.n, S=law.W2, sigma2=law.sigma**2)
    assert_close(mean, theory, rtol=0.05)  # the bound; 60 tasks scatter by about 2 %
    ridge = float(marchenko_pastur.bayes_risk(law.d / law.n, S=law.W2, sigma2=law.sigma**2))
    assert ridge <= float(jnp.min(theory)) <= 1.1 * ridge  # the best time of the flow is almost as good as ridge


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("tau", [0.0, 0.3, 4.0, 60.0])
def test_orthogonal_risk_of_a_coordinate(beta, tau):
    v = 0.02
    error = lambda r: (r * -np.expm1(-(r**2) * tau) - beta) ** 2 * norm.pdf(r, beta, np.sqrt(v))
    expected = quad(error, beta - 2, beta + 2, epsabs=1e-14, epsrel=1e-12, limit=400)[0]
    assert_close(_risk.coordinate(jnp.asarray([tau]), beta, v)[0], expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0])
def test_orthogonal_risk_of_a_soft_threshold(beta):
    v, lam = 0.02, 0.3
    error = lambda r: (np.sign(r) * max(abs(r) - lam, 0) - beta) ** 2 * norm.pdf(r, beta, np.sqrt(v))
    expected = quad(error, beta - 2, beta + 2, points=[-lam, lam], epsabs=1e-14, limit=400)[0]
    assert_close(_risk.threshold_risk(beta, v, lam), expected, rtol=1e-8)


def test_order_of_the_referees_in_an_orthogonal_design():
    law = Law(256, 4, 1024, 0.5)
    tau = jnp.linspace(0, 40, 801)
    at, low = _risk.best(tau, _risk.orthogonal(tau, law))
    start, end = _risk.window(law)
    assert law.s * law.v < low < float(_risk.lasso(law)) < _risk.shrinkage(law)
    assert start < at < end
    assert_close(_risk.orthogonal(jnp.asarray([1e9]), law), [law.d * law.v], rtol=1e-3)  # least squares in the end


def test_best_is_the_lowest_point_of_a_curve_also_at_its_edge():
    time = jnp.linspace(0, 3, 16)
    at, low = _risk.best(time, 2 + (time - 1.234) ** 2)
    assert_close([at, low], [1.234, 2.0])
    at, low = _risk.best(time, 5 - time)
    assert_close([at, low], [3.0, 2.0])


def test_response_solves_its_equation_at_every_rate():
    block = _two_groups.block(Law(20, 3, 60, 0.4).sample(KEY), 3)
    tau = jnp.asarray(2.3)
    phi, slope = jax.jvp(lambda t: _two_groups.response(block, t), (tau,), (jnp.ones(()),))
    q = (jnp.asarray(_two_groups.nodes()[0]) * jnp.sum(block.V))[:, None]
    assert_close(slope, q * (_two_groups.decays(block, tau)[None] - phi), rtol=1e-8)


def test_off_support_law_against_drawn_coordinates():
    """Coordinates drawn by the model's own assumptions: independent tokens, a support block that is not disturbed."""
    law = Law(20, 3, 60, 0.4)
    sample = law.sample(KEY)
    block = _two_groups.block(sample, law.s)
    tau = jnp.asarray(6.0)
    b = np.random.default_rng(0).normal(size=(200_000, law.s + 1)) * np.sqrt(np.asarray(block.V))
    q, lam = (b.sum(1) ** 2)[:, None], np.asarray(block.rates)
    phi = q * (np.exp(-lam * 6.0) - np.exp(-q * 6.0)) / (q - lam)
    assert_close(_two_groups.off_support(block, _two_groups.response(block, tau)), np.mean(np.sum(phi * b, 1) ** 2), rtol=0.02)
    assert_close(jnp.sum(block.V), jnp.mean(sample.y**2) / law.n)


@pytest.mark.parametrize(("d", "n"), [(64, 256), (64, 512), (128, 512)])
def test_two_groups_find_the_lowest_risk_of_the_exact_flow(d, n):
    law = Law(d, 4, n, 0.5)
    tau = jnp.linspace(0, 40, 81)

    def one(key):
        sample = law.sample(key)
        return sum(_two_groups.risks(_two_groups.block(sample, 4), tau, d)), _algorithms.flow_curve(sample, "pto", tau)

    theory, exact = (jnp.mean(part, axis=0) for part in jax.lax.map(one, jax.random.split(KEY, 60)))
    (when, low), (when_exact, low_exact) = _risk.best(tau, theory), _risk.best(tau, exact)
    assert_close(low, low_exact, rtol=0.1)  # the bound: off-support coordinates do not feel each other in the theory
    assert_close(when, when_exact, rtol=0.25)  # the minimum is flat


@pytest.mark.parametrize("law", [Law(16, 4, 64, 0.5), Law(6, 2, 10, 0.3, "normal"), Law(5, 1, 8, 1.0)], ids=["+-1", "normal", "s=1"])
def test_moments_of_the_correlations(law):
    def draw(key):
        sample = law.sample(key)
        r = sample.moments().r
        return jnp.stack([jnp.mean(sample.w**2), jnp.mean(sample.w * r**3), jnp.mean(r**6)])

    draws = np.asarray(jax.lax.map(jax.vmap(draw), jax.random.split(KEY, (15, 2000))).reshape(-1, 3))
    found = _moments.correlations(law)
    error = draws.std(0) / np.sqrt(draws.shape[0])
    for i, exact in enumerate((found.A, found.B, found.C)):
        assert abs(draws[:, i].mean() - exact) < 4 * error[i] + 1e-12


def test_moments_as_they_were_checked_before():
    assert_close(_moments.correlations(Law(16, 4, 64, 0.5)), [0.25, 0.31320, 0.68538], rtol=2e-5)
