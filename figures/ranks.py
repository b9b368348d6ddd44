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


def draw(experiments: dict[str, Experiment]) -> Figure:
    """Loss of every run against time, one panel per rank."""
    with plt.style.context(style.STYLE):
        figure, grid = plt.subplots(2, 2, figsize=(style.FULL, 4.8), sharey=True)
        for number, (axes, experiment) in enumerate(zip(grid.flat, experiments.values(), strict=True)):
            rank = getattr(experiment.problem.attention, "rank", 1)
            panels.losses(axes, experiment)
            panels.levels(axes, experiment, strong=rank)
            panels.title(axes, "abcd"[number], f"rank {rank}")
            panels.symlog(axes, 1000, float(np.max(np.asarray(experiment.rungs["training"].time))))
            marks = [(m, float(level)) for m, level in enumerate(experiment.system.landmarks()["loss"].values())]
            style.margin(axes, [(level, f"$m={m}$", "0.35") for m, level in marks if m % rank == 0 or m == len(marks) - 1], crowded="skip")
        for axes in grid[1]:
            axes.set_xlabel(r"flow time $t$")
        for axes in grid[:, 0]:
            axes.set_ylabel("loss")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure
