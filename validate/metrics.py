"""How two rungs are compared. Each metric returns the number that the bound is held against, and a note that explains it.

Near an abrupt drop a pointwise error is ill-posed: a time shift of 0.1 % is a gap of order one. So drops are compared by *when* they
happen, unaligned, and plateaus by *how high* they are. Over several runs the median counts; the note has each drop.
"""

import itertools
from collections.abc import Callable

import numpy as np

from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment

Measured = tuple[float, str]
LASTS = 0.5  # of the time that it took to come there: so long a plateau must be for its height to be asked


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
    conspicuous = (np.arange(exact.size) + 1) % getattr(experiment.problem.attention, "rank", 1) == 0
    formed = ~np.isnan(difference).all(axis=0) & conspicuous
    if not formed.any():
        raise Unmet("no plateau between two drops lasted half as long as the way to it")
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


def course(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the largest gap of sigma, which ends at 1, over the whole course."""
    one, two = (np.asarray(experiment.rungs[rung]["sigma"]) for rung in (first, second))
    length = min(one.shape[1], two.shape[1])
    worst = np.max(np.abs(one[:, :length] - two[:, :length]), axis=1)
    return float(np.median(worst)), f"worst run {np.max(worst):.1e}"


def forecast_times(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the relative error of the forecast times of half-drops, for the worst drop."""
    seen = _phases(experiment.rungs[second], "half")
    if np.isnan(seen).all():
        raise Unmet("no drop within the horizon")
    error = np.abs(np.asarray(experiment.forecast["half"]) / seen - 1)
    return float(np.nanmax(np.nanmedian(error, axis=0))), f"forecast {np.nanmedian(experiment.forecast['half']):.6g}"


def dwell(experiment: Experiment, first: str, second: str) -> Measured:
    """Time at plateaus between multiples of the rank, in units of what it were if all plateaus lasted alike, median over runs."""
    half = np.sort(_phases(experiment.rungs[first], "half"), axis=1)
    stay = np.diff(half, axis=1)  # column m - 1: the time at plateau m
    multiple = (np.arange(stay.shape[1]) + 1) % getattr(experiment.problem.attention, "rank", 1) == 0
    usable = ~np.isnan(stay[:, multiple]).all(axis=1) & ~np.isnan(stay[:, ~multiple]).all(axis=1)
    if not usable.any():
        raise Unmet("no two plateaus to compare within the horizon")
    stay = stay[usable]
    shares = np.nansum(stay[:, ~multiple], axis=1) / np.nansum(stay, axis=1)
    alike = np.sum(~np.isnan(stay[:, ~multiple]), axis=1) / np.sum(~np.isnan(stay), axis=1)
    return float(np.median(shares / alike)), f"{100 * np.median(shares):.2g} % of the time between multiples, {int(usable.sum())} runs"


def surplus(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over runs of the share of squared weights, at the end, in heads that carry no direction."""
    rung = experiment.rungs[first]
    if not (np.asarray(rung["learned"])[:, -1] > 0.5).all():
        raise Unmet("not every direction was learned within the horizon")
    value, key, query, head = (np.asarray(rung[name])[:, -1] for name in ("value", "key", "query", "head"))
    size = value**2 + np.sum(key**2 + query**2, axis=(2, 3))
    idle = [np.setdiff1d(np.arange(value.shape[1]), used) for used in head]
    shares = [float(row[rest].sum() / row.sum()) for row, rest in zip(size, idle, strict=True)]
    return float(np.median(shares)), f"{np.median([rest.size for rest in idle]):g} surplus heads"


def tests(experiment: Experiment, first: str, second: str) -> Measured:
    """Median over time, then the worse of the two tests, median over runs, of the gap of the test losses in units of their start."""
    one, two = (np.asarray(experiment.rungs[rung]["tests"]) for rung in (first, second))
    length = min(one.shape[1], two.shape[1])
    gap = np.median(np.abs(one[:, :length] - two[:, :length]) / two[:, :1], axis=1)
    return float(np.median(np.max(gap, axis=1))), f"in-weight {np.median(gap[:, 0]):.2g}, in-context {np.median(gap[:, 1]):.2g}"


def transience(experiment: Experiment, first: str, second: str) -> Measured:
    """Lowest in-weight test loss over the last one, the worse of both rungs."""
    dips = []
    for rung in (first, second):
        loss = np.asarray(experiment.rungs[rung]["tests"])[..., 0]
        dips.append(float(np.median(np.min(loss, axis=1) / loss[:, -1])))
    return max(dips), f"{dips[0]:.2f} in {first}, {dips[1]:.2f} in the flow"


def count_drops(time: np.ndarray, loss: np.ndarray) -> int:
    """Bursts of descent, separated by stretches at less than a quarter of their speed, each worth 3 % of the whole fall.

    For losses on a fixed data set: gradient noise above a few 1e-4 of the fall is counted as drops.
    """
    fall = loss[0] - loss.min()
    speed = np.maximum(-np.diff(loss) / np.diff(time), 0.0)
    level = np.concatenate([[0.0], np.cumsum(speed * np.diff(time))])
    peaks = [i for i in range(speed.size) if speed[i] > 0 and speed[i] == speed[max(i - 1, 0) : i + 2].max()]
    while True:
        lows = [a + int(np.argmin(speed[a : b + 1])) for a, b in itertools.pairwise(peaks)]
        ends = [0, *lows, speed.size]
        worth = [level[b] - level[a] for a, b in itertools.pairwise(ends)]
        weak = [i for i, (a, b) in enumerate(itertools.pairwise(peaks)) if speed[lows[i]] > 0.25 * min(speed[a], speed[b])]
        if weak:  # one burst: keep its fastest moment
            del peaks[weak[0] + int(speed[peaks[weak[0]]] > speed[peaks[weak[0] + 1]])]
        elif len(peaks) > 1 and min(worth) < 0.03 * fall:
            del peaks[int(np.argmin(worth))]
        else:
            return len(peaks)


def _phases(trajectory: Trajectory, kind: str) -> np.ndarray:
    """Times of the phases "kind 1", "kind 2", ...; runs x drops."""
    count = sum(name.startswith(f"{kind} ") for name in trajectory.phases)
    return np.stack([np.atleast_1d(trajectory.phases[f"{kind} {d + 1}"]) for d in range(count)], axis=1)


def _plateaus(trajectory: Trajectory) -> np.ndarray:
    """Loss at the flattest saved point between "settled m" and "half m+1"; nan where fewer than three points lie between.

    Two drops that nearly coincide, as they may at every start scale, leave no plateau between them: it must last `LASTS` as long as the
    way to it. Not between "settled" and "left": a misaligned winner makes the next direction seem to move for a moment.
    """
    settled, half = (np.nan_to_num(_phases(trajectory, kind), nan=np.inf) for kind in ("settled", "half"))
    time, loss = np.asarray(trajectory.time), np.asarray(trajectory["loss"])
    found = np.full((settled.shape[0], settled.shape[1] - 1), np.nan)
    for run, m in np.ndindex(*found.shape):
        begin, end = np.max(settled[run, : m + 1]), np.min(half[run, m + 1 :])
        inside = np.flatnonzero((time[run] > begin) & (time[run] < end))
        if inside.size >= 3 and end >= (1 + LASTS) * begin:
            slope = np.abs(np.gradient(loss[run, inside], time[run, inside]))
            found[run, m] = loss[run, inside[np.argmin(slope)]]
    return found


METRICS: dict[str, Callable[[Experiment, str, str], Measured]] = {
    "half-drop times": half_drop_times,
    "plateau losses": plateau_losses,
    "heads": heads,
    "outside": outside,
    "course": course,
    "forecast times": forecast_times,
    "dwell": dwell,
    "surplus": surplus,
    "tests": tests,
    "transience": transience,
}
