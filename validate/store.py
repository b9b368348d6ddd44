"""Experiments kept on disk: the folder of trajectories that a figure is drawn from the second time."""

import json
import time
from pathlib import Path
from typing import Any

from spectral_ode import runtime, systems, weights
from spectral_ode.folder import whole
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory
from validate import report
from validate.check import check
from validate.experiment import Experiment, Progress, match, perform

RUNGS = ("reduced", "population", "training", "network")


def write(experiment: Experiment, folder: Path) -> None:
    """The rungs as npz files."""
    for name in RUNGS:
        if name in experiment.rungs:
            experiment.rungs[name].save(folder / f"{name}.npz")


def keep(folder: Path, problem: Problem, progress: Progress | None = None, *, tiers: tuple[str, ...] = ("run",)) -> Experiment:
    """Perform a problem, judge it while every rung is at hand, and keep rungs and report; without tiers, judge only how rungs ended."""
    experiment = perform(problem, progress)
    if progress:
        progress.stage("claims")
    begun = time.perf_counter()
    summary = report.summarize(folder.name, experiment, check(experiment, tiers=tiers))
    summary["seconds"]["claims"] = time.perf_counter() - begun
    with whole(folder) as aside:
        write(experiment, aside)
        (aside / "report.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return experiment


def judged(folder: Path, problem: Problem) -> dict[str, Any] | None:
    """The report that was kept with the problem's experiment, if there is one that this version of the program made."""
    try:
        found = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return found if _current(found["provenance"], problem) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read(folder: Path, problem: Problem) -> Experiment | None:
    """The kept experiment, if there is one that this version of the program made."""
    system = systems.load(problem.system).from_problem(problem)
    present = [name for name in RUNGS if (folder / f"{name}.npz").exists()]
    if "training" not in present:
        return None
    rungs = {name: Trajectory.load(folder / f"{name}.npz") for name in present}
    if not all(_current(rung.provenance, problem) for rung in rungs.values()):
        return None
    starts = [weights.draw(problem, run=run) for run in range(problem.runs)]
    forecast, states = match(system, starts) if "reduced" in rungs else ({}, [])
    return Experiment(problem, system, rungs, forecast, states)


def _current(provenance: dict[str, Any], problem: Problem) -> bool:
    """Whether a result answers this problem, by the packages that are installed now."""
    now = runtime.provenance(problem)
    return all(provenance.get(key) == now[key] for key in ("hash", "versions"))
