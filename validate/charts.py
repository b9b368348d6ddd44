"""The overlay of an experiment as plain data, for the page to draw: every rung on one clock, with the paper's levels.

A panel holds the loss, or one of the reduced coordinates that the system names in its landmarks, with a line for each rung and direction.
Lines have at most a thousand points of six digits, so that a page of many experiments opens quickly.
"""

import re
from typing import Any

import numpy as np

from spectral_ode import document
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment

POINTS = 1000  # of a line
LINES = 8  # directions of a coordinate, and runs, that are drawn
RUNGS = ("training", "population", "reduced")  # in the order in which they are drawn, one over the other
MORE = ("plain", "heads")  # observables worth a panel that are no reduced coordinate
TITLES = {
    "loss": "loss",
    "v": "value v of each direction",
    "A": "weight A of each direction",
    "omega": "omega of each task's head",
    "mu": "mu of each task's head",
    "tests": "test losses",
    "groups": "risk of each group",
    "kappa": "strength of a head",
    "plain": "risk of plain descent",
    "heads": "heads used by each layer",
}
GREEK = {"lambda": "λ", "kappa": "κ", "mu": "μ", "omega": "ω", "sigma": "σ", "eta": "η", "tau": "τ"}


def picture(experiment: Experiment) -> dict[str, Any]:
    """Everything that the page draws and tells of an experiment beside its report."""
    training = experiment.rungs["training"]
    levels = experiment.system.landmarks()
    names = [name for name in (*levels, *MORE) if name in training.observables]
    present = [rung for rung in RUNGS if rung in experiment.rungs]
    loss = np.asarray(training["loss"])
    return {
        "toml": document.to_toml(experiment.problem),
        "clock": training.clock,
        "log": bool(np.min(loss) > 0 and np.max(loss) > 30 * np.min(loss)),  # values are best seen on a logarithmic axis
        "labels": {rung: rung_label(experiment, rung) for rung in present},
        "time": {rung: _numbers(_thin(np.asarray(experiment.rungs[rung].time)[0])) for rung in present},
        "panels": [_panel(experiment, name, levels.get(name, {}), present) for name in dict.fromkeys(names)],
    }


def rung_label(experiment: Experiment, rung: str) -> str:
    """What a rung is, in a few words."""
    return descent(experiment.problem) if rung == "training" else experiment.system.labels[rung]


def descent(problem: Problem) -> str:
    """Which kind of training a problem asks for: the last two rungs of the ladder."""
    if problem.training.kind == "sequences":
        fixed = problem.sequence_training.data == "fixed"
        return "full-batch descent on sampled sequences" if fixed else "SGD on fresh sequences"
    words = {"episodes": "SGD on fresh contexts", "gains": "SGD on fresh tasks", "adam": "Adam on fresh tasks"}
    return words.get(problem.training.kind, "layers of the constructed transformer")


def plain(label: str) -> str:
    """A label of a picture without TeX."""
    label = re.sub(r"\\mathcal\{(\w)\}", r"\1", label.replace("$", ""))
    label = re.sub(r"\\([a-z]+)", lambda found: GREEK.get(found[1], found[1]), label)
    small = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    return re.sub(r"_\{?(\w+|\*)\}?", lambda found: found[1].translate(small), label).replace("^", "")


def _panel(experiment: Experiment, name: str, levels: dict[str, Any], present: list[str]) -> dict[str, Any]:
    training = experiment.rungs["training"]
    shown = _shown(_directions(training, name).shape[1])
    rungs = [rung for rung in present if name in experiment.rungs[rung].observables]
    lines = []
    if name == "loss":  # the other runs of training, behind everything
        others = np.asarray(training[name])[1:LINES]
        lines += [{"rung": "other", "direction": 0, "y": _numbers(_thin(run))} for run in others]
    for rung in rungs:
        values = _directions(experiment.rungs[rung], name)
        lines += [{"rung": rung, "direction": index, "y": _numbers(_thin(values[:, index]))} for index in shown]
    labels = [plain(label) for label in levels] if len(levels) == max(shown) + 1 else [str(index + 1) for index in range(max(shown) + 1)]
    title = TITLES.get(name, name)
    return {
        "name": name,
        "title": title,
        "directions": labels if len(shown) > 1 else [""] * (max(shown) + 1),
        "lines": lines,
        "levels": _levels(levels),
        "moments": _moments(experiment),
        "summary": _summary(experiment, name, title, rungs, labels, shown),
    }


def _directions(rung: Trajectory, name: str) -> np.ndarray:
    """The first run of an observable, time x directions."""
    values = np.asarray(rung[name])[0]
    return values.reshape(values.shape[0], -1)


def _shown(count: int) -> list[int]:
    """Which directions are drawn, evenly spaced where there are many."""
    return sorted({round(float(index)) for index in np.linspace(0, count - 1, min(count, LINES))})


def _levels(levels: dict[str, Any]) -> list[dict[str, Any]]:
    """Landmarks with their labels; those at one height share a line."""
    heights: dict[float, list[str]] = {}
    for label, value in levels.items():
        heights.setdefault(float(f"{float(value):.6g}"), []).append(plain(label))
    return [{"value": value, "label": ", ".join(found) if len(found) < 4 else f"all {len(found)}"} for value, found in heights.items()]


def _moments(experiment: Experiment) -> list[float]:
    """Drop times forecast from the start, within the horizon."""
    found = np.asarray(experiment.forecast.get("half", np.empty((1, 0))))[0]
    return [float(f"{moment:.6g}") for moment in found if moment < experiment.problem.end]


def _summary(experiment: Experiment, name: str, title: str, rungs: list[str], labels: list[str], shown: list[int]) -> str:
    """The panel in words, for those who do not see it."""
    time = np.asarray(experiment.rungs["training"].time)[0]
    text = f"{title[0].upper()}{title[1:]} over {experiment.rungs['training'].clock} {time[0]:g} to {time[-1]:.4g}. "
    parts = []
    for rung in rungs:
        values = _directions(experiment.rungs[rung], name)
        one = lambda index, values=values: f"{values[0, index]:.3g} to {values[-1, index]:.3g}"
        each = one(shown[0]) if len(shown) == 1 else ", ".join(f"{labels[index]} from {one(index)}" for index in shown)
        parts.append(f"{rung_label(experiment, rung)}: {each}")
    return text + "; ".join(parts) + "."


def _thin(values: np.ndarray) -> np.ndarray:
    return values[np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))]


def _numbers(values: np.ndarray) -> list[float | None]:
    """Six digits each; null for what is not a number."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
