"""Figure 6 of arXiv:2501.16265: from a rich to a lazy start, plateaus shorten and vanish.

a  loss over logarithmic time for starts of growing scale, training over population flow
b  share of the course spent on plateaus (from settled m to left m + 1), median over runs
"""

import numpy as np
from matplotlib import colormaps
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, Figure 6"
SECONDS = (40, 10)
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CAPTION = (
    "The start scale decides between saddle-to-saddle and lazy learning. (a) Loss of the first run for start scales from 0.01 to "
    "10: training on 80,000 sequences (pale) over the population flow (thin). Grey lines: plateau losses. (b) Share of the time "
    "until the last direction is settled that is spent on plateaus between drops; median and range of three runs of the population "
    "flow."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset over start scales; horizon and learning rate follow the scale."""
    base = panels.small(document.load("zhang2025-fig6"), fast, runs=1, points=300, training__sequences=4096)
    chosen = SCALES[2:6] if fast else SCALES
    found = {}
    for scale in chosen:
        horizon = min(max(2500.0 / scale, 1500.0), 200_000.0)
        eta = min(0.5, horizon / 5000, 0.1 / scale)
        found[f"start {scale:g}"] = panels.varied(base, start__scale=scale, horizon=horizon, spacing="log", training__learning_rate=eta)
    return found


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Both panels."""
    shades = colormaps["viridis"](np.linspace(0, 0.88, len(experiments)))
    with plt.style.context(style.STYLE):
        figure, (loss, share) = style.grid(width, 1, 2, height=3.1, ratios=(1.6, 1))
        for shade, experiment in zip(shades, experiments.values(), strict=True):
            training, population = experiment.rungs["training"], experiment.rungs["population"]
            pale = 0.4 * shade[:3] + 0.6
            loss.plot(training.time[0][1:], training["loss"][0][1:], color=pale, linewidth=3)
            scale = experiment.problem.start.scale
            loss.plot(population.time[0][1:], population["loss"][0][1:], color=shade, linewidth=1, label=f"{scale:g}")
            shares = plateau_shares(experiment)
            share.errorbar(
                scale, np.median(shares), [[np.median(shares) - np.min(shares)], [np.max(shares) - np.median(shares)]], fmt="o", color=shade
            )
        panels.levels(loss, next(iter(experiments.values())))
        loss.set_xscale("log")
        loss.set_ylim(0, 1.6)
        loss.set_xlim(left=0.3)
        loss.set_xlabel(r"flow time $t$")
        loss.set_ylabel("loss")
        loss.legend(title="start scale", loc="upper right", ncols=3, title_fontsize=style.SMALL)
        panels.title(loss, "a", "loss")
        share.set_xscale("log")
        share.set_ylim(-0.03, 1)
        share.set_xlabel("start scale")
        share.set_ylabel("share of time on plateaus")
        panels.title(share, "b", "plateaus vanish")
    return figure


def plateau_shares(experiment: Experiment) -> np.ndarray:
    """For each run: time between "settled m" and "left m + 1", summed over plateaus m >= 1, over the time when all is settled."""
    phases = experiment.rungs["population"].phases
    count = sum(name.startswith("left ") for name in phases)
    left, settled = (np.stack([np.asarray(phases[f"{kind} {d + 1}"]) for d in range(count)], axis=1) for kind in ("left", "settled"))
    stays = [np.maximum(np.min(left[:, m:], axis=1) - np.max(settled[:, :m], axis=1), 0.0) for m in range(1, count)]
    end = np.nanmax(np.where(np.isnan(settled), experiment.problem.end, settled), axis=1)
    return np.nansum(stays, axis=0) / end
