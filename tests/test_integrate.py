"""The single call into Diffrax: orders, phases, stops, failures as values, vmap and grad."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from small import SMALL

from spectral_ode import BadInput, Problem, draw, solve, solve_problem
from spectral_ode.flow import PopulationFlow
from spectral_ode.integrate import SOLVERS
from spectral_ode.problem import Regression
from spectral_ode.systems.linear.separate import HALF, LEFT, SETTLED, Separate, State

ONE = Separate.from_problem(Problem(task=Regression(spectrum=(1.0,), context=9)))
ORDERS = {"tsit5": 5, "dopri5": 5, "dopri8": 8}


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "kvaerno5"])
def test_order_of_convergence_of_the_explicit_solvers(name):
    v0 = 0.3 * ONE.limit
    exact = ONE.closed_form(jnp.asarray(4.0), v0)
    term = diffrax.ODETerm(lambda t, y, args: ONE.vector_field(t, y))

    def error(steps: int) -> float:
        found = diffrax.diffeqsolve(term, SOLVERS[name](), 0.0, 4.0, 4.0 / steps, State(v0), max_steps=4096)
        return float(jnp.abs(found.ys.v[-1, 0] - exact[0]))

    coarse, fine = (8, 16) if name == "dopri8" else (32, 64)
    slope = np.log2(error(coarse) / error(fine))
    assert ORDERS[name] - 0.5 < slope < ORDERS[name] + 1.5, slope


def test_phases_are_the_closed_form_times():
    system = Separate.from_problem(Problem())
    state = State(jnp.asarray([0.05, 0.04, 0.03, 0.02]))
    found = solve(system, state, np.linspace(0, 8000, 300), rtol=1e-10)
    for name, level in (("left", LEFT), ("half", HALF), ("settled", SETTLED)):
        exact = system.time_to(level ** (1 / 3) * system.limit, state.v)
        assert_close([found.phases[f"{name} {d + 1}"] for d in range(4)], exact, rtol=1e-8)


def test_phases_do_not_depend_on_the_saved_times():
    system = Separate.from_problem(SMALL)
    flow, start = PopulationFlow(system), draw(SMALL)
    few, many = (solve(flow, start, np.linspace(0, 2500, n), rtol=1e-9) for n in (60, 601))
    assert_close([few.phases[name] for name in sorted(few.phases)], [many.phases[name] for name in sorted(many.phases)], rtol=1e-7)


def test_a_phase_that_is_not_reached_is_nan_and_does_not_spoil_the_others():
    found = solve(Separate.from_problem(Problem()), State(jnp.asarray([0.2, 1e-4, 1e-4, 0.0])), np.linspace(0, 100, 50))
    assert np.isfinite(float(found.phases["settled 1"]))
    assert np.isnan(float(found.phases["left 2"]))
    assert 0 < float(found.phases["left 1"]) < float(found.phases["half 1"]) < float(found.phases["settled 1"]) < 100


def test_a_phase_that_is_past_at_the_start_is_at_the_start():
    found = solve(ONE, State(0.9 * ONE.limit), np.linspace(0, 10, 5))
    assert float(found.phases["half 1"]) == 0.0


def test_conserved_quantities_of_any_rank_and_covariance():
    problem = Problem(task=Regression(spectrum=(0.9, 0.5, 0.3), noise=0.4, rotation=5), horizon=100.0)
    system = Separate.from_problem(problem)
    rng = np.random.default_rng(0)
    start = eqx.tree_at(
        lambda w: (w.value, w.key, w.query), draw(problem), tuple(jnp.asarray(rng.normal(size=s)) for s in ((2,), (2, 2, 3), (2, 2, 3)))
    )
    found = solve(PopulationFlow(system), start, np.linspace(0, 50, 40), rtol=1e-9, phases=False)
    (claim,) = [claim for claim in system.claims(problem) if claim.name.startswith("v^2 - |k|^2")]
    quantity = np.asarray(claim.quantity(found.observables))
    assert np.abs(quantity - quantity[:1]).max() <= 1e-8 * float(claim.scale(found.observables))
    assert np.abs(quantity[0]).max() > 0.1


def test_loss_of_the_population_flow_never_rises():
    found = solve_problem(PopulationFlow(Separate.from_problem(SMALL)), SMALL, draw(SMALL))
    assert np.diff(np.asarray(found["loss"])).max() < 1e-9


def test_phases_are_found_though_the_steady_state_comes_before_the_next_recorded_time():
    coarse, fine = (solve(ONE, State(0.1 * ONE.limit), np.linspace(0, 1000, points), steady=True) for points in (2, 400))
    assert coarse.time.size == 1
    for name, moment in fine.phases.items():
        assert_close(coarse.phases[name], moment, rtol=1e-7)  # ten tolerances


def test_steady_state_stops_behind_the_last_phase_and_trims():
    found = solve(ONE, State(0.1 * ONE.limit), np.linspace(0, 1000, 400), steady=True)
    assert found.ok
    assert "steady state" in found.stopped
    assert 10 < float(found.time[-1]) < 200
    assert_close(found["v"][-1], ONE.limit, rtol=1e-5)  # the last saved time lies up to one spacing before the stop


def test_failure_is_a_value_that_says_where_and_what_to_try():
    found = solve(ONE, State(0.01 * ONE.limit), np.linspace(0, 1000, 100), max_steps=20)
    assert not found.ok
    assert "after 20 steps" in found.stopped
    assert "--solver.max-steps" in found.stopped
    assert np.isfinite(np.asarray(found["v"])).all()
    assert float(found.time[-1]) < 1000


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"solver": "euler"}, "unknown solver"), ({"atol": 1e-3}, "too coarse"), ({"times": np.asarray([0.0, 2.0, 1.0])}, "increasing")],
)
def test_mistakes_are_one_sentence(changes, words):
    times = changes.pop("times", np.linspace(0, 1, 3))
    with pytest.raises(BadInput, match=words):
        solve(ONE, State(jnp.asarray([0.01])), times, **changes)


def test_single_precision_is_refused_for_a_tight_tolerance():
    with pytest.raises(BadInput, match="needs float64"):
        solve(ONE, State(jnp.asarray([0.01], "float32")), np.linspace(0, 1, 3))


def test_vmap_over_starts_is_one_at_a_time():
    times = jnp.linspace(0, 60, 30)
    starts = jnp.asarray([[0.1], [0.2], [0.4]])
    together = jax.vmap(lambda v: solve(ONE, State(v), times))(starts)
    for index, start in enumerate(starts):
        alone = solve(ONE, State(start), times)
        assert_close(together["v"][index], alone["v"], rtol=1e-9)  # step sizes may differ in the last bit
        assert_close(together.phases["half 1"][index], alone.phases["half 1"], rtol=1e-9)


def test_gradient_of_a_drop_time_is_that_of_the_closed_form():
    times = jnp.linspace(0, 80, 20)
    by_solver = jax.grad(lambda v: solve(ONE, State(v), times, rtol=1e-10).phases["half 1"][()])(jnp.asarray([0.1]))
    by_formula = jax.grad(lambda v: ONE.time_to(HALF ** (1 / 3) * ONE.limit, v)[0])(jnp.asarray([0.1]))
    assert_close(by_solver, by_formula, rtol=1e-6)  # of the interpolant around the event


def test_a_split_solve_is_the_whole_solve():
    start = State(0.05 * ONE.limit)
    whole = solve(ONE, start, np.linspace(0, 40, 41), rtol=1e-10, phases=False)
    first = solve(ONE, start, np.linspace(0, 20, 21), rtol=1e-10, phases=False)
    second = solve(ONE, State(first["v"][-1]), np.linspace(20, 40, 21), rtol=1e-10, phases=False)
    assert_close(second["v"], whole["v"][20:], rtol=1e-7)  # a plateau amplifies the error at the seam
    assert_close(whole["v"][0], start.v)
