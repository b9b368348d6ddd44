"""Figure 3 of arXiv:2501.16265: saddle to saddle, with the theory drawn over the training.

a  loss of six runs, the paper's plateau losses, population flow and reduced ODE of the run that is shown
b  value weight of each head in that run, with the scalar ODE of the eigenvector that the head was forecast to learn
c  keys of the four heads in that run, in the eigenbasis, at the start and behind every drop
The run that is shown is the one whose drops are furthest apart by the forecast, that is by the initial weights alone.
"""

from typing import Any, cast

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import style
from spectral_ode import document
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Separate
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 3"
SECONDS = (20, 8)
CAPTION = (
    "Linear attention with separate key and query learns one eigenvector of the token covariance at a time. (a) Loss of six runs "
    "(pale), with population flow (orange) and reduced ODE (dashed) of the one whose drops are furthest apart by the forecast; grey "
    "lines: plateau losses, eq. 19. (b) Value weights of the four heads in that run (pale) and the scalar ODE, eq. 21, started from "
    "the initial weights without a fit (dashed). (c) Keys of the heads in the eigenbasis, rows scaled to their largest entry: "
    "each head turns into one eigenvector."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset, or a quicker start."""
    quick = {"runs": 2, "points": 600, "horizon": 12_000, "start.scale": 0.1, "training.sequences": 16_384}
    return {"zhang2025-fig3": document.override(document.load("zhang2025-fig3"), quick if fast else {})}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """The whole figure from one experiment."""
    experiment = experiments["zhang2025-fig3"]
    training, population, reduced = (experiment.rungs[name] for name in ("training", "population", "reduced"))
    shown = furthest(experiment.forecast["half"])
    time = np.asarray(training.time[shown])
    heads = experiment.forecast["head"][shown]
    with plt.style.context(style.STYLE):
        wide = width >= style.FULL
        figure = plt.figure(figsize=(width, 5.2 if wide else 8.0))
        upper, lower = cast(Any, figure.subfigures(2, 1, height_ratios=(1.35, 1) if wide else (1.45, 1)))
        loss, value = upper.subplots(*((1, 2) if wide else (2, 1)))
        loss.plot(time, training["loss"][shown], color="#B8D4E8", linewidth=3.5, zorder=2, label="training, one run")
        others = [run for run in range(training.runs) if run != shown]
        for run in others:
            label = "the other runs" if run == others[0] else None
            loss.plot(time, training["loss"][run], color="0.85", linewidth=1, zorder=1, label=label)
        loss.plot(population.time[shown], population["loss"][shown], color=style.color(1), label="population flow", zorder=3)
        dashed = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (4, 2)), "zorder": 4}
        loss.plot(reduced.time[shown], reduced["loss"][shown], label="reduced ODE, no fit", **dashed)
        for level in experiment.system.landmarks()["loss"].values():
            loss.axhline(float(level), color="0.75", linewidth=0.5, zorder=0)
        for d, head in enumerate(heads):
            value.plot(time, np.abs(training["value"][shown, :, head]), color=style.pale(d), linewidth=4)
            value.plot(reduced.time[shown], reduced["v"][shown, :, d], **dashed)
        for axes, title, name in ((loss, f"a   loss, {training.runs} runs", "loss"), (value, "b   value weights, one run", r"$|v_i|$")):
            axes.set_title(title, loc="left", fontweight="bold", fontsize=8.5)
            axes.set_xscale("symlog", linthresh=1000, linscale=0.4)
            axes.set_xticks([0, 1e3, 1e4, 1e5])
            axes.set_xlim(0, time[-1])
            axes.set_ylabel(name)
            axes.set_xlabel(r"flow time $t$ = cumulative learning rate")
        upper.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=4 if wide else 2)
        labels = list(experiment.system.landmarks()["v"])
        for d, (head, level) in enumerate(zip(heads, experiment.system.landmarks()["v"].values(), strict=True)):
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
            value.annotate(
                f"head {head + 1}: {labels[d]}", (0, float(level)), xytext=(5, 6), fontsize=style.SMALL, color=style.color(d), **place
            )
        value.set_ylim(top=1.15 * float(np.max(list(experiment.system.landmarks()["v"].values()))))
        _keys(experiment, lower, shown, across=5 if wide else 3)
    return figure


def furthest(half: np.ndarray) -> int:
    """The run whose closest two drops are furthest apart, as ratios of the times that are forecast (runs x drops)."""
    return int(np.argmax(np.min(np.diff(np.log(np.sort(half, axis=1)), axis=1), axis=1)))


def _keys(experiment: Experiment, panel, shown: int, *, across: int) -> None:
    """Heat maps of the keys at the start and half-way along every plateau."""
    heads = experiment.forecast["head"][shown]
    training, system = experiment.rungs["training"], experiment.system
    assert isinstance(system, Separate)
    time = np.asarray(training.time[shown])
    settled = [float(training.phases[f"settled {d + 1}"][shown]) for d in range(len(heads))]
    reached = settled[: int(np.isfinite(settled).sum())]
    ends = [*[float(training.phases[f"left {d + 1}"][shown]) for d in range(1, len(reached))], time[-1]]
    moments = [0, *[int(np.searchsorted(time, 0.5 * (a + b))) for a, b in zip(reached, ends, strict=True)]]
    panel.suptitle("c   keys in the eigenbasis, one run", x=0.01, ha="left", fontweight="bold", fontsize=8.5)
    across = min(across, len(moments))
    row = panel.subplots(-(-len(moments) // across), across, sharey=True, squeeze=False).ravel()
    for axes in row[len(moments) :]:
        axes.set_axis_off()
    image = None
    for number, (axes, moment) in enumerate(zip(row, moments, strict=False)):
        keys = np.asarray(training["key"][shown, moment, :, 0]) @ np.asarray(system.data.basis)
        image = axes.imshow(keys / np.abs(keys).max(axis=1, keepdims=True), cmap="RdBu_r", vmin=-1, vmax=1)
        learned = "start" if number == 0 else f"{number} learned"
        axes.set_title(f"{learned}\n$t$ = {time[moment]:,.0f}", fontsize=style.SMALL)
        axes.set_xticks(range(keys.shape[1]), [f"$e_{d + 1}$" for d in range(keys.shape[1])])
        axes.set_yticks(range(keys.shape[0]), [f"head {h + 1}" for h in range(keys.shape[0])])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for d in range(number):
            axes.add_patch(plt.Rectangle((d - 0.5, heads[d] - 0.5), 1, 1, fill=False, edgecolor=style.color(d), linewidth=1.8))
    panel.colorbar(image, ax=list(row), shrink=0.7, label="key / largest entry")
