r"""How fast one rung approaches the next: exponents, which are sharper than percentages.

Learning rate. Gradient descent with steps of length eta is Euler's method on the flow of the weights: the gap after a fixed time is of
first order. Measured over a stretch in which the weights move by about a third of their size, with 32, 64 and 128 steps.

Start scale. The reductions of linear attention are exact as the start vanishes: the relative error of their drop times falls at least like
the square root of the start scale (measured: about 1.2 for merged, 1 to 1.5 for separate key and query).

Solver. On equal steps, over a stretch in which the state moves by about its size, the error falls with the order of the method.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp

from spectral_ode import systems, weights
from spectral_ode.claims import Claim, Trial
from spectral_ode.flow import AbstractReduction
from spectral_ode.integrate import SOLVERS, solve_problem
from spectral_ode.system import State
from spectral_ode.systems.linear import Merged, Separate
from spectral_ode.systems.softmax import Factored
from spectral_ode.systems.softmax.phases import AbstractPhase
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from validate.courses import Flow, Flows
from validate.experiment import Experiment
from validate.integration import present
from validate.metrics import Measured, Unmet

STEPS = (32, 64, 128)
SCALES = (0.1, 0.02)  # start scales
SEEDS = 3
ORDERS = {"tsit5": 5, "dopri5": 5, "dopri8": 8, "kvaerno5": 5}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 1024)  # of equal steps; the last stands for infinitely many
COARSE, ROUNDED = 1e-4, 1e-13  # between these errors the order of a method is seen

Field = Callable[[State], State]


def claims(flows: Flows) -> tuple[Claim, ...]:
    """Claims about exponents."""
    system = flows.experiment.system
    found: list[Claim] = [
        Trial(
            name="gradient descent approaches the flow at first order in the learning rate",
            place="ours",
            exactness="asymptotic in the learning rate",
            bound=0.1,
            reason="distance from 1 of the slope between 32, 64 and 128 steps; terms of second order bend it",
            tier="validate",
            trial=lambda _: learning_rate(flows),
        ),
        Trial(
            name="the solver converges at its order on these equations",
            place="ours",
            exactness="asymptotic in the step",
            bound=0.5,
            reason="what the order falls short by, at the shortest steps whose error is above rounding; longer ones bend it",
            tier="validate",
            trial=lambda _: solver_order(flows),
        ),
    ]
    if isinstance(system, Separate | Merged):
        found.append(
            Trial(
                name="drop times of the reduction approach the flow's as the start vanishes",
                place="ours",
                exactness="asymptotic in the start scale",
                bound=0.45,
                reason="error at start scale 0.02 over that at 0.1, median over three seeds: the square root of a fifth at the most",
                tier="validate",
                trial=lambda _: start_scale(flows.experiment),
            )
        )
    return tuple(found)


def descended(flows: Flows) -> Flow:
    """The flow whose Euler steps are gradient descent on weights."""
    system, problem = flows.experiment.system, flows.experiment.problem
    flow = present(flows).get("population") or flows.each["reduced"]
    if isinstance(system, AbstractPhase):
        raise Unmet("the equations of a phase are not the descent of any weights")
    if isinstance(system, AbstractSpectral) and not isinstance(system, Factored):
        factors = Factored(flow.system.order, (), system.dimensions, system.heads)  # pyright: ignore[reportAttributeAccessIssue]
        return Flow(factors, eqx.filter_jit(factors.project)(flows.start), problem)
    if not isinstance(system, AbstractReduction | Factored):
        raise Unmet("no flow of the weights themselves is known")
    return flow


def learning_rate(flows: Flows) -> Measured:
    """Distance from one of the log-log slope of the gap between descent and flow, after a fixed time."""
    flow = descended(flows)
    state, length = flow.stretch[0], 0.3 * flow.stretch[1]
    exact = solve_ivp(lambda _, y: flow.field(y), (0.0, length), state, method="DOP853", rtol=1e-12, atol=1e-15).y[:, -1]
    gaps = []
    for count in STEPS:
        weights = state
        for _ in range(count):
            weights = weights + length / count * flow.field(weights)
        gaps.append(float(np.max(np.abs(weights - exact))))
    slope = -float(np.polyfit(np.log(STEPS), np.log(gaps), 1)[0])
    return abs(slope - 1), f"slope {slope:.3f}; gaps {', '.join(f'{gap:.1e}' for gap in gaps)}"


def start_scale(experiment: Experiment) -> Measured:
    """Median over seeds of the ratio of the reduction's worst drop-time error at the smaller start to that at the larger."""
    problem, errors = experiment.problem, []
    if "reduced" in experiment.missing:
        raise Unmet(experiment.missing["reduced"])
    for scale in SCALES:
        stretch = 1.0 if problem.attention.kind == "merged" else problem.start.scale / scale  # plateaus last like 1/scale, or its logarithm
        start = replace(problem.start, scale=scale)
        small = replace(problem, start=start, units="paper", horizon=problem.end * stretch, runs=1)
        system = systems.load(problem.system).from_problem(small)
        assert isinstance(system, AbstractReduction)
        each = []
        for seed in range(SEEDS):
            drawn = weights.draw(small, run=seed)
            rungs = [solve_problem(flow, small, eqx.filter_jit(flow.project)(drawn)) for flow in (system, system.population())]
            half = [np.asarray([float(time) for name, time in rung.phases.items() if name.startswith("half ")]) for rung in rungs]
            each.append(np.nanmax(np.abs(half[0] / half[1] - 1)))
        errors.append(each)
    if not np.isfinite(errors).all():
        raise Unmet("no drop within the horizon")
    ratio = float(np.median(np.asarray(errors[1]) / np.asarray(errors[0])))
    return ratio, f"errors {np.median(errors[0]):.1e} at {SCALES[0]:g}, {np.median(errors[1]):.1e} at {SCALES[1]:g}"


