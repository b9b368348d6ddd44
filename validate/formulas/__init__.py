"""Closed forms against thirty digits: each formula of a paper, evaluated by our code and once more by mpmath from its meaning.

The referee of a formula is not the formula typed again: it is the integral, the root, the derivative or the eigenvalue that the formula
is the answer to, at numbers that have nothing special. Formulas belong to one system of their paper, so that they are measured once.
"""

from collections.abc import Callable, Iterable
from typing import Any

import mpmath
import numpy as np

from spectral_ode.claims import Claim, Trial
from validate.experiment import Experiment

DIGITS = 30


def claims(experiment: Experiment) -> tuple[Claim, ...]:
    """The formulas that go with the experiment's system."""
    from validate.formulas import escape, linear, softmax, sparse

    found = [module.FORMULAS.get(experiment.problem.system, {}) for module in (linear, escape, softmax, sparse)]
    return tuple(_claim(name, *entry) for table in found for name, entry in table.items())


def _claim(name: str, pairs: Callable[[], Iterable[tuple[Any, Any]]], bound: float = 1e-12, reason: str = "rounding of float64") -> Claim:
    def measure(experiment: Experiment) -> tuple[float, str]:
        with mpmath.workdps(DIGITS):
            gaps = [_gap(ours, referee) for ours, referee in pairs()]
        return max(gaps), f"{len(gaps)} values"

    return Trial(
        name=f"{name} = thirty digits",
        place="ours",
        exactness="exact",
        bound=bound,
        reason=f"{reason}; largest relative difference from mpmath, which answers the question behind the formula",
        tier="validate",
        trial=measure,
    )


def _gap(ours: Any, referee: Any) -> float:
    """The largest difference of two arrays, in units of the largest entry."""
    right = np.vectorize(float)(np.asarray(referee, dtype=object)).astype(float)
    left = np.asarray(ours, dtype=float)
    if left.shape != right.shape or not np.isfinite(left).all():
        return float("inf")
    return float(np.max(np.abs(left - right)) / np.max(np.abs(right)))
