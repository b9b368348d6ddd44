"""The separate reduction of arXiv:2501.16265: identities, closed forms, fixed points, moments."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from scipy.integrate import solve_ivp

from simulate.tasks import Sampler
from spectral_ode import BadInput, Problem, draw, solve, weights
from spectral_ode.problem import Regression, SeparateHeads, Start, Training
from spectral_ode.systems.linear import _scalar
from spectral_ode.systems.linear.separate import HALF, Separate, State

GENERAL = Problem(task=Regression(spectrum=(0.5, 0.2, 0.3), context=7, noise=0.7, rotation=3), attention=SeparateHeads(heads=2, rank=3))


def test_known_plateau_losses_of_figure_3():
    system = Separate.from_problem(Problem())
    # Printed to six digits in the authors' notebook.
    assert_close([system.data.plateau_loss(m) for m in range(5)], [1, 0.640580, 0.377372, 0.209805, 0.135995], rtol=0, atol=5e-7)


@pytest.mark.parametrize("problem", [Problem(), GENERAL], ids=["figure 3", "rank 3, rotated, noisy"])
def test_field_of_the_weights_is_minus_half_the_gradient(problem):
    system = Separate.from_problem(problem)
    start = draw(replace(problem, start=Start(scale=5.0)))
    gradient = jax.grad(system.population_loss)(start)
    for field, slope in zip(jax.tree.leaves(system.weights_field(start)), jax.tree.leaves(gradient), strict=True):
        assert_close(field, -0.5 * slope, rtol=1e-12)


def test_scalar_field_is_the_gradient_of_the_reduced_loss_in_the_metric_of_the_ansatz():
    system = Separate.from_problem(Problem())
    v = system.limit * jnp.asarray([0.3, 0.9, 1.2, 0.01])
    slope = jax.grad(lambda v: system.observe(State(v))["loss"])(v)
    # (v, k, q) all move with v, so that a unit of v is sqrt(3) long: -1/2 dL/dv / 3.
    assert_close(system.scalar_field(v), -slope / 6, rtol=1e-12)


def test_population_loss_agrees_with_monte_carlo():
    system = Separate.from_problem(GENERAL)
    sampled = replace(GENERAL, training=Training(dtype="float64"))
    start = draw(replace(GENERAL, start=Start(scale=2.0)))
    prompts = jax.jit(lambda: Sampler.from_problem(sampled)(0, 400_000))()
    beta = jnp.einsum("sdn,sn->sd", prompts.tokens[:, :-1, :-1], prompts.tokens[:, -1, :-1]) / GENERAL.task.context
    A = jnp.einsum("h,hra,hrb->ab", start.value, start.key, start.query)
    error = (prompts.target - jnp.einsum("sa,ab,sb->s", beta, A, prompts.tokens[:, :-1, -1])) ** 2
    standard_error = float(jnp.std(error) / jnp.sqrt(400_000.0))
    # Four standard errors: a false alarm once in 16,000 seeds, and this seed is fixed.
    assert abs(float(jnp.mean(error)) - float(system.population_loss(start))) < 4 * standard_error
    assert standard_error < 0.01 * float(system.population_loss(start))


def test_moment_of_beta_agrees_with_monte_carlo():
    system = Separate.from_problem(GENERAL)
    prompts = jax.jit(lambda: Sampler.from_problem(replace(GENERAL, training=Training(dtype="float64")))(1, 400_000))()
    beta = jnp.einsum("sdn,sn->sd", prompts.tokens[:, :-1, :-1], prompts.tokens[:, -1, :-1]) / GENERAL.task.context
    product = beta[:, :, None] * beta[:, None, :]
    z = np.asarray((jnp.mean(product, axis=0) - system.data.matrix(system.data.C)) / (jnp.std(product, axis=0) / jnp.sqrt(400_000.0)))
    assert np.abs(z).max() < 4


def test_closed_form_inverts_to_machine_precision():
    s = jnp.asarray([1e-8, 1e-3, 0.1, 0.3, 0.4999999, 0.5, 0.5000001, 0.7, 0.9, 0.999, 1 - 1e-9])
    assert_close(_scalar.inverse(_scalar.g(s)), s, rtol=1e-15)


@pytest.mark.parametrize("share", [0.2, 1.0, 1.5, 30.0])  # of v*: below, at rest, and from above
def test_closed_form_against_scipy(share):
    system = Separate.from_problem(Problem())
    v0 = share * system.limit
    times = np.linspace(0, 400, 50)
    found = solve_ivp(
        lambda t, v: np.asarray(system.scalar_field(jnp.asarray(v))), (0, 400), np.asarray(v0), "DOP853", times, rtol=1e-12, atol=1e-14
    )
    exact = jax.vmap(lambda t: system.closed_form(t, v0))(jnp.asarray(times))
    assert_close(exact, found.y.T, rtol=1e-9)  # the referee's own error


@pytest.mark.parametrize("rtol", [1e-6, 1e-8, 1e-10])
def test_solve_follows_the_closed_form_within_ten_tolerances(rtol):
    problem = Problem(horizon=60_000.0)
    system = Separate.from_problem(problem)
    (claim,) = [claim for claim in system.claims(problem) if claim.name == "solve = implicit closed form"]
    for run in range(3):
        state = eqx.filter_jit(system.project)(draw(problem, run=run))
        found = solve(system, state, problem.times, rtol=rtol, phases=False)
        assert float(jnp.max(claim.distance(found.time[1:], {"v": found["v"][1:]}, state))) <= 10 * rtol


def test_a_start_beyond_the_limit_comes_down_and_its_drops_are_past():
    problem = Problem(start=Start(scale=3.0), horizon=40.0)
    system = Separate.from_problem(problem)
    (claim,) = [claim for claim in system.claims(problem) if claim.name == "solve = implicit closed form"]
    start = draw(problem)
    state = eqx.filter_jit(system.project)(start)
    assert bool(jnp.any(state.v > system.limit))
    found = solve(system, state, problem.times)
    assert float(jnp.max(claim.distance(found.time[1:], {"v": found["v"][1:]}, state))) <= 1e-7  # 10 x rtol
    half = jnp.stack([found.phases[f"half {d + 1}"] for d in range(system.limit.size)])
    past = state.v > 0.9 * system.limit
    assert_close(eqx.filter_jit(system.forecast)(start)["half"][past], half[past], rtol=0, atol=0)


def test_a_moderate_start_follows_the_closed_form_pointwise():
    system = Separate.from_problem(Problem())
    state = State(0.3 * system.limit)
    found = solve(system, state, np.linspace(0, 300, 200), rtol=1e-9, phases=False)
    exact = jax.vmap(lambda t: system.closed_form(t, state.v))(found.time)
    assert_close(found["v"] / system.limit[None], exact / system.limit[None], rtol=0, atol=1e-8)  # 10 x rtol


def test_fixed_points_are_2_to_the_d_and_stationary_with_their_loss():
    system = Separate.from_problem(GENERAL)
    points = system.fixed_points()
    assert len(points) == 8
    assert points[0].subset == (0, 1, 2)
    assert points[0].kind == "minimum"
    for point in points:
        at = system.at_fixed_point(point.subset, 4)
        assert float(weights.largest(system.weights_field(at))) < 1e-14
        assert_close(system.population_loss(at), point.loss)


@pytest.mark.parametrize("problem", [Problem(), Problem(task=Regression(spectrum=(0.5, 0.3, 0.2), rotation=2))], ids=["D=4", "D=3 rotated"])
def test_negative_directions_are_those_of_the_hessian(problem):
    system = Separate.from_problem(problem)
    for point in system.fixed_points():
        flat, unravel = jax.flatten_util.ravel_pytree(system.at_fixed_point(point.subset, problem.attention.heads))
        curvature = np.linalg.eigvalsh(jax.hessian(lambda x, unravel=unravel: system.population_loss(unravel(x)))(flat))
        assert (curvature < -1e-9).sum() == point.negative, point
        visited = point.subset == tuple(range(len(point.subset)))
        assert (point.negative == 0) == visited


def test_the_saddles_that_training_visits_are_left_at_third_order():
    system = Separate.from_problem(Problem())
    at = system.at_fixed_point((0,), 4)
    idle = eqx.tree_at(
        lambda w: (w.value, w.key, w.query), at, (at.value.at[1].add(1.0), at.key.at[1, 0, 1].add(1.0), at.query.at[1, 0, 1].add(1.0))
    )
    along = lambda step: system.population_loss(jax.tree.map(lambda a, b: a + step * (b - a), at, idle))
    first, second, third = jax.grad(along), jax.grad(jax.grad(along)), jax.grad(jax.grad(jax.grad(along)))
    assert_close([first(0.0), second(0.0)], [0, 0])
    assert_close(third(0.0), -12 * system.data.lam[1] ** 2)  # L = ... - 2 lam^2 step^3


def test_too_few_heads_for_a_subset_is_said():
    system = Separate.from_problem(Problem())
    with pytest.raises(BadInput, match="3 directions need at least 3 heads"):
        system.at_fixed_point((0, 1, 2), 2)


def test_half_drop_is_half_of_the_drop():
    system = Separate.from_problem(Problem(task=Regression(spectrum=(0.4,))))
    loss = [float(system.observe(State(share ** (1 / 3) * system.limit))["loss"]) for share in (0.0, HALF, 1.0)]
    assert_close(loss[1], 0.5 * (loss[0] + loss[2]))
