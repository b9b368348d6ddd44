"""Four ranks side by side: the panels of Figures 4 and 12."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment


def at_ranks(preset: str, wanted: tuple[int, ...], fast: bool) -> dict[str, Problem]:
    """The preset at each rank; a fast one is four-dimensional."""
    base = document.load(preset)
    base = panels.small(
        base, fast, runs=1, points=300, horizon=4000, start__scale=0.5, training__sequences=4096, training__learning_rate=1.0
    )
    return {f"rank {rank}": panels.varied(base, attention__rank=rank) for rank in wanted}


def draw(experiments: dict[str, Experiment], width: float) -> Figure:
    """Loss of every run against time, one panel per rank."""
    with plt.style.context(style.STYLE):
        figure, grid = style.grid(width, 2, 2, height=2.4, share="y")
        for number, (axes, experiment) in enumerate(zip(grid, experiments.values(), strict=True)):
            rank = getattr(experiment.problem.attention, "rank", 1)
            panels.losses(axes, experiment)
            panels.levels(axes, experiment, strong=rank)
            panels.title(axes, "abcd"[number], f"rank {rank}")
            panels.symlog(axes, 1000, float(np.max(np.asarray(experiment.rungs["training"].time))))
            marks = [(m, float(level)) for m, level in enumerate(experiment.system.landmarks()["loss"].values())]
            shown = [(level, str(m), "0.35") for m, level in marks if m % rank == 0 or m == len(marks) - 1]
            style.margin(axes, shown, joined="$m={}$")
        style.outer(grid, x=r"flow time $t$", y="loss")
        style.legend(figure, grid[0], ncols=2)
    return figure
