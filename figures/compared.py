"""A foreign loss curve over the theory of a problem."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import style
from validate.compare import rung
from validate.experiment import Experiment


def draw(experiment: Experiment, time: np.ndarray, loss: np.ndarray, name: str) -> Figure:
    """The curve wide and pale, the theory of each start thin over it, levels in the margin."""
    theory = experiment.rungs[rung(experiment)]
    words = {"population": "population flow of the weights", "reduced": "exact flow of every block"}[rung(experiment)]
    levels = experiment.system.landmarks()["loss"]
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.FULL, 3.4))
        axes.plot(time, loss, color="#B8D4E8", linewidth=5, solid_capstyle="round", label=name)
        for run in range(theory.runs):
            label = f"{words}, {theory.runs} random start{'s' if theory.runs > 1 else ''}" if run == 0 else None
            axes.plot(theory.time[run], theory["loss"][run], color=style.color(1), linewidth=1.2 if run == 0 else 0.6, label=label)
        for level in levels.values():
            axes.axhline(float(level), color="0.8", linewidth=0.6, zorder=0)
        axes.set_ylim(0, 1.08 * max(float(np.max(loss)), float(next(iter(levels.values())))))
        axes.set_xlim(time[0], time[-1])
        style.margin(axes, [(float(level), f"{label}  {float(level):.4f}", "0.35") for label, level in levels.items()])
        axes.set_ylabel("loss")
        axes.set_xlabel(r"flow time $t$")
        style.steps_axis(axes, experiment.problem)
        figure.legend(loc="outside upper center", ncols=2)
    return figure
