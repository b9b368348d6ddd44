"""Panels that several figures share: losses of all runs with their theory, in one look."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from figures import style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment

DASHED: dict[str, Any] = {"color": style.INK, "linewidth": 0.8, "linestyle": (0, (4, 2))}


def dashed(width: float) -> dict[str, Any]:
    """The look of a theory, with another line width."""
    return {**DASHED, "linewidth": width}


def small(problem: Problem, fast: bool, **changes: object) -> Problem:
    """The problem, or for `fast` a copy with these fields (dots written as two underscores) changed."""
    return document.override(problem, {name.replace("__", "."): value for name, value in changes.items()}) if fast else problem


def varied(problem: Problem, **changes: object) -> Problem:
    """The problem with some fields (dots written as two underscores) changed."""
    return small(problem, True, **changes)


def losses(axes: Axes, experiment: Experiment, *, rung: str = "population", step: bool = False) -> None:
    """Training of every run wide and pale, the theory of the same start thin and dashed over it; against time or training step."""
    training = experiment.rungs["training"]
    unit = experiment.problem.eta if step else 1.0
    for run in range(training.runs):
        label = "training, one color per run" if run == 0 else None
        axes.plot(training.time[run] / unit, training["loss"][run], color=style.pale(run), linewidth=2.6, label=label, zorder=2)
        if rung in experiment.rungs:
            theory = experiment.rungs[rung]
            words = {"population": "population flow, same start", "reduced": "reduced ODE, same start, no fit"}[rung]
            axes.plot(theory.time[run] / unit, theory["loss"][run], label=words if run == 0 else None, zorder=3, **DASHED)
    axes.set_xlim(0, float(np.max(np.asarray(training.time))) / unit)


def levels(axes: Axes, experiment: Experiment, strong: int = 1) -> None:
    """Plateau losses as lines, those at multiples of `strong` darker."""
    for number, level in enumerate(experiment.system.landmarks()["loss"].values()):
        axes.axhline(float(level), color="0.6" if number % strong == 0 else "0.88", linewidth=0.6, zorder=0)


def title(axes: Axes, letter: str, text: str) -> None:
    """A panel's letter and what it shows."""
    axes.set_title(f"{letter}   {text}", loc="left", fontweight="bold", fontsize=8.5)


def symlog(axes: Axes, linear: float, end: float) -> None:
    """A time axis that is linear up to `linear` and logarithmic beyond, with few ticks."""
    axes.set_xscale("symlog", linthresh=linear, linscale=0.5)
    decades = [10.0**k for k in range(12) if linear <= 10.0**k <= end]
    axes.set_xticks([0, *decades])
    axes.set_xlim(0, end)
