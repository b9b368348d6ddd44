"""A thousand population flows against scipy: `python benchmarks/flows.py [--out FILE.json]`, less than three minutes.

Linear attention with separate key and query, D = 4, H = 4: 36 unknowns, 101 saved times. Easy: start 0.3 up to t = 1500; hard: start 0.03
up to t = 15000. scipy's LSODA (1e-8/1e-11), by `solve_ivp` and by `odeint`, integrates 20 of the members, one after the other in one
process, and its time is multiplied by 50; its field is hand-written numpy. Ours is `spectral_ode.batch` with all 1000.
Both take turns; printed is the median over rounds with its range. Errors are the largest |weight| error at the saved times against
Dopri8 at 1e-12, of the same 20 members for both, and of all 1000 for ours. Cold: a fresh process that compiles everything first.

Where the time goes (profile of 64 members, one core of a busy machine; a step of Dopri8 has 13 evaluations of the field):

    before   vmap in front, a tree of states         field 24 us, step 350 us, of which twice the field is the solver's own bookkeeping
    now      members last, one array, long vectors   field  3 us, step  75 us = 1.8 x 13 fields

A hand-unrolled step and a loop of our own were tried and were slower: XLA computes shared products again and again when all is fused.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

CASES = {"easy": (0.3, 1500.0, "dopri8", 3e-7, 5), "hard": (0.03, 15_000.0, "tsit5", 1e-7, 3)}  # start, horizon, solver, rtol, rounds
COUNT, TIMED, ATOL = 1000, 20, 1e-10


def prepare(case: str) -> tuple[Any, Any, np.ndarray]:
    """The flow, all starts along a first axis, and the clock."""
    from dataclasses import replace

    import jax

    import spectral_ode as so
    from spectral_ode import traced

    scale, horizon, *_ = CASES[case]
    problem = replace(so.Problem(), start=replace(so.Problem().start, scale=scale))
    draw = jax.jit(jax.vmap(lambda seed: so.draw(traced.insert(problem, {"seed.start": seed}))))
    flow = so.systems.load(problem.system).from_problem(problem).population()
    return flow, draw(np.arange(COUNT)), np.linspace(0.0, horizon, 101)


def ours(flow: Any, starts: Any, times: np.ndarray, solver: str, rtol: float, atol: float = ATOL) -> np.ndarray:
    """All weights of all members at all times, [members, time, 36]."""
    from spectral_ode import batch

    settings = batch.Settings(solver, phases=False, keep=("value", "key", "query"))
    parts = batch.groups(batch.stack(flow, starts, rtol, atol))
    found = [part.observables for part in batch.each(lambda part: batch.solve(part, times, settings), parts)]
    flat = lambda part: np.concatenate(
        [np.asarray(part[name]).reshape(*part["value"].shape[:2], -1) for name in ("value", "key", "query")], axis=2
    )
    return np.concatenate([flat(part) for part in found])[:COUNT]


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


def clock(work: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def measure(case: str) -> dict[str, Any]:
    import jax

    flow, starts, times = prepare(case)
    flat = np.concatenate([np.asarray(leaf).reshape(COUNT, -1) for leaf in jax.tree.leaves(starts)], axis=1)
    truth = ours(flow, starts, times, "dopri8", 1e-12, 1e-15)
    mine = lambda: ours(flow, starts, times, *CASES[case][2:4])
    theirs, seconds, found = Scipy(flow), {"ours": [], "solve_ivp": [], "odeint": []}, {"ours": mine()}
    for _ in range(CASES[case][-1]):
        for name in ("solve_ivp", "odeint"):
            took, answers = clock(lambda name=name: np.stack([getattr(theirs, name)(y, times) for y in flat[:TIMED]]))
            seconds[name].append(took * COUNT / TIMED)
            found[name] = answers
            if name == "solve_ivp":
                seconds["ours"].append(clock(mine)[0])
    error = {name: np.max(np.abs(answers[:TIMED] - truth[:TIMED]), axis=(1, 2)) for name, answers in found.items()}
    error["ours, all"] = np.max(np.abs(found["ours"] - truth), axis=(1, 2))
    ratio = lambda name: summary(np.array(seconds[name]) / np.array(seconds["ours"]))
    return {
        "seconds per 1000": {name: summary(np.array(took)) for name, took in seconds.items()},
        "times as fast as": {name: ratio(name) for name in ("solve_ivp", "odeint")},
        "error, largest and median": {name: [float(found.max()), float(np.median(found))] for name, found in error.items()},
    }


def summary(values: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(values)), "least": float(values.min()), "most": float(values.max())}


def cold() -> None:
    """In a fresh process: the easy case, compilation included, imports and the drawing of the starts not."""
    import spectral_ode as so

    so.configure(cache=False)
    arguments = prepare("easy")
    print(json.dumps(clock(lambda: ours(*arguments, *CASES["easy"][2:4]))[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file that receives the numbers as JSON")
    parser.add_argument("--case", choices=list(CASES), help="this case alone")
    options = parser.parse_args()
    import spectral_ode as so

    so.configure(cache=False)
    report: dict[str, Any] = {"settings": CASES, "cores": os.cpu_count()}
    shown = lambda part, form: f"{part['median']:{form}} ({part['least']:{form}} to {part['most']:{form}})"
    for case in [options.case] if options.case else CASES:
        report[case] = found = measure(case)
        scale, horizon, solver, *_ = CASES[case]
        print(f"{case}: start {scale:g}, t = {horizon:g}, {solver}; seconds per {COUNT} members, and largest and median error")
        for name, took in found["seconds per 1000"].items():
            most, median = found["error, largest and median"][name]
            times = found["times as fast as"].get(name)
            faster = f"   ours is {shown(times, '.0f')} times as fast" if times else ""
            print(f"    {name:<10} {shown(took, '.3g'):<28} {most:.1e} {median:.1e}{faster}")
        most, median = found["error, largest and median"]["ours, all"]
        print(f"    {'ours, all':<10} {'':<28} {most:.1e} {median:.1e}", flush=True)
        if case == "easy":
            fresh = [json.loads(subprocess.check_output([sys.executable, __file__, "cold"])) for _ in range(2)]
            theirs = found["seconds per 1000"]["solve_ivp"]["median"]
            found["cold"] = {"seconds": fresh, "times as fast as solve_ivp": theirs / min(fresh)}
            print(
                f"    with compilation, in fresh processes: {fresh[0]:.2f}, {fresh[1]:.2f} s: {theirs / min(fresh):.0f} times as fast",
                flush=True,
            )
    report["load"] = os.getloadavg()[0]
    print(f"load of the machine: {report['load']:.1f} on {os.cpu_count()} cores")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(cold() or 0 if sys.argv[1:] == ["cold"] else main())
