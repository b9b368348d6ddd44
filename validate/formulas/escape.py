r"""The escape law of linear attention: heads that blow up, heads on their way, the kick of a drop; each against a tight solver of scipy.

A rank-one head on a plateau obeys v' = k.G q, k' = v G q, q' = v G k with G = diag(g) on the unlearned directions; in p = k + q, n = k - q:

    v' = (1/4) sum_d g_d (p_d^2 - n_d^2),     p' = v g p,     n' = -v g n

The kick is seen in the flow of all weights: two heads from a faint start, the second one aligned with what the first one learns.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from spectral_ode.flow import PopulationFlow
from spectral_ode.integrate import solve
from spectral_ode.problem import Problem, Regression, SeparateHeads
from spectral_ode.systems.linear import Separate, _escape
from spectral_ode.weights import SeparateWeights

RATE = np.array([0.16, 0.09, 0.04])
TASK = Problem(task=Regression(spectrum=(0.6, 0.4), context=15), attention=SeparateHeads(heads=2))


def _head(seed: int) -> _escape.Head:
    rng = np.random.default_rng(seed)
    return _escape.Head(jnp.asarray(rng.normal()), jnp.asarray(rng.normal(size=3)), jnp.asarray(2 * rng.normal(size=3)))


def _course(head: _escape.Head, rate: np.ndarray, time: float) -> tuple[np.ndarray, float]:
    """The head at a time, or where it has all but blown up, and that time."""

    def field(_: float, y: np.ndarray) -> np.ndarray:
        v, p, n = y[0], y[1:4], y[4:]
        return np.concatenate([[0.25 * np.sum(rate * (p**2 - n**2))], v * rate * p, -v * rate * n])

    far = lambda _, y: abs(y[0]) - 1e7
    far.terminal = True
    found = solve_ivp(field, (0, time), np.concatenate([[head.v], head.p, head.n]), "DOP853", rtol=1e-12, atol=1e-13, events=far)
    return found.y[:, -1], float(found.t[-1])


def heads() -> Iterator[tuple[Any, Any]]:
    """Six heads, of which some turn around: blow-up, and where they are before and after the turn."""
    escape_time, advance = jax.jit(_escape.escape_time), jax.jit(_escape.advance)
    for seed in range(6):
        head = _head(seed)
        state, last = _course(head, RATE, 1e4)
        yield escape_time(head, jnp.asarray(RATE)), last + 1 / (RATE[0] * abs(state[0]))  # v = 1/(g (T - t)) near T
        rate = RATE * [0, 1, 1]  # the first direction is learned already
        for share in (0.1, 0.6, 0.9):
            t = share * float(escape_time(head, jnp.asarray(rate)))
            moved = advance(head, jnp.asarray(rate), jnp.asarray(t))
            yield jnp.concatenate([moved.v[None], moved.p, moved.n]), _course(head, rate, t)[0]


def kicks() -> Iterator[tuple[Any, Any]]:
    """Int r^(1/3) (K, Q) dx through a drop, for a slower and for a faster transverse direction."""
    data = Separate.from_problem(replace(TASK, task=replace(TASK.task, prior=(1.0, 0.8), noise=0.4))).data
    found = np.asarray(_escape.kick_integrals(data))
    g, lam, c = (np.asarray(part) for part in (data.g, data.lam, data.c))
    d, e = 0, 1  # the first one is learned, the second one waits

    def field(x: float, y: np.ndarray) -> np.ndarray:
        r = 1 / (1 + np.exp(-3 * g[d] * x))
        K, Q = y[:2]
        return np.array([g[e] * (Q - c[e] / c[d] * r * K), g[e] * K - g[d] * lam[e] / lam[d] * r * Q, r ** (1 / 3) * K, r ** (1 / 3) * Q])

    begin = -40.0 / (g[d] + g[e])
    first = np.exp(g[e] * begin)
    solved = solve_ivp(field, (begin, 400.0 / g[d]), [first, first, 0.0, 0.0], "DOP853", rtol=1e-12, atol=1e-16)
    yield found[:, d, e], solved.y[2:, -1]


def second_drop() -> Iterator[tuple[Any, Any]]:
    """Forecast of both half-drop times against the flow of all weights, for a second head that the first drop kicks hard."""
    system, scale = Separate.from_problem(TASK), 0.002
    key = jnp.asarray([[[1.0, 0.35]], [[0.7, 0.1]]])
    query = jnp.asarray([[[0.9, 0.3]], [[0.6, -0.15]]])
    start = SeparateWeights(scale * jnp.asarray([1.1, 0.8]), scale * key, scale * query)
    forecast = system.forecast(start)
    horizon = 1.5 * float(forecast["half"][1])
    flow = solve(PopulationFlow(system), start, np.linspace(0.0, horizon, 300), rtol=1e-9)
    yield forecast["half"], [float(flow.phases[f"half {d}"]) for d in (1, 2)]
    yield 1 + forecast["head"], [1, 2]


FORMULAS = {
    "linear.separate": {
        "heads on a plateau: blow-up and course": (heads, 1e-6, "near blow-up and at turning points scipy is good to 1e-7"),
        "integrals of the kick": (kicks, 1e-7, "a thousand Runge-Kutta steps"),
        "forecast of the second drop after a hard kick": (second_drop, 3e-4, "asymptotic in the start, 0.002 here"),
    }
}
