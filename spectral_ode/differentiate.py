"""The sensitivity command: derivatives of some quantities to some fields, as a table, a csv and JSON in a folder."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from spectral_ode import document
from spectral_ode.folder import whole
from spectral_ode.problem import Problem
from spectral_ode.run import Terminal
from spectral_ode.sensitivities import WEIGHTS, Sensitivity, sensitivity
from spectral_ode.sweeps.store import to_json, write_table

COLUMNS = ("of", "time", "value", "to", "setting", "derivative", "elasticity")


def carry_out(
    name: str,
    problem: Problem,
    of: tuple[str, ...],
    to: tuple[str, ...],
    out: str,
    *,
    at: tuple[float, ...] | None,
    rung: str | None,
    talk: bool,
) -> dict[str, Any]:
    """Differentiate, write the folder, and return the report."""
    progress = Terminal(talk and sys.stderr.isatty())
    found: list[Sensitivity] = []
    try:
        for number, quantity in enumerate(of):
            progress.stage(f"{name}: derivatives of {quantity} ({number + 1} of {len(of)})")
            found.append(sensitivity(problem, of=quantity, to=to, at=at, rung=rung))
    finally:
        progress.close()
    rows = [row for one in found for row in one.rows(problem)]
    digest = hashlib.sha256(json.dumps([document.identity(problem), of, to, at, rung]).encode()).hexdigest()[:12]
    folder = Path(out) / f"sensitivity-{name}-{digest}"
    report: dict[str, Any] = {"name": name, "rung": found[0].rung, "folder": str(folder), "ok": True, "derivatives": rows}
    with whole(folder) as aside:
        (aside / "problem.toml").write_text(document.to_toml(problem), encoding="utf-8")
        write_table(aside / "derivatives.csv", rows, COLUMNS)
        for one in [one for one in found if WEIGHTS in one.derivative]:
            np.savez(aside / f"weights {one.of}.npz", allow_pickle=False, **_leaves(one.derivative[WEIGHTS]))
        (aside / "report.json").write_text(to_json(report), encoding="utf-8")
    if talk:
        print(words(found, rows, report))
    return json.loads(to_json(report))


def _leaves(tree: Any) -> dict[str, Any]:
    """The arrays of a tree of weights by name."""
    return {jax.tree_util.keystr(path).strip("."): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def words(found: list[Sensitivity], rows: list[dict[str, Any]], report: dict[str, Any]) -> str:
    """The report for people."""
    shown = lambda value: value if isinstance(value, str) else f"{value:.6g}"
    table = [COLUMNS, *([shown(row[column]) for column in COLUMNS] for row in rows)] if rows else []
    widths = [max(len(line[index]) for line in table) for index in range(len(COLUMNS))] if table else []
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    for one in [one for one in found if WEIGHTS in one.derivative]:
        norms = {name: float(np.sqrt(np.sum(leaf**2))) for name, leaf in _leaves(one.derivative[WEIGHTS]).items()}
        lines.append(f"{one.of} to all weights: norms " + ", ".join(f"{name} {norm:.4g}" for name, norm in norms.items()))
    return "\n".join([*lines, f"{report['rung']}; {report['folder']}"])
