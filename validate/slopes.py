r"""How fast one rung approaches the next: exponents, which are sharper than percentages.

Learning rate. Gradient descent with steps of length eta is Euler's method on the flow of the weights: the gap after a fixed time is of
first order. Measured over a stretch in which the weights move by about a third of their size, with 32, 64 and 128 steps.

Start scale. The reductions of linear attention are exact as the start vanishes: the relative error of their drop times falls at least like
the square root of the start scale (measured: about 1.2 for merged, 1 to 1.5 for separate key and query).

Solvers. Global errors on fixed steps fall with the order of each method.
"""

from dataclasses import replace

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp

from spectral_ode import systems, weights
from spectral_ode.claims import Claim, Trial
from spectral_ode.flow import AbstractReduction
from spectral_ode.integrate import SOLVERS, solve_problem
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Merged, Separate
from spectral_ode.systems.softmax import Factored
from spectral_ode.systems.softmax.phases import AbstractPhase
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from validate.courses import Flow, Flows
from validate.integration import present
from validate.metrics import Measured, Unmet

STEPS = (32, 64, 128)
SCALES = (0.1, 0.02)  # start scales
SEEDS = 3
ORDERS = {"tsit5": 5, "dopri5": 5, "dopri8": 8, "kvaerno5": 5}


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
        )
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
                trial=lambda _: start_scale(flows.experiment.problem),
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
    state, length = _stretch(flow)
    exact = solve_ivp(lambda _, y: flow.field(y), (0.0, length), state, method="DOP853", rtol=1e-12, atol=1e-15).y[:, -1]
    gaps = []
    for count in STEPS:
        weights = state
        for _ in range(count):
            weights = weights + length / count * flow.field(weights)
        gaps.append(float(np.max(np.abs(weights - exact))))
    slope = -float(np.polyfit(np.log(STEPS), np.log(gaps), 1)[0])
    return abs(slope - 1), f"slope {slope:.3f}; gaps {', '.join(f'{gap:.1e}' for gap in gaps)}"


def _stretch(flow: Flow) -> tuple[np.ndarray, float]:
    """Where the weights move fastest, and how long they take to move by a third of their size; found by a coarse solve."""
    start = np.asarray(flow.start)
    rough = solve_ivp(
        lambda _, y: flow.field(y), (0.0, float(flow.time[-1])), start, method="LSODA", rtol=1e-6, atol=1e-6 * flow.problem.scale
    )
    unit = np.max(np.abs(rough.y), axis=1) + flow.problem.scale
    speed = np.asarray([np.max(np.abs(flow.field(state)) / unit) for state in rough.y.T])
    begin = int(np.argmax(speed))
    return rough.y[:, begin], 0.3 / float(speed[begin])


def start_scale(problem: Problem) -> Measured:
    """Median over seeds of the ratio of the reduction's worst drop-time error at the smaller start to that at the larger."""
    errors = []
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


def order(name: str) -> float:
    """The order of a solver, from fixed steps on a pendulum, x'' = -sin x, against very many steps."""
    counts = (8, 16) if name == "dopri8" else (32, 64)
    method = SOLVERS[name]()
    if name == "kvaerno5":  # fixed steps have no tolerance that its equations could be solved to
        method = diffrax.Kvaerno5(root_finder=optimistix.Newton(rtol=1e-12, atol=1e-12))
    exact = _swing(diffrax.Dopri8(), 1024)
    gaps = [float(jnp.linalg.norm(_swing(method, count) - exact)) for count in counts]
    return float(np.log2(gaps[0] / gaps[1]))


def _swing(method: diffrax.AbstractSolver, count: int) -> Float[Array, " two"]:
    """Where a pendulum is after time 3, in so many steps."""
    term = diffrax.ODETerm(lambda t, y, args: jnp.stack([y[1], -jnp.sin(y[0])]))
    times = jnp.linspace(0.0, 3.0, count + 1)
    solution = diffrax.diffeqsolve(
        term, method, 0.0, 3.0, None, jnp.asarray([1.5, 0.0]), stepsize_controller=diffrax.StepTo(times), max_steps=count, throw=False
    )
    assert solution.ys is not None
    return solution.ys[-1]
