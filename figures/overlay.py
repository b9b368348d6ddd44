"""The overlay of a run: theory over training, loss above and the reduced coordinates below, on one clock."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import sparse_overlay, style
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment

WIDE: dict[str, Any] = {"linewidth": 5, "solid_capstyle": "round"}  # training
THIN: dict[str, Any] = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}  # the reduced ODE


COORDINATES = {"v": "$v_d$", "A": "$A_d$", "tests": "test loss", "omega": r"$\bar\omega$", "mu": r"$\mu$"}


def draw(experiment: Experiment) -> Figure:
    """Every rung of the first run, the other runs' loss behind it, forecast drops as vertical lines."""
    if experiment.problem.task.kind == "sparse-regression":
        return sparse_overlay.draw(experiment)
    training = experiment.rungs["training"]
    coordinates = [name for name in list(experiment.system.landmarks())[1:] if name in training.observables]
    time = np.asarray(training.time)[0]
    with plt.style.context(style.STYLE):
        size = (style.FULL, 3.2 + 1.7 * len(coordinates) if coordinates else 3.2)
        ratios = (1.15, *[1] * len(coordinates))
        figure, grid = plt.subplots(len(ratios), 1, figsize=size, sharex=True, height_ratios=ratios, squeeze=False)
        top, *below = grid[:, 0]
        for run in range(1, training.runs):
            top.plot(time, training["loss"][run], color="0.87", linewidth=0.8, zorder=0)
        top.plot(time, training["loss"][0], color="#B8D4E8", label=TRAINED[experiment.problem.training.kind], **WIDE)
        _loss(experiment, top)
        for coordinate, axes in zip(coordinates, below, strict=True):
            _coordinate(experiment, coordinate, axes)
        _forecast(experiment, [top, *below])
        top.set_ylabel("loss")
        top.set_ylim(bottom=0)
        _levels(experiment, "loss", top)
        bottom = [top, *below][-1]
        bottom.set_xlabel(r"flow time $t$ = cumulative learning rate")
        bottom.set_xlim(time[0], time[-1])
        if len(experiment.problem.segments) == 1:
            style.steps_axis(top, experiment.problem)
        figure.legend(loc="outside upper center", ncols=2)
    return figure


TRAINED = {"sequences": "training, sampled sequences", "episodes": "training of all four matrices, fresh contexts"}


def _theories(experiment: Experiment) -> dict[str, tuple[Trajectory, dict[str, Any]]]:
    """The rungs of theory with how they are drawn: the population flow in color, the reduced ODE thin, dark and dashed."""
    looks: dict[str, dict[str, Any]] = {"population": {"linewidth": 1.4}, "reduced": THIN}
    return {name: (experiment.rungs[name], look) for name, look in looks.items() if name in experiment.rungs}


def colored(index: int, look: dict[str, Any]) -> dict[str, Any]:
    """A look in a color of its own, unless it has one."""
    return {"color": style.color(index), **look}


def _loss(experiment: Experiment, axes: Axes) -> None:
    labels = experiment.system.labels
    for name, (rung, look) in _theories(experiment).items():
        label = labels["population"]
        if name == "reduced":
            what = labels[name] if "population" in experiment.rungs else "exact flow of every block"
            label = f"{what}, started from the same weights, no fit"
        axes.plot(rung.time[0], rung["loss"][0], label=label, **colored(1, look))


def _coordinate(experiment: Experiment, coordinate: str, axes: Axes) -> None:
    """One reduced coordinate of every direction or task."""
    training = experiment.rungs["training"]
    modes = range(training[coordinate].shape[-1])
    for mode in modes:
        axes.plot(training.time[0], training[coordinate][0, :, mode], color=style.pale(mode), **WIDE)
    for rung, look in _theories(experiment).values():
        for mode in modes:
            axes.plot(rung.time[0], rung[coordinate][0, :, mode], **colored(mode, look))
    axes.set_ylabel(COORDINATES.get(coordinate, coordinate))
    highest = max(float(level) for level in experiment.system.landmarks()[coordinate].values())
    axes.set_ylim(top=1.08 * max(highest, float(np.max(np.asarray(training[coordinate])[0])) / 1.05))
    _levels(experiment, coordinate, axes)


def _forecast(experiment: Experiment, panels: list[Axes]) -> None:
    """The drop times forecast from the start."""
    for number, moment in enumerate(experiment.forecast.get("half", np.empty((1, 0)))[0]):
        if moment < experiment.problem.end:
            for axes in panels:
                label = "drop forecast from the start alone" if number == 0 and axes is panels[0] else None
                axes.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", label=label, zorder=0)


def _levels(experiment: Experiment, coordinate: str, axes: Axes) -> None:
    """The paper's levels in the right margin: loss of each plateau; limit of each coordinate, with the head that was forecast."""
    landmarks = experiment.system.landmarks()[coordinate]
    if coordinate == "loss":
        for level in landmarks.values():
            axes.axhline(float(level), color="0.8", linewidth=0.6, zorder=0)
        style.margin(axes, [(float(level), f"{label}  {float(level):.4f}", "0.35") for label, level in landmarks.items()])
        return
    heads = experiment.forecast.get("head")
    entries = []
    if len(landmarks) > 1 and np.ptp([float(level) for level in landmarks.values()]) == 0 and coordinate != "tests":
        style.margin(axes, [(float(next(iter(landmarks.values()))), f"all {len(landmarks)} tasks", "0.35")])
        return
    for mode, (label, level) in enumerate(landmarks.items()):
        owner = f", head {heads[0, mode] + 1}" if heads is not None and heads[0, mode] >= 0 else ""
        if coordinate == "tests":  # labelled where the curve ends
            level = np.asarray(experiment.rungs["training"]["tests"])[0, -1, mode]
        entries.append((float(level), label + owner, style.color(mode)))
    style.margin(axes, entries)
