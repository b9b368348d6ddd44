"""A judged experiment as plain data for files and machines, and as a table for people."""

import textwrap
from dataclasses import asdict
from typing import Any

import numpy as np

from spectral_ode import runtime
from validate.check import Verdict
from validate.experiment import Experiment

NAME_WIDTH = 58


def summarize(name: str, experiment: Experiment, verdicts: list[Verdict]) -> dict[str, Any]:
    """Everything the report file holds; numbers that do not exist are null."""
    phases = {rung: {phase: _plain(times) for phase, times in trajectory.phases.items()} for rung, trajectory in experiment.rungs.items()}
    return {
        "name": name,
        "ok": all(verdict.ok is not False for verdict in verdicts),
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "forecast": {key: _plain(values) for key, values in experiment.forecast.items()},
        "phases": phases,
        "missing": experiment.missing,
        "seconds": dict(experiment.seconds),
        "provenance": runtime.provenance(experiment.problem),
    }


def table(report: dict[str, Any], *, color: bool = False) -> str:
    """Claim, measured, bound, ok; one line each, with a note where there is one to add."""
    problem = report["provenance"]["problem"]
    lines = [f"{report['name']}: {problem['title'] or problem['system']}"]
    lines.append(f"{'claim':<{NAME_WIDTH}} {'measured':>9} {'bound':>9}  ok")
    for verdict in report["verdicts"]:
        name = textwrap.shorten(verdict["claim"], NAME_WIDTH, placeholder=" ...")
        word = {True: "yes", False: "NO", None: "skipped"}[verdict["ok"]]
        if color:
            word = {True: "\x1b[32myes\x1b[0m", False: "\x1b[31;1mNO\x1b[0m", None: "\x1b[33mskipped\x1b[0m"}[verdict["ok"]]
        lines.append(f"{name:<{NAME_WIDTH}} {_number(verdict['measured']):>9} {_number(verdict['bound']):>9}  {word}")
        if verdict["note"] and (verdict["ok"] is not True or "late by" in verdict["note"] or "right" in verdict["note"]):
            lines.append(f"    {verdict['note']}")
    failed = sum(verdict["ok"] is False for verdict in report["verdicts"])
    skipped = sum(verdict["ok"] is None for verdict in report["verdicts"])
    total = len(report["verdicts"])
    lines.append(f"{total - failed - skipped} of {total} hold, {failed} fail, {skipped} skipped; {sum(report['seconds'].values()):.0f} s")
    if "folder" in report:
        lines.append(f"wrote {report['folder']}/ (overlay.png, report.json, problem.toml, *.npz)")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _plain(values: Any) -> list:
    """Nested lists with null for what is not a number."""
    if np.ndim(values) > 1:
        return [_plain(row) for row in np.asarray(values)]
    return [None if isinstance(value, float) and not np.isfinite(value) else value for value in np.asarray(values).tolist()]
