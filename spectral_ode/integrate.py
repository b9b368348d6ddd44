"""The single call into Diffrax: integrate a system, observe it at given times, find its phases.

Saved values are computed inside the solve. Phases are found by a Diffrax event each: the solve saves the state at the given
times, a phase that changes sign between two of them is integrated again from the earlier one up to the event, and the time is
root-found there. So no phase disturbs the course, and all of it is differentiable and batches under `vmap`.

Failure is data: the trajectory ends at the last time that was reached and `stopped` says where, why and what to try.
"""

import functools
import json
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.core import Tracer
from jaxtyping import Array, Float

from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import AbstractSystem, State
from spectral_ode.trajectory import Trajectory
from spectral_ode.weights import largest

SOLVERS = {"tsit5": diffrax.Tsit5, "dopri5": diffrax.Dopri5, "dopri8": diffrax.Dopri8, "kvaerno5": diffrax.Kvaerno5}
# For solves that nothing differentiates: a quarter less to trace than what can be differentiated backwards.
PLAIN: diffrax.AbstractAdjoint = diffrax.ForwardMode()
STEADY = 1e-9  # a state is steady when |field| falls below this times |state| (largest entries), all phases being past


def solve(
    system: AbstractSystem,
    state: State,
    times: Float[Array, " time"] | np.ndarray,
    *,
    solver: str = "dopri8",
    rtol: float = 1e-8,
    atol: float | None = None,
    scale: float | None = None,
    max_steps: int = 1_000_000,
    steady: bool = False,
    phases: bool = True,
) -> Trajectory:
    """Integrate `system` from `state` at times[0] to times[-1].

    `atol` is `rtol` times the start scale unless given, and may not exceed a hundredth of it: escape times from a saddle depend
    on the smallest numbers. The start scale is `scale`, or else the largest entry of the state. With `steady` the integration
    ends once every phase is past and the state has stopped moving. Without `phases` none is located: half as much to compile.
    """
    if solver not in SOLVERS:
        raise BadInput(f"unknown solver {solver!r}; choose one of {', '.join(SOLVERS)}")
    times = jnp.asarray(times)
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((system, state, times)))
    single = [leaf.dtype for leaf in jax.tree.leaves(state) if leaf.dtype != jnp.float64]
    if single and rtol < 1e-5:
        raise BadInput(f"the state is {single[0]}, but rtol {rtol:g} needs float64; call spectral_ode.configure() before anything else")
    if not traced and (times.ndim != 1 or times.size < 2 or not np.all(np.diff(times) > 0)):
        raise BadInput("times must be an increasing list of at least two numbers")
    # Numpy where nothing is traced: each jax operation on its own is one more program to compile.
    size = largest(state) if traced else np.max([np.max(np.abs(leaf)) for leaf in jax.tree.leaves(state)])
    start = size if scale is None else scale
    if atol is not None and not traced and atol > 1e-2 * start:
        raise BadInput(f"atol {atol:g} is too coarse for a start of scale {float(start):g}; use at most {1e-2 * float(start):g}")
    tolerance = jnp.asarray(rtol * start if atol is None else atol, times.dtype)
    program = _nested if traced else _alone
    observables, moments, reached, count, failure = program(
        system, state, times, jnp.asarray(rtol, times.dtype), tolerance, solver, max_steps, steady, phases
    )
    if traced:
        return Trajectory(times, observables, moments)
    kept = int(reached)
    if kept == 0:
        raise BadInput(f"the {type(system).__name__} flow is not a number at its start already; use a smaller --start.scale or task")
    at = float(np.asarray(times)[kept - 1])
    origin: dict[str, Any] = {
        "source": type(system).__name__,
        "solver": {"name": solver, "rtol": rtol, "atol": float(tolerance), "steps": int(count)},
        "dtype": str(times.dtype),
        "ok": int(failure) not in (1, 3),
        "stopped": _reason(int(failure), at, float(np.asarray(times)[-1]), int(count), max_steps, solver),
    }
    if kept < times.size:
        times, observables = times[:kept], {name: array[:kept] for name, array in observables.items()}
    return Trajectory(times, observables, moments, origin=json.dumps(origin))


def solve_problem(system: AbstractSystem, problem: Problem, state: State, **changes: Any) -> Trajectory:
    """`solve` with the times and the solver settings of a problem."""
    settings = {"solver": problem.solver.name, "rtol": problem.solver.rtol, "atol": problem.atol, "scale": problem.scale}
    settings |= {"max_steps": problem.solver.max_steps, "steady": problem.solver.steady}
    return solve(system, state, problem.times, **(settings | changes))


def _reason(failure: int, at: float, end: float, count: int, max_steps: int, solver: str) -> str:
    if failure == 0:
        return f"reached the horizon {end:g} after {count} steps"
    if failure == 2:
        return f"reached the steady state before t={at:g} of {end:g} after {count} steps"
    if failure == 3:
        return f"stopped at t={at:g} of {end:g} because what is observed is no longer a number; try a smaller --start.scale"
    if count >= max_steps:
        return f"stopped at t={at:g} of {end:g} after {count} steps; raise --solver.max-steps or try --solver.name kvaerno5"
    other = "dopri8" if solver == "kvaerno5" else "kvaerno5"
    return f"stopped at t={at:g} of {end:g} because the {solver} step failed; try --solver.name {other} or a smaller --solver.rtol"


