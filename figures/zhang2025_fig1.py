"""Figure 1 of arXiv:2501.16265: merged key and query drop once, and are a two-layer linear network.

a  loss of six runs of attention, of the two-layer network on the cubic feature from the same starts, and of the D + 1 scalar ODEs
b  a white covariance: sigma(t) of training over the closed form, eq. 10, started from the growing mode of the initial weights
"""

import jax
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Merged
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 1"
SECONDS = (10, 5)
CAPTION = (
    "Linear attention with merged key and query learns in one abrupt drop. (a) Loss of attention with all blocks trained (pale) "
    "and of the two-layer linear network on the cubic feature z from the same starts on the same 5,000 sequences (solid); dashed: "
    "D + 1 scalar ODEs, no fit. (b) White covariance: the linear map that attention has learned, in units of its limit (pale), and "
    "eq. 10 started from the growing mode of the initial weights (dashed); dotted: the drop as forecast by the escape law."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The script's setting, and a white one."""
    return {
        "zhang2025-fig1": panels.small(document.load("zhang2025-fig1"), fast, runs=2, horizon=2500, points=200, training__sequences=500),
        "one-drop": panels.small(document.load("one-drop"), fast, points=200, training__sequences=4096),
    }


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Both panels."""
    script, white = experiments["zhang2025-fig1"], experiments["one-drop"]
    with plt.style.context(style.STYLE):
        figure, (loss, sigma) = style.grid(width, 1, 2, height=3.1)
        panels.losses(loss, script, rung="reduced", step=True)
        network = script.rungs["network"]
        for run in range(network.runs):
            label = "two-layer network on $z$" if run == 0 else None
            loss.plot(
                network.time[run] / script.problem.eta, network["loss"][run], color=style.color(run), linewidth=0.9, label=label, zorder=2
            )
        panels.levels(loss, script)
        panels.title(loss, "a", f"loss, {network.runs} runs")
        loss.set_xlabel("epoch of the authors' script")
        loss.set_ylabel("loss")
        loss.set_xlim(600, 1600)
        loss.set_ylim(0, 1.5)  # room for the legend above the first level
        loss.legend(loc="upper right")
        _white(white, sigma)
    return figure


def _white(experiment: Experiment, axes) -> None:
    training, system = experiment.rungs["training"], experiment.system
    assert isinstance(system, Merged)
    time = training.time[0]
    exact = jax.vmap(lambda t: system.closed_form(t, experiment.states[0]))(time)
    axes.plot(time, training["sigma"][0], color=style.pale(0), linewidth=5, solid_capstyle="round", label="training, 80,000 sequences")
    axes.plot(time, exact[:, 0] / system.data.best[0], label="closed form, eq. 10, no fit", **panels.DASHED)
    axes.axvline(experiment.forecast["half"][0, 0], color="0.55", linewidth=0.8, linestyle=":", label="drop by the escape law")
    worst = float(np.max(np.abs(np.asarray(experiment.rungs["population"]["sigma"][0]) - np.asarray(exact[:, 0] / system.data.best[0]))))
    axes.annotate(
        f"closed form vs population flow:\nlargest gap {worst:.0e}", (0.98, 0.5), xycoords="axes fraction", ha="right", fontsize=style.SMALL
    )
    panels.title(axes, "b", "white covariance")
    half = float(experiment.forecast["half"][0, 0])
    axes.set_xlim(0, 3 * half)
    axes.set_ylabel(r"$\sigma(t)\,/\,\sigma^*$")
    axes.set_xlabel(r"flow time $t$")
    axes.legend(loc="lower right")