def solver_order(flows: Flows) -> Measured:
    """How far the order that the problem's solver shows falls short of its own, over the flows whose field is smooth."""
    problem, found = flows.experiment.problem, {}
    for name, flow in present(flows).items():
        if flow.walled:
            continue  # where the field jumps no method has its order
        state, length = flow.stretch
        field = lambda state, flow=flow: flow.system.vector_field(jnp.zeros(()), state)
        seen = order(SOLVERS[problem.solver.name](), field, flow.unflatten(jnp.asarray(state)), length, flow.unit)
        if np.isfinite(seen):
            found[name] = seen
    if not found:
        raise Unmet("no number of steps has an error between rounding and coarseness")
    worst = min(found.values())
    return max(ORDERS[problem.solver.name] - worst, 0.0), f"order {', '.join(f'{name} {value:.1f}' for name, value in found.items())}"


def order(method: diffrax.AbstractSolver, field: Field, state: State, length: float, unit: np.ndarray | float) -> float:
    """The order that a method shows on a field: how its error falls as its steps are halved, at the shortest steps where that is seen."""
    ends = _ends(method, field, state, jnp.asarray(length), jnp.asarray(COUNTS, float))
    gaps = [float(np.max(np.abs(np.asarray(end - ends[-1]) / unit))) for end in ends[:-1]]
    pairs = [(coarse, fine) for coarse, fine in itertools.pairwise(gaps) if fine > ROUNDED and (coarse < COARSE or fine == gaps[-1])]
    return float(np.log2(pairs[-1][0] / pairs[-1][1])) if pairs else np.nan


@eqx.filter_jit
def _ends(method: diffrax.AbstractSolver, field: Field, state: State, length: Array, counts: Float[Array, " many"]) -> Array:
    """Where the flow is after a time, in so many equal steps, flat."""
    term = diffrax.ODETerm(lambda t, y, args: field(y))

    def end(count: Array) -> Array:
        steps = {"dt0": length / count, "max_steps": 2 * COUNTS[-1], "adjoint": diffrax.ForwardMode(), "throw": False}
        return ravel_pytree(diffrax.diffeqsolve(term, method, 0.0, length, y0=state, **steps).ys)[0]

    return jax.lax.map(end, counts)
