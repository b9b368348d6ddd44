r"""The escape law and its chain (`systems.linear._escape`) against scipy: no quadrature, the plateau equations themselves.

    v' = k.G q,  k' = v G q,  q' = v G k,   G = diag(g) on the directions that are not yet learned,

are integrated until a head has blown up, T = t + 1/(g v); the linear equations of the kick likewise. The chain: the head with the
smallest T takes the direction of the largest rate left; at T - 1/(g v*) the others are kicked, and the next plateau begins.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from spectral_ode.problem import Problem, Regression, SeparateHeads
from spectral_ode.systems.linear import Separate, _escape
from validate.plain.linear import Task
from validate.plain.numbers import ALGEBRA, Form, least, plainly


def _plateau(g: np.ndarray, v: float, p: np.ndarray, n: np.ndarray, time: float | None = None, rtol=1e-10) -> tuple[float, np.ndarray]:
    """When a head blows up under rates g, and the head (v, p, n) at a time (half of that, if none is given)."""
    d, start = g.size, np.concatenate([[v], (p + n) / 2, (p - n) / 2])

    def field(_, y):
        k, q = y[1 : 1 + d], y[1 + d :]
        return np.concatenate([[np.sum(k * g * q)], y[0] * g * q, y[0] * g * k])

    far: Any = lambda _, y: abs(y[0]) - 1e7
    far.terminal = True
    about = {"method": "DOP853", "rtol": rtol, "atol": 0.01 * rtol * np.max(np.abs(start))}
    course = solve_ivp(field, (0, 1e9), start, events=far, **about)
    end = float(course.t[-1] + 1 / (np.max(g) * abs(course.y[0, -1])))
    then = solve_ivp(field, (0, 0.5 * end if time is None else time), start, **about).y[:, -1]
    return end, np.concatenate([then[:1], then[1 : 1 + d] + then[1 + d :], then[1 : 1 + d] - then[1 + d :]])


def escapes(problem: Problem) -> dict[str, Form]:
    """Escape times of heads, their states on the way, turning points among them, and how these move, against scipy and the equations."""
    system, task = Separate.from_problem(problem), Task(problem, plainly)
    d, heads = task.g.size, _heads(task.g)
    times = np.asarray([_plateau(task.g, *head, rtol=1e-12)[0] for head in heads])
    state = lambda head, time: _plateau(task.g, *head, time=time, rtol=1e-12)[1]
    found = {}
    for share, words in ((0.25, "a quarter of the way"), (0.5, "half-way")):
        exact = np.asarray([state(*each) for each in zip(heads, share * times, strict=True)])
        v, p, n = exact[:, :1], exact[:, 1 : 1 + d], exact[:, 1 + d :]
        rates = np.concatenate(
            [np.sum(task.g[None] * (p**2 - n**2), axis=1, keepdims=True) / 4, v * task.g[None] * p, -v * task.g[None] * n], axis=1
        )
        moved, moving = _moving(_packed(heads), jnp.asarray(share * times), system.data)
        found |= {f"heads {words}": Form(moved, exact, 1e-7), f"rates of heads {words}": Form(moving, rates, 1e-6)}
    total = eqx.filter_jit(lambda packed, g: jax.vmap(lambda head: _escape.escape_time(head, g))(packed))
    return {"escape times": Form(total(_packed(heads), system.data.g), times, 1e-7)} | found


@eqx.filter_jit
def _moving(packed: _escape.Head, times: Any, data: Any) -> Any:
    """Where heads are, and the derivative of that in time: through the inverse of the time that a path takes."""

    def at(head: _escape.Head, time: Any) -> Any:
        moved = _escape.advance(head, data.g, time)
        return jnp.concatenate([moved.v[None], moved.p, moved.n])

    return jax.vmap(lambda head, time: jax.jvp(lambda t: at(head, t), (time,), (jnp.ones_like(time),)))(packed, times)


def kicks(problem: Problem) -> dict[str, Form]:
    """The integrals of the kick against scipy, the kick itself, and all plateaus in a row."""
    system, task = Separate.from_problem(problem), Task(problem, plainly)
    c, d = task.C / task.g, task.lam.size
    pairs = [(i, e) for i in range(d) for e in range(d) if task.gain[i] > task.gain[e] * 1.01]
    if not pairs:
        return {}
    alpha, beta = (np.asarray(part) for part in eqx.filter_jit(_escape.kick_integrals)(system.data))
    exact = np.asarray([_kick(task, c, i, e) for i, e in pairs])
    ours = np.asarray([[alpha[i, e], beta[i, e]] for i, e in pairs])
    return {
        "kick integrals": Form(ours, exact, 1e-5),
        "kick of waiting heads": _kicked(system, task, _packed(_heads(task.g)), alpha, beta),
        "chain of plateaus": _chain(replace(problem, task=Regression(spectrum=(0.6, 0.4, 0.2), context=15), attention=SeparateHeads())),
    }


def _heads(g: np.ndarray) -> list[tuple[float, np.ndarray, np.ndarray]]:
    d, rng, one = g.size, np.random.default_rng(3), np.ones(g.size)
    heads = [(0.3 * rng.normal(), rng.normal(size=d), rng.normal(size=d)) for _ in range(4)]
    # One with a valley ahead, two just too slow (they turn back) and just fast enough to pass it; two at rest, pushed up and down.
    still = lambda s: np.sum(np.expm1(2 * g * s) + 0.01 * np.expm1(-2 * g * s)) / 4  # V without v^2
    _, valley = least(still, -10 / np.max(g), 0.0)
    edge = [(-np.sqrt(-valley * share), one, 0.1 * one) for share in (1 - 1e-5, 1 + 1e-5)]
    return [*heads, (-1.2, one, 0.1 * one), *edge, (0.0, one, 0.3 * one), (0.0, 0.3 * one, one)]


def _packed(heads: list[tuple[float, np.ndarray, np.ndarray]]) -> _escape.Head:
    return _escape.Head(*(jnp.asarray(np.asarray(part)) for part in zip(*heads, strict=True)))


def _shaken(task: Task, winner: np.ndarray, heads: np.ndarray, direction: int, left: np.ndarray, alpha, beta) -> np.ndarray:
    """Heads (v, p, n) after a winner's drop: dk_e = v I_e q_d, dq_e = v J_e k_d, dv = k.I q_d + q.J k_d; the growing part of the winner."""
    d, limit = task.lam.size, np.cbrt(task.best)
    others = left & (np.arange(d) != direction)
    main = winner[direction]
    size = winner / 2 * (2 * limit[direction] / abs(main)) ** (task.g / task.g[direction]) * np.sign(main) * limit[direction] * others
    I, J = -task.C * task.lam[direction] * size * alpha[direction], -task.C[direction] * task.lam * size * beta[direction]
    v, p, n = heads[:, 0], heads[:, 1 : 1 + d], heads[:, 1 + d :]
    k, q = (p + n) / 2, (p - n) / 2
    dk, dq = v[:, None] * I[None] * q[:, [direction]], v[:, None] * J[None] * k[:, [direction]]
    dv = (k @ I) * q[:, direction] + (q @ J) * k[:, direction]
    return np.concatenate([(v + dv)[:, None], p + dk + dq, n + dk - dq], axis=1)


