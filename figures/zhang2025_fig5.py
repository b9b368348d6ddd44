"""Figure 5 of arXiv:2501.16265: softmax attention drops once with merged, several times with separate key and query."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment
from validate.metrics import count_drops

PAPER = "arXiv:2501.16265, Figure 5"
SECONDS = (155, 5)
CAPTION = (
    "Softmax attention, all blocks trained, six runs each on 5,000 (a) and 1,000 (b) sequences, in the script's units. (a) Merged "
    "key and query: one drop. (b) Separate key and query of rank one: several drops, with plateaus between. No equations are "
    "claimed here; drops are counted as bursts of descent separated by stretches at less than a quarter of their speed."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Both parametrizations."""
    presets = {name: document.load(f"zhang2025-fig5-{name}") for name in ("merged", "separate")}
    return {
        name: panels.small(problem, fast, runs=2, points=150, horizon=1500, training__sequences=100) for name, problem in presets.items()
    }


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Loss against the script's epochs."""
    with plt.style.context(style.STYLE):
        figure, grid = style.grid(width, 1, 2, height=2.9, share="y")
        for letter, axes, (name, experiment) in zip("ab", grid, experiments.items(), strict=True):
            training, eta = experiment.rungs["training"], experiment.problem.eta
            time, loss = np.asarray(training.time), np.asarray(training["loss"])
            for run in range(training.runs):
                axes.plot(time[run] / eta, loss[run], color=style.color(run), linewidth=1.1)
            counts = [count_drops(*course) for course in zip(time, loss, strict=True)]
            panels.title(axes, letter, f"softmax, {name} key and query")
            axes.annotate(
                f"drops in each run: {', '.join(map(str, counts))}", (0.97, 0.93), xycoords="axes fraction", ha="right", fontsize=8
            )
            # The course behind the last drop is a slow tail; the last drop is over when 95 % of the fall is done.
            fallen = [float(t[np.argmax(l < l[0] - 0.95 * (l[0] - l[-1]))]) / eta for t, l in zip(time, loss, strict=True)]
            axes.set_xlim(0, min(1.6 * max(fallen), float(time.max()) / eta))
        grid[0].set_ylim(bottom=0)
        style.outer(grid, x="epoch of the authors' script", y="loss")
    return figure
