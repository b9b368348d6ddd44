r"""Closed forms of sparse regression (arXiv:2408.04532) against quadrature, matrix functions and plain loops.

Flows are matrix exponentials, steps are loops, expectations over r ~ N(beta, v) are integrals.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad, solve_ivp
from scipy.linalg import expm

from spectral_ode.problem import Problem
from spectral_ode.systems.sparse import Depth, Gains, Law, _algorithms, _moments, _risk, _two_groups
from spectral_ode.systems.sparse.data import Moments, Sample
from spectral_ode.systems.sparse.depth import State
from spectral_ode.weights import DepthWeights, GainWeights
from validate.plain.eigenvalue_law import law, mean_law
from validate.plain.numbers import ALGEBRA, Form, least
from validate.plain.sparse import averages, first_task, task_of
from validate.plain.sparse_drawn import drawn, states


def moments(problem: Problem) -> dict[str, Form]:
    """A, B and C for both kinds of coefficients; the observables of gains."""
    found: dict[str, Form] = {}
    task = task_of(problem)
    for kind in ("signs", "normal"):
        for sparsity in {1, min(3, task.dimension)}:
            other = replace(task, coefficients=kind, sparsity=sparsity, noise=0.7, context=9)
            mine = _moments.correlations(Law(other.dimension, other.sparsity, other.context, other.noise, kind))
            found[f"A, B, C, {kind}, s = {sparsity}"] = Form(tuple(mine), averages(other), 1e-10)
    if problem.training.kind != "gains":
        return found
    A, B, C = averages(task)
    system, d = Gains.from_problem(problem), task.dimension
    g, eta = np.linspace(0.3, 1.0, d), 0.6
    kappa = eta * g**2
    seen = system.observe(GainWeights(jnp.asarray(g), jnp.asarray(eta)))
    best, low = least(lambda k: A - 2 * k * B + k**2 * C, 0.0, 10.0)
    landmarks = system.landmarks()
    half = [float(value) for value in system.phases({"kappa": jnp.full(d, 0.2)}).values()]
    return found | {
        "risk and shares of gains": Form((seen["loss"], seen["kappa"]), (np.sum(A - 2 * kappa * B + kappa**2 * C), kappa / best), 1e-7),
        "levels": Form([float(level) for level in landmarks["loss"].values()], [d * A, d * low], 1e-9),
        "phases": Form(np.asarray(half), np.full(d, -0.3), ALGEBRA),
    }


def algorithms(problem: Problem) -> dict[str, Form]:
    """Descent, flow and referees of one task."""
    x, y, w = first_task(problem)
    n, d = x.shape
    S, r = x.T @ x / n, x.T @ y / n
    tau, eta, steps, penalty = 3.0, 0.15, 7, 0.2
    support = w != 0
    sample = Sample(*(jnp.asarray(part) for part in (x, y, w)))
    thin = x[: max(2, d // 2)]  # fewer tokens than coordinates: some eigenvalues are zero
    few = Moments(jnp.asarray(thin.T @ thin / len(thin)), jnp.asarray(thin.T @ y[: len(thin)] / len(thin)))

    @eqx.filter_jit
    def look(sample, few):
        seen, forms = sample.moments(), {}
        for name in ("pto", "gd"):
            spectral = _algorithms.diagonalize(seen, name)
            forms[name] = (
                _algorithms.after_flow(spectral, jnp.asarray(tau)),
                _algorithms.after_steps(spectral, jnp.asarray(eta), jnp.asarray(steps)),
                _algorithms.iterate(seen, name, jnp.asarray(eta), steps)[-1],
                spectral.largest_step,
                _algorithms.step_curve(spectral, sample, 3),
                _algorithms.flow_curve(sample, name, jnp.asarray([tau])),
            )
            poor = _algorithms.diagonalize(few, name)
            forms[f"{name}, few tokens"] = (
                _algorithms.after_flow(poor, jnp.asarray(0.5)),
                _algorithms.after_steps(poor, jnp.asarray(0.05), jnp.asarray(9)),
            )
        referees = (
            _algorithms.ridge(seen, jnp.asarray(penalty)),
            _algorithms.least_squares(seen),
            _algorithms.oracle(seen, jnp.asarray(support)),
        )
        return forms, referees

    forms, referees = look(sample, few)
    found: dict[str, Form] = {}
    for name in ("pto", "gd"):
        own = np.diag(r) if name == "pto" else np.eye(d)
        largest = np.max(np.linalg.eigvalsh(own @ S @ own))
        walk = lambda step, count, S=S, r=r, own=own: _walk(own, S, r, step, count)
        curve = [np.sum((walk(1 / largest, count) - w) ** 2) for count in range(4)]
        flow = _flow(own, S, r, tau)
        exact = (flow, walk(eta, steps), walk(eta, steps), 2 / largest, np.asarray(curve), np.asarray([np.sum((flow - w) ** 2)]))
        found[f"descent, {name}"] = Form(forms[name], exact, 1e-10)
        poor_S, poor_r = np.asarray(few.S), np.asarray(few.r)
        own = np.diag(poor_r) if name == "pto" else np.eye(d)
        found[f"descent, {name}, few tokens"] = Form(
            forms[f"{name}, few tokens"], (_flow(own, poor_S, poor_r, 0.5), _walk(own, poor_S, poor_r, 0.05, 9)), 1e-10
        )
    known = np.zeros(d)
    known[support] = np.linalg.lstsq(x[:, support], y, rcond=None)[0]
    exact = (np.linalg.inv(S + penalty * np.eye(d)) @ r, np.linalg.lstsq(x, y, rcond=None)[0], known)
    return found | {"ridge, least squares, oracle": Form(referees, exact, 1e-9)}


def _walk(own: np.ndarray, S: np.ndarray, r: np.ndarray, step: float, count: int) -> np.ndarray:
    w = np.zeros(r.size)
    for _ in range(count):
        w = w - step * own @ own @ (S @ w - r)
    return w


def _flow(own: np.ndarray, S: np.ndarray, r: np.ndarray, tau: float) -> np.ndarray:
    """The exponential of the flow with a constant entry."""
    d = r.size
    whole = np.zeros((d + 1, d + 1))
    whole[:d, :d], whole[:d, d] = -own @ own @ S, own @ own @ r
    return (expm(tau * whole) @ np.append(np.zeros(d), 1.0))[:d]


def risks(problem: Problem) -> dict[str, Form]:
    """Orthogonal designs, thresholds, windows, the lowest point of a curve."""
    tau, beta, v, lam = 2.3, 0.8, 0.13, 0.5
    normal = lambda function, mean, v: quad(
        lambda z: function(mean + np.sqrt(v) * z) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi),
        -9,
        9,
        epsabs=1e-13,
        limit=400,
        points=[-2, 0, 2],
    )[0]
    flow = lambda mean, v: normal(lambda r: (r * (1 - np.exp(-(r**2) * tau)) - mean) ** 2, mean, v)
    soft = lambda mean, v, lam: normal(lambda r: (np.sign(r) * max(abs(r) - lam, 0.0) - mean) ** 2, mean, v)
    law = Law(7, 2, 9, 0.7)
    level = float(law.sigma**2 / law.n)
    cut = np.sqrt(2 * level * np.log(7))
    shrink = least(lambda rho: 2 * (1 - rho) ** 2 + rho**2 * 7 * level, 0.0, 1.0)[1]
    time = jnp.asarray([0.3, 1.0, 2.5, 4.0])
    lowest = *_risk.best(time, 3.0 + (time - 3.1) ** 2), *_risk.best(time, -time)
    mine = (
        _risk.coordinate(jnp.asarray([tau]), beta, v)[0],
        _risk.orthogonal(jnp.asarray([tau]), law)[0],
        _risk.shrinkage(law),
        _risk.threshold_risk(beta, v, lam),
        _risk.lasso(law),
        *_risk.window(law, beta=0.5),
        *lowest,
    )
    exact = (
        flow(beta, v),
        2 * flow(1.0, level) + 5 * flow(0.0, level),
        shrink,
        soft(beta, v, lam),
        2 * soft(1.0, level, cut) + 5 * soft(0.0, level, cut),
        4.0,
        9 / (2 + 0.49),
        3.1,
        3.0,
        4.0,
        -4.0,
    )
    return {f"risk {number + 1}": Form(one, two, 1e-7) for number, (one, two) in enumerate(zip(mine, exact, strict=True))}


def groups(problem: Problem) -> dict[str, Form]:
    """The two groups of the first task, and what a state of the flow is seen as."""
    system = Depth.from_problem(problem)
    x, y, w = first_task(problem)
    (n, d), s, tau = x.shape, system.law.s, 4.0
    inside = np.argsort(-np.abs(w), kind="stable")[:s]
    S, r = x[:, inside].T @ x[:, inside] / n, x[:, inside].T @ y / n
    lam, basis = np.linalg.eigh(r[:, None] * S * r[None])
    c = basis.T @ (r * r)
    V = np.concatenate([[np.mean(y**2) - np.sum(c**2 / lam)], c**2 / lam]) / n
    rates = np.concatenate([[0.0], lam])
    total = np.sum(V)
    on = np.sum((_flow(np.diag(r), S, r, tau) - w[inside]) ** 2)

    def square(q: float) -> float:
        """E[w_j^2 | r_j^2 = q V], phi by scipy."""
        right = lambda t, phi: q * total * (np.exp(-rates * t) - phi)
        phi = solve_ivp(right, (0, tau), np.zeros(s + 1), method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
        return (q - 1) * total * (phi @ V / total) ** 2 + np.sum(phi**2 * V)

    node, weight = np.polynomial.hermite_e.hermegauss(40)
    off = sum(p * square(z**2) for z, p in zip(node, weight / weight.sum(), strict=True))
    block = jax.tree.map(lambda leaf: leaf[0], system.blocks)
    mine = _two_groups.risks(block, jnp.asarray([tau]), d)
    found = {"support": Form(mine[0][0], on, 1e-9), "others": Form(mine[1][0], (d - s) * off, 1e-5)}
    return found | _seen(system, V, total)


def _seen(system: Depth, V: np.ndarray, total: float) -> dict[str, Form]:
    """Observables of a state and of weights, and the reduced field of the first task's responses."""
    law, sample = system.law, system.sample
    rng = np.random.default_rng(1)
    tasks, d = sample.w.shape
    theta, plain = rng.normal(size=(2, tasks, d))
    w, r, S = (np.asarray(part) for part in (sample.w, system.moments.r, system.moments.S))
    estimate = r * theta
    held = w != 0
    on = np.mean(np.sum(np.where(held, (estimate - w) ** 2, 0.0), axis=1))
    off = np.mean(np.sum(np.where(held, 0.0, estimate**2), axis=1))
    learned = np.sum(np.where(held, estimate * w, 0.0)) / np.sum(w**2)
    pull = r - np.einsum("tij,tj->ti", S, estimate)
    slope = np.mean(np.sum(2 * (estimate - w) * r * r * pull, axis=1))
    gamma, kept = law.d / law.n, 0.4
    power = np.mean(np.sum(w**2, axis=1))
    noise = law.sigma**2 * gamma * mean_law(lambda x: (1 - kept) ** 2 / x, gamma, atom=False)
    course = power * (kept**2 * min(1.0, 1 / gamma) + max(0.0, 1 - 1 / gamma)) + noise

    @eqx.filter_jit
    def look(system, weights):
        seen = system.observe_weights(weights)
        begin = system.project(weights)
        state = State(0.6 * begin.decay, begin.phi + 0.2, kept * begin.kept)
        return (
            seen,
            system.observe(state)["plain"],
            system.vector_field(jnp.zeros(()), state),
            system.spectrum[0],
            system.population_loss(weights),
        )

    weights = DepthWeights(jnp.asarray(theta), jnp.asarray(plain))
    seen, reduced, rate, lam, population = look(system, weights)
    residual = lambda w: np.einsum("ti,tij,tj->", w, S, w) - 2 * np.sum(w * r)
    q = np.asarray(_two_groups.nodes()[0])
    near = [float(value) for value in system.phases({"learned": jnp.asarray(0.1), "slope": jnp.asarray(0.3)}).values()]
    landmarks = system.landmarks()
    known = [_known(*(np.asarray(part)[task] for part in (sample.x, sample.y, sample.w))) for task in range(min(64, tasks))]
    z = gamma * law.sigma**2 / law.s
    most = [2 / np.max(np.linalg.eigvalsh(own[:, None] * one * own[None])) for one, r in zip(S, r, strict=True) for own in (r, np.ones(d))]
    return {
        "support known, best ridge, largest step": Form(
            (landmarks["loss"]["support known"], landmarks["loss"]["best ridge"], system.largest_step()),
            (np.mean(known), mean_law(lambda x: law.s * z / (x + z), gamma), min(most)),
            1e-9,
        ),
        "observed estimates": Form(
            (seen["loss"], seen["groups"], seen["plain"], seen["learned"], seen["slope"]),
            (on + off, np.asarray([on, off]), np.mean(np.sum((plain - w) ** 2, axis=1)), learned, slope),
            1e-10,
        ),
        "loss of the context": Form(population, residual(estimate) + residual(plain), 1e-10),
        "plain risk of a state": Form(reduced, course, 1e-8),
        "rates of responses": Form(
            (rate.phi[0], rate.kept), ((q * total)[:, None] * np.full(V.size, 0.4)[None], -np.asarray(lam) * kept), 1e-10
        ),
        "phases": Form(near, [-0.4, 0.3], ALGEBRA),
        "levels": Form(
            [
                float(landmarks["loss"]["start"]),
                *(float(level) for level in landmarks["groups"].values()),
                *system.forecast(weights)["window"],
            ],
            [law.s, law.s * law.sigma**2 / law.n, (law.d - law.s) * law.sigma**2 / law.n, 1.0, law.n / (law.s + law.sigma**2)],
            ALGEBRA,
        ),
    }


def _known(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """Risk of least squares on the true support."""
    inside = w != 0
    return float(np.sum((np.linalg.lstsq(x[:, inside], y, rcond=None)[0] - w[inside]) ** 2))


FORMS: dict[str, Any] = {
    "sparse.gains": (moments,),
    "sparse.depth": (lambda _: law(), algorithms, risks, groups, drawn, states),
}