def _kicked(system: Separate, task: Task, heads: _escape.Head, alpha: Any, beta: Any) -> Form:
    """What a winner on the growing side n does to waiting heads."""
    d, limit = task.lam.size, np.cbrt(task.best)
    winner = _escape.Head(jnp.asarray(-0.1), jnp.full(d, 0.01), jnp.asarray(-0.05 * (1.0 + np.arange(d))))
    packed = np.concatenate([np.asarray(heads.v)[:, None], np.asarray(heads.p), np.asarray(heads.n)], axis=1)
    exact = _shaken(task, np.asarray(winner.n), packed, 0, np.ones(d, bool), np.asarray(alpha), np.asarray(beta))
    kick = eqx.filter_jit(_escape._kick)
    moved = kick(heads, winner, jnp.asarray(-1.0), 0, jnp.ones(d, bool), system.data, jnp.asarray(limit), (alpha, beta))
    return Form(jnp.concatenate([moved.v[:, None], moved.p, moved.n], axis=1), exact, ALGEBRA)


def _chain(problem: Problem) -> Form:
    """Heads and blow-up times of three directions, from three small heads: from the third plateau on, times add up."""
    system, task = Separate.from_problem(problem), Task(problem, plainly)
    alpha, beta = (np.asarray(part) for part in eqx.filter_jit(_escape.kick_integrals)(system.data))
    d, limit, rng = task.lam.size, np.cbrt(task.best), np.random.default_rng(7)
    heads = 0.02 * rng.normal(size=(3, 1 + 2 * d))
    start = _escape.Head(jnp.asarray(heads[:, 0]), jnp.asarray(heads[:, 1 : 1 + d]), jnp.asarray(heads[:, 1 + d :]))
    found = eqx.filter_jit(_escape.forecast)(start, system.data)
    free, left, now = [0, 1, 2], np.ones(d, bool), 0.0
    head, blow_up = np.full(d, -1), np.full(d, np.inf)
    for _ in range(min(3, d)):
        rate = np.where(left, task.g, 0.0)
        parts = lambda one: (one[0], one[1 : 1 + d], one[1 + d :])
        ends = {h: _plateau(rate, *parts(heads[h]))[0] for h in free}
        winner, direction = min(free, key=lambda h, ends=ends: ends[h]), int(np.argmax(rate))
        head[direction], blow_up[direction] = winner, now + ends[winner]
        wait = max(ends[winner] - 1 / (task.g[direction] * limit[direction]), 0.0)
        late = _plateau(rate, *parts(heads[winner]), time=0.9 * ends[winner])[1]
        grown = heads[winner, 1 : 1 + d] if late[0] > 0 else heads[winner, 1 + d :]
        heads = np.asarray([_plateau(rate, *parts(one), time=wait)[1] if h in free else one for h, one in enumerate(heads)])
        heads = _shaken(task, grown, heads, direction, left, alpha, beta)
        free.remove(winner)
        left[direction], now = False, now + wait
    order = np.isfinite(blow_up)
    return Form((np.asarray(found.head), np.asarray(found.blow_up)[order]), (head, blow_up[order]), 1e-6)


def _kick(task: Task, c: np.ndarray, i: int, e: int) -> tuple[float, float]:
    g, b = task.g[i], task.g[e]

    def field(x, y):
        r = 1 / (1 + np.exp(-3 * g * x))
        K, Q = y[:2]
        return [b * Q - b * c[e] / c[i] * r * K, b * K - g * task.lam[e] / task.lam[i] * r * Q, np.cbrt(r) * K, np.cbrt(r) * Q]

    low, high = -40.0 / (g + b), 200.0 / min(g, b)
    found = solve_ivp(field, (low, high), [np.exp(b * low), np.exp(b * low), 0.0, 0.0], method="LSODA", rtol=1e-11, atol=1e-16)
    return found.y[2, -1], found.y[3, -1]
