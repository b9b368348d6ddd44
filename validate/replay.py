"""Recorded run against replay: agreement with a number, or the reason why rounding decides and nobody is to blame.

At the edge of stability a difference in the last bit grows to order one, on both sides. So where the curves differ by more than the bound,
the replay is made once more in float32, token by token as the script does, from a start moved by half a unit in the last place: a run
that rounds as much as the recorded one, but differently. If it departs from the replay by a comparable amount (a hundredth of the
difference or more) and no later than the recorded run does, there is no verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulate.recording import Recording

ROUNDING = 100.0  # how much more than one run of rounding another one may move a loss
GROWN = 1e-3  # a loss moved by more than this has left the size of rounding: the run is unstable
Curves = dict[str, np.ndarray]


@dataclass(frozen=True)
class Judgement:
    """`ok` is None where rounding decides; `difference` is the largest over all curves, None if one side is not a number."""

    ok: bool | None
    difference: float | None
    epoch: int
    nudged: float | None
    sentence: str


def judge(recording: Recording, curves: Curves, bound: float, again: Callable[[], Curves]) -> Judgement:
    """Compare recorded and replayed curves; `again` makes the replay that rounds differently, and is called only where it matters."""
    apart = distance(recording.curves, curves)
    epoch = int(np.argmax(apart))
    largest = float(apart[epoch])
    shown = f"largest difference {largest:.1e} at epoch {epoch} of {recording.epochs}"
    if largest <= bound:
        return Judgement(True, largest, epoch, None, f"{shown}: the same run, within {bound:g}")
    moved = distance(curves, again())
    nudged, number = float(np.max(moved)), largest if np.isfinite(largest) else None
    first = int(np.argmax(moved * ROUNDING > bound))
    before = float(np.max(apart[:first], initial=0.0))
    measured = {"difference": number, "epoch": epoch, "nudged": nudged if np.isfinite(nudged) else None}
    if nudged * ROUNDING < largest or before > bound:
        early = f" (before epoch {first}: {before:.1e})" if before > bound else ""
        sentence = f"{shown}{early}, above {bound:g}, where rounding in float32 moves the loss by {nudged:.0e}: not the same run"
        return Judgement(ok=False, sentence=sentence, **measured)
    if nudged < GROWN:
        sentence = (
            f"{shown}, above {bound:g}, but no more than rounding in float32 makes of it ({nudged:.1e}): the bound is too fine to tell"
        )
        return Judgement(ok=None, sentence=sentence, **measured)
    sentence = (
        f"{shown}, but rounding in float32 moves this run by {nudged:.1e}: at the edge of stability the last bits decide, "
        f"and neither side is to blame; before epoch {first} they differ by {before:.1e}"
    )
    return Judgement(ok=None, sentence=sentence, **measured)


def distance(one: Curves, two: Curves) -> np.ndarray:
    """Largest difference of the curves at each epoch; zero where both have ceased to be numbers, infinite where one has."""
    gaps = []
    for name in one:
        finite = np.isfinite(one[name]), np.isfinite(two[name])
        with np.errstate(invalid="ignore"):
            gap = np.abs(one[name] - two[name])
        gaps.append(np.where(finite[0] & finite[1], gap, np.where(finite[0] | finite[1], np.inf, 0.0)))
    return np.max(gaps, axis=0)
