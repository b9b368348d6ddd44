"""A foreign loss curve against the theory of a problem: how high its plateaus are, and when it drops."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from spectral_ode.problem import BadInput, Problem
from validate.experiment import Experiment


def stretched(problem: Problem, end: float) -> Problem:
    """The problem, integrated to the end of the curve."""
    horizon = end if problem.units == "paper" else end / problem.eta
    return replace(problem, horizon=max(horizon, problem.training.learning_rate if problem.units == "paper" else 1.0))


def rung(experiment: Experiment) -> str:
    """The most exact theory there is."""
    name = next((name for name in ("population", "reduced") if name in experiment.rungs), None)
    if name is None:
        raise BadInput(f"there is no theory to compare with: {experiment.missing['population']}")
    return name


def summarize(experiment: Experiment, time: np.ndarray, loss: np.ndarray) -> dict[str, Any]:
    """For each drop between two levels of the theory: when curve and theory cross its middle; and the largest gap as the curves stand."""
    theory = experiment.rungs[rung(experiment)]
    levels = [float(level) for level in experiment.system.landmarks()["loss"].values()]
    drops = []
    for number, (above, below) in enumerate(itertools.pairwise(levels)):
        middle = 0.5 * (above + below)
        seen = [crossing(np.asarray(t), np.asarray(values), middle) for t, values in zip(theory.time, theory["loss"], strict=True)]
        found = [moment for moment in seen if moment is not None]
        drops.append({"drop": number + 1, "loss": middle, "curve": crossing(time, loss, middle), "theory": sorted(found)})
    course = np.median([np.interp(time, t, values) for t, values in zip(theory.time, theory["loss"], strict=True)], axis=0)
    near = [float(np.min(np.abs(loss - level))) for level in levels]
    return {
        "theory": rung(experiment),
        "levels": [{"loss": level, "nearest": gap} for level, gap in zip(levels, near, strict=True)],
        "drops": drops,
        "start gap": float(loss[0] - course[0]),
        "largest gap": float(np.max(np.abs(loss - course))),
        "last gap": float(loss[-1] - course[-1]),
    }


def crossing(time: np.ndarray, loss: np.ndarray, level: float) -> float | None:
    """The first time at which a curve falls below a level, interpolated; None if it never does."""
    below = np.flatnonzero(loss < level)
    if below.size == 0 or below[0] == 0:
        return None
    i = int(below[0])
    return float(time[i - 1] + (loss[i - 1] - level) / (loss[i - 1] - loss[i]) * (time[i] - time[i - 1]))


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{report['file']} over the {report['theory']} theory, {len(report['drops'])} drops between {len(report['levels'])} levels"]
    lines.append(f"{'drop':>4} {'at loss':>9} {'curve, t':>11} {'theory, t':>25} {'curve late by':>14}")
    for drop in report["drops"]:
        seen, known = drop["curve"], drop["theory"]
        span = "-" if not known else f"{known[0]:.4g}" if len(known) == 1 else f"{known[0]:.4g} to {known[-1]:.4g}"
        middle = float(np.median(known)) if known else None
        late = f"{100 * (seen / middle - 1):+.1f} %" if seen is not None and middle else "-"
        lines.append(f"{drop['drop']:>4} {drop['loss']:>9.4f} {'-' if seen is None else f'{seen:.4g}':>11} {span:>25} {late:>14}")
    gaps = f"gap at the start {report['start gap']:+.2e}, at the end {report['last gap']:+.2e}, largest {report['largest gap']:.2e}"
    return "\n".join(
        [*lines, f"{gaps} (as they stand, not aligned in time)", f"wrote {report['folder']}/ (overlay.png, report.json, problem.toml)"]
    )
