r"""The table of a sweep: a column for everything, a row per member, and the exponents of a power law through a quantity.

With x_a the axes that are positive numbers, and q the quantity, positive where it is there at all,

    ln q = c + sum_a p_a ln x_a + residual,      by least squares over all members;

the standard error of p_a is that of ordinary least squares, from the scatter of the residuals: it knows nothing of a law that is not a
power law. So each axis with at least five values is given a bend, too, p_a + 2 b_a ln x_a, and the exponents at its two ends are told.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from spectral_ode.problem import BadInput
from spectral_ode.sweeps.axes import Plan

LOSS = "final loss"
FINE, FAILED, REFUSED = 0, 1, 2  # how a member ended
WORDS = {FINE: "", FAILED: "failed: ", REFUSED: "refused: "}
OTHER = ("member", "steps", "stopped", "ended")  # columns that are neither axes nor results


class Table(dict[str, Any]):
    """Columns of equal length by name: arrays, or lists of words and lists; `results` are the times of phases and the final loss."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self["member"])

    def results(self, plan: Plan) -> list[str]:
        """The columns that were computed."""
        axes = {axis.name for axis in plan.axes} | {"seed"}
        return [name for name in self if name not in OTHER and name not in axes]

    def numbers(self, name: str) -> np.ndarray:
        """A column as floats, nan where there is none or where it is something else."""
        if name not in self:
            return np.full(self.size, np.nan)
        number = lambda value: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else np.nan
        return self[name].astype(float) if isinstance(self[name], np.ndarray) else np.asarray([number(value) for value in self[name]])

    def rows(self, plan: Plan) -> Iterator[dict[str, Any]]:
        """Row by row, as the csv has it."""
        results = self.results(plan)
        axes = [name for name in self if name not in OTHER and name not in results]
        for place in range(self.size):
            kind = int(self["ended"][place])
            row = {"member": place} | {name: self[name][place] for name in axes}
            if kind != REFUSED:
                row |= {name: self[name][place] for name in (*results, "steps")}
            yield row | {"stopped": WORDS[kind] + self["stopped"][place]}


def gather(plan: Plan, chunks: Iterable[dict[str, np.ndarray]], refused: dict[int, str]) -> Table:
    """All members in order: their values, the times of their phases, final loss, steps, and why they stopped."""
    size = plan.size
    found: dict[str, np.ndarray] = {}
    steps, ended, stopped = np.zeros(size, int), np.full(size, FINE, np.int8), [""] * size
    words: dict[str, str] = {}
    for chunk in chunks:
        members = chunk["member"]
        results = {name.removeprefix("phase/"): values for name, values in chunk.items() if name.startswith("phase/")}
        if "final/loss" in chunk:
            results[LOSS] = np.where(chunk["ok"], chunk["final/loss"], np.nan)  # where it stopped is not the end
        for name, values in results.items():
            found.setdefault(name, np.full(size, np.nan))[members] = values
        steps[members], ended[members] = chunk["steps"], np.where(chunk["ok"], FINE, FAILED)
        for number, word in zip(members, chunk["stopped"], strict=True):
            stopped[number] = words.setdefault(str(word), str(word))
    for number, reason in refused.items():
        ended[number], stopped[number] = REFUSED, reason
    loss = {LOSS: found.pop(LOSS)} if LOSS in found else {}
    return Table({"member": np.arange(size)} | plan.columns() | found | loss | {"steps": steps, "ended": ended, "stopped": stopped})


def quantity(table: Table, plan: Plan, wanted: str | None) -> str:
    """The column that is shown: the one asked for, or else the middle of the first drop, the first phase, the final loss."""
    there = table.results(plan)
    if wanted is None:
        reached = [name for name in ("half 1", *there) if name in there and np.isfinite(table.numbers(name)).any()]
        return next(iter(reached), LOSS)
    plain = {name.replace("-", " ").lower(): name for name in there}
    if wanted.replace("-", " ").lower() not in plain:
        raise BadInput(f"--show is {wanted!r}, but the sweep has {', '.join(there)}")
    return plain[wanted.replace("-", " ").lower()]


def exponents(table: Table, names: list[str], shown: str) -> dict[str, dict[str, float]]:
    """p_a with its standard error, for every axis of at least three positive numbers; empty where there is nothing to fit."""
    q = table.numbers(shown)
    usable = np.isfinite(q) & (q > 0)
    axes = {name: table.numbers(name)[usable] for name in names}
    axes = {name: values for name, values in axes.items() if np.all(values > 0) and np.unique(values).size >= 3}
    if not axes or np.count_nonzero(usable) <= len(axes) + 1:
        return {}
    y, logs = np.log(q[usable]), {name: np.log(values) for name, values in axes.items()}
    straight = _least_squares(list(logs.values()), y)
    if straight is None:
        return {}
    found = {}
    for number, (name, log) in enumerate(logs.items()):
        p, error = straight[0][number + 1], straight[1][number + 1]
        found[name] = {"exponent": float(p), "standard error": float(error), "members": int(y.size)}
        middle = log - log.mean()
        bent = _least_squares([*logs.values(), middle**2], y) if np.unique(log).size >= 5 else None
        if bent is not None:
            slope = lambda at, bent=bent, number=number: float(bent[0][number + 1] + 2 * bent[0][-1] * at)
            found[name] |= {"first": slope(middle.min()), "last": slope(middle.max()), "bend error": float(bent[1][-1] * 2 * np.ptp(log))}
    return found


def bent(fit: dict[str, float]) -> bool:
    """Whether the exponent changes along its axis by a tenth, and by more than four standard errors: then it is no power law."""
    change = abs(fit.get("last", 0.0) - fit.get("first", 0.0))
    return change > max(0.1 * abs(fit["exponent"]), 4 * fit.get("bend error", 0.0), 1e-3)


def _least_squares(columns: list[np.ndarray], y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Coefficients of one and of the columns, and their standard errors; None where they are not determined."""
    X = np.stack([np.ones(y.size), *columns], axis=1)
    if y.size <= X.shape[1] or np.linalg.matrix_rank(X) < X.shape[1]:
        return None
    solution = np.linalg.lstsq(X, y, rcond=None)[0]
    residual = y - X @ solution
    return solution, np.sqrt(residual @ residual / (y.size - X.shape[1]) * np.diag(np.linalg.inv(X.T @ X)))
