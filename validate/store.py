"""Experiments kept on disk: the folder of trajectories that a figure is drawn from the second time."""

from pathlib import Path

from spectral_ode import runtime, systems, weights
from spectral_ode.folder import whole
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment, Progress, match, perform

RUNGS = ("reduced", "population", "training", "network")


def write(experiment: Experiment, folder: Path) -> None:
    """The rungs as npz files."""
    for name in RUNGS:
        if name in experiment.rungs:
            experiment.rungs[name].save(folder / f"{name}.npz")


def keep(folder: Path, problem: Problem, progress: Progress | None = None) -> Experiment:
    """Perform a problem and keep its rungs."""
    experiment = perform(problem, progress)
    with whole(folder) as aside:
        write(experiment, aside)
    return experiment


def read(folder: Path, problem: Problem) -> Experiment | None:
    """The kept experiment, if there is one that this version of the program made."""
    system = systems.load(problem.system).from_problem(problem)
    present = [name for name in RUNGS if (folder / f"{name}.npz").exists()]
    if "training" not in present:
        return None
    rungs = {name: Trajectory.load(folder / f"{name}.npz") for name in present}
    now = runtime.provenance(problem)
    if any(rung.provenance.get(key) != now[key] for rung in rungs.values() for key in ("hash", "versions")):
        return None
    starts = [weights.draw(problem, run=run) for run in range(problem.runs)]
    forecast, states = match(system, starts) if "reduced" in rungs else ({}, [])
    return Experiment(problem, system, rungs, forecast, states)
