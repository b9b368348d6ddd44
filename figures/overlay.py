"""The overlay of a run: theory over training, loss above and the reduced coordinates below, on one clock."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from validate.experiment import Experiment

WIDE = {"linewidth": 5, "solid_capstyle": "round"}  # training
THIN = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}  # the reduced ODE


COORDINATES = {"v": "$v_d$", "A": "$A_d$", "tests": "test loss"}


def draw(experiment: Experiment) -> Figure:
    """Every rung of the first run, the other runs' loss behind it, forecast drops as vertical lines."""
    training = experiment.rungs["training"]
    coordinate = list(experiment.system.landmarks())[1]
    time = np.asarray(training.time)[0]
    with plt.style.context(style.STYLE):
        if coordinate not in training.observables:
            figure, top = plt.subplots(figsize=(style.FULL, 3.2))
            bottom = top
        else:
            figure, (top, bottom) = plt.subplots(2, 1, figsize=(style.FULL, 4.9), sharex=True, height_ratios=(1.15, 1))
        for run in range(1, training.runs):
            top.plot(time, training["loss"][run], color="0.87", linewidth=0.8, zorder=0)
        top.plot(time, training["loss"][0], color="#B8D4E8", label="training, sampled sequences", **WIDE)
        if bottom is not top:
            for mode in range(training[coordinate].shape[-1]):
                bottom.plot(time, training[coordinate][0, :, mode], color=style.pale(mode), **WIDE)
            _population(experiment, coordinate, top, bottom)
            _theory(experiment, coordinate, top, bottom)
            _levels(experiment, coordinate, top, bottom)
            bottom.set_ylabel(COORDINATES.get(coordinate, coordinate))
            highest = max(float(level) for level in experiment.system.landmarks()[coordinate].values())
            bottom.set_ylim(top=1.08 * max(highest, float(np.max(np.asarray(training[coordinate])[0])) / 1.05))
        top.set_ylabel("loss")
        bottom.set_xlabel(r"flow time $t$ = cumulative learning rate")
        bottom.set_xlim(time[0], time[-1])
        top.set_ylim(bottom=0)
        style.steps_axis(top, experiment.problem)
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def _population(experiment: Experiment, coordinate: str, top: Axes, bottom: Axes) -> None:
    """The exact flow of the weights, in color."""
    if "population" not in experiment.rungs:
        return
    population = experiment.rungs["population"]
    top.plot(population.time[0], population["loss"][0], color=style.color(1), linewidth=1.4, label="population flow of all weights")
    for mode in range(population[coordinate].shape[-1]):
        bottom.plot(population.time[0], population[coordinate][0, :, mode], color=style.color(mode), linewidth=1.4)


def _theory(experiment: Experiment, coordinate: str, top: Axes, bottom: Axes) -> None:
    """The reduced ODE, thin, dark and dashed, and the drop times forecast from the start."""
    if "reduced" not in experiment.rungs:
        return
    reduced = experiment.rungs["reduced"]
    name = "reduced ODE" if "population" in experiment.rungs else "exact flow of every block"
    top.plot(reduced.time[0], reduced["loss"][0], label=f"{name}, started from the same weights, no fit", **THIN)
    for mode in range(reduced[coordinate].shape[-1]):
        bottom.plot(reduced.time[0], reduced[coordinate][0, :, mode], **THIN)
    for number, moment in enumerate(experiment.forecast.get("half", np.empty((1, 0)))[0]):
        if moment < experiment.problem.end:
            label = "drop forecast from the start alone" if number == 0 else None
            top.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", label=label, zorder=0)
            bottom.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", zorder=0)


def _levels(experiment: Experiment, coordinate: str, top: Axes, bottom: Axes) -> None:
    """The paper's levels in the right margin: loss of each plateau; limit of each coordinate, with the head that was forecast."""
    landmarks = experiment.system.landmarks()
    for level in landmarks["loss"].values():
        top.axhline(float(level), color="0.8", linewidth=0.6, zorder=0)
    style.margin(top, [(float(level), f"{label}  {float(level):.4f}", "0.35") for label, level in landmarks["loss"].items()])
    heads = experiment.forecast.get("head")
    entries = []
    for mode, (label, level) in enumerate(landmarks[coordinate].items()):
        owner = f", head {heads[0, mode] + 1}" if heads is not None and heads[0, mode] >= 0 else ""
        if coordinate == "tests":  # labelled where the curve ends
            level = np.asarray(experiment.rungs["training"]["tests"])[0, -1, mode]
        entries.append((float(level), label + owner, style.color(mode)))
    style.margin(bottom, entries)
