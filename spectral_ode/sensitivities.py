r"""How a quantity depends on the numbers of its problem: exact derivatives through system, start and solve, no differences.

With p the parameters, y(t; p) the course and q(y, p) an observable, the solve is differentiated at the wanted times. For a phase, which
is the time t* at which phi(y(t; p), p) = 0, the implicit function theorem gives

    dt*/dp = - (dphi/dp at fixed t*) / (dphi/dt along the flow)

with dphi/dp by differentiating the solve up to t*, where t* itself is found by `integrate`. Few parameters go forward (one tangent each
beside the solve); all weights of a start go backward (one solve of the adjoint, whatever their number).

The chain begins at the problem's fields: `traced` puts numbers with tangents in their place, so that `from_problem`, the drawn start and
`project` are differentiated, too. Seeds stay what they are: the same random numbers at every value of the parameters.
"""

from dataclasses import dataclass, field
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode import integrate, rungs, traced, weights
from spectral_ode.problem import BadInput, Problem, Regression
from spectral_ode.system import AbstractSystem

WEIGHTS = "weights"  # the name of all initial weights together
SORTED = ("task.spectrum", "task.prior")  # by them directions are put in order, and with it goes what each one starts from
OUTSIDE = ("horizon", "training", "solver", "points", "spacing")  # what the flow itself does not see


@dataclass(frozen=True)
class Sensitivity:
    """A quantity with its derivatives: [times, components, parameters of the field]; for a phase there is one time, and no component."""

    of: str
    rung: str
    at: Float[np.ndarray, " times"]  # flow times: of the phase itself, or those asked for
    value: np.ndarray
    derivative: dict[str, Any] = field(default_factory=dict)  # by field; of the weights a tree like them

    def rows(self, problem: Problem) -> list[dict[str, Any]]:
        """One row per time, component and parameter, with the elasticity d ln q / d ln p."""
        found = []
        for name, slopes in self.derivative.items():
            if name == WEIGHTS:
                continue
            values = np.atleast_1d(traced.read(problem, name))
            flat = np.asarray(slopes).reshape(*self.value.shape, values.size)
            for place in np.ndindex(flat.shape):
                value, slope, number = float(self.value[place[:-1]]), float(flat[place]), float(values[place[-1]])
                entry = f".{place[-1] + 1}" if np.ndim(traced.read(problem, name)) else ""
                component = " ".join(str(index + 1) for index in place[1:-1])
                row = {"of": f"{self.of} {component}".strip(), "time": float(self.at[place[0]]), "value": value, "to": name + entry}
                elasticity = slope * number / value if value else float("nan")
                found.append(row | {"setting": number, "derivative": slope + 0.0, "elasticity": elasticity + 0.0})  # no minus zero
        return found


def sensitivity(
    problem: Problem, *, of: str, to: str | tuple[str, ...], at: tuple[float, ...] | None = None, rung: str | None = None
) -> Sensitivity:
    """Derivatives of a phase time, or of an observable at the times `at` (default: the end), to fields of the problem or to "weights"."""
    names = (to,) if isinstance(to, str) else tuple(to)
    for name in names:
        if name != WEIGHTS:
            differentiable(problem, name)
    rung = rungs.chosen(problem, rung)
    if rung == "training":
        raise BadInput("--rung is training, but sensitivities are those of a flow; use population or reduced")
    system, start = rungs.made(problem, rung)
    course = integrate.solve_problem(system, problem, start)
    name = _named(of, [*course.phases, *course.observables])
    is_phase = name in course.phases
    if is_phase and at is not None:
        raise BadInput(f"--at is given, but {name!r} is a phase, which has a time of its own; leave --at out, or ask for an observable")
    moments = jnp.atleast_1d(course.phases[name]) if is_phase else jnp.asarray(_moments(problem, at))
    if is_phase and not 0 < float(moments[0]) < np.inf:
        when = "before the start" if float(moments[0]) == 0 else f"not before t = {float(course.time[-1]):g}"
        raise BadInput(f"{name!r} is reached {when}, so it has no derivative; change --start.scale or raise --horizon")
    if not course.ok:
        raise BadInput(f"the flow could not be integrated: {course.stopped}")
    task = _Task(name, is_phase, moments, problem, rung)
    fields = [one for one in names if one != WEIGHTS]
    found: dict[str, Any] = _to_fields(task, fields) if fields else {}
    found |= {WEIGHTS: _to_weights(task, system)} if WEIGHTS in names else {}
    value = moments if is_phase else task.values(system, start, diffrax.RecursiveCheckpointAdjoint())
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found)):
        raise BadInput(f"the derivatives of {name!r} are not numbers there; choose another time, or a larger --start.scale")
    return Sensitivity(name, rung, np.asarray(moments), np.asarray(value), found)


def differentiable(problem: Problem, name: str) -> None:
    """Raise `BadInput` unless a field is made of floats that the flow can depend on."""
    value = traced.read(problem, name)
    if name.split(".")[0] in OUTSIDE:
        raise BadInput(f"{name} sets the clock, the training or the solver, but no flow depends on it; choose a field of task or start")
    numbers = value if isinstance(value, tuple) else (value,)
    if value is None:
        raise BadInput(f"{name} is not set in this problem, so nothing depends on it; give it a value first")
    if name.startswith(SORTED) and (rates := _rates(problem)) and len(set(rates)) < len(rates):
        raise BadInput(f"{name} sets the order of eigenvalues that are equal, and no derivative is known there; make them distinct")
    if not numbers or any(isinstance(number, bool) or not isinstance(number, float) for number in numbers):
        kind = "a word" if isinstance(numbers[0] if numbers else "", str) else "a whole number"
        raise BadInput(f"{name} is {kind}, which has no derivative; choose a field that is a number or a list of numbers")


def _rates(problem: Problem) -> list[float]:
    """What the directions of linear regression are sorted by."""
    if not isinstance(problem.task, Regression):
        return []
    spectrum, prior = problem.task.spectrum, problem.task.prior
    return [lam**2 * sig for lam, sig in zip(spectrum, prior * len(spectrum) if len(prior) == 1 else prior, strict=True)]


def _named(wanted: str, names: list[str]) -> str:
    plain = {name.replace("-", " ").lower(): name for name in names}
    if wanted.replace("-", " ").lower() not in plain:
        raise BadInput(f"there is no quantity {wanted!r}; phases and observables are {', '.join(names)}")
    return plain[wanted.replace("-", " ").lower()]


def _list(moments: np.ndarray) -> str:
    return ",".join(f"{moment:g}" for moment in moments)


def _moments(problem: Problem, at: tuple[float, ...] | None) -> np.ndarray:
    moments = np.asarray(at if at is not None else [problem.end], float)
    if moments.size == 0 or not np.all(np.isfinite(moments)) or np.any(np.diff(moments) <= 0) or moments[0] <= 0:
        raise BadInput(f"--at is {_list(moments)}, but growing times above zero are expected")
    if moments[-1] > problem.end:
        raise BadInput(f"--at is {_list(moments)}, but everything ends at {problem.end:g}; raise --horizon")
    return moments


class _Task:
    """What is differentiated: an observable at some times, or the function whose zero is a phase at the time of that phase."""

    def __init__(self, name: str, is_phase: bool, moments: Array, problem: Problem, rung: str) -> None:
        self.name, self.is_phase, self.moments, self.problem, self.rung = name, is_phase, moments, problem, rung

    def look(self, system: AbstractSystem, state: Any) -> Array:
        """The quantity of one state."""
        seen = system.observe(state)
        return system.phases(seen)[self.name] if self.is_phase else seen[self.name]

    def states(self, system: AbstractSystem, start: Any, adjoint: diffrax.AbstractAdjoint) -> Any:
        """The states at the moments."""
        solver = self.problem.solver
        term = diffrax.ODETerm(lambda t, y, args: system.vector_field(jnp.asarray(t), y))
        controller = diffrax.PIDController(rtol=solver.rtol, atol=self.problem.atol)
        times = jnp.concatenate([jnp.zeros(1), self.moments])
        method = integrate.SOLVERS[solver.name]()
        found = integrate.course(term, method, controller, start, times, max_steps=solver.max_steps, adjoint=adjoint)
        return jax.tree.map(lambda leaf: leaf[1:], found.ys)

    def values(self, system: AbstractSystem, start: Any, adjoint: diffrax.AbstractAdjoint) -> Array:
        """The quantity at the moments."""
        return jax.vmap(lambda state: self.look(system, state))(self.states(system, start, adjoint))

    def speed(self, system: AbstractSystem, start: Any, adjoint: diffrax.AbstractAdjoint) -> Array:
        """dphi/dt along the flow at the moments."""
        states = self.states(system, start, adjoint)
        slopes = jax.vmap(jax.grad(lambda state: self.look(system, state)))(states)
        rates = jax.vmap(lambda state: system.vector_field(jnp.zeros(()), state))(states)
        along = jax.tree.map(lambda slope, rate: jnp.sum((slope * rate).reshape(slope.shape[0], -1), axis=1), slopes, rates)
        return jax.tree.reduce(jnp.add, along)

    def time(self, slopes: Array, speed: Array) -> Array:
        """From the slope of the quantity at fixed time to that of the phase's time."""
        return -slopes / speed.reshape(speed.shape + (1,) * (slopes.ndim - speed.ndim)) if self.is_phase else slopes


