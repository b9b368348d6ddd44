"""Judged experiments as plain data for files and machines, and as tables for people."""

import textwrap
from dataclasses import asdict
from typing import Any

import numpy as np

from spectral_ode import runtime
from spectral_ode.claims import Exact, Limit
from validate.charts import descent
from validate.check import Verdict
from validate.experiment import Experiment

NAME_WIDTH = 58


def summarize(name: str, experiment: Experiment, verdicts: list[Verdict]) -> dict[str, Any]:
    """Everything the report file holds; numbers that do not exist are null."""
    phases = {rung: {phase: _plain(times) for phase, times in trajectory.phases.items()} for rung, trajectory in experiment.rungs.items()}
    return {
        "name": name,
        "ok": all(verdict.ok is not False for verdict in verdicts),
        "counts": count([verdict.ok for verdict in verdicts]),
        "ladder": ladder(experiment),
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "forecast": {key: _plain(values) for key, values in experiment.forecast.items()},
        "phases": phases,
        "missing": experiment.missing,
        "seconds": dict(experiment.seconds),
        "provenance": runtime.provenance(experiment.problem),
    }


def count(oks: list[bool | None]) -> dict[str, int]:
    """How many claims hold, fail and were skipped."""
    return {"hold": oks.count(True), "fail": oks.count(False), "skip": oks.count(None)}


def ladder(experiment: Experiment) -> list[str]:
    """The rungs of an experiment, from closed forms to stochastic descent."""
    claims = experiment.system.claims(experiment.problem)
    closed = any(isinstance(claim, Exact | Limit) or "closed form" in vars(claim).values() for claim in claims)
    theory = {"reduced": "reduced ODE", "population": "population flow"}
    named = [word for rung, word in theory.items() if rung in experiment.rungs]
    return [*(["closed form"] if closed else []), *named, descent(experiment.problem)]


def whole(reports: list[dict[str, Any]], *, tier: str, skipped: dict[str, str], seconds: float) -> dict[str, Any]:
    """Several reports as one, with what was not answered and why."""
    oks = [verdict["ok"] for report in reports for verdict in report["verdicts"]]
    return {
        "ok": False not in oks,
        "tier": tier,
        "counts": count(oks),
        "problems not answered": skipped,
        "seconds": seconds,
        "reports": reports,
    }


def broken(report: dict[str, Any]) -> str:
    """The claims that do not hold, in one sentence; empty if all do."""
    named = [
        f"{one['name']}: {verdict['claim']} (measured {_number(verdict['measured'])}, bound {_number(verdict['bound'])})"
        for one in report["reports"]
        for verdict in one["verdicts"]
        if verdict["ok"] is False
    ]
    return f"{'1 claim does' if len(named) == 1 else f'{len(named)} claims do'} not hold: {'; '.join(named)}" if named else ""


def closing(report: dict[str, Any]) -> str:
    """What was answered, what was not and why, in one or a few lines."""
    answered = report["reports"]
    systems = len({one["provenance"]["problem"]["system"] for one in answered})
    skipped = "".join(f"\nnot answered: {name}, since {reason}" for name, reason in report["problems not answered"].items())
    plural = lambda number, noun: f"{number} {noun}{'s' * (number != 1)}"
    return f"{plural(len(answered), 'problem')} of {plural(systems, 'system')} in {report['seconds']:.0f} s{skipped}"


def tally(counts: dict[str, int]) -> str:
    """Counts as people read them."""
    return f"{counts['hold']} of {sum(counts.values())} hold, {counts['fail']} fail, {counts['skip']} skipped"


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
    lines.append(f"{tally(report['counts'])}; {sum(report['seconds'].values()):.0f} s")
    if "folder" in report:
        lines.append(f"wrote {report['folder']}/ (report.html, overlay.png, report.json, problem.toml, *.npz)")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _plain(values: Any) -> list:
    """Nested lists with null for what is not a number."""
    if np.ndim(values) > 1:
        return [_plain(row) for row in np.asarray(values)]
    return [None if isinstance(value, float) and not np.isfinite(value) else value for value in np.asarray(values).tolist()]
