"""A paper's testable statements as data: what is claimed, where it stands, how exact it is, its bound and the reason for the bound.

Nothing is measured here. `validate.check` measures a claim on the rungs of an experiment; the run table, the report, the tests and
`python -m validate` all read the same claims. Rungs are named trajectories: "reduced", "population", "training".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What every claim says of itself; the subclasses say how it is measured."""

    name: str
    place: str  # where it stands in the paper, or "ours"
    exactness: str  # "exact", "asymptotic in ...", or "heuristic"
    bound: float
    reason: str  # why the bound is what it is
    tier: str = "run"  # "run": measured on every run; "validate": only by `python -m validate` and the tests; "full": only on request
    beyond: str = ""  # why the statement is not made for this problem; it is measured all the same, but not judged


@dataclass(frozen=True, kw_only=True)
class Identity(Claim):
    """Two functions of random weights are the same function; measured: largest relative difference."""

    left: Callable[[Any], Any]
    right: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Exact(Claim):
    """The solve of the reduction follows its closed form; measured by `distance(time, observables, start)` at saved points."""

    distance: Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Conserved(Claim):
    """A quantity of the observables of one rung stays what it was; measured: largest drift over its scale."""

    rung: str
    quantity: Callable[[Any], Any]
    scale: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Limit(Claim):
    """An observable of one rung ends at a value; measured: largest relative difference over the runs past the phase `after`."""

    rung: str
    after: str
    observable: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class Agrees(Claim):
    """Two rungs agree by a metric of `validate.metrics`, which names itself in `METRICS`."""

    first: str
    second: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class Drops(Claim):
    """The loss of one rung falls in so many abrupt drops; measured: how far the count lies outside of least to most."""

    rung: str
    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Trial(Claim):
    """Anything else that an experiment can be asked: a function of it that returns the number and a note."""

    trial: Callable[[Any], tuple[float, str]]


def solver_error(theory: float) -> Claim:
    """The solver's own share of a drop-time gap, against what is asked of the theory."""
    return Agrees(
        name="the solver's own error in the drop times",
        place="ours",
        exactness="exact",
        bound=max(1e-3 * theory, 1e-7),
        reason="a thousandth of what is asked of the theory (1e-7 at the least), so that a gap is the theory's",
        first="population",
        second="population, rtol/100",
        metric="half-drop times",
    )
