"""The pictures of sparse regression runs: risk over depth, heads that wake, a transformer in training."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode.systems.sparse import Depth
from validate.experiment import Experiment

WIDE = {"linewidth": 4, "solid_capstyle": "round"}


def draw(experiment: Experiment) -> Figure:
    """The picture that goes with the problem's kind of training."""
    with plt.style.context(style.STYLE):
        if experiment.problem.training.kind == "depth":
            figure, (left, right) = plt.subplots(1, 2, figsize=(style.FULL, 3.4), width_ratios=(1.35, 1))
            depth(left, experiment)
            groups(right, experiment)
        elif experiment.problem.training.kind == "gains":
            figure, (left, right) = plt.subplots(1, 2, figsize=(style.FULL, 3.1))
            risk(left, experiment)
            activation(right, experiment)
        else:
            figure, (left, right) = plt.subplots(1, 2, figsize=(style.FULL, 3.1))
            learning(left, experiment)
            heads(right, experiment)
    return figure


def depth(axes: Axes, experiment: Experiment) -> None:
    """Risk of preprocessed and plain layers over flow time, with the exact flow, the theory and the window."""
    assert isinstance(experiment.system, Depth)
    rungs, law = experiment.rungs, experiment.system.law
    for index, (name, words) in enumerate((("plain", "plain descent"), ("loss", "preprocess, then optimize"))):
        color = style.color(index)
        axes.plot(rungs["training"].time[0], rungs["training"][name][0], color=style.pale(index), label=f"{words}: layers", **WIDE)
        axes.plot(rungs["population"].time[0], rungs["population"][name][0], color=color, linewidth=1.3, label="  exact flow, same tasks")
        words = "  Marchenko-Pastur law" if name == "plain" else "  two groups, support block exact"
        axes.plot(rungs["reduced"].time[0], rungs["reduced"][name][0], label=words, **panels.DASHED)
    at, low = (float(rungs["population"].phases["best"][0]), float(np.min(np.asarray(rungs["population"]["loss"]))))
    if np.isfinite(at):
        axes.plot(at, low, "o", color=style.color(1), markersize=5, zorder=5)
        axes.annotate(
            f"best after {at / experiment.problem.eta:.0f} layers",
            (at, low),
            (4, 9),
            textcoords="offset points",
            fontsize=style.SMALL,
        )
    axes.set_yscale("log")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / 1.7, top)
    levels = experiment.system.landmarks()["loss"]
    for label in ("best ridge", "support known"):
        axes.axhline(float(levels[label]), color="0.7", linewidth=0.7, zorder=0)
        axes.annotate(
            label,
            (1, float(levels[label])),
            (-3, 5),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=style.SMALL,
            color="0.45",
        )
    axes.set_xlim(0, float(rungs["training"].time[0, -1]))
    axes.set_xlabel(rf"depth, flow time $\tau = \eta \times$ layer ($\eta = {experiment.problem.eta:g}$)")
    axes.set_ylabel("excess risk")
    axes.set_title(f"$d = {law.d}$, $s = {law.s}$, $n = {law.n}$, $\\sigma = {law.sigma:g}$", fontsize=8.5)
    axes.legend(loc="upper right")


def groups(axes: Axes, experiment: Experiment) -> None:
    """The two groups of coordinates, each on its own time scale."""
    rungs = experiment.rungs
    for index, words in enumerate(("on the support", "off the support")):
        axes.plot(rungs["training"].time[0], rungs["training"]["groups"][0, :, index], color=style.pale(2 + index), label=words, **WIDE)
        axes.plot(rungs["population"].time[0], rungs["population"]["groups"][0, :, index], color=style.color(2 + index), linewidth=1.3)
        axes.plot(rungs["reduced"].time[0], rungs["reduced"]["groups"][0, :, index], **panels.DASHED)
    low, high = experiment.forecast["window"][0]
    end = float(rungs["training"].time[0, -1])
    axes.axvspan(low, min(high, end), color="0.95", zorder=0)
    axes.annotate(f"window {low:.2g} to {high:.2g}", (0.97, 0.03), xycoords="axes fraction", ha="right", fontsize=style.SMALL, color="0.4")
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-5)
    axes.set_xlim(0, end)
    axes.set_xlabel(r"flow time $\tau$")
    axes.set_ylabel("share of the risk")
    axes.legend(loc="upper right")


