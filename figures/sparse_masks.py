"""Which heads of a softmax transformer matter: masking heat map and pruning."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment
from validate.sparse import pruned

PAPER = "arXiv:2408.04532, Figure 1c and 1d"
SECONDS = (480, 25)
CAPTION = (
    "A softmax transformer (3 blocks, 4 heads, width 32; d = 8, s = 1, n = 16) whose risk lies far below that of ridge, three seeds. "
    "a: share of each head in what the heads of its layer save when masked one by one, sorted, mean over seeds. In the paper's "
    "larger models the first layer spreads over all heads and every later one has one dominant head; at this size only the last "
    "layer leans on one head, and the second spreads more than the first. b: accordingly, cutting the later layers to their best "
    "head costs the advantage over ridge, even after refitting. A model trained with one head of the full width never has it."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset, and the same with one head."""
    preset = importance(fast)
    return {"heads": preset, "one head": panels.varied(preset, attention__heads=1, runs=1)}


def importance(fast: bool) -> Problem:
    """The preset, small if fast."""
    changes = {"horizon": 150, "points": 3, "training__test_tasks": 800, "training__tasks": 32, "attention__width": 16, "runs": 1}
    return panels.small(document.load("head-importance"), fast, **changes)


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """A map and bars."""
    full, alone = experiments["heads"], experiments["one head"]
    with plt.style.context(style.STYLE):
        figure, (left, right) = style.grid(width, 1, 2, height=3.0, ratios=(1, 1.25))
        _map(left, full)
        training, problem = full.rungs["training"], full.problem
        cut = lambda *layers: np.median([pruned(problem, training, layers, run=run) for run in range(training.runs)], axis=0)
        bars = {
            "full": np.full(2, np.median(np.asarray(training["loss"])[:, -1])),
            "later layers\ncut": cut(*range(1, problem.transformer.layers)),
            "first layer\ncut": cut(0),
            "one head\ntrained": np.full(2, float(alone.rungs["training"]["loss"][0, -1])),
        }
        place, risks = np.arange(len(bars)), np.asarray(list(bars.values()))
        right.bar(place - 0.2, risks[:, 0], 0.38, color=style.pale(1), label="at once")
        right.bar(place + 0.2, risks[:, 1], 0.38, color=style.color(1), label="refitted, a tenth of the training")
        right.axhline(float(full.system.landmarks()["loss"]["best ridge"]), color="0.5", linewidth=0.8, linestyle=":", label="best ridge")
        right.set_yscale("log")
        right.set_ylim(0.4 * risks.min(), 9 * risks.max())  # room for the legend
        right.set_xticks(place, list(bars))
        right.set_ylabel("risk on fresh tasks (median of seeds)")
        right.legend(loc="upper right")
        panels.title(left, "a", "share of each head")
        panels.title(right, "b", "pruning")
    return figure


def _map(axes: Axes, experiment: Experiment) -> None:
    every = np.sort(np.asarray(experiment.rungs["training"]["shares"])[:, -1], axis=-1)[..., ::-1]
    shares, used = np.mean(every, axis=0), np.median(np.asarray(experiment.rungs["training"]["heads"])[:, -1], axis=0)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(shares):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8.5, color="white" if value > 0.6 else style.INK)
    axes.set_xticks(range(shares.shape[1]), [str(head + 1) for head in range(shares.shape[1])])
    axes.set_yticks(range(shares.shape[0]), [f"layer {layer + 1}\n({count:.1f} heads)" for layer, count in enumerate(used)])
    axes.set_xlabel("head, by rank within its layer")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
