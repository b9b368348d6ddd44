"""Linear-attention transformers over a sweep of heads: risk against H, Schmidt spectra per layer, pruning."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment
from validate.sparse import pruned

PAPER = "arXiv:2408.04532, after Figure 1b; ours"
SECONDS = (220, 20)
HEADS = (1, 2, 3, 5)
CAPTION = (
    "Transformers of linear attention (3 layers, d = 5, s = 1, n = 20), trained with H heads per layer, three seeds. a: one head is "
    "stuck at the level of the best ridge regression, a head per coordinate comes close to knowing the support. b: gauge-free "
    "strength of the heads of each layer (operator-Schmidt spectrum, H = 5): the last layer uses few, the first all - but so does "
    "the second, which the paper's picture of one head per later layer does not have. c: each layer cut to its leading canonical "
    "head, at once and after refitting."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset for every number of heads."""
    preset = panels.small(document.load("head-sweep"), fast, horizon=400, points=3, runs=1, training__tasks=64, training__test_tasks=1000)
    scale = preset.start.scale
    return {f"H = {count}": panels.varied(preset, attention__heads=count, start__scale=scale) for count in ((1, 5) if fast else HEADS)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Three panels."""
    full = experiments[f"H = {max(HEADS)}"]
    with plt.style.context(style.STYLE):
        figure, axes = style.grid(width, 1, 3, height=2.8, ratios=(1, 1, 1.15))
        _sweep(axes[0], experiments, full)
        spectra = np.asarray(full.rungs["training"]["schmidt"])[:, -1]
        for layer in range(spectra.shape[1]):
            share = spectra[:, layer] / spectra[:, layer, :1]
            for run in share:
                axes[1].plot(np.arange(1, run.size + 1), run, color=style.pale(layer), linewidth=0.8)
            label = f"layer {layer + 1}: {np.median(np.asarray(full.rungs['training']['heads'])[:, -1, layer]):.1f} heads"
            axes[1].plot(
                np.arange(1, share.shape[1] + 1), np.median(share, axis=0), "o-", color=style.color(layer), markersize=4, label=label
            )
        axes[1].set_ylim(0, 1.4)
        axes[1].set_xlabel("canonical head")
        axes[1].set_ylabel("Schmidt value / largest")
        axes[1].legend(loc="upper right")
        _pruning(axes[2], full)
        panels.title(axes[0], "a", "more heads help")
        panels.title(axes[1], "b", "heads of each layer")
        panels.title(axes[2], "c", "cut to one head")
    return figure


def _sweep(axes: Axes, experiments: dict[str, Experiment], full: Experiment) -> None:
    counts = [experiment.problem.transformer.heads for experiment in experiments.values()]
    risks = [np.asarray(experiment.rungs["training"]["loss"])[:, -1] for experiment in experiments.values()]
    for run in np.asarray(risks).T:
        axes.plot(counts, run, "o", color=style.pale(0), markersize=4)
    axes.plot(counts, np.median(risks, axis=1), color=style.color(0))
    for label in ("best ridge", "support known"):
        level = float(full.system.landmarks()["loss"][label])
        axes.axhline(level, color="0.7", linewidth=0.7, zorder=0)
        axes.annotate(
            label,
            (1, level),
            (0, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=style.SMALL,
            color="0.4",
        )
    axes.set_yscale("log")
    axes.set_xticks(counts)
    axes.set_xlabel("heads $H$ per layer")
    axes.set_ylabel("risk on fresh tasks")


def _pruning(axes: Axes, full: Experiment) -> None:
    layers = full.problem.transformer.layers
    cuts = {f"layer {layer + 1}": (layer,) for layer in range(layers)} | {"all later": tuple(range(1, layers))}
    training = full.rungs["training"]
    risks = np.asarray([pruned(full.problem, training, cut) for cut in cuts.values()])
    place = np.arange(len(cuts))
    axes.bar(place - 0.2, risks[:, 0], 0.38, color=style.pale(1), label="at once")
    axes.bar(place + 0.2, risks[:, 1], 0.38, color=style.color(1), label="refitted")
    axes.axhline(float(training["loss"][0, -1]), color=style.INK, linewidth=0.8, label="all heads")
    axes.axhline(float(full.system.landmarks()["loss"]["best ridge"]), color="0.6", linewidth=0.8, linestyle=":", label="best ridge")
    axes.set_yscale("log")
    axes.set_xticks(place, list(cuts))
    axes.set_ylabel("risk, first seed")
    axes.legend(loc="upper right")
