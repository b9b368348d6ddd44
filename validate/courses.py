r"""Courses of one experiment's flows as states, and how far two courses of one flow are apart.

Near a drop a shift in time of 1e-6 is a gap of 1e-4 or more, so a course is compared with the nearest point of the other one: with states
in units of the largest value each of their entries takes (plus the start scale, which the solver's absolute tolerance knows), the
distance of y from the course Y at time t is

    min over dt of max( |y - Y(t + dt)|, |dt|/t )

by a few Gauss-Newton steps on the cubic through saved states and rates of Y. Vertical on plateaus, horizontal on drops.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicHermiteSpline

from spectral_ode import weights
from spectral_ode.claims import Claim
from spectral_ode.integrate import solve
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem, Observed, State, Weights
from spectral_ode.systems.softmax import Balanced, Factored, Warmup
from validate.experiment import Experiment

POINTS = 81  # saved times of a course
TIGHT = 1e-13  # rtol of the reference
NUDGE = 1e-6  # of a start, in units of its scale


class Bare(AbstractSystem):
    """A flow of which nothing is seen but its state, the rate of that, and the loss."""

    system: AbstractSystem

    @classmethod
    def from_problem(cls, problem: Problem) -> "Bare":
        """A flow is given, not made."""
        raise NotImplementedError

    def missing(self, problem: Problem) -> dict[str, str]:
        """What the flow says of itself."""
        return self.system.missing(problem)

    def project(self, weights: Weights) -> State:
        """The flow's own."""
        return self.system.project(weights)

    def vector_field(self, t: Float[Array, ""], state: State) -> State:
        """The flow's own."""
        return self.system.vector_field(t, state)

    def observe(self, state: State) -> Observed:
        """State and rate as vectors, and the loss."""
        rate = self.system.vector_field(jnp.zeros(()), state)
        return {"state": ravel_pytree(state)[0], "rate": ravel_pytree(rate)[0], "loss": self.system.observe(state)["loss"]}

    def observe_weights(self, weights: Weights) -> Observed:
        """The same from full weights."""
        return self.observe(self.project(weights))

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """None: nothing is looked for."""
        return {}

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """None."""
        return {"loss": {}}

    def population(self) -> AbstractSystem:
        """The flow's own."""
        return self.system.population()

    def forecast(self, weights: Weights) -> dict[str, Array]:
        """None."""
        return {}

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """None."""
        return ()


class Course(NamedTuple):
    """A solved flow: one row per time."""

    time: np.ndarray
    state: np.ndarray
    rate: np.ndarray
    loss: np.ndarray


class Flow:
    """One rung of an experiment's first run, to be integrated as often as needed with one compiled program."""

    def __init__(self, system: AbstractSystem, state: State, problem: Problem):
        self.system, self.state, self.problem = system, state, problem
        chosen = np.unique(np.linspace(0, problem.times.size - 1, POINTS).round().astype(int))
        self.time = problem.times[chosen]
        self.start, self.unflatten = ravel_pytree(state)

    def course(self, *, rtol: float | None = None, state: np.ndarray | None = None, time: np.ndarray | None = None) -> Course:
        """Solve from a flat state (the start unless given) at as many times as ever, so that nothing is compiled anew."""
        settings = self.problem.solver
        rtol = settings.rtol if rtol is None else rtol
        begin = self.state if state is None else self.unflatten(jnp.asarray(state))
        found = solve(
            Bare(self.system),
            begin,
            self.time if time is None else time,
            solver=settings.name,
            rtol=rtol,
            atol=self.problem.atol * rtol / settings.rtol,
            scale=self.problem.scale,
            max_steps=settings.max_steps,
        )
        return Course(*(np.asarray(part) for part in (found.time, found["state"], found["rate"], found["loss"])))

    @property
    def walled(self) -> bool:
        """Whether the field ends at a wall, where it is not continuous."""
        return isinstance(self.system, Warmup)

    @cached_property
    def usual(self) -> Course:
        """At the problem's own tolerance."""
        return self.course()

    @cached_property
    def reference(self) -> Course:
        """At the tightest tolerance."""
        return self.course(rtol=TIGHT)

    @cached_property
    def unit(self) -> np.ndarray:
        """What each entry of the state is measured in."""
        return np.max(np.abs(self.reference.state), axis=0) + self.problem.scale

    @cached_property
    def fastest(self) -> int:
        """Number of the saved time at which the state moves fastest."""
        return int(np.argmax(np.max(np.abs(self.reference.rate / self.unit), axis=1)))

    @cached_property
    def amplification(self) -> float:
        """How many times further apart than their starts courses come: the largest of three small random changes of the start."""
        found, generator = [], np.random.default_rng(8)
        for _ in range(3):
            change = NUDGE * self.problem.scale * generator.normal(size=self.start.size)
            other = self.course(rtol=TIGHT, state=np.asarray(self.start) + change)
            found.append(self.apart(other.time[1:], other.state[1:]) / NUDGE)
        return max(found)

    @cached_property
    def stretch(self) -> tuple[np.ndarray, float]:
        """The flat state where it moves fastest, and the time in which it would move by its size there.

        Found by a coarse solve, whose steps miss no drop. A walled flow is taken from the saved times, half-way to its wall.
        """
        if self.walled:
            speed = np.max(np.abs(self.reference.rate[self.fastest] / self.unit))
            return self.reference.state[self.fastest // 2], 1 / float(speed)
        begun, scale = np.asarray(self.start), self.problem.scale
        rough = solve_ivp(lambda _, y: self.field(y), (0.0, float(self.time[-1])), begun, method="LSODA", rtol=1e-6, atol=1e-6 * scale)
        unit = np.max(np.abs(rough.y), axis=1) + scale
        speed = np.asarray([np.max(np.abs(self.field(state)) / unit) for state in rough.y.T])
        return rough.y[:, np.argmax(speed)], 1 / float(np.max(speed))

    @cached_property
    def field(self) -> Callable[[np.ndarray], np.ndarray]:
        """The right side as a function of flat numpy vectors."""
        compiled = eqx.filter_jit(lambda flat: ravel_pytree(self.system.vector_field(jnp.zeros(()), self.unflatten(flat)))[0])
        return lambda flat: np.asarray(compiled(flat))

    def apart(self, time: np.ndarray, state: np.ndarray) -> float:
        """Largest distance of points (time, state), times above zero, from the reference course."""
        return apart(self.reference, self.unit, time, state)


def apart(reference: Course, unit: np.ndarray, time: np.ndarray, state: np.ndarray) -> float:
    """Largest distance of points from a course (see the top of this file); infinite where one has not come so far."""
    if time.size == 0 or not np.isfinite(state).all() or time[-1] > reference.time[-1] * (1 + 1e-12):
        return np.inf
    spline = CubicHermiteSpline(reference.time, reference.state, reference.rate, axis=0)
    slope = spline.derivative()
    inside = lambda moment: np.clip(moment, reference.time[0], reference.time[-1])
    shift, best = np.zeros(time.size), np.full(time.size, np.inf)
    for _ in range(5):
        gap, rate = (spline(inside(time + shift)) - state) / unit, slope(inside(time + shift)) / unit
        best = np.minimum(best, np.maximum(np.max(np.abs(gap), axis=1), np.abs(shift) / time))
        shift = -np.sum((gap - shift[:, None] * rate) * rate, axis=1) / (np.sum(rate**2, axis=1) + time**-2.0)
    return float(np.max(best))


class Flows:
    """The flows of an experiment by their rungs, made when they are first asked for.

    The exact flow of softmax attention at finite L takes ten seconds to compile: it is among them only if `deep`.
    """

    def __init__(self, experiment: Experiment, *, deep: bool = False):
        self.experiment, self.deep = experiment, deep

    @property
    def shallow(self) -> bool:
        """Whether a flow is left out."""
        return isinstance(self.experiment.system, Balanced | Factored) and not self.deep

    @cached_property
    def start(self) -> Weights:
        """The weights of the first run."""
        return weights.draw(self.experiment.problem)

    @cached_property
    def each(self) -> dict[str, Flow]:
        """Reduced and population, those that there are."""
        problem, system, found = self.experiment.problem, self.experiment.system, {}
        missing = self.experiment.missing
        if "reduced" not in missing:
            found["reduced"] = Flow(system, self.experiment.states[0], problem)
        if "population" not in missing and not self.shallow:
            flow = system.population()
            found["population"] = Flow(flow, eqx.filter_jit(flow.project)(self.start), problem)
        return found


def largest_relative(ours, exact) -> float:
    """Largest difference of two trees of arrays, each leaf in units of its largest entry (one, if all are zero)."""
    worst = 0.0
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        one, two = np.asarray(one, float), np.asarray(two, float)
        size = np.max(np.abs(two), initial=0.0)
        gap = np.max(np.abs(one - two), initial=0.0)
        worst = max(worst, float(gap / size if size > 0 else gap)) if np.isfinite(gap) else np.inf
    return worst
