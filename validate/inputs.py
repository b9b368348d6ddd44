"""Random and hostile input as one more report of `python -m validate --full`, beside those of the problems."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from spectral_ode import document, runtime
from spectral_ode.problem import Problem
from validate import fuzz, report

CASES = 10_000
TITLE = "random problems, hostile files: a finite answer, or one sentence"


def answer(cases: int = CASES, progress: Callable[[str, int], None] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and a picture without charts."""
    begun, problem = time.perf_counter(), Problem(title=TITLE)
    verdicts = fuzz.verdicts(cases, progress)
    summary = {
        "name": "input",
        "ok": all(verdict.ok is not False for verdict in verdicts),
        "counts": report.count([verdict.ok for verdict in verdicts]),
        "ladder": [],
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "forecast": {},
        "phases": {},
        "missing": {},
        "seconds": {"cases": time.perf_counter() - begun},
        "provenance": runtime.provenance(problem),
    }
    return summary, {"clock": "", "log": False, "labels": {}, "time": {}, "panels": [], "toml": document.to_toml(problem)}
