r"""Closed forms of linear attention (arXiv:2501.16265): its moments, merged key and query, every block; against numpy and scipy.

Moments are asked for in settings in which every number of them matters: noise, unequal tasks, turned tokens, all lengths, script units.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from spectral_ode.features import coefficients, features
from spectral_ode.problem import MergedHeads, Problem
from spectral_ode.systems.linear import Blocks, Merged
from spectral_ode.systems.linear.blocks import MergedBlocks, SeparateBlocks
from spectral_ode.systems.linear.data import Statistics, directions
from spectral_ode.systems.linear.merged import State as MergedState
from spectral_ode.weights import MergedWeights
from validate.plain.escape_forms import escapes, kicks
from validate.plain.linear import Task, feature_moments
from validate.plain.numbers import ALGEBRA, Form, levels_of, plainly
from validate.plain.separate_forms import curve, separate, stability


def variants(problem: Problem) -> list[Problem]:
    """The problem, and others in which every number of the moments matters."""
    d = len(problem.regression.spectrum)
    rough = replace(problem.task, noise=0.4, rotation=5, prior=tuple(0.5 + 0.3 * i for i in range(d)), context=7)
    every = replace(problem, task=replace(rough, lengths="all"))
    return [problem, replace(problem, task=rough), every, replace(every, units="script", horizon=float(round(problem.horizon)))]


def data(problem: Problem) -> dict[str, Form]:
    """Moments, losses and pulls."""
    found: dict[str, Form] = {}
    d = len(problem.regression.spectrum)
    A = np.random.default_rng(1).normal(size=(d, d))
    look = eqx.filter_jit(
        lambda s, A: {
            "g, C, c": (s.g, s.C, s.c),
            "A*, gain": (s.best, s.gain),
            "power": s.power,
            "Lambda": s.covariance,
            "loss": s.loss(s.basis.T @ A @ s.basis),
            "pull": s.pull(A),
            "plateaus": jnp.stack([s.plateau_loss(m) for m in range(d + 1)]),
        }
    )
    for number, variant in enumerate(variants(problem)):
        task, seen = Task(variant, plainly), look(Statistics.from_problem(variant), jnp.asarray(A))
        exact = {
            "g, C, c": (task.g, task.C, task.C / task.g),
            "A*, gain": (task.best, task.gain),
            "power": task.power,
            "Lambda": task.matrix(task.lam),
            "loss": task.loss(A),
            "pull": task.pull(A),
            "plateaus": task.power - np.concatenate([[0.0], np.cumsum(task.gain)]),
        }
        found |= {f"{name}, setting {number + 1}": Form(seen[name], exact[name], ALGEBRA) for name in exact}
    # The rate lam^2 sig is larger where the variance lam and lam^3 sig are smaller.
    tilted = replace(problem, task=replace(problem.regression, spectrum=(1.0, 0.8), prior=(1.0, 1.6)), attention=MergedHeads())
    return found | {"order of the directions": Form(directions(tilted)[0], np.asarray([0.8, 1.0]), ALGEBRA)}


def merged(problem: Problem) -> dict[str, Form]:
    """Escape constant, white closed form, observables, minimum."""
    d = len(problem.regression.spectrum)
    white = replace(problem, task=replace(problem.task, spectrum=(0.5,) * d, prior=(1.0,)))
    system, task, pale = Merged.from_problem(problem), Task(problem, plainly), Merged.from_problem(white)
    rng, rate = np.random.default_rng(4), float(np.linalg.norm(task.g))

    def field(task: Task):
        def right(_, y):
            left = task.g - task.lam * task.C * y[0] * y[1:]
            return np.concatenate([[y[1:] @ left], y[0] * left])

        return right

    first = 1e-6
    total = np.sum(task.gain)
    share = lambda A: np.sum(2 * task.g * A - task.C * task.lam * A**2) / total
    half = lambda _, y: share(y[0] * y[1:]) - 0.5
    half.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    begin = np.concatenate([[first], first * task.g / rate])
    course = solve_ivp(field(task), (0, 1e9), begin, method="DOP853", rtol=1e-12, atol=1e-20, events=half)
    K = rate * course.t_events[0][0] + np.log(first)
    pale_task = Task(white, plainly)
    u, speed = 0.02, float(np.linalg.norm(pale_task.g))
    start = np.concatenate([[u], np.full(d, u / np.sqrt(d))])
    t = np.asarray([1.0, 3.0, 5.0]) / speed
    pale_course = solve_ivp(field(pale_task), (0, t[-1]), start, method="DOP853", rtol=1e-12, atol=1e-16, t_eval=t).y
    v, U = rng.normal(size=3), rng.normal(size=(3, d, d))
    A = task.basis.T @ np.einsum("h,hab->ab", v, U) @ task.basis
    turned = np.asarray([task.basis.T @ one @ task.basis for one in U])
    layers = np.concatenate([v[:, None], turned.reshape(3, -1)], axis=1)
    r = np.linalg.svd(layers)[0][:, 0]
    diagonal = turned[:, np.arange(d), np.arange(d)]
    outside = 1 - ((r @ v) ** 2 + np.sum((r @ diagonal) ** 2)) / np.sum(layers**2)
    s = 0.5 * np.linalg.norm(v + diagonal @ task.g / rate)
    loss = task.loss(np.einsum("h,hab->ab", v, U))
    bottom = task.power - total

    @eqx.filter_jit
    def look(system, pale, weights):
        state, seen, least = system.project(weights), system.observe_weights(weights), system.at_minimum(3)
        phases = jnp.stack(list(system.phases({"learned": jnp.zeros(())}).values()))
        rest = jnp.max(jnp.abs(ravel_pytree(system.weights_field(least))[0]))
        closed = jax.vmap(lambda t: pale.closed_form(t, MergedState(jnp.asarray(u), jnp.zeros(d))))(jnp.asarray(t))
        shown = {name: seen[name] for name in ("loss", "A", "sigma", "learned", "outside")}
        return state, shown, phases, rest, system.population_loss(least), closed, system.escape_constant(), system.forecast(weights)

    state, seen, phases, rest, least, closed, constant, forecast = look(system, pale, MergedWeights(jnp.asarray(v), jnp.asarray(U)))
    points = system.fixed_points(3)
    return {
        "escape constant": Form(constant, K, 1e-6),
        "forecast": Form(forecast["half"], np.asarray([(K - np.log(s)) / rate]), 1e-6),
        "white closed form": Form(closed, (pale_course[0] * pale_course[1:]).T, 1e-9),
        "projection": Form((state.s, state.a), (s, s * task.g / rate), ALGEBRA),
        "observed weights": Form(
            tuple(seen[name] for name in ("loss", "A", "sigma", "learned", "outside")),
            (loss, np.diag(A), task.g @ np.diag(A) / (task.g @ task.best), (task.power - loss) / total, outside),
            ALGEBRA,
        ),
        "levels": Form(levels_of(system, "loss", "A"), [np.asarray([task.power, bottom]), task.best], ALGEBRA),
        "phases": Form(phases, -np.asarray([0.01, 0.5, 0.95]), ALGEBRA),
        "minimum": Form((rest, least), (0.0, bottom), ALGEBRA),
        "fixed points": Form([points[0].loss, points[1].loss, points[0].negative, points[1].negative], [bottom, task.power, 0, 3], ALGEBRA),
    }


def blocks(problem: Problem) -> dict[str, Form]:
    """Moments of the training and test laws by quadrature over w and x_q, floor, observables."""
    d = min(2, len(problem.regression.spectrum))
    task = replace(
        problem.task, spectrum=problem.regression.spectrum[:d], prior=(1.3,) + (0.7,) * (d - 1), noise=0.3, rotation=2, context=3
    )
    found: dict[str, Form] = {}
    rng, e = np.random.default_rng(5), d + 1
    for share, lengths in ((0.6, "all"), (0.0, "full"), (1.0, "full")):
        variant = replace(problem, task=replace(task, in_context=share, lengths=lengths), attention=replace(problem.attention, heads=2))
        system = Blocks.from_problem(variant)
        laws = {"train": (share, variant.contexts), "in_weight": (0.0, (3,)), "in_context": (1.0, (3,))}
        exact = {name: feature_moments(variant, of, contexts, plainly) for name, (of, contexts) in laws.items()}
        for name, (M, b, power) in exact.items():
            mine = getattr(system, name)
            found[f"moments {name}, share {share:g}"] = Form((mine.M, mine.b, mine.power), (M, b, power), ALGEBRA)
        M, b, power = exact["train"]
        floor = power - b @ np.linalg.lstsq(M, b, rcond=None)[0]
        row, W = rng.normal(size=(2, e)), rng.normal(size=(2, e, d))
        T = np.einsum("ha,hbc->abc", row, W)
        i, j = np.triu_indices(e)
        t = np.where((i == j)[:, None], T[i, j], T[i, j] + T[j, i]).reshape(-1)
        losses = [power - 2 * t @ b + t @ M @ t for M, b, power in exact.values()]
        idle = np.sum(row[:, :-1] ** 2) + np.sum(W[:, -1] ** 2)
        look = eqx.filter_jit(
            lambda system, state: (system.observe(state), system.floor, list(system.phases(system.observe(state)).values()))
        )
        seen, bottom, phases = look(system, MergedBlocks(jnp.asarray(row), jnp.asarray(W)))
        crossings = [
            0.5 * (power + floor) - losses[0],
            *(0.5 - now / law[2] for now, law in zip(losses[1:], list(exact.values())[1:], strict=True)),
        ]
        found[f"acting blocks alone, share {share:g}"] = _acting(system, variant, exact["train"])
        found[f"observed, share {share:g}"] = Form(
            (seen["loss"], seen["tests"], seen["idle"], bottom, phases),
            (losses[0], np.asarray(losses[1:]), idle / (np.sum(row**2) + np.sum(W**2)), floor, crossings),
            1e-9,
        )
    return found


def _acting(system: Blocks, problem: Problem, moments: tuple) -> Form:
    """Loss and flow of the acting blocks with all others zero, and of all blocks, by differences; t.phi of one prompt, token by token."""
    d, (M, b, power) = len(problem.regression.spectrum), moments
    rng, i, j = np.random.default_rng(6), *np.triu_indices(d + 1)
    v, U = rng.normal(size=2), rng.normal(size=(2, d, d))

    def features_of(row: np.ndarray, W: np.ndarray) -> np.ndarray:
        T = np.einsum("ha,hbc->abc", row, W)
        return np.where((i == j)[:, None], T[i, j], T[i, j] + T[j, i]).reshape(-1)

    def loss(v: np.ndarray) -> float:
        return risk(features_of(np.pad(v[:, None], ((0, 0), (d, 0))), np.pad(U, ((0, 0), (0, 1), (0, 0)))))

    def risk(t: np.ndarray) -> float:
        return power - 2 * t @ b + t @ M @ t

    by = lambda function, at: np.asarray([function(at + 0.5 * unit) - function(at - 0.5 * unit) for unit in np.eye(at.size)])  # exact here
    row, W, tokens = rng.normal(size=(2, d + 1)), rng.normal(size=(2, d + 1, d)), rng.normal(size=(d + 1, 5))
    asked = sum(0.2 * row[h] @ tokens @ tokens.T @ W[h] @ tokens[:-1, -1] for h in range(2))
    slope = by(lambda flat: risk(features_of(flat.reshape(row.shape), W)), row.ravel()).reshape(row.shape)
    key, query = rng.normal(size=(2, 2, d + 1)), rng.normal(size=(2, 2, d))

    @eqx.filter_jit
    def look(system, weights, state, tokens, apart):
        told = jnp.dot(coefficients(state.row, state.W), features(tokens, jnp.asarray(0.2)))
        rate = system.vector_field(jnp.zeros(()), state).row
        return system.population_loss(weights), system.weights_field(weights).value, told, rate, apart.t

    state = MergedBlocks(jnp.asarray(row), jnp.asarray(W))
    apart = SeparateBlocks(jnp.asarray(row), jnp.asarray(key), jnp.asarray(query))
    ours = look(system, MergedWeights(jnp.asarray(v), jnp.asarray(U)), state, jnp.asarray(tokens), apart)
    both = features_of(row, np.einsum("hra,hrb->hab", key, query))
    return Form(ours, (loss(v), -0.5 * by(loss, v), asked, -0.5 * slope, both), 1e-10)


FORMS = {
    "linear.separate": (data, curve, escapes, kicks, separate, stability),
    "linear.merged": (data, merged),
    "linear.blocks": (blocks,),
}
