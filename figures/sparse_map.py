"""Where preprocessing pays: lowest risk of preprocessed over plain descent, over context length and dimension."""

import jax
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from figures import panels, style
from simulate.referees import study
from spectral_ode.problem import Problem
from spectral_ode.systems.sparse.data import Law
from validate.experiment import Experiment

PAPER = "arXiv:2408.04532, ours"
SECONDS = (30, 6)
DIMENSIONS, CONTEXTS = (8, 16, 32, 64, 128), (16, 32, 64, 128, 256, 512, 1024)
SCALE = Normalize(-5, 5)
PANELS = (("a", r"coefficients $\pm 1$, $\sigma = 0.5$", 0.5, "signs"), ("b", r"coefficients $N(0, 1)$, $\sigma = 0.1$", 0.1, "normal"))
CAPTION = (
    "Plain over preprocessed descent, lowest risks over 300 steps (s = 4, mean over 16 tasks): violet, preprocessing is so many "
    "times better; orange, worse. With coefficients bounded away from zero the gain grows like d/s; with small coefficients and low "
    "noise it turns into a loss for n > d, erratic because a few smallest coefficients decide."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is trained."""
    return {}


def draw(experiments: dict[str, Experiment], width: float = style.FULL, *, fast: bool = False) -> Figure:
    """Two maps on one scale; small ones have a few of the lengths and dimensions."""
    dimensions, contexts = (DIMENSIONS[:2], CONTEXTS[::2]) if fast else (DIMENSIONS, CONTEXTS)
    with plt.style.context(style.STYLE):
        figure, both = style.grid(width, 1, 2, height=2.9, share="y")
        for axes, (letter, words, sigma, coefficients) in zip(both, PANELS, strict=True):
            gain = np.asarray([[_gain(Law(d, 4, n, sigma, coefficients)) for n in contexts] for d in dimensions])
            axes.imshow(np.log2(gain), norm=SCALE, cmap="PuOr", origin="lower", aspect="auto")
            for (row, column), value in np.ndenumerate(gain):
                ink = "white" if abs(np.log2(value)) > 3 else style.INK
                axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=style.SMALL, color=ink)
            axes.set_xticks(range(len(contexts)), [str(n) for n in contexts])
            axes.set_yticks(range(len(dimensions)), [str(d) for d in dimensions])
            panels.title(axes, letter, words)
        style.outer(both, x="context length $n$", y="dimension $d$")
        bar = figure.colorbar(ScalarMappable(SCALE, "PuOr"), ax=list(both), ticks=[-4, -2, 0, 2, 4])
        bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
        bar.set_label("risk of plain / risk of preprocessed")
    return figure


def _gain(law: Law) -> float:
    return 1 / study(law, jax.random.key(2), tasks=16, steps=300).ratio
