"""Risk against depth: layers, exact flow and theory; and a large problem step by step, with its referees."""

import functools

import jax
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, sparse_overlay, style
from simulate.referees import Study, study
from spectral_ode import document
from spectral_ode.problem import Problem
from spectral_ode.systems.sparse.data import Law
from validate.experiment import Experiment

PAPER = "arXiv:2408.04532, ours"
SECONDS = (40, 20)
LAW, TASKS, STEPS = Law(256, 4, 1024, 0.5), 20, 300
CAPTION = (
    "Depth as time (arXiv:2408.04532; theory ours). Left: a transformer by construction, whose layers are steps of descent on preprocessed "
    "and on plain features, on the exact flow of the same tasks and on the theory. Right: steps of size 1/lam_max at d = 256, n = 1024: "
    "preprocessed descent is far below plain descent at its best, after some seven steps, and early stopping is what keeps it there."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The headline problem, larger unless fast."""
    preset = document.load("preprocess-then-optimize")
    return {"depth": preset if fast else panels.varied(preset, task__dimension=64, task__context=512, training__tasks=32)}


@functools.cache
def large() -> Study:
    """The large problem, which is the same in the fast version."""
    return study(LAW, jax.random.key(0), tasks=TASKS, steps=STEPS)


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Two panels."""
    found = large()
    with plt.style.context(style.STYLE):
        figure, (left, right) = style.grid(width, 1, 2, height=3.4)
        sparse_overlay.depth(left, experiments["depth"])
        steps = np.arange(1, STEPS + 1)
        for index, (words, curve) in enumerate((("plain descent", found.gd), ("preprocess, then optimize", found.pto))):
            right.loglog(steps, curve[1:], color=style.color(index), linewidth=1.8, label=words)
            best = int(np.argmin(curve))
            right.plot(best, curve[best], "o", color=style.color(index), markersize=5)
            right.annotate(f"{best} steps", (best, curve[best]), (0, -11), textcoords="offset points", ha="center", fontsize=style.SMALL)
        for words, level in (("best ridge", found.ridge), ("support known", found.oracle)):
            right.axhline(level, color="0.7", linewidth=0.7, zorder=0)
            right.annotate(words, (STEPS, level), (0, 5), textcoords="offset points", ha="right", fontsize=style.SMALL, color="0.45")
        right.annotate(f"{1 / found.ratio:.0f} times lower", (9, 0.013), fontsize=8.5, fontweight="bold")
        right.set_ylim(bottom=found.oracle / 1.6)
        right.set_xlabel(r"steps of size $1/\lambda_{\max}$ of each task")
        right.set_title(f"$d = {LAW.d}$, $s = {LAW.s}$, $n = {LAW.n}$, $\\sigma = {LAW.sigma:g}$", fontsize=8.5)
        right.legend(loc="upper right")
    return figure
