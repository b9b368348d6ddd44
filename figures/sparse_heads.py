"""How many heads preprocessing needs: error of the best layer against its number of heads."""

import jax
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import style
from simulate import heads
from spectral_ode.problem import Problem
from validate.experiment import Experiment

PAPER = "arXiv:2408.04532, ours"
SECONDS = (3, 3)
DIMENSIONS = (3, 4, 6)
CAPTION = (
    "The best layer of linear attention with h heads that preprocesses d coordinates leaves a squared error of 1 - h/d: every head takes "
    "one coordinate, and only d heads do it all (ours). Lines: the operator-Schmidt spectrum. Dots: alternating least squares from three "
    "random starts each, over all symmetric Gram matrices. One step of descent needs one head."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is trained."""
    return {}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """One panel."""
    with plt.style.context(style.STYLE):
        figure, (axes,) = style.grid(width, 1, 1, height=3.1)
        for index, d in enumerate(DIMENSIONS):
            counts = np.arange(1, d + 1)
            axes.plot(np.arange(d + 1), 1 - np.arange(d + 1) / d, "--", color=style.color(index), label=f"$1 - h/d$, $d = {d}$")
            for start in range(3):
                fits = [heads.fit(jax.random.key(start), d, int(count)) for count in counts]
                axes.plot(counts, fits, "o", color=style.color(index), markersize=6 - 1.5 * start, fillstyle="none" if start else "full")
        axes.plot([], [], "o", color=style.INK, label="best fit found, three starts")
        axes.set_xlabel("heads $h$ of the layer")
        axes.set_ylabel("relative squared error of the best fit")
        axes.set_ylim(-0.03, 1.03)
        axes.legend(loc="upper right")
    return figure
