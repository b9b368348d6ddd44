"""Claims about softmax attention (arXiv:2402.19442) that need solves or data of their own."""

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from simulate import estimators
from simulate.episode_training import sampler
from simulate.full_attention import FullAttention
from spectral_ode import weights
from spectral_ode.integrate import solve
from spectral_ode.problem import FullHeads, MultiTask, Problem
from spectral_ode.systems.softmax import Emergence, Factored, Slaved, Warmup, _leading, _optimal
from spectral_ode.systems.softmax._leading import Head, Spectrum
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment
from validate.metrics import Measured, Unmet
from validate.spectral import system_of

FOREVER = 3e5  # flow time at which off-task omega, which decays like 1/t, no longer matters to 1e-8
IMBALANCES = (1e-3, 1e-5, 1e-7)
CONTEXTS = 200_000  # of raw data


def _like(kind: type[AbstractSpectral], system: AbstractSpectral) -> AbstractSpectral:
    return kind(system.order, (), system.dimensions, system.heads)


def _first(experiment: Experiment) -> Trajectory:
    return experiment.rungs["reduced"].run(0)


def spectral_limit(experiment: Experiment) -> Measured:
    """Largest relative distance of omega, mu and loss from their closed forms, long after emergence, over the runs."""
    system, worst = system_of(experiment), 0.0
    for state in experiment.states:
        end = solve(system, state, np.asarray([0.0, FOREVER]), solver="kvaerno5", rtol=1e-10)
        spectrum, losses = _optimal.allocation_limit(end["head"][-1], system.order.tasks, heads=system.heads)
        taken = jnp.arange(system.heads)[:, None] == end["head"][-1][None]
        gaps = [
            jnp.abs(jnp.where(taken, end[f"{name} of heads"][-1] / jnp.where(taken, wanted, 1.0) - 1, 0.0))
            for name, wanted in (("mu", spectrum.mu), ("omega", spectrum.omega))
        ]
        gaps.append(jnp.abs(end["task losses"][-1] * system.order.tasks.S / losses - 1))
        worst = max(worst, *(float(jnp.max(gap)) for gap in gaps))
    return worst, f"at flow time {FOREVER:g}"


def warm_up_equation(experiment: Experiment) -> Measured:
    """Relative error of the time at which the first task begins to emerge."""
    full = _first(experiment)
    later = lambda name: float(np.nan_to_num(full.phases[name], nan=np.inf))
    first = min((name for name in full.phases if name.startswith("emergence ")), key=later)
    when = float(full.phases[first])
    if not when > 0:
        raise Unmet("no task emerges between the start and the horizon")
    found = solve(_like(Warmup, system_of(experiment)), experiment.states[0], np.linspace(0.0, 1.5 * when, 200))
    guess = float(found.phases[first])
    return abs(guess / when - 1), f"{guess:.5g} against {when:.5g}"


def _from_emergence(experiment: Experiment, kind: type[AbstractSpectral]) -> Measured:
    """Largest gap of omega over its limit, from the first saved time after the last task's emergence on."""
    full, system = _first(experiment), system_of(experiment)
    when = max(float(time) for name, time in full.phases.items() if name.startswith("emergence "))
    time = np.asarray(full.time)
    begin = int(np.searchsorted(time, when))
    if not when < time[-1] or begin > time.size - 3:
        raise Unmet("not every task emerges within the horizon")
    head = Head(jnp.log(full["mu"][begin]), jnp.log(full["omega"][begin]))
    found = solve(_like(kind, system), head if kind is Emergence else head.omega, time[begin:])
    gap = np.abs(np.asarray(found["omega"]) - np.asarray(full["omega"])[begin:]) * np.sqrt(np.asarray(system.order.tasks.d))
    return float(gap.max()), f"from t = {time[begin]:.4g} on; {float(gap[-1].max()):.1e} at the end"


def emergence_equations(experiment: Experiment) -> Measured:
    """Two variables."""
    return _from_emergence(experiment, Emergence)


def slaved_equation(experiment: Experiment) -> Measured:
    """One variable."""
    return _from_emergence(experiment, Slaved)


def convergence_rate(experiment: Experiment) -> Measured:
    """Largest relative distance of the fitted rate of a task alone from its slow eigenvalue."""
    tasks = system_of(experiment).order.tasks
    slow, _ = _leading.convergence_rates(tasks)
    limit = _optimal.limit(tasks)
    system = _like(Emergence, system_of(experiment))
    time = np.linspace(0.0, 14.0 / float(jnp.min(slow)), 200)
    found = solve(system, Head(jnp.log(0.9 * limit.mu), jnp.log(0.9 * limit.omega)), time, rtol=1e-12)
    gap = np.abs(np.asarray(found["omega"]) - np.asarray(limit.omega))
    rates = []
    for column in gap.T:
        tail = (column < 1e-5) & (column > 1e-8)
        rates.append(-np.polyfit(time[tail], np.log(column[tail]), 1)[0] if tail.sum() > 1 else np.nan)
    return float(np.max(np.abs(np.asarray(rates) / np.asarray(slow) - 1))), f"rates {', '.join(f'{rate:.4f}' for rate in rates)}"