def _integrate(system, state, times, rtol, atol, solver, max_steps, steady, phases=True, adjoint: diffrax.AbstractAdjoint = PLAIN):
    """Observables at `times`, phase times, number of finite points, steps, and 0 = horizon, 1 = failure, 2 = steady state, 3 = overflow."""
    term = diffrax.ODETerm(lambda t, y, args: system.vector_field(t, y))
    controller = diffrax.PIDController(rtol=rtol, atol=atol)
    method = SOLVERS[solver]()

    def settled(t, y, args, **_):
        past = jnp.asarray([value > 0 for value in system.phases(system.observe(y)).values()])
        return jnp.all(past) & (largest(system.vector_field(t, y)) < STEADY * largest(y))

    # Saved times are stepped to: between its steps a solver interpolates at a lower order than it steps, ten to hundred times rtol off.
    clipped = diffrax.ClipStepSizeController(controller, step_ts=times)
    event = diffrax.Event(settled) if steady else None
    solution = course(term, method, clipped, state, times, max_steps=max_steps, event=event, end=steady, adjoint=adjoint)
    # Under tracing the arrays keep their length: a state that is no longer integrated holds its last value, which is the steady one.
    states, reached = _held(solution.ys, times.size + steady)
    states, reached = jax.tree.map(lambda leaf: leaf[: times.size], states), without_end(reached, steady)
    observables, seen = _held(jax.vmap(system.observe)(states), times.size)
    moments = _locate(system, term, method, controller, times, states, observables, max_steps, adjoint) if phases else {}
    failed = jnp.where(solution.result == diffrax.RESULTS.successful, 0, 1)
    failure = jnp.where(seen < times.size, 3, jnp.where(solution.result == diffrax.RESULTS.event_occurred, 2, failed))
    return observables, moments, jnp.minimum(reached, seen), solution.stats["num_steps"], failure


_nested = eqx.filter_jit(functools.partial(_integrate, adjoint=diffrax.RecursiveCheckpointAdjoint()))
_alone = eqx.filter_jit(_integrate)


def _held(tree, length: int):
    """A tree of courses, each holding its value from where one of them is no longer a number; and how many points are before that."""
    finite = jnp.all(jnp.stack([jnp.isfinite(leaf.reshape(length, -1)).all(1) for leaf in jax.tree.leaves(tree)]), axis=0)
    reached = jnp.sum(jnp.cumprod(finite))
    index = jnp.minimum(jnp.arange(length), jnp.maximum(reached - 1, 0))
    return jax.tree.map(lambda leaf: leaf[index], tree), reached


def without_end(count, end: bool):
    """How many of so many states are at given times, if the one at the end is among them, too; at least the first one is."""
    return jnp.maximum(count - 1, jnp.minimum(count, 1)) if end else count


def course(term, method, controller, state, times, *, max_steps: int, end: bool = False, **more: Any) -> diffrax.Solution:
    """States at `times`, from `state` at the first of them, and behind them the one at the end; failure is a value."""
    solution = diffrax.diffeqsolve(
        term,
        method,
        t0=times[0],
        t1=times[-1],
        dt0=None,
        y0=state,
        saveat=diffrax.SaveAt(ts=times, t1=end),
        stepsize_controller=controller,
        max_steps=max_steps,
        throw=False,
        **more,
    )
    assert solution.ys is not None
    return solution


def _locate(
    system, term, method, controller, times, states, observables, max_steps, adjoint: diffrax.AbstractAdjoint = PLAIN
) -> dict[str, Float[Array, ""]]:
    """The first upward crossing of each phase, by a Diffrax event between the two saved times around it; nan if there is none."""
    values = jax.vmap(system.phases)(observables)
    if not values:
        return {}
    names = list(values)
    past = jnp.stack([values[name] >= 0 for name in names])  # phases x time
    first = jnp.argmax(past, axis=1)
    before = jnp.maximum(first - 1, 0)

    crosses = jnp.any(past, axis=1) & ~past[:, 0]

    def condition(t, y, args, **_):
        number, middle = args
        now = system.phases(system.observe(y))
        # A phase that is not crossed gets a sure event, because one failed root find would spoil its whole batch.
        return jnp.where(crosses[number], jnp.stack([now[name] for name in names])[number], t - middle)

    root_finder = optimistix.Bisection(rtol=1e-13, atol=1e-13, flip="detect")

    def one(number, index):
        event = diffrax.diffeqsolve(
            term,
            method,
            t0=times[index],
            t1=times[index + 1],
            dt0=None,
            y0=jax.tree.map(lambda leaf: leaf[index], states),
            args=(number, 0.5 * (times[index] + times[index + 1])),
            stepsize_controller=controller,
            event=diffrax.Event(condition, root_finder, direction=True),
            max_steps=min(max_steps, 65_536),
            throw=False,
            adjoint=adjoint,
        )
        assert event.ts is not None
        return event.ts[0]

    found = jax.vmap(one)(jnp.arange(len(names)), before)
    found = jnp.where(crosses, found, jnp.where(past[:, 0], times[0], jnp.nan))
    return dict(zip(names, found, strict=True))
