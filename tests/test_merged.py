"""The merged reduction of arXiv:2501.16265: identities, the closed form, the escape law, fixed points, and the limit of long contexts."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from scipy.integrate import solve_ivp

from simulate.regression import principal_components
from simulate.tasks import Sampler
from spectral_ode import BadInput, Problem, draw, solve, weights
from spectral_ode.flow import PopulationFlow
from spectral_ode.problem import MergedHeads, Regression, SeparateHeads, Start, Training
from spectral_ode.systems.linear.merged import Merged, State
from spectral_ode.weights import MergedWeights

BASE = Problem(system="linear.merged", attention=MergedHeads(heads=8), task=Regression(spectrum=(1.0,) * 4, context=31))
GENERAL = replace(BASE, task=Regression(spectrum=(0.4, 0.3, 0.2, 0.1), context=31))
ODD = replace(BASE, task=Regression(spectrum=(0.5, 0.2, 0.3), context=7, noise=0.7, rotation=3, prior=(1.0, 4.0, 0.5)))
SEEDS = range(6)


def _from(problem: Problem, scale: float) -> Problem:
    return replace(problem, start=Start(scale=scale))


def _starts(problem: Problem, scale: float) -> MergedWeights:
    members = [draw(_from(problem, scale), run=run) for run in SEEDS]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


@eqx.filter_jit
def _courses(system, states, times):
    """Sigma and half-drop time of many solves at once."""
    found = jax.vmap(lambda state: solve(system, state, times, rtol=1e-10))(states)
    return found["sigma"], found.phases["half 1"]


@pytest.mark.parametrize("problem", [BASE, GENERAL, ODD], ids=["white", "general", "rotated, noisy, prior"])
def test_field_of_the_weights_is_minus_half_the_gradient(problem):
    system = Merged.from_problem(problem)
    start = draw(_from(problem, 5.0))
    gradient = jax.grad(system.population_loss)(start)
    for field, slope in zip(jax.tree.leaves(system.weights_field(start)), jax.tree.leaves(gradient), strict=True):
        # Entries of order 1e2 cancel to ones of order one.
        assert_close(field, -0.5 * slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("problem", [BASE, GENERAL, ODD], ids=["white", "general", "rotated, noisy, prior"])
def test_the_d_plus_one_scalars_are_the_flow_of_the_weights_on_their_manifold(problem):
    system = Merged.from_problem(problem)
    r = np.array([0.6, 0.0, -0.8])
    state = State(jnp.asarray(0.7), jnp.linspace(-0.4, 1.3, system.data.lam.size))
    U = np.einsum("h,ab->hab", r, system.data.matrix(state.a))
    rate = system.weights_field(MergedWeights(state.s * jnp.asarray(r), jnp.asarray(U)))
    field = system.vector_field(jnp.zeros(()), state)
    # The weights move along r and stay diagonal in the eigenbasis: nothing leaves the manifold.
    assert_close(rate.value, np.asarray(field.s) * r)
    assert_close(rate.key_query, np.einsum("h,ab->hab", r, system.data.matrix(field.a)))
    assert_close(system.outside(MergedWeights(state.s * jnp.asarray(r), jnp.asarray(U))), 0, atol=1e-15)
    assert_close(system.observe(state)["loss"], system.population_loss(MergedWeights(state.s * jnp.asarray(r), jnp.asarray(U))))


def test_reduced_field_is_the_gradient_of_the_reduced_loss():
    system = Merged.from_problem(ODD)
    state = State(jnp.asarray(0.7), jnp.asarray([0.2, -0.3, 0.9]))
    slope = jax.grad(lambda state: system.observe(state)["loss"])(state)
    field = system.vector_field(jnp.zeros(()), state)
    assert_close(field.s, -0.5 * slope.s)
    assert_close(field.a, -0.5 * slope.a)


def test_the_balance_of_the_two_layers_is_kept_along_a_solve():
    problem = _from(GENERAL, 0.3)
    found = solve(PopulationFlow(Merged.from_problem(problem)), draw(problem), np.linspace(0, 80, 60), rtol=1e-10)
    w2, W1 = np.asarray(found["value"]), np.asarray(found["key_query"]).reshape(60, 8, -1)
    balance = W1 @ np.swapaxes(W1, 1, 2) - w2[:, :, None] * w2[:, None, :]
    assert float(found["learned"][-1]) > 0.9
    assert np.abs(balance[0]).max() > 1e-3  # the start is not balanced, so that there is something to keep
    assert np.abs(balance - balance[:1]).max() <= 10 * 1e-10 * np.max(w2**2)  # 10 x rtol x largest squared weight


@pytest.mark.parametrize("lam", [1.0, 0.25], ids=["1", "1/D"])
def test_closed_form_of_the_white_case_against_scipy(lam):
    system = Merged.from_problem(replace(BASE, task=Regression(spectrum=(lam,) * 4, context=31)))
    start = State(jnp.asarray(0.02), jnp.asarray(0.02) * system.data.g / system.rate)
    assert system.white
    end = 14 / float(system.rate)

    def field(t, y):
        s, a = y[0], y[1:]
        pull = lam**2 - lam**3 * (1 + (1 + 4) / 31) * s * a  # written out: g = lam^2, C = lam^2 c, c = 1 + (1 + D) / N
        return np.concatenate([[a @ pull], s * pull])

    times = np.linspace(0, end, 80)
    found = solve_ivp(field, (0, end), np.concatenate([[start.s], start.a]), "DOP853", times, rtol=1e-12, atol=1e-15)
    exact = jax.vmap(lambda t: system.closed_form(t, start))(jnp.asarray(times))
    assert_close(exact, (found.y[0] * found.y[1:]).T, rtol=1e-9)  # the referee's own error
    assert float(exact[-1, 0] / system.data.best[0]) > 0.99


def test_solve_follows_the_closed_form():
    problem = _from(BASE, 0.01)
    system = Merged.from_problem(problem)
    state = system.project(draw(problem))
    found = solve(system, state, np.linspace(0, 12, 200), rtol=1e-10, phases=False)
    exact = jax.vmap(lambda t: system.closed_form(t, state))(found.time)
    # 10 x rtol in time; on the drop A changes by its limit within one unit of the time 1 / (2 |g|).
    assert_close(found["A"] / system.data.best[None], exact / system.data.best[None], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("scale", "bound"), [(0.1, 2e-3), (0.01, 2e-5), (1e-4, 1e-7)], ids=["0.1", "0.01", "0.0001"])
def test_population_flow_tends_to_the_closed_form_quadratically_in_the_start(scale, bound):
    system = Merged.from_problem(BASE)
    times = jnp.linspace(0.0, 15.0, 400)
    starts = _starts(BASE, scale)
    sigma, _ = _courses(PopulationFlow(system), starts, times)
    exact = jax.vmap(lambda start: jax.vmap(lambda t: system.closed_form(t, system.project(start))[0])(times))(starts) / system.data.best[0]
    gap = np.max(np.abs(np.asarray(sigma - exact)), axis=1)
    assert float(np.min(sigma[:, -1])) > 0.999
    assert np.median(gap) <= bound
    if scale >= 0.01:
        assert np.median(gap) > 1e-3 * bound  # the bound is not idle: a start has this much outside the growing mode


def test_reduced_flow_and_forecast_drop_when_the_population_flow_does_for_a_general_covariance():
    system = Merged.from_problem(GENERAL)
    times = jnp.linspace(0.0, 100.0, 400)
    starts = _starts(GENERAL, 0.01)
    _, exact = _courses(PopulationFlow(system), starts, times)
    _, reduced = _courses(system, jax.vmap(system.project)(starts), times)
    forecast = jax.vmap(system.forecast)(starts)["half"][:, 0]
    assert np.median(np.abs(reduced / exact - 1)) <= 1e-4
    assert np.median(np.abs(forecast / exact - 1)) <= 1e-4


def test_each_decade_of_the_start_delays_the_drop_by_the_escape_law():
    system = Merged.from_problem(ODD)
    large, small = (draw(_from(ODD, scale)) for scale in (1e-3, 1e-4))
    halves = [float(system.forecast(start)["half"][0]) for start in (large, small)]
    assert_close(halves[1] - halves[0], np.log(10) / np.linalg.norm(system.data.g))
    flow = [float(solve(PopulationFlow(system), start, np.linspace(0, 80, 100), rtol=1e-10).phases["half 1"]) for start in (large, small)]
    assert_close(flow[1] - flow[0], np.log(10) / np.linalg.norm(system.data.g), rtol=1e-4)  # the larger start's own second order


def test_the_escape_constant_of_the_white_case_is_that_of_the_closed_form():
    system = Merged.from_problem(BASE)
    state = State(jnp.asarray(1e-8), 1e-8 * system.data.g / system.rate)
    half = (system.escape_constant() - jnp.log(state.s)) / system.rate
    at = system.closed_form(half, state) / system.data.best
    assert_close(1 - (1 - at) ** 2, 0.5 * np.ones(4), rtol=1e-7)  # integrated from 1e-4 of the limit: the square of that


def test_fixed_points_are_stationary_with_their_loss():
    system = Merged.from_problem(ODD)
    minimum, saddle = system.fixed_points(5)
    assert (minimum.kind, saddle.kind, minimum.negative, saddle.negative) == ("minimum", "strict saddle", 0, 5)
    best = system.at_minimum(5)
    assert float(weights.largest(system.weights_field(best))) < 1e-14
    assert_close(system.population_loss(best), minimum.loss)
    # A generic point of M_0: no value, key-query matrices of order one orthogonal to diag g.
    g = np.asarray(system.data.matrix(system.data.g))
    U = np.random.default_rng(0).normal(size=(5, 3, 3))
    U -= np.einsum("hab,ab->h", U, g)[:, None, None] * g / np.sum(g**2)
    flat = MergedWeights(jnp.zeros(5), jnp.asarray(U))
    assert float(weights.largest(system.weights_field(flat))) < 1e-14
    assert_close(system.population_loss(flat), saddle.loss)
    assert float(weights.largest(system.weights_field(MergedWeights(jnp.zeros(5), jnp.asarray(U + g))))) > 0.05


def _curvature(system, at):
    flat, unravel = jax.flatten_util.ravel_pytree(at)
    return np.linalg.eigvalsh(jax.hessian(lambda x: system.population_loss(unravel(x)))(flat))


@pytest.mark.parametrize("problem", [GENERAL, ODD], ids=["general", "rotated, noisy, prior"])
def test_the_saddle_has_one_escape_per_head_and_the_minimum_none(problem):
    system, heads, d = Merged.from_problem(problem), 4, len(problem.task.spectrum)
    zero = _curvature(system, MergedWeights(jnp.zeros(heads), jnp.zeros((heads, d, d))))
    steepest = -2 * np.linalg.norm(system.data.g)
    assert_close(zero[:heads], np.full(heads, steepest))
    assert (zero[heads:] > -1e-12).all()
    assert (_curvature(system, system.at_minimum(heads)) >= -1e-9).all()


def test_a_generic_point_of_the_saddle_has_as_many_escapes():
    system = Merged.from_problem(ODD)
    g = np.asarray(system.data.matrix(system.data.g))
    U = np.random.default_rng(1).normal(size=(4, 3, 3))
    U -= np.einsum("hab,ab->h", U, g)[:, None, None] * g / np.sum(g**2)
    assert (_curvature(system, MergedWeights(jnp.zeros(4), jnp.asarray(U))) < -1e-9).sum() == system.fixed_points(4)[1].negative


def test_with_long_contexts_the_minimum_is_least_squares():
    for context in (10**3, 10**6):
        system = Merged.from_problem(replace(GENERAL, task=replace(GENERAL.task, context=context)))
        away = np.asarray(system.data.best * system.data.lam - 1)
        assert_close(away, -(1 + 1 / system.data.lam) / context, rtol=0.02)  # next order in 1/N: 1.1 % at N = 1000


def test_predictions_at_the_minimum_tend_to_least_squares_like_one_over_the_context():
    gaps = {}
    for context in (100, 3200):
        problem = replace(ODD, task=replace(ODD.task, context=context, noise=0.0), training=Training(dtype="float64"))
        A = Merged.from_problem(problem).at_minimum(2).A
        prompts = eqx.filter_jit(Sampler.from_problem(problem))(0, 1000)
        beta = jnp.einsum("sdn,sn->sd", prompts.tokens[:, :-1, :-1], prompts.tokens[:, -1, :-1]) / context
        attention = jnp.einsum("sa,ab,sb->s", beta, A, prompts.tokens[:, :-1, -1])
        direct = jax.vmap(lambda prompt: principal_components(prompt, 3))(prompts.each())
        assert_close(direct, prompts.target, rtol=1e-9, atol=1e-9)  # without noise least squares knows the label; an SVD's rounding
        gaps[context] = float(jnp.mean((attention - direct) ** 2))
    assert gaps[100] / gaps[3200] == pytest.approx(32, rel=0.25)  # 1000 prompts with heavy tails


def test_what_merged_is_not_for_is_said():
    with pytest.raises(BadInput, match=r"attention\.kind merged"):
        Merged.from_problem(replace(BASE, attention=SeparateHeads()))
    with pytest.raises(BadInput, match=r"linear\.blocks"):
        Merged.from_problem(replace(BASE, task=replace(BASE.task, in_context=0.5)))