def raw_data(experiment: Experiment) -> Measured:
    """Standard errors between the finite-L loss at its limit and the loss of that model on raw contexts, all tasks together."""
    problem, exact = experiment.problem, system_of(experiment).exact()
    limit = exact.order.limit()
    model = clean_model(problem, limit)
    wide = replace(problem, training=replace(problem.training, dtype="float64"))
    about = {"contexts": CONTEXTS, "queries": 2, "estimator": "sampled"}
    losses, errors = eqx.filter_jit(lambda model: estimators.losses(model, sampler(wide, test=True), 2, **about))(model)
    shown = ", ".join(f"{a:.4f} +- {e:.4f} against {b:.4f}" for a, e, b in zip(losses, errors, limit.loss, strict=True))
    return float(jnp.abs(jnp.sum(losses - limit.loss)) / jnp.sqrt(jnp.sum(errors**2))), shown


def clean_model(problem: Problem, limit: _optimal.Limit) -> FullAttention:
    """The network whose head i serves task i with these weights, and nothing else."""
    task, attention = problem.task, problem.attention
    assert isinstance(task, MultiTask)
    assert isinstance(attention, FullHeads)
    place, e = jnp.eye(attention.heads, limit.mu.size), attention.width(task)
    v, k = place * jnp.sqrt(limit.mu)[None], place * jnp.sqrt(limit.omega * jnp.sqrt(jnp.asarray(e, float)))[None]
    return FullAttention.from_weights(weights.decomposable((v, v, k, k), task.dimensions, e), "float64")


def escape_rate(experiment: Experiment) -> Measured:
    """Relative distance of 1 / slope of the escape time over ln(1/imbalance) from 2 S (phi/L) mu*, to leading order."""
    tasks = system_of(experiment).order.tasks
    if float(jnp.ptp(_optimal.escape_rate(tasks))) > 1e-9:
        raise Unmet("unequal tasks escape one after the other, each at its own rate")
    times = escape_times(system_of(experiment), IMBALANCES)
    slope = np.polyfit(-np.log(IMBALANCES), times, 1)[0]
    rate = float(jnp.min(_optimal.escape_rate(tasks)))
    shown = ", ".join(f"{time:.2f}" for time in times)
    return abs(1 / slope / rate - 1), f"rate {1 / slope:.4f} against {rate:.4f}; escapes at {shown} after the limit"


def escape_times(system: AbstractSpectral, imbalances: tuple[float, ...]) -> list[float]:
    """When the loss has fallen half-way from one head per task to its bound for so many heads, started at the limit with an imbalance.

    The flow starts at the limit, off-task eigenvalues at a thousandth of the others, o^2 - v^2 being the imbalance everywhere.
    """
    tasks = system.order.tasks
    limit = _optimal.limit(tasks)
    own = jnp.eye(system.heads, tasks.d.size)
    small = jnp.where(own > 0, 1.0, 1e-3)
    start = Spectrum(small * limit.mu[None], small * limit.omega[None])
    begin, end = float(jnp.sum(limit.loss)), float(jnp.sum(_optimal.lower_bound(system.heads, tasks)))
    middle = 0.5 * (begin + end) / float(jnp.sum(tasks.S))
    flow = Factored(system.order, (), system.dimensions, system.heads)

    @eqx.filter_jit
    def one(imbalance: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = _leading.balanced(start, tasks)
        tilt = jnp.exp(0.5 * jnp.arcsinh(imbalance / (2 * start.mu)))
        state = state._replace(o=state.o * tilt, v=state.v / tilt)
        time = jnp.linspace(0.0, 25.0 / jnp.min(_optimal.escape_rate(tasks)) * 2, 4001)
        found = solve(flow, state, time, rtol=1e-9, scale=1e-6)
        return found.time, found["loss"]

    found = []
    for imbalance in imbalances:
        time, loss = one(jnp.asarray(imbalance))
        below = np.flatnonzero(np.asarray(loss) < middle)
        found.append(float(time[below[0]]) if below.size else np.nan)
    return found


SPECTRAL_TRIALS: dict[str, Callable[[Experiment], Measured]] = {
    "spectral limit": spectral_limit,
    "warm-up equation": warm_up_equation,
    "emergence equations": emergence_equations,
    "slaved equation": slaved_equation,
    "convergence rate": convergence_rate,
    "raw data": raw_data,
    "escape rate": escape_rate,
}
