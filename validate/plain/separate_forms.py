"""Closed forms of separate key and query (arXiv:2501.16265) against numpy and mpmath: the scalar curve, observables, fixed points.

The time of the scalar curve is a quadrature of its field; the stability of a fixed point is in the eigenvalues of the Jacobian of the flow.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
from jax.flatten_util import ravel_pytree

from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Separate, _escape, _scalar
from spectral_ode.systems.linear.separate import State
from spectral_ode.weights import SeparateWeights
from validate.plain.linear import Task
from validate.plain.numbers import ALGEBRA, Form, floats, levels_of, plainly


def curve(problem: Problem) -> dict[str, Form]:
    """The universal curve inverted, from far before a drop to far behind it: ten roundings, as its two steps promise.

    On the way down some hundred, since the closed expression of p cancels that much where its series ends.
    """
    s = np.concatenate([np.geomspace(1e-4, 0.5, 300), 1 - np.geomspace(0.5, 1e-12, 300)])
    there_and_back = eqx.filter_jit(lambda s: _scalar.inverse(_scalar.g(s)))(jnp.asarray(s))
    above = np.concatenate([np.geomspace(1e6, 2, 300), 1 + np.geomspace(1, 1e-12, 300)])
    down_and_back = eqx.filter_jit(lambda s: _scalar.fallen(_scalar.fall(s)))(jnp.asarray(above))
    begun, times = np.asarray([0.2, 0.9, 1.0, 1.2, 3.0, 3.7, 40.0]), np.asarray([1e-3, 0.2, 1.0, 2.5])
    later = eqx.filter_jit(lambda s, t: _scalar.after(s[None], t[:, None]))(jnp.asarray(begun), jnp.asarray(times))
    found = zip(np.asarray(later).tolist(), times.tolist(), strict=True)
    with mpmath.workdps(20):
        fallen = floats(np.asarray([mpmath.quad(lambda u: u**3 / (1 - u**3), [0, 1 / mpmath.mpf(s)]) for s in begun[3:]]))
        way = lambda low, high: mpmath.quad(lambda s: 1 / (s**2 - s**5), [low, (low + high) / 2, high])
        way_of = lambda low, high, t: way(mpmath.mpf(low), mpmath.mpf(high)) if low != 1 else mpmath.mpf(t)
        took = [floats(np.asarray([way_of(*each, t) for each in zip(begun.tolist(), row, strict=True)])) / t for row, t in found]
    return {
        "scalar curve, everywhere": Form(np.asarray(there_and_back) / s, np.ones(s.size), 2e-15),
        "scalar curve, everywhere above": Form(np.asarray(down_and_back) / above, np.ones(above.size), 1e-13),
        "scalar curve, time of the fall": Form(eqx.filter_jit(_scalar.fall)(jnp.asarray(begun[3:])), fallen, ALGEBRA),
        "scalar curve, from both sides": Form(np.asarray(took), np.ones(later.shape), 1e-9),
        "scalar curve, at rest": Form(later[:, begun == 1], 1.0, ALGEBRA),
    }


def separate(problem: Problem) -> dict[str, Form]:
    """Scalar curve and observables."""
    system, task = Separate.from_problem(problem), Task(problem, plainly)
    d, rng = task.lam.size, np.random.default_rng(2)
    limit = np.cbrt(task.best)
    v0, v, ends = 0.03 * limit, 0.7 * limit, np.asarray([0.05, 0.3, 0.7, 0.999])
    H = max(3, d)  # a head for every direction
    value, key, query = rng.normal(size=H), rng.normal(size=(H, 1, d)), rng.normal(size=(H, 1, d))
    k, q = (part[:, 0] @ task.basis for part in (key, query))
    modes = value[:, None] * k * q
    learned = np.sum(modes, axis=0)
    own = np.argmax(np.abs(k * q), axis=1)
    along = [np.abs(value), *(np.abs(part[np.arange(H), own]) for part in (k, q))]
    outside = 1 - 3 * np.sum(np.mean(along, axis=0) ** 2) / (np.sum(value**2) + np.sum(k**2) + np.sum(q**2))
    A = np.einsum("h,ha,hb->ab", value, key[:, 0], query[:, 0])

    @eqx.filter_jit
    def look(system, v, v0, weights, head):
        seen, full = system.observe(State(v)), system.observe_weights(weights)
        time = jax.vmap(lambda end: system.time_to(end * limit, v0))(jnp.asarray(ends))
        later = jax.vmap(jax.vmap(lambda t: system.closed_form(t, v0)))(time)
        small = jax.tree.map(lambda leaf: 0.02 * leaf, weights)
        half = (system.project(small).v, system.forecast(small)["half"], _escape.forecast(head, system.data).blow_up)
        phases = jnp.stack(list(system.phases({"learned": jnp.zeros(d)}).values()))
        return seen, {name: full[name] for name in ("loss", "v", "learned", "head", "outside")}, time, later, half, phases

    weights = SeparateWeights(*(jnp.asarray(part) for part in (value, key, query)))
    head = _escape.Head(*(jnp.asarray(0.02 * part) for part in (value, k + q, k - q)))
    seen, full, time, later, half, phases = look(system, jnp.asarray(v), jnp.asarray(v0), weights, head)
    with mpmath.workdps(20):
        rate = lambda i: lambda x: 1 / (task.g[i] * x**2 - task.lam[i] * task.C[i] * x**5)
        time_of = lambda i, low, high: mpmath.quad(rate(i), [low, *(low * (high / low) ** (part / 6) for part in range(1, 6)), high])
        exact_time = floats(np.asarray([[time_of(i, v0[i], end * limit[i]) for i in range(d)] for end in ends])).reshape(-1, d)
        middle = (1 - np.sqrt(0.5)) ** (1 / 3) * limit
        exact_half = floats(np.asarray([time_of(i, float(half[0][i]), middle[i]) for i in range(d)]))
    plateaus = task.power - np.concatenate([[0.0], np.cumsum(task.gain)])
    reduced = task.power - np.sum(2 * task.g * v**3 - task.C * task.lam * v**6)
    return {
        "scalar curve, time to": Form(time, exact_time, 1e-10),
        "scalar curve, inverse": Form(np.diagonal(later, axis1=1, axis2=2), ends[:, None] * limit[None], 1e-9),
        "reduced start": Form(half[0], 1 / (task.g * np.asarray(half[2])), ALGEBRA),
        "forecast of half-drops from the reduced start": Form(half[1], exact_half, 1e-9),
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


def stability(problem: Problem) -> dict[str, Form]:
    """Losses, rates and unstable directions at the fixed points."""
    system, task = Separate.from_problem(problem), Task(problem, plainly)
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
