r"""Integrators that are not Diffrax, and right sides that are not JAX.

scipy (LSODA, DOP853, Radau) gets the compiled field as a function of flat vectors: an independent integrator of the same field. mpmath
gets the field of `validate.plain`, written once more from the equations, at thirty digits: an independent field at random states, and an
independent solve (Gragg's rule extrapolated to order 24) over a stretch in which the state moves by about a third of its size.
"""

import itertools

import mpmath
import numpy as np
from scipy.integrate import solve_ivp

from spectral_ode.claims import Claim, Trial
from spectral_ode.problem import Problem
from validate import plain
from validate.courses import Flow, Flows, largest_relative
from validate.integration import present
from validate.metrics import Measured, Unmet
from validate.plain.numbers import DIGITS, floats, integrate, many

FORMS = "closed forms = quadrature, root finding or scipy, each in units of its accuracy"
METHODS = {"LSODA": 1e-11, "DOP853": 1e-11, "Radau": 1e-9}  # with their rtol
IMPLICIT = 64  # entries up to which a method gets a Jacobian by differences
STOPS = 4  # times at which a referee is asked: he integrates to each of them, so that he need not interpolate
STATES = 3  # random states at which two fields are compared
STEPS = 4  # large steps of the solve at thirty digits


def claims(flows: Flows) -> tuple[Claim, ...]:
    """Claims that an independent integrator and an independent field agree."""
    rtol = flows.experiment.problem.solver.rtol
    common = {"place": "ours", "tier": "validate", "exactness": "exact"}
    return (
        Trial(
            name="scipy integrates the same course: LSODA, DOP853, Radau",
            bound=10 * max(rtol, 1e-9),
            reason="10 x rtol (1e-9 at the least, Radau's own), horizontal on drops; the compiled field, integrators that are not ours",
            trial=lambda _: by_scipy(flows),
            **common,
        ),
        Trial(
            name="field = the equations written once more, at thirty digits",
            bound=1e-12,
            reason="rounding of float64, in units of the largest rate, at random states beside the course",
            trial=lambda _: fields(flows),
            **common,
        ),
        Trial(
            name="solve = solve of those equations at thirty digits",
            bound=10 * rtol,
            reason="10 x rtol, over a stretch in which the state moves by a third of its size",
            trial=lambda _: by_mpmath(flows),
            **common,
        ),
        Trial(
            name=FORMS,
            bound=1.0,
            reason="1e-11 for algebra, less where the form itself is a quadrature; each accuracy stands beside its form in validate/plain",
            trial=lambda _: closed_forms(flows),
            **common,
        ),
    )


def closed_forms(flows: Flows) -> Measured:
    """Largest difference of a closed form from what another road says of it, over the accuracy that is asked of it."""
    problem = flows.experiment.problem
    if problem.system not in plain.FORMS:
        raise Unmet("its closed forms were not written once more in validate/plain")
    return worst_form(problem)


def worst_form(problem: Problem) -> tuple[float, str]:
    """The same for a problem of a system that has some; the families behind one that is wrong already are not asked."""
    found, worst = {}, ""
    for family in plain.FORMS[problem.system]:
        found |= {name: largest_relative(form.ours, form.exact) / form.accuracy for name, form in family(problem).items()}
        worst = max(found, key=lambda name: np.nan_to_num(found[name], nan=np.inf), default="")
        if found and not found[worst] <= 1:
            break
    return found[worst], f"{len(found)} forms, the worst: {worst}"


def by_scipy(flows: Flows) -> Measured:
    """Largest distance of scipy's states from our reference, over methods and flows, up to where the loss has fallen."""
    found = {}
    for name, flow in present(flows).items():
        for method, rtol in METHODS.items():
            if method == "DOP853" or flow.start.size <= IMPLICIT:
                found[f"{name} {method}"] = _referee(flow, method, rtol)
    return max(found.values()), ", ".join(f"{name} {value:.0e}" for name, value in found.items())


def _referee(flow: Flow, method: str, rtol: float) -> float:
    loss = flow.reference.loss
    fallen = int(np.argmax(np.abs(loss - loss[-1]) <= 0.01 * np.max(np.abs(loss - loss[-1]))))
    if flow.walled:
        fallen = flow.fastest // 2  # an implicit method grinds to a halt at a wall
    stops = flow.time[np.unique(np.linspace(0, min(fallen + 2, flow.time.size - 1), STOPS + 1).round().astype(int))]
    state, states = np.asarray(flow.start), []
    for begin, end in itertools.pairwise(stops):
        atol = rtol * flow.problem.scale
        found = solve_ivp(lambda _, y: flow.field(y), (begin, end), state, method=method, rtol=rtol, atol=atol, t_eval=[end])
        if not found.success:
            return np.inf
        state = found.y[:, -1]
        states.append(state)
    return flow.apart(stops[1:], np.asarray(states))


def fields(flows: Flows) -> Measured:
    """Largest difference of the compiled field from the plain one."""
    found = {}
    for name, flow in present(flows).items():
        referee = plain.field(flow.problem, name)
        if referee is None:
            continue
        middle, generator = flow.reference.state[flow.time.size // 2], np.random.default_rng(6)
        states = [middle + 0.2 * flow.unit * generator.normal(size=middle.size) for _ in range(STATES)]
        with mpmath.workdps(DIGITS):
            found[name] = max(
                largest_relative(flow.field(state)[referee.entries], floats(referee.rate(many(state[referee.entries])))) for state in states
            )
    return _refereed(found)


def by_mpmath(flows: Flows) -> Measured:
    """Distance of our solve from the one at thirty digits, from where the state moves fastest (half-way there, before a wall)."""
    found, corrections = {}, [0.0]
    for name, flow in present(flows).items():
        referee = plain.field(flow.problem, name)
        if referee is None:
            continue
        state, length = flow.stretch[0], 0.3 * flow.stretch[1]
        ours = flow.course(state=state, time=np.linspace(0.0, length, flow.time.size)).state[-1]
        with mpmath.workdps(DIGITS):
            exact, correction = integrate(referee.rate, many(state[referee.entries]), length, steps=STEPS)
        unit = flow.unit[referee.entries]
        found[name] = float(np.max(np.abs(ours[referee.entries] - floats(exact)) / unit))
        corrections.append(correction)
    value, note = _refereed(found)
    return value, f"{note}; last correction at thirty digits {max(corrections):.0e}"


def _refereed(found: dict[str, float]) -> Measured:
    if not found:
        raise Unmet("its equations were not written once more in validate/plain")
    return max(found.values()), ", ".join(f"{name} {value:.1e}" for name, value in found.items())
