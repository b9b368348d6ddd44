"""The escape law and the forecast from the start alone, against direct integration of the full population flow."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from scipy.integrate import solve_ivp

from spectral_ode import Problem, draw, solve_problem
from spectral_ode.flow import PopulationFlow
from spectral_ode.problem import Start
from spectral_ode.systems.linear import Separate, _escape

LAM = jnp.asarray([0.4, 0.3, 0.2, 0.1])


def _random_head(seed: int) -> _escape.Head:
    rng = np.random.default_rng(seed)
    return _escape.Head(jnp.asarray(rng.normal()), jnp.asarray(rng.normal(size=4)), jnp.asarray(2 * rng.normal(size=4)))


def _integrate(head: _escape.Head, rate: np.ndarray, t: float) -> tuple[np.ndarray, float]:
    """The head ODE itself with a tight solver, until t or until it has all but blown up."""

    def field(_, y):
        v, p, n = y[0], y[1:5], y[5:]
        return np.concatenate([[0.25 * np.sum(rate * (p**2 - n**2))], v * rate * p, -v * rate * n])

    far = lambda _, y: np.abs(y[0]) - 1e7
    far.terminal = True
    start = np.concatenate([[head.v], head.p, head.n])
    found = solve_ivp(field, (0, t), start, "DOP853", rtol=1e-12, atol=1e-13, events=far)
    return found.y[:, -1], found.t[-1]


@pytest.mark.parametrize("seed", range(8))
def test_escape_time_is_the_blow_up_time_of_the_head(seed):
    head, rate = _random_head(seed), np.asarray(LAM**2)
    y, last = _integrate(head, rate, 1e4)
    remaining = 1 / (rate[0] * abs(y[0]))  # v = 1 / (lam^2 (T - t)) near blow-up
    assert_close(_escape.escape_time(head, jnp.asarray(rate)), last + remaining, rtol=1e-7)  # corrections of relative order 1/v


def test_some_of_these_heads_turn_around():
    turned = [bool(_escape._path(_random_head(seed), LAM**2).side * _random_head(seed).v < 0) for seed in range(8)]
    assert any(turned)
    assert not all(turned)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_advance_is_the_state_of_the_head(seed, share):
    head, rate = _random_head(seed), jnp.asarray([0.0, 0.09, 0.04, 0.01])
    t = share * float(_escape.escape_time(head, rate))
    y, _ = _integrate(head, np.asarray(rate), t)
    moved = _escape.advance(head, rate, jnp.asarray(t))
    assert_close(np.concatenate([[moved.v], moved.p, moved.n]), y, rtol=1e-7, atol=1e-8)  # near a turning point v = 0


def test_escape_times_are_differentiable():
    head, direction = _random_head(3), _random_head(11)
    along = lambda step: _escape.escape_time(jax.tree.map(lambda a, b: a + step * b, head, direction), LAM**2)
    difference = (along(1e-5) - along(-1e-5)) / 2e-5
    assert_close(jax.grad(along)(0.0), difference, rtol=1e-6)  # of the difference quotient


def _errors(scale: float, horizon: float) -> tuple[np.ndarray, np.ndarray]:
    """Relative error of the forecast half-drop times and wrong heads, six runs x four drops."""
    problem = Problem(start=Start(scale=scale), horizon=horizon, points=1500)
    system = Separate.from_problem(problem)
    flow, forecast = PopulationFlow(system), eqx.filter_jit(lambda system, start: system.forecast(start))
    error, wrong = np.full((6, 4), np.nan), np.zeros((6, 4), bool)
    for run in range(6):
        start = draw(problem, run=run)
        found, guess = solve_problem(flow, problem, start), forecast(system, start)
        for d in range(4):
            time = float(found.phases[f"half {d + 1}"])
            error[run, d] = abs(float(guess["half"][d]) / time - 1)
            wrong[run, d] = np.isfinite(time) and int(found["head"][-1, d]) != int(guess["head"][d])
    return error, wrong


@pytest.mark.slow
def test_forecast_of_figure_3_without_a_fit_and_its_slope_in_the_start_scale():
    small, wrong = _errors(0.01, 150_000.0)
    medium, _ = _errors(0.03, 60_000.0)
    large, _ = _errors(0.1, 20_000.0)
    assert not wrong.any()
    assert np.all(np.nanmedian(small, axis=0) <= 0.005)
    medians = np.array([np.nanmedian(errors, axis=0).max() for errors in (small, medium, large)])
    slope = np.polyfit(np.log([0.01, 0.03, 0.1]), np.log(medians), 1)[0]
    assert slope > 0.5, (medians, slope)


def test_the_kick_of_a_drop_is_what_makes_later_forecasts_right(monkeypatch):
    problem = Problem(start=Start(scale=0.01), horizon=60_000.0)
    system = Separate.from_problem(problem)
    start = draw(problem, run=3)
    found = solve_problem(PopulationFlow(system), replace(problem, points=400), start)
    truth = np.array([float(found.phases[f"half {d + 1}"]) for d in range(4)])
    with_kick = np.abs(np.asarray(system.forecast(start)["half"]) / truth - 1)
    monkeypatch.setattr(_escape, "_kick", lambda heads, *_: heads)
    without = np.abs(np.asarray(system.forecast(start)["half"]) / truth - 1)
    assert np.all(with_kick < 0.005)
    assert np.all(without[1:] > 2 * with_kick[1:])
