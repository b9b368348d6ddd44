"""What every benchmark shares: timing in turns, a row of the table with its goal, a fitted power, and how numbers are shown.

All sides of a comparison take turns within one run, so that a busy minute is busy for everybody; what is told is the median over rounds
with its range. Imported also where there is neither jax nor this project's other packages: numpy alone.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    rounds: int = 5
    small: bool = False  # tiny sizes, to see whether all of it works
    script_linear: str | None = None  # folder with the authors' script of linear attention
    script_softmax: str | None = None  # folder with the authors' network of softmax attention
    python: str | None = None  # a Python that has torch


class Skipped(Exception):
    """A benchmark that cannot run, with the reason in a sentence."""


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of ours and of the other in each round, errors of both where there are any, and the goal."""

    what: str
    ours: list[float]
    against: str = ""
    other: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # times as fast; unless given, round by round from the seconds
    errors: tuple[float | None, float | None] = (None, None)  # ours, the other's
    at_least: float | None = None  # goals: times as fast,
    at_most: float | None = None  # seconds of ours,
    error_below: float | None = None  # error of ours,
    no_worse: bool = False  # and an error that is not above the other's

    @property
    def speedups(self) -> list[float]:
        """Times as fast as the other, in each round."""
        return self.ratios or [other / ours for ours, other in zip(self.ours, self.other, strict=True)]

    @property
    def met(self) -> bool | None:
        """Whether the medians meet all goals; None: there is no goal."""
        mine, theirs = (np.nan if error is None else error for error in self.errors)
        checks = [] if self.at_least is None else [np.median(self.speedups) >= self.at_least]
        checks += [] if self.at_most is None else [np.median(self.ours) <= self.at_most]
        checks += [] if self.error_below is None else [mine <= self.error_below]
        checks += [mine <= theirs] if self.no_worse else []
        return all(map(bool, checks)) if checks else None


@dataclass(frozen=True)
class Growth:
    """How a cost grows with one size: seconds [rounds, sizes], and the compiler's own count of operations and bytes."""

    what: str
    along: str
    sizes: list[int]
    seconds: list[list[float]]
    operations: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


Found = Row | Growth


def clock(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of some work, and what it returns."""
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def in_turns(rounds: int, **timers: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each, round by round; each timer measures itself."""
    laps = [{name: timer() for name, timer in timers.items()} for _ in range(rounds)]
    return {name: [lap[name] for lap in laps] for name in timers}


def fitted(sizes: list[int], values: Any) -> tuple[float, float]:
    """The power p of values ~ size^p and its standard error, from a straight line through all logarithms ([rounds, sizes] or [sizes])."""
    values = np.atleast_2d(np.asarray(values, float))
    x, y = np.tile(np.log(np.asarray(sizes, float)), len(values)), np.log(np.maximum(values, 1e-300)).ravel()
    x = x - x.mean()
    power = float(x @ y / (x @ x))
    rest = y - y.mean() - power * x
    return power, float(np.sqrt(rest @ rest / max(len(x) - 2, 1) / (x @ x)))


def shown(values: Any, form: str | None = None) -> str:
    """Median and range; three digits unless told otherwise."""
    values = np.asarray(values, float)
    one = lambda value: f"{value:{form or (',.0f' if abs(value) >= 1000 else '.3g')}}"
    return one(np.median(values)) if values.size < 2 else f"{one(np.median(values))} ({one(values.min())} to {one(values.max())})"


def seconds(values: Any, spread: bool = True) -> str:
    """Median and range of some seconds, in a unit that suits them."""
    values = np.asarray(values, float)
    unit, factor = next(((unit, factor) for unit, factor in (("s", 1.0), ("ms", 1e3)) if np.median(values) * factor >= 1), ("us", 1e6))
    return f"{shown(factor * (values if spread else np.median(values)))} {unit}"


def several(ratios: Any) -> str:
    """Times as fast: whole numbers where they are large."""
    middle = float(np.median(ratios))
    return shown(ratios, ",.0f" if middle >= 100 else ".1f" if middle >= 10 else ".2f")


def line(found: Found) -> str:
    """One result, for the terminal."""
    if isinstance(found, Growth):
        power, error = fitted(found.sizes, found.seconds)
        return f"{found.what}, with {found.along}: power {power:.2f} +- {error:.2f}"
    verdict = {True: "; goal met", False: "; goal NOT met", None: ""}[found.met]
    if not found.against:
        return f"{found.what}: {seconds(found.ours)}{verdict}"
    return f"{found.what}: {seconds(found.ours)}, {found.against} {seconds(found.other)}: {several(found.speedups)} times{verdict}"
