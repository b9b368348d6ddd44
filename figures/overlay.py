"""The overlay of a run: theory over training, loss above and the reduced coordinates below, on one clock."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from validate.experiment import Experiment

WIDE = {"linewidth": 5, "solid_capstyle": "round"}  # training
THIN = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}  # the reduced ODE


def draw(experiment: Experiment) -> Figure:
    """Every rung of the first run, the other runs' loss behind it, forecast drops as vertical lines."""
    training, population = experiment.rungs["training"], experiment.rungs["population"]
    coordinate = list(experiment.system.landmarks())[1]
    time = np.asarray(training.time)[0]
    with plt.style.context(style.STYLE):
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(style.FULL, 4.9), sharex=True, height_ratios=(1.15, 1))
        for run in range(1, training.runs):
            top.plot(time, training["loss"][run], color="0.87", linewidth=0.8, zorder=0)
        top.plot(time, training["loss"][0], color="#B8D4E8", label="training, sampled sequences", **WIDE)
        top.plot(population.time[0], population["loss"][0], color=style.color(1), linewidth=1.4, label="population flow of all weights")
        for mode in range(training[coordinate].shape[-1]):
            bottom.plot(time, training[coordinate][0, :, mode], color=style.pale(mode), **WIDE)
            bottom.plot(population.time[0], population[coordinate][0, :, mode], color=style.color(mode), linewidth=1.4)
        if "reduced" in experiment.rungs:
            _theory(experiment, coordinate, top, bottom)
        _levels(experiment, coordinate, top, bottom)
        top.set_ylabel("loss")
        bottom.set_ylabel(f"${coordinate}_d$")
        bottom.set_xlabel(r"flow time $t$ = cumulative learning rate")
        bottom.set_xlim(time[0], time[-1])
        bottom.set_ylim(top=1.08 * float(max(experiment.system.landmarks()[coordinate].values())))
        top.set_ylim(bottom=0)
        style.steps_axis(top, experiment.problem.training.learning_rate)
        top.legend(loc="upper right", bbox_to_anchor=(1, 0.94), frameon=True, facecolor="white", edgecolor="none", framealpha=1)
    return figure


def _theory(experiment: Experiment, coordinate: str, top: Axes, bottom: Axes) -> None:
    """The reduced ODE, thin, dark and dashed, and the drop times forecast from the start."""
    reduced = experiment.rungs["reduced"]
    top.plot(reduced.time[0], reduced["loss"][0], label="reduced ODE, started from the same weights, no fit", **THIN)
    for mode in range(reduced[coordinate].shape[-1]):
        bottom.plot(reduced.time[0], reduced[coordinate][0, :, mode], **THIN)
    for number, moment in enumerate(experiment.forecast.get("half", np.empty((1, 0)))[0]):
        if moment < experiment.problem.horizon:
            label = "drop forecast from the start alone" if number == 0 else None
            top.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", label=label, zorder=0)
            bottom.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", zorder=0)


def _levels(experiment: Experiment, coordinate: str, top: Axes, bottom: Axes) -> None:
    """The paper's levels in the right margin: loss of each plateau; limit of each coordinate, with the head that was forecast."""
    landmarks = experiment.system.landmarks()
    for label, level in landmarks["loss"].items():
        top.axhline(float(level), color="0.8", linewidth=0.6, zorder=0)
        _margin(top, float(level), f"{label}  {float(level):.4f}", "0.35")
    heads = experiment.forecast.get("head")
    for mode, (label, level) in enumerate(landmarks[coordinate].items()):
        owner = f", head {heads[0, mode] + 1}" if heads is not None and heads[0, mode] >= 0 else ""
        _margin(bottom, float(level), label + owner, style.color(mode))


def _margin(axes: Axes, height: float, label: str, color: str) -> None:
    """A label in the right margin, level with a height on the axis."""
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(label, (1.0, height), xytext=(4, 0), fontsize=7.5, color=color, **place)