def _to_fields(task: _Task, names: list[str]) -> dict[str, np.ndarray]:
    """Derivatives to fields of the problem: [times, components, numbers of the field]."""
    points = {name: jnp.asarray(traced.read(task.problem, name), float) for name in names}

    def build(points):
        inserted = {name: tuple(point) if point.ndim else point for name, point in points.items()}
        return rungs.made(traced.insert(task.problem, inserted), task.rung)

    # One tangent for every number, outside of jit: what a system asks of its numbers can still be answered there.
    flat, unflatten = jax.flatten_util.ravel_pytree(points)
    floats = lambda flat: eqx.filter(build(unflatten(flat)), eqx.is_inexact_array)
    tangents = [jax.jvp(floats, (flat,), (row,))[1] for row in jnp.eye(flat.size)]
    moving, rest = eqx.partition(build(points), eqx.is_inexact_array)
    found = _slopes(task, moving, jax.tree.map(lambda *leaves: jnp.stack(leaves), *tangents), rest)
    sizes = np.cumsum([points[name].size for name in sorted(points)])[:-1]  # a dictionary is flattened by its sorted names
    parts = dict(zip(sorted(points), np.split(np.asarray(found), sizes, axis=-1), strict=True))
    return {name: parts[name] if points[name].ndim else parts[name][..., 0] for name in names}


def _slopes(task: _Task, moving: Any, tangents: Any, rest: Any) -> Array:
    """Derivatives along some tangents of system and start, on the last axis: forward, or backward where a rule for that alone exists."""

    def to_time(found, arguments, mode):
        system, start = arguments
        return task.time(found, task.speed(system, start, mode)) if task.is_phase else found

    def values(moving, rest, mode):
        system, start = eqx.combine(moving, rest)
        return task.values(system, start, mode)

    @eqx.filter_jit
    def forward(moving, tangents, rest):
        mode = diffrax.ForwardMode()
        value = lambda moving: values(moving, rest, mode)
        found = jax.vmap(lambda tangent: jax.jvp(value, (moving,), (tangent,))[1], out_axes=-1)(tangents)
        return to_time(found, eqx.combine(moving, rest), mode)

    @eqx.filter_jit
    def backward(moving, tangents, rest):
        mode = diffrax.RecursiveCheckpointAdjoint()
        slopes = jax.jacrev(lambda moving: values(moving, rest, mode))(moving)
        found = jax.tree.reduce(jnp.add, jax.tree.map(_along, slopes, tangents))
        return to_time(found, eqx.combine(moving, rest), mode)

    try:
        return forward(moving, tangents, rest)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        return backward(moving, tangents, rest)


def _along(slope: Array, tangent: Array) -> Array:
    """A slope [times, components, *shape] along tangents [tangents, *shape]."""
    inner = tangent.ndim - 1
    return jnp.tensordot(slope, tangent, axes=(tuple(range(slope.ndim - inner, slope.ndim)), tuple(range(1, tangent.ndim))))


def _to_weights(task: _Task, system: AbstractSystem) -> Any:
    """Derivatives to all weights of the start, a tree like them with the times (and components) in front."""
    drawn = weights.draw(task.problem)

    @eqx.filter_jit
    def slopes(system, drawn):
        value = lambda drawn: task.values(system, system.project(drawn), diffrax.RecursiveCheckpointAdjoint())
        found = jax.jacrev(value)(drawn)
        if not task.is_phase:
            return found
        speed = task.speed(system, system.project(drawn), diffrax.RecursiveCheckpointAdjoint())
        return jax.tree.map(lambda slope: task.time(slope, speed), found)

    return jax.tree.map(np.asarray, slopes(system, drawn))
