"""A thousand population flows against scipy.

Linear attention with separate key and query, D = 4, H = 4: 36 unknowns, 101 saved times. Easy: start 0.3 up to t = 1500; hard: start 0.03
up to t = 15000. scipy's LSODA (1e-8/1e-11), by `solve_ivp` and by `odeint`, integrates 20 of the members, one after the other in one
process, and its time is multiplied by 50; its field is hand-written numpy. Ours is `spectral_ode.batch` with all 1000. Errors are the
largest |weight| error at the saved times against Dopri8 at 1e-12, of the same 20 members for both, the last ones; our tolerance (Tsit5,
1e-6 and 6e-6) was chosen on the first 20, such that our error was no larger there. The worst of all 1000 is told in the first column. With
compilation: a fresh process that compiles everything first; imports and the drawing of the starts are left out.

Where the time goes (64 members, one core; a step of Tsit5 has 6 evaluations of the field):

    vmap in front, a tree of states                field 24 us
    members last, one array, long vectors          field  7 us, step 72 us
    the same, products sliced before they are      field  3 us, step 48 us
    summed, so that no array of them is written

Half of what is left is the solver's own: a loop over the stages written out by hand takes 45 us in place of 48, and 19 in place of 27 with
32 members. That is not worth a second integrator.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import CORES, Options, Row, clock, in_turns
from benchmarks.processes import fresh


class Case(NamedTuple):
    """A start, how far it goes, and with what."""

    scale: float
    horizon: float
    solver: str
    rtol: float
    rounds: int  # at most
    goal: float


CASES = {"easy": Case(0.3, 1500.0, "tsit5", 1e-6, 5, 100), "hard": Case(0.03, 15_000.0, "tsit5", 6e-6, 3, 50)}
COUNT, TIMED, ATOL = 1000, 20, 1e-10


def prepare(case: Case, count: int) -> tuple[Any, Any, np.ndarray]:
    """The flow, all starts along a first axis, and the clock."""
    import jax

    import spectral_ode as so
    from spectral_ode import traced

    problem = replace(so.Problem(), start=replace(so.Problem().start, scale=case.scale))
    draw = jax.jit(jax.vmap(lambda seed: so.draw(traced.insert(problem, {"seed.start": seed}))))
    flow = so.systems.load(problem.system).from_problem(problem).population()
    return flow, draw(np.arange(count)), np.linspace(0.0, case.horizon, 101)


def ours(flow: Any, starts: Any, times: np.ndarray, solver: str, rtol: float, atol: float = ATOL) -> np.ndarray:
    """All weights of all members at all times, [members, time, 36]."""
    from spectral_ode import batch

    settings = batch.Settings(solver, phases=False, keep=("value", "key", "query"))
    parts = batch.groups(batch.stack(flow, starts, rtol, atol))
    found = [part.observables for part in batch.each(lambda part: batch.solve(part, times, settings), parts, workers=CORES)]
    flat = lambda part: np.concatenate(
        [np.asarray(part[name]).reshape(*part["value"].shape[:2], -1) for name in ("value", "key", "query")], axis=2
    )
    return np.concatenate([flat(part) for part in found])[: starts.value.shape[0]]


class Scipy:
    """The same flow as a scipy user writes it."""

    def __init__(self, flow: Any) -> None:
        data = flow.reduction.data
        self.pull, self.C, self.covariance = (np.asarray(part) for part in (data.matrix(data.g), data.matrix(data.C), data.covariance))

    def field(self, t: float, y: np.ndarray) -> np.ndarray:
        """Eq. 14 of the paper."""
        v, k, q = y[:4], y[4:20].reshape(4, 4), y[20:].reshape(4, 4)
        G = self.pull - self.C @ ((v[:, None] * k).T @ q) @ self.covariance
        Gq, Gk = q @ G.T, k @ G
        return np.concatenate([np.sum(k * Gq, axis=1), (v[:, None] * Gq).ravel(), (v[:, None] * Gk).ravel()])

    def solve_ivp(self, y: np.ndarray, times: np.ndarray) -> np.ndarray:
        """LSODA by its newer door."""
        from scipy.integrate import solve_ivp

        return solve_ivp(self.field, (0.0, times[-1]), y, method="LSODA", t_eval=times, rtol=1e-8, atol=1e-11).y.T

    def odeint(self, y: np.ndarray, times: np.ndarray) -> np.ndarray:
        """LSODA by its older, quicker door."""
        from scipy.integrate import odeint

        return odeint(self.field, y, times, rtol=1e-8, atol=1e-11, tfirst=True, mxstep=100_000)


def run(options: Options) -> Iterator[Row]:
    count, timed = (64, 1) if options.small else (COUNT, TIMED)
    for name, case in CASES.items():
        case = case._replace(horizon=case.horizon / 10) if options.small else case
        yield from measure(name, case, count, timed, min(options.rounds, case.rounds), compiled=name == "easy")


def measure(name: str, case: Case, count: int, timed: int, rounds: int, *, compiled: bool) -> Iterator[Row]:
    import jax

    flow, starts, times = prepare(case, count)
    flat = np.concatenate([np.asarray(leaf).reshape(count, -1) for leaf in jax.tree.leaves(starts)], axis=1)[-timed:]
    truth = ours(flow, starts, times, "dopri8", 1e-12, 1e-15)
    mine, theirs = lambda: ours(flow, starts, times, case.solver, case.rtol), Scipy(flow)
    found = {"ours": mine()}

    def loop(door: str) -> float:
        took, found[door] = clock(lambda: np.stack([getattr(theirs, door)(y, times) for y in flat]))
        return took * count / timed

    doors = ("solve_ivp", "odeint")
    took = in_turns(rounds, solve_ivp=lambda: loop("solve_ivp"), ours=lambda: clock(mine)[0], odeint=lambda: loop("odeint"))
    error = {name: float(np.max(np.abs(answers[-timed:] - truth[-timed:]))) for name, answers in found.items()}
    worst = float(np.max(np.abs(found["ours"] - truth)))
    what = f"{count} flows, {name}: start {case.scale:g} to t = {case.horizon:g} (worst of all {worst:.0e})"
    for door in doors:
        goal = case.goal if door == "solve_ivp" else None
        errors = (error["ours"], error[door])
        yield Row(what, took["ours"], f"{door} LSODA", took[door], errors=errors, at_least=goal, no_worse=goal is not None)
    if compiled:
        cold = in_turns(min(rounds, 3), ours=lambda: fresh("flows", json.dumps(case), str(count)), other=lambda: loop("solve_ivp"))
        errors = (error["ours"], error["solve_ivp"])
        yield Row(f"{what}, with compilation", cold["ours"], "solve_ivp LSODA", cold["other"], errors=errors, at_least=20, no_worse=True)


def cold(case: Case, count: int) -> float:
    """In a fresh process: seconds, compilation included."""
    import spectral_ode as so

    so.configure(cache=False)
    arguments = prepare(case, count)
    return clock(lambda: ours(*arguments, case.solver, case.rtol))[0]


if __name__ == "__main__":
    print(json.dumps(cold(Case(*json.loads(sys.argv[1])), int(sys.argv[2]))))
