r"""The table of a sweep: one row per member, and the exponents of a power law through a quantity.

With x_a the axes that are positive numbers, and q the quantity, positive where it is there at all,

    ln q = c + sum_a p_a ln x_a + residual,      by least squares over all members;

the standard error of p_a is that of ordinary least squares, from the scatter of the residuals: it knows nothing of a law that is not a
power law, so look at the picture, too.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from spectral_ode.problem import BadInput
from spectral_ode.sweep.axes import Plan

LOSS = "final loss"


def rows(plan: Plan, chunks: Iterable[dict[str, np.ndarray]], refused: dict[int, tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """One row per member, in order: its values, the times of its phases, its final loss, steps, and why it stopped."""
    found: dict[int, dict[str, Any]] = {number: {"stopped": f"refused: {reason}"} for number, (_, reason) in refused.items()}
    for chunk in chunks:
        phases = {name.removeprefix("phase/"): values for name, values in chunk.items() if name.startswith("phase/")}
        for place, number in enumerate(chunk["member"]):
            times = {name: float(values[place]) for name, values in phases.items()}
            loss = {LOSS: float(chunk["final/loss"][place])} if "final/loss" in chunk else {}
            word = "" if chunk["ok"][place] else "failed: "
            found[int(number)] = times | loss | {"steps": int(chunk["steps"][place]), "stopped": f"{word}{chunk['stopped'][place]}"}
    return [{"member": number} | row | found[number] for number, row in enumerate(plan.rows()) if number in found]


def quantity(table: list[dict[str, Any]], wanted: str | None) -> str:
    """The column that is shown: the one asked for, or else the middle of the first drop, the first phase, the final loss."""
    columns = dict.fromkeys(name for row in table for name in row)
    there = [name for name in columns if name not in ("member", "steps", "stopped", "seed") and "." not in name]
    if wanted is None:
        return next((name for name in ("half 1", *there) if name in there), LOSS)
    plain = {name.replace("-", " ").lower(): name for name in there}
    if wanted.replace("-", " ").lower() not in plain:
        raise BadInput(f"--show is {wanted!r}, but the sweep has {', '.join(there)}")
    return plain[wanted.replace("-", " ").lower()]


def column(table: list[dict[str, Any]], name: str) -> np.ndarray:
    """A column as numbers, nan where there is none."""
    number = lambda value: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else np.nan
    return np.asarray([number(row.get(name, np.nan)) for row in table])


def exponents(table: list[dict[str, Any]], names: list[str], shown: str) -> dict[str, dict[str, float]]:
    """p_a with its standard error, for every axis of at least three positive numbers; empty where there is nothing to fit."""
    axes = {name: column(table, name) for name in names}
    axes = {name: values for name, values in axes.items() if np.all(values > 0) and np.unique(values).size >= 3}
    q = column(table, shown)
    usable = np.isfinite(q) & (q > 0)
    if not axes or np.count_nonzero(usable) <= len(axes) + 1:
        return {}
    X = np.stack([np.ones(q.size), *(np.log(values) for values in axes.values())], axis=1)[usable]
    y = np.log(q[usable])
    if np.linalg.matrix_rank(X) < X.shape[1]:
        return {}
    solution = np.linalg.lstsq(X, y, rcond=None)[0]
    residual = y - X @ solution
    variance = residual @ residual / (y.size - X.shape[1]) * np.diag(np.linalg.inv(X.T @ X))
    return {
        name: {"exponent": float(p), "standard error": float(np.sqrt(v)), "members": int(y.size)}
        for name, p, v in zip(axes, solution[1:], variance[1:], strict=True)
    }