def risk(axes: Axes, experiment: Experiment) -> None:
    """Risk while gains are trained, with the ODE."""
    training, reduced = experiment.rungs["training"], experiment.rungs["reduced"]
    for run in range(training.runs):
        axes.plot(training.time[run], training["loss"][run], color=style.pale(0), label="training" if run == 0 else None, **WIDE)
    axes.plot(reduced.time[0], reduced["loss"][0], label="ODE, same start, no fit", **panels.DASHED)
    for label, level in experiment.system.landmarks()["loss"].items():
        axes.axhline(float(level), color="0.8", linewidth=0.6, zorder=0)
        axes.annotate(
            label,
            (0.98, float(level)),
            (0, -9 if "nothing" in label else 5),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=style.SMALL,
            color="0.4",
        )
    _time(axes, experiment)
    axes.set_ylabel("excess risk")
    axes.legend(loc="center right")


def activation(axes: Axes, experiment: Experiment) -> None:
    """The strength of every head over time, with the ODE."""
    training, reduced = experiment.rungs["training"], experiment.rungs["reduced"]
    count = training["kappa"].shape[-1]
    shown = sorted({0, *np.linspace(0, count - 1, min(count, 6)).round().astype(int)})
    gains = np.asarray(training["g"])[0, 0]
    equal = bool(np.ptp(gains) == 0)
    for index, head in enumerate(shown):
        label = f"{gains[head]:.2g}" + (", all heads" if equal else "")
        look = {"color": style.pale(index), "label": None if equal and index else label, **WIDE}
        axes.plot(training.time[0], training["kappa"][0, :, head], **look)
        axes.plot(reduced.time[0], reduced["kappa"][0, :, head], **panels.DASHED)
    axes.axhline(1, color="0.8", linewidth=0.6, zorder=0)
    _time(axes, experiment)
    axes.set_ylabel(r"strength of a head $\kappa_j/\kappa^*$")
    axes.legend(loc="lower right", title="gain $g_j(0)$", title_fontsize=style.SMALL)


def _time(axes: Axes, experiment: Experiment) -> None:
    axes.set_xlim(0, float(experiment.rungs["training"].time[0, -1]))
    axes.set_xlabel(r"flow time $t$ = learning rate $\times$ step")


def learning(axes: Axes, experiment: Experiment) -> None:
    """Risk of a trained transformer over steps, with what referees reach."""
    training = experiment.rungs["training"]
    for run in range(training.runs):
        axes.plot(training.time[run][1:], training["loss"][run][1:], color=style.color(run), label=f"run {run + 1}")
    for label, level in experiment.system.landmarks()["loss"].items():
        axes.axhline(float(level), color="0.75", linewidth=0.7, zorder=0)
        axes.annotate(
            label,
            (0.98, float(level)),
            (0, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=style.SMALL,
            color="0.4",
        )
    axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel("risk on fresh tasks")
    axes.legend(loc="upper center")


def heads(axes: Axes, experiment: Experiment) -> None:
    """Heads used by each layer over steps, median of the runs."""
    training = experiment.rungs["training"]
    for layer in range(training["heads"].shape[-1]):
        axes.plot(
            training.time[0][1:],
            np.median(np.asarray(training["heads"])[:, 1:, layer], axis=0),
            color=style.color(layer),
            label=f"layer {layer + 1}",
        )
    axes.set_ylim(0, experiment.problem.transformer.heads * 1.08)
    axes.axhline(experiment.problem.transformer.heads, color="0.8", linewidth=0.6, zorder=0)
    axes.set_xlabel("training step")
    words = "Schmidt spectrum" if "schmidt" in training.observables else "masking"
    axes.set_ylabel(f"effective heads (by {words})")
    axes.legend(loc="best")
