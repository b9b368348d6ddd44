"""Ours, on arXiv:2402.19442: from one head per task to zero-sum superposition, as heat maps of mu and omega-bar over heads and tasks.

After emergence each head serves its own task. Then the idle heads, which attend to nothing of a task, begin to subtract its mean over the
context: at the end the mu of a task all but cancel in their sum over the heads, and omega-bar has become small. Finite-L flow and training.
"""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from figures import saddle_escape, style
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, ours"
SECONDS = (95, 25)
QUANTITIES = {"mu": r"$\mu$", "omega": r"$\bar\omega$"}
RUNGS = {"population": "finite-$L$ flow", "training": "training"}
STATES = ("one head per task", "zero-sum superposition")
CAPTION = (
    "Weights of three heads (rows) for three tasks (columns): mu, what a head adds to a prediction, and omega-bar, how sharply it "
    "attends; the flow at finite L and a trained network from the same start, imbalance 1e-3. (a) After emergence, closest to the "
    "saddle, each task has a head of its own. (b) In the end the two idle heads of a task, which attend to nothing of it, subtract its "
    "mean over the context: mu sums to 0.55 over the heads where its largest entry is 7.33, and omega-bar has fallen from 0.31 to 0.12."
)


def problems(fast: bool) -> dict[str, Problem]:
    """That of the escape from the saddle."""
    return saddle_escape.problems(fast)


def moments(experiment: Experiment) -> tuple[int, int]:
    """Recorded times: when omega-bar is largest in the flow, which is closest to the saddle, and the last one."""
    omega = np.asarray(experiment.rungs["population"]["omega"])[0]
    return int(np.argmax(np.mean(omega, axis=1))), len(omega) - 1


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """One half for each moment: rows mu and omega, columns theory and training."""
    experiment = experiments["superposition"]
    with plt.style.context(style.STYLE):
        wide = width >= style.FULL
        figure = plt.figure(figsize=(width, 3.9 if wide else 7.6))
        halves = np.asarray(figure.subfigures(1, 2, wspace=0.04) if wide else figure.subfigures(2, 1, hspace=0.03))
        for letter, half, at, words in zip("ab", halves, moments(experiment), STATES, strict=True):
            time = float(experiment.rungs["population"].time[0, at])
            half.suptitle(f"{letter}   {words}, $t = {time:.3g}$", fontweight="bold", fontsize=9)
            _half(half, experiment, at)
    return figure


def _half(half: SubFigure, experiment: Experiment, at: int) -> None:
    grid = half.subplots(2, 2)
    for row, (name, symbol) in enumerate(QUANTITIES.items()):
        of = lambda rung, name=name: np.asarray(experiment.rungs[rung][f"{name} of heads"])[0]
        top = float(np.max(np.abs(of("population"))))  # over all times: both halves have one scale
        for axes, (rung, words) in zip(grid[row], RUNGS.items(), strict=True):
            _cells(axes, of(rung)[at], top, digits=2 + row)
            axes.set_title(f"{symbol}, {words}", fontsize=8)
        grid[row, 0].set_ylabel("head")
    for axes in grid[1]:
        axes.set_xlabel("task")


def _cells(axes: Axes, values: np.ndarray, top: float, *, digits: int) -> None:
    """A heat map with its numbers, blue below zero and red above."""
    axes.imshow(values, cmap="RdBu_r", vmin=-1.1 * top, vmax=1.1 * top)
    for (head, task), value in np.ndenumerate(values):
        ink = "white" if abs(value) > 0.6 * top else style.INK
        axes.annotate(f"{value:.{digits}f}", (task, head), ha="center", va="center", fontsize=style.SMALL, color=ink)
    for ticks, count in ((axes.set_xticks, values.shape[1]), (axes.set_yticks, values.shape[0])):
        ticks(range(count), [str(1 + number) for number in range(count)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
