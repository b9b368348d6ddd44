"""How two rungs are compared. Each metric returns the number that the bound is held against, and a note that explains it.

Near an abrupt drop a pointwise error is ill-posed: a time shift of 0.1 % is a gap of order one. So drops are compared by *when* they
happen, unaligned, and plateaus by *how high* they are. Over several runs the median counts; the note has each drop.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

import simulate
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment

Measured = tuple[float, str]


class Unmet(Exception):
    """A condition of the metric is not met; the text says which."""


def drop_shift(first: Trajectory, second: Trajectory) -> np.ndarray:
    """Relative time shift t1/t2 - 1 of half of each drop, runs x drops; nan where neither was reached.

    Where only one was reached, the other is put at the horizon: at least so large is the shift.
    """
    horizon = float(max(np.max(first.time), np.max(second.time)))
    one, two = (_phases(trajectory, "half") for trajectory in (first, second))
    neither = np.isnan(one) & np.isnan(two)
    one, two = (np.nan_to_num(times, nan=horizon) for times in (one, two))
    # A drop that is past at the start has time zero.
    ratio = np.divide(one, two, out=np.where(one == two, 1.0, np.inf), where=two != 0)
    return np.where(neither, np.nan, ratio - 1)


def half_drop_times(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the size of the shift, for the worst drop."""
    shift = drop_shift(experiment.rungs[first], experiment.rungs[second])
    seen = ~np.isnan(shift).all(axis=0)
    if not seen.any():
        raise Unmet("no drop within the horizon")
    typical = np.nanmedian(np.abs(shift[:, seen]), axis=0)
    signed = np.nanmedian(shift[:, seen], axis=0)
    drops = ", ".join(f"{100 * value:+.2g} %" for value in signed)
    return float(np.max(typical)), f"{first} late by {drops} at drop {', '.join(str(d + 1) for d in np.flatnonzero(seen))}"


def plateau_losses(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the relative error of the paper's plateau losses at the flattest point of each, for the worst plateau."""
    seen = _plateaus(experiment.rungs[second])
    exact = np.array(list(experiment.system.landmarks()["loss"].values()))[1:-1]
    difference = np.abs(seen / exact - 1)
    # Heads of rank R make conspicuous plateaus at multiples of R only.
    conspicuous = (np.arange(exact.size) + 1) % experiment.problem.attention.rank == 0
    formed = ~np.isnan(difference).all(axis=0) & conspicuous
    if not formed.any():
        raise Unmet("no plateau formed between two drops")
    typical = np.nanmedian(difference[:, formed], axis=0)
    each = ", ".join(f"{value:.1e}" for value in typical)
    return float(np.max(typical)), f"at plateau {', '.join(str(m + 1) for m in np.flatnonzero(formed))}: {each}"


def heads(experiment: Experiment, first: str, second: str) -> Measured:
    """Share of directions whose head was forecast wrongly, among those learned at the end."""
    rung = experiment.rungs[second]
    learned = np.asarray(rung["learned"])[:, -1] > 0.5
    wrong = (np.asarray(rung["head"])[:, -1] != experiment.forecast["head"]) & learned
    if not learned.any():
        raise Unmet("nothing was learned within the horizon")
    return float(wrong.sum() / learned.sum()), f"{int(learned.sum() - wrong.sum())} of {int(learned.sum())} right"


def outside(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the share of squared weight outside the reduced coordinates at the end."""
    rung = experiment.rungs[first]
    if not (np.asarray(rung["learned"])[:, -1] > 0.5).any():
        raise Unmet("nothing was learned within the horizon")
    ansatz, idle = (np.asarray(rung[name])[:, -1] for name in ("outside", "idle"))
    total = idle + (1 - idle) * ansatz
    return float(np.median(total)), f"of it {np.median(idle):.1e} in blocks that theory keeps at zero"


def same_training(experiment: Experiment, first: str, second: str) -> Measured:
    """Largest difference of the loss curves of all three methods, on a small copy of the problem from a large start."""
    curves = [np.asarray(simulate.train(_small(experiment.problem, method))["loss"]) for method in ("moments", "gram", "attention")]
    worst = max(float(np.max(np.abs(curve - curves[-1]))) for curve in curves[:2])
    return worst, f"loss falls from {curves[-1][0, 0]:.3g} to {curves[-1][0, -1]:.3g}"


def _small(problem: Problem, method: str) -> Problem:
    training = replace(problem.training, data="fixed", sequences=100, method=method, dtype="float64", learning_rate=0.05)
    return replace(problem, runs=1, horizon=10.0, points=21, start=replace(problem.start, scale=3.0), training=training)


def _phases(trajectory: Trajectory, kind: str) -> np.ndarray:
    """Times of the phases "kind 1", "kind 2", ...; runs x drops."""
    count = sum(name.startswith(f"{kind} ") for name in trajectory.phases)
    return np.stack([np.atleast_1d(trajectory.phases[f"{kind} {d + 1}"]) for d in range(count)], axis=1)


def _plateaus(trajectory: Trajectory) -> np.ndarray:
    """Loss at the flattest saved point between "settled m" and "half m+1"; nan where fewer than three points lie between.

    Not between "settled" and "left": a misaligned winner makes the next direction seem to move for a moment.
    """
    settled, half = (np.nan_to_num(_phases(trajectory, kind), nan=np.inf) for kind in ("settled", "half"))
    time, loss = np.asarray(trajectory.time), np.asarray(trajectory["loss"])
    found = np.full((settled.shape[0], settled.shape[1] - 1), np.nan)
    for run, m in np.ndindex(*found.shape):
        inside = np.flatnonzero((time[run] > np.max(settled[run, : m + 1])) & (time[run] < np.min(half[run, m + 1 :])))
        if inside.size >= 3:
            slope = np.abs(np.gradient(loss[run, inside], time[run, inside]))
            found[run, m] = loss[run, inside[np.argmin(slope)]]
    return found


METRICS: dict[str, Callable[[Experiment, str, str], Measured]] = {
    "half-drop times": half_drop_times,
    "plateau losses": plateau_losses,
    "heads": heads,
    "outside": outside,
    "same training": same_training,
}
