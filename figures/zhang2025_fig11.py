"""Figure 11 of arXiv:2501.16265: the weights of heads of rank two; a head learns two eigenvectors, the second with its value already grown.

a  one head through its two drops: value weight, and size of its key along the two eigenvectors that it learns
b  v K^T Q of the heads that learn, in the eigenbasis, at the start and at the end of each conspicuous plateau
"""

from typing import Any, cast

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, ranks, style
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Separate
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 11"
SECONDS = (30, 5)
CAPTION = (
    "Heads of rank two (D = 8, nine heads), one run of the preset of Figure 4. (a) The first head to learn: its value weight grows "
    "with the first eigenvector, so the second one follows without a plateau (dashed: population flow). (b) Contribution v K^T Q "
    "of each head that learns, in the eigenbasis, at the start and at plateaus 2, 4, 6 and 8, each scaled to its largest entry: "
    "every head takes two eigenvectors."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Rank two of Figure 4."""
    return ranks.at_ranks("zhang2025-fig4", (2,), fast)


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Both panels from the first run."""
    experiment = experiments["rank 2"]
    system = experiment.system
    assert isinstance(system, Separate)
    training = experiment.rungs["training"]
    learned = np.asarray(training["learned"])[0, -1] > 0.5
    owner = np.where(learned, np.asarray(training["head"])[0, -1], -1)
    heads = list(dict.fromkeys(int(head) for head in owner if head >= 0))
    with plt.style.context(style.STYLE):
        course, map_ = (1.9, 1.15) if width >= style.FULL else (2.2, 0.8)  # inches, of the curves and of a row of maps
        figure = plt.figure(figsize=(width, course + map_ * len(heads)))
        upper, lower = cast(Any, figure.subfigures(2, 1, height_ratios=(course, map_ * len(heads))))
        _course(experiment, system, upper.subplots(), heads[0], np.flatnonzero(owner == heads[0]))
        _maps(experiment, system, lower, heads, owner)
    return figure


def _course(experiment: Experiment, system: Separate, axes, head: int, mine: np.ndarray) -> None:
    """Value weight and keys of one head, around the time when it learns."""
    basis = np.asarray(system.data.basis)
    for rung, wide in (("training", True), ("population", False)):
        course = experiment.rungs[rung]
        keys = np.linalg.norm(np.asarray(course["key"])[0, :, head] @ basis, axis=1)  # time x d, over the pairs of the head
        curves = {"$|v|$": np.abs(np.asarray(course["value"])[0, :, head])} | {f"key along $e_{d + 1}$": keys[:, d] for d in mine}
        for index, (name, curve) in enumerate(curves.items()):
            look = {"color": style.pale(index), "linewidth": 4, "label": name} if wide else panels.DASHED
            axes.plot(course.time[0], curve, **look)
    half = [float(experiment.rungs["training"].phases[f"half {d + 1}"][0]) for d in mine]
    axes.set_xlim(0, 2.2 * max(half))
    axes.set_xlabel(r"flow time $t$")
    axes.set_ylabel("weight")
    axes.legend(loc="upper left")
    panels.title(axes, "a", f"head {head + 1} learns {' and '.join(f'$e_{d + 1}$' for d in mine)}")


def _maps(experiment: Experiment, system: Separate, panel, heads: list[int], owner: np.ndarray) -> None:
    """Heat maps of v K^T Q."""
    training, basis = experiment.rungs["training"], np.asarray(system.data.basis)
    time, rank = np.asarray(training.time[0]), getattr(experiment.problem.attention, "rank", 1)
    d = len(owner)
    half = np.array([float(training.phases[f"half {m + 1}"][0]) for m in range(d)])
    ends = [half[m] for m in range(rank, d, rank) if np.isfinite(half[m])]
    moments = [0, *[max(int(np.searchsorted(time, end)) - 12, 0) for end in ends], time.size - 1]
    panel.suptitle("b   $v\\,K^T Q$ in the eigenbasis", x=0.01, ha="left", fontweight="bold", fontsize=8.5)
    grid = panel.subplots(len(heads), len(moments), sharex=True, sharey=True, squeeze=False)
    image = None
    for column, moment in enumerate(moments):
        for row, head in enumerate(heads):
            value, key, query = (np.asarray(training[name])[0, moment, head] for name in ("value", "key", "query"))
            product = value * (key @ basis).T @ (query @ basis)
            axes = grid[row, column]
            image = axes.imshow(product / np.abs(product).max(), cmap="RdBu_r", vmin=-1, vmax=1)
            ends = (0, d - 1)
            axes.set_xticks(ends, [f"$e_{each + 1}$" for each in ends])
            axes.set_yticks(ends, [f"$e_{each + 1}$" for each in ends])
            axes.tick_params(length=0)
            if column == 0:
                axes.set_ylabel(f"head {head + 1}", fontsize=style.SMALL, labelpad=0)
        words = "start" if column == 0 else f"{column * rank} learned"
        grid[0, column].set_title(f"{words}\n$t$ = {time[moment]:,.0f}", fontsize=style.SMALL)
    side = "right" if panel.figure.get_figwidth() >= style.FULL else "bottom"
    panel.colorbar(image, ax=grid, shrink=0.5, location=side, label="relative to the largest entry", ticks=[-1, 0, 1])
