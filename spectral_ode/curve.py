"""Loss curves from other programs: a column of a text or csv file, or an array of an npz."""

import csv

import numpy as np

from spectral_ode import archive
from spectral_ode.problem import BadInput

STEPS = ("step", "steps", "epoch", "epochs", "iteration")  # names of columns that count steps


def read(path: str, column: str | None, step: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and losses. Steps are a column of that name, unless `step` gives the distance of the rows."""
    otherwise = f"{path} is not a curve: a txt or csv file with one row of numbers per step, or an npz, is expected"
    try:
        table = _npz(archive.arrays(path, otherwise)) if path.endswith(".npz") else _text(archive.text(path))
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except (OSError, ValueError, IndexError, csv.Error):
        raise BadInput(otherwise) from None
    counted = next((name for name in table if name.lower() in STEPS), None)
    names = [name for name in table if name != counted]
    if not names:
        raise BadInput(f"{path} holds no column of losses; one number per step is expected")
    if column is None:
        column = "loss" if "loss" in names else names[0] if len(names) == 1 or all(name.isdigit() for name in names) else None
    if column not in names:
        wanted = "which column is the loss is not clear" if column is None else f"there is no column {column!r}"
        raise BadInput(f"{path}: {wanted}; choose one of {', '.join(names)} with --column")
    loss = table[column]
    if loss.ndim != 1 or loss.size < 2 or not np.isfinite(loss).all():
        raise BadInput(f"{path}: column {column!r} has shape {loss.shape}, but at least two finite numbers in a row are expected")
    steps = table[counted] if counted and step is None else np.arange(loss.size) * (1.0 if step is None else step)
    if steps.shape != loss.shape or not np.all(np.diff(steps) > 0):
        raise BadInput(f"{path}: the column {counted!r} does not count upwards beside the loss; give the distance of the rows with --step")
    return steps, loss


def _npz(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(float) for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "fiu"}


def _text(text: str) -> dict[str, np.ndarray]:
    """Columns by the names in the first row, or else by their numbers from 0."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    rows = list(csv.reader(lines)) if "," in text else [line.split() for line in lines]
    rows = [[entry.strip() for entry in row] for row in rows]
    names = [str(index) for index in range(len(rows[0]))] if all(map(_number, rows[0])) else rows.pop(0)
    if not rows or len(set(names)) < len(names) or any(len(row) != len(names) for row in rows):
        raise ValueError
    table = {name: np.array([float(row[index]) for row in rows]) for index, name in enumerate(names)}
    if len(names) > 1 and names[0] == "0" and np.all(table["0"] % 1 == 0) and np.all(np.diff(table["0"]) > 0):
        return {"step": table.pop("0"), **table}  # unnamed whole numbers that count upwards
    return table


def _number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True
