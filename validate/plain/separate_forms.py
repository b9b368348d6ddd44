r"""Closed forms of separate key and query (arXiv:2501.16265) against numpy, scipy and mpmath: the scalar curve, heads, fixed points.

Escape law: the plateau equations v' = k.Gq, k' = v Gq, q' = v Gk are integrated by scipy until the head has blown up. Kick: the linear
equations of `_escape` likewise. Fixed points: eigenvalues of the Jacobian of the flow.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Separate, _escape
from spectral_ode.systems.linear.separate import State
from spectral_ode.weights import SeparateWeights
from validate.plain.linear import Task
from validate.plain.numbers import ALGEBRA, Form, floats, levels_of, plainly


def separate(problem: Problem) -> dict[str, Form]:
    """Scalar curve, observables, escape law, kick and fixed points."""
    system, task = Separate.from_problem(problem), Task(problem, plainly)
    d, rng = task.lam.size, np.random.default_rng(2)
    limit = np.cbrt(task.best)
    v0, v = 0.03 * limit, 0.7 * limit
    H = 3
    value, key, query = rng.normal(size=H), rng.normal(size=(H, 1, d)), rng.normal(size=(H, 1, d))
    k, q = (part[:, 0] @ task.basis for part in (key, query))
    modes = value[:, None] * k * q
    learned = np.sum(modes, axis=0)
    own = np.argmax(np.abs(k * q), axis=1)
    along = [np.abs(value), *(np.abs(part[np.arange(H), own]) for part in (k, q))]
    outside = 1 - 3 * np.sum(np.mean(along, axis=0) ** 2) / (np.sum(value**2) + np.sum(k**2) + np.sum(q**2))
    A = np.einsum("h,ha,hb->ab", value, key[:, 0], query[:, 0])

    @eqx.filter_jit
    def look(system, v, v0, weights):
        seen, full = system.observe(State(v)), system.observe_weights(weights)
        time = system.time_to(v, v0)
        later = jax.vmap(lambda t: system.closed_form(t, v0))(time)
        phases = jnp.stack(list(system.phases({"learned": jnp.zeros(d)}).values()))
        return seen, {name: full[name] for name in ("loss", "v", "learned", "head", "outside")}, time, later, phases

    seen, full, time, later, phases = look(
        system, jnp.asarray(v), jnp.asarray(v0), SeparateWeights(*(jnp.asarray(part) for part in (value, key, query)))
    )
    with mpmath.workdps(20):
        rate = lambda i: lambda x: 1 / (task.g[i] * x**2 - task.lam[i] * task.C[i] * x**5)
        exact_time = floats(np.asarray([mpmath.quad(rate(i), [v0[i], 2 * v0[i], 0.3 * limit[i], v[i]]) for i in range(d)]))
    plateaus = task.power - np.concatenate([[0.0], np.cumsum(task.gain)])
    reduced = task.power - np.sum(2 * task.g * v**3 - task.C * task.lam * v**6)
    return (
        {
            "scalar curve, time to": Form(time, exact_time, 1e-10),
            "scalar curve, inverse": Form(np.diagonal(later), v, 1e-9),
            "loss and share of a state": Form((seen["loss"], seen["learned"]), (reduced, v**3 / task.best), ALGEBRA),
            "observed weights": Form(
                (full["loss"], full["v"], full["learned"], full["head"], full["outside"]),
                (task.loss(A), np.cbrt(learned), learned / task.best, np.argmax(np.abs(modes), axis=0), outside),
                ALGEBRA,
            ),
            "levels": Form(levels_of(system, "loss", "v"), [plateaus, limit], ALGEBRA),
            # At half of a drop 2 h - h^2 = 1/2, h = (v/v*)^3.
            "phases": Form(phases, -np.tile([0.01, 1 - np.sqrt(0.5), 0.95], d), ALGEBRA),
        }
        | _escapes(system, task)
        | _stability(system, task)
    )


def _escapes(system: Separate, task: Task) -> dict[str, Form]:
    """Escape times and half-way states of heads, turning points among them, against scipy; the integrals of the kick, too."""
    rng, d = np.random.default_rng(3), task.lam.size
    heads = [(0.3 * rng.normal(), rng.normal(size=d), rng.normal(size=d)) for _ in range(4)]
    heads += [(-1.2, np.ones(d), 0.1 * np.ones(d))]  # turns back
    times, states = [], []
    for v, p, n in heads:
        start = np.concatenate([[v], (p + n) / 2, (p - n) / 2])

        def field(_, y):
            k, q = y[1 : 1 + d], y[1 + d :]
            return np.concatenate([[np.sum(k * task.g * q)], y[0] * task.g * q, y[0] * task.g * k])

        far = lambda _, y: abs(y[0]) - 1e7
        far.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
        course = solve_ivp(field, (0, 1e9), start, method="DOP853", rtol=1e-12, atol=1e-14, events=far)
        times.append(course.t[-1] + 1 / (np.max(task.g) * abs(course.y[0, -1])))
        half = solve_ivp(field, (0, 0.5 * times[-1]), start, method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
        states.append(np.concatenate([half[:1], half[1 : 1 + d] + half[1 + d :], half[1 : 1 + d] - half[1 + d :]]))
    packed = _escape.Head(*(jnp.asarray(np.asarray(part)) for part in zip(*heads, strict=True)))

    @eqx.filter_jit
    def look(packed, times, data):
        moved = jax.vmap(lambda head, t: _escape.advance(head, data.g, t))(packed, 0.5 * times)
        total = jax.vmap(lambda head: _escape.escape_time(head, data.g))(packed)
        return total, jnp.concatenate([moved.v[:, None], moved.p, moved.n], axis=1), _escape.kick_integrals(data)

    found, moved, (alpha, beta) = look(packed, jnp.asarray(times), system.data)
    forms = {"escape times": Form(found, np.asarray(times), 1e-7), "heads half-way": Form(moved, np.asarray(states), 1e-7)}
    c = task.C / task.g
    pairs = [(i, e) for i in range(d) for e in range(d) if task.gain[i] > task.gain[e] * 1.01]
    exact = np.asarray([_kick(task, c, i, e) for i, e in pairs]).reshape(-1, 2)
    ours = np.asarray([[alpha[i, e], beta[i, e]] for i, e in pairs]).reshape(-1, 2)
    if not pairs:
        return forms
    return forms | {"kick integrals": Form(ours, exact, 1e-5), "kick of waiting heads": _kicked(system, task, packed, alpha, beta)}


def _kicked(system: Separate, task: Task, heads: _escape.Head, alpha: Any, beta: Any) -> Form:
    """What a winner on the growing side n does to waiting heads: dk_e = v I_e q_d, dq_e = v J_e k_d, dv = k.I q_d + q.J k_d."""
    d, limit = task.lam.size, np.cbrt(task.best)
    winner = _escape.Head(jnp.asarray(-0.1), jnp.full(d, 0.01), jnp.asarray(-0.05 * (1.0 + np.arange(d))))
    n = np.asarray(winner.n)
    others = np.arange(d) != 0
    size = n / 2 * (2 * limit[0] / abs(n[0])) ** (task.g / task.g[0]) * np.sign(n[0]) * limit[0] * others
    I, J = -task.C * task.lam[0] * size * np.asarray(alpha)[0], -task.C[0] * task.lam * size * np.asarray(beta)[0]
    v, p, m = (np.asarray(part) for part in heads)
    k, q = (p + m) / 2, (p - m) / 2
    dk, dq = v[:, None] * I[None] * q[:, :1], v[:, None] * J[None] * k[:, :1]
    dv = (k @ I) * q[:, 0] + (q @ J) * k[:, 0]
    kick = eqx.filter_jit(_escape._kick)
    moved = kick(heads, winner, jnp.asarray(-1.0), 0, jnp.ones(d, bool), system.data, jnp.asarray(limit), (alpha, beta))
    return Form(tuple(moved), (v + dv, p + dk + dq, m + dk - dq), ALGEBRA)


def _kick(task: Task, c: np.ndarray, i: int, e: int) -> tuple[float, float]:
    g, b = task.g[i], task.g[e]

    def field(x, y):
        r = 1 / (1 + np.exp(-3 * g * x))
        K, Q = y[:2]
        return [b * Q - b * c[e] / c[i] * r * K, b * K - g * task.lam[e] / task.lam[i] * r * Q, np.cbrt(r) * K, np.cbrt(r) * Q]

    low, high = -40.0 / (g + b), 200.0 / min(g, b)
    found = solve_ivp(field, (low, high), [np.exp(b * low), np.exp(b * low), 0.0, 0.0], method="LSODA", rtol=1e-11, atol=1e-16)
    return found.y[2, -1], found.y[3, -1]


def _stability(system: Separate, task: Task) -> dict[str, Form]:
    """Losses, rates and unstable directions at the fixed points."""
    d = task.lam.size
    if d > 3:
        return {}
    points = system.fixed_points()
    places = [system.at_fixed_point(point.subset, d) for point in points]
    flats, unflatten = jnp.stack([ravel_pytree(place)[0] for place in places]), ravel_pytree(places[0])[1]
    field = lambda flat: ravel_pytree(system.weights_field(unflatten(flat)))[0]
    rates, jacobians = eqx.filter_jit(jax.vmap(lambda flat: (field(flat), jax.jacfwd(field)(flat))))(flats)
    growing = [int(np.sum(np.linalg.eigvals(np.asarray(one)).real > 1e-7)) for one in jacobians]
    losses = sorted(task.power - sum(task.gain[list(point.subset)]) for point in points)
    kinds = [
        "minimum" if len(p.subset) == d else "strict saddle" if n else "non-strict saddle" for p, n in zip(points, growing, strict=True)
    ]
    return {
        "fixed points, losses": Form([point.loss for point in points], losses, ALGEBRA),
        "fixed points, unstable directions": Form([point.negative for point in points], growing, 1e-12),
        "fixed points, kinds wrong": Form(sum(a.kind != b for a, b in zip(points, kinds, strict=True)), 0.0, 1e-12),
        "fixed points, rates": Form(np.max(np.abs(rates)), 0.0, 1e-13),
    }
