"""Plain numbers: mpmath's in numpy arrays, the exponential of those, and an integrator for them that is nobody else's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
from scipy.optimize import minimize_scalar

DIGITS = 30
ALGEBRA = 1e-11  # accuracy of a form that is algebra in float64
COLUMNS = 12  # of the extrapolation: order 24


class Field(NamedTuple):
    """A right side of flat states: which entries of the system's flat state it covers, and the rates of those."""

    entries: slice
    rate: Callable[[np.ndarray], np.ndarray]


class Form(NamedTuple):
    """A closed form: what the code says, what is said of it elsewhere, and how far they may be apart, relative to the largest entry."""

    ours: Any
    exact: Any
    accuracy: float


exp: Any = np.frompyfunc(mpmath.exp, 1, 1)


def many(values: Any) -> np.ndarray:
    """An array of mpmath's numbers, from floats as they are stored."""
    return np.asarray(np.frompyfunc(mpmath.mpf, 1, 1)(np.asarray(values, float)), object)


def floats(values: np.ndarray) -> np.ndarray:
    """Rounded to double precision."""
    return np.asarray([float(value) for value in np.ravel(values)])


def plainly(values: Any) -> np.ndarray:
    """An array of floats, where `many` would make one of thirty digits."""
    return np.asarray(values, float)


def levels_of(system: Any, *names: str) -> list[np.ndarray]:
    """The landmarks of some observables of a system."""
    landmarks = system.landmarks()
    return [np.asarray([float(level) for level in landmarks[name].values()]) for name in names]


def least(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Where a function is least between two numbers, and how low it is there."""
    found: Any = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
    return float(found.x), float(found.fun)


def integrate(rate: Callable[[np.ndarray], np.ndarray], state: np.ndarray, end: Any, *, steps: int) -> tuple[np.ndarray, float]:
    """The state after `end`, by so many large steps of Gragg's midpoint rule extrapolated to zero; and the last correction that made."""
    length, correction = mpmath.mpf(end) / steps, 0.0
    for _ in range(steps):
        rows: list[np.ndarray] = []
        for column in range(1, COLUMNS + 1):
            count, row = 2 * column, [_midpoint(rate, state, length, 2 * column)]
            for back, previous in enumerate(rows, start=1):
                ratio = (mpmath.mpf(count) / (count - 2 * back)) ** 2
                row.append(row[-1] + (row[-1] - previous) / (ratio - 1))
            rows = row
        correction = max(correction, float(max(abs(rows[-1] - rows[-2]))))
        state = rows[-1]
    return state, correction


def _midpoint(rate: Callable[[np.ndarray], np.ndarray], state: np.ndarray, length: Any, count: int) -> np.ndarray:
    """Gragg's rule with `count` substeps, whose error is a series in the square of the substep."""
    step = length / count
    before, now = state, state + step * rate(state)
    for _ in range(count - 1):
        before, now = now, before + 2 * step * rate(now)
    return (before + now + step * rate(now)) / 2
