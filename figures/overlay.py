"""The overlay of a run: theory over training, loss above and the reduced coordinates below, on one clock."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from validate.experiment import Experiment


def draw(experiment: Experiment) -> Figure:
    """Loss and v of every rung in the first run, the other runs' loss behind it, forecast drops as vertical lines."""
    with plt.style.context(style.STYLE):
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(style.FULL, 4.9), sharex=True, height_ratios=(1.15, 1))
        training, population = experiment.rungs["training"], experiment.rungs["population"]
        time = np.asarray(training.time)[0]
        for run in range(1, training.runs):
            top.plot(time, training["loss"][run], color="0.85", linewidth=0.8, zorder=0)
        wide = {"linewidth": 5, "solid_capstyle": "round"}
        top.plot(time, training["loss"][0], color="#B8D4E8", label="training, sampled sequences", **wide)
        top.plot(population.time[0], population["loss"][0], color=style.color(1), linewidth=1.4, label="population flow of all weights")
        modes = training["v"].shape[-1]
        for d in range(modes):
            bottom.plot(time, training["v"][0, :, d], color=style.pale(d), **wide)
            bottom.plot(population.time[0], population["v"][0, :, d], color=style.color(d), linewidth=1.4)
        _theory(experiment, top, bottom)
        _levels(experiment, top)
        top.set_ylabel("loss")
        bottom.set_ylabel(r"$v_d = A_{dd}^{1/3}$")
        bottom.set_xlabel(r"flow time $t$ = cumulative learning rate")
        bottom.set_xlim(time[0], time[-1])
        style.steps_axis(top, experiment.problem.training.learning_rate)
        top.legend(loc="upper right", bbox_to_anchor=(0.995, 1.0))
        for d in range(modes):
            if np.isfinite(population.phases[f"settled {d + 1}"][0]):
                label = rf"$\lambda_{d + 1} = {float(experiment.system.lam[d]):g}$"
                if "head" in experiment.forecast:
                    label += f", head {experiment.forecast['head'][0, d] + 1}"
                _margin(bottom, float(population["v"][0, -1, d]), label, style.color(d))
    return figure


def _theory(experiment: Experiment, top: Axes, bottom: Axes) -> None:
    """The reduced ODE, thin, dark and dashed, and the forecast drop times."""
    if "reduced" not in experiment.rungs:
        return
    reduced = experiment.rungs["reduced"]
    thin = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (4, 2))}
    top.plot(reduced.time[0], reduced["loss"][0], label="reduced ODE, started from the same weights, no fit", **thin)
    for d in range(reduced["v"].shape[-1]):
        bottom.plot(reduced.time[0], reduced["v"][0, :, d], **thin)
    for number, moment in enumerate(np.asarray(experiment.forecast["half"])[0]):
        if moment < experiment.problem.horizon:
            label = "drop forecast from the start alone" if number == 0 else None
            top.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", label=label, zorder=0)
            bottom.axvline(moment, color="0.55", linewidth=0.8, linestyle=":", zorder=0)


def _levels(experiment: Experiment, axes: Axes) -> None:
    """The plateau losses of the paper on the right margin."""
    for m in range(experiment.system.lam.size + 1):
        level = float(experiment.system.plateau_loss(m))
        axes.axhline(level, color="0.8", linewidth=0.6, zorder=0)
        _margin(axes, level, rf"$\mathcal{{M}}_{m}$  {level:.4f}", "0.35")


def _margin(axes: Axes, height: float, label: str, color: str) -> None:
    """A label in the right margin, level with a height on the axis."""
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(label, (1.0, height), xytext=(4, 0), fontsize=7.5, color=color, **place)
