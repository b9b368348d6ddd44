"""What every theory tool owes: tolerances that mean something, time zero, restarts, one time or many, rest at the end.

All of it is asked of every flow that a system has, on the states themselves, with one compiled program for each.
"""

import equinox as eqx
import numpy as np

from spectral_ode.claims import Claim, Trial
from spectral_ode.systems.softmax import Warmup
from validate.courses import Course, Flow, Flows, apart, largest_relative
from validate.metrics import Measured, Unmet

LADDER = (1e-4, 1e-6, 1e-8, 1e-10)
LATE = 8  # times at which the error is asked for
SLOW, REST = 1e-4, 1e-3  # of the fall of the loss: what moves less than the first over a horizon must stay within the second for four more
WALL = 100.0  # times rtol, where a field ends at a wall: a step meets it from one side, where it is steepest


def claims(flows: Flows) -> tuple[Claim, ...]:
    """Claims about the integration of every flow."""
    rtol, walled = flows.experiment.problem.solver.rtol, isinstance(flows.experiment.system, Warmup)
    factor, wall = (WALL, "; a hundred for the warm-up equations, which end at a wall where they are steepest") if walled else (10.0, "")
    itself = "a course that makes more of small changes of its start may be off by that much more"
    common = {"place": "ours", "tier": "validate", "exactness": "exact"}
    return (
        Trial(
            name="global error over rtol, rtol from 1e-4 to 1e-10",
            bound=factor,
            reason=f"10 x rtol, accumulated local error, against rtol 1e-13; horizontal on drops, vertical elsewhere; {itself}{wall}",
            trial=lambda _: tolerance(flows),
            **common,
        ),
        Trial(
            name="at time zero a flow is its start",
            bound=1e-13,
            reason="nothing has been integrated; rounding of one program against another",
            trial=lambda _: time_zero(flows),
            **common,
        ),
        Trial(
            name="the reduction starts at the loss of the full weights",
            bound=max(1e-12, flows.experiment.problem.scale),
            reason="relative; what the reduction leaves out of the weights is of the size of the start",
            trial=lambda _: same_loss(flows),
            **(common | {"exactness": "asymptotic in the start scale"}),
        ),
        Trial(
            name="a solve to one time = the same time among many",
            bound=factor * rtol,
            reason=f"10 x rtol: saved times do not disturb the course; {itself}{wall}",
            trial=lambda _: one_at_a_time(flows),
            **common,
        ),
        Trial(
            name="a solve in two parts = the whole solve",
            bound=factor * rtol,
            reason="10 x rtol: the state is all that the future depends on" + wall,
            trial=lambda _: two_parts(flows),
            **common,
        ),
        Trial(
            name="a flow at rest stays there",
            bound=REST,
            reason="change of the loss over four more horizons, as a share of its fall, once it moves by less than 1e-4 in one",
            trial=lambda _: at_rest(flows),
            **(common | {"exactness": "asymptotic in time"}),
        ),
    )


def present(flows: Flows) -> dict[str, Flow]:
    """The flows of an experiment, of which there must be one."""
    if not flows.each:
        raise Unmet(next(iter(flows.experiment.missing.values())))
    return flows.each


def _worst(found: dict[str, float]) -> Measured:
    return max(found.values()), ", ".join(f"{name} {value:.1e}" for name, value in found.items())


def tolerance(flows: Flows) -> Measured:
    """Largest distance from the reference over rtol, over all rtol and flows."""
    found = {}
    for name, flow in present(flows).items():
        errors = []
        for rtol in LADDER:
            course = flow.course(rtol=rtol, time=_rarely(flow.time))
            whole = course.time.size == flow.time.size
            errors.append(flow.apart(course.time[-LATE:], course.state[-LATE:]) / rtol if whole else np.inf)
        found[name] = _beyond(flow, max(errors), WALL if flow.walled else 10.0)
    return _worst(found)


def _beyond(flow: Flow, error: float, bound: float) -> float:
    """An error; above its bound, in units of a tenth of what the course itself makes of small changes, where that is more than one."""
    return error if error <= bound else error / max(0.1 * flow.amplification, 1.0)


def _rarely(time: np.ndarray) -> np.ndarray:
    """As many times, but all except a few at the very beginning: every saved time is a step, and many would hide the solver's own."""
    late = time[np.linspace(0, time.size - 1, LATE + 1).round().astype(int)[1:]]
    return np.concatenate([np.linspace(0.0, 1e-3 * time[-1], time.size - late.size), late])


def time_zero(flows: Flows) -> Measured:
    """Largest difference of the first saved state from the start, and of a rung's first record from what is observed there."""
    found = {}
    for name, flow in present(flows).items():
        seen = eqx.filter_jit(flow.system.observe)(flow.state)
        record = flows.experiment.rungs[name].run(0)
        observed = largest_relative({key: record[key][0] for key in seen}, seen)
        found[name] = max(largest_relative(flow.usual.state[0], flow.start), observed)
    return _worst(found)


def same_loss(flows: Flows) -> Measured:
    """Relative difference of the loss of the reduced start from that of the weights it was projected from."""
    if "reduced" not in present(flows):
        raise Unmet(flows.experiment.missing["reduced"])
    system = flows.experiment.system
    full, part = eqx.filter_jit(lambda start, state: (system.observe_weights(start)["loss"], system.observe(state)["loss"]))(
        flows.start, flows.each["reduced"].state
    )
    return abs(float(part) / float(full) - 1), f"{float(part):.6g} against {float(full):.6g}"


def one_at_a_time(flows: Flows) -> Measured:
    """Largest distance of solves to a third, to two thirds and to the end from the course that has all times."""
    found = {}
    for name, flow in present(flows).items():
        ends = [flow.time.size // 3, 2 * flow.time.size // 3, flow.time.size - 1]
        alone = [flow.course(time=np.linspace(0.0, flow.time[end], flow.time.size)) for end in ends]
        error = max(apart(flow.usual, flow.unit, course.time[-1:], course.state[-1:]) for course in alone)
        found[name] = _beyond(flow, error, (WALL if flow.walled else 10.0) * flow.problem.solver.rtol)
    return _worst(found)


def two_parts(flows: Flows) -> Measured:
    """Largest distance, in the second part, of a course restarted from a state in its middle."""
    return _worst({name: _restarted(flow, flow.usual) for name, flow in present(flows).items()})


def _restarted(flow: Flow, whole: Course) -> float:
    middle = whole.time.size // 2
    time = np.linspace(whole.time[middle], whole.time[-1], flow.time.size)
    part = flow.course(state=whole.state[middle], time=time)
    return apart(whole, flow.unit, part.time[-1:], part.state[-1:])


def at_rest(flows: Flows) -> Measured:
    """Change of the loss over four further horizons, as a share of its fall."""
    found = {}
    for name, flow in present(flows).items():
        end = flow.time[-1]
        later = flow.course(state=flow.usual.state[-1], time=np.linspace(end, 9 * end, flow.time.size))
        if later.time.size < flow.time.size:
            raise Unmet(f"the {name} flow does not reach nine horizons")
        loss = np.interp(np.asarray([4, 5, 9]) * end, later.time, later.loss)
        fall = abs(float(flow.usual.loss[0]) - loss[2])
        if abs(loss[1] - loss[0]) <= SLOW * fall:
            found[name] = float(np.max(np.abs(later.loss[later.time >= 5 * end] - loss[1]))) / fall
    if not found:
        raise Unmet("no flow has come to rest after five horizons")
    return _worst(found)
