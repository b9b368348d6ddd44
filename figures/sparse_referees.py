"""Best risk against context length with all referees: where preprocessing wins, and where it loses."""

import jax
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import lasso, panels, style
from simulate.referees import study
from spectral_ode.problem import Problem
from spectral_ode.systems.sparse.data import Law
from validate.experiment import Experiment

PAPER = "arXiv:2408.04532, ours"
SECONDS = (25, 9)
STRONG = [Law(64, 4, n, 0.5) for n in (16, 32, 64, 128, 256, 512, 1024)]
WEAK = [Law(16, 4, n, 0.1, "normal") for n in (8, 12, 16, 20, 24, 32, 48, 64)]
CAPTION = (
    "Lowest risk against context length, every method at its best (mean over the same tasks). a: coefficients +-1, sigma = 0.5: "
    "preprocessed descent beats plain descent and ridge everywhere, and Lasso on long contexts; Lasso wins on short ones. b: "
    "coefficients N(0, 1), sigma = 0.1: small coefficients relax too slowly within 300 steps, and beyond n = d preprocessed descent "
    "loses even to plain descent."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is trained."""
    return {}


def draw(experiments: dict[str, Experiment], width: float = style.FULL, *, fast: bool = False) -> Figure:
    """Two panels; small ones have a third of the context lengths."""
    some = slice(None, None, 3 if fast else 1)
    with plt.style.context(style.STYLE):
        figure, (left, right) = style.grid(width, 1, 2, height=3.3)
        _panel(left, STRONG[some], tasks=40, steps=200)
        _panel(right, WEAK[some], tasks=100, steps=300)
        panels.title(left, "a", r"coefficients $\pm 1$, $\sigma = 0.5$, $d = 64$, $s = 4$")
        panels.title(right, "b", r"$N(0, 1)$, $\sigma = 0.1$, $d = 16$, $s = 4$")
        style.outer([left, right], x="context length $n$", y="lowest excess risk")
        style.legend(figure, left, ncols=3, title=None if lasso.present() else lasso.ABSENT)
    return figure


def _panel(axes: Axes, laws: list[Law], *, tasks: int, steps: int) -> None:
    key, n = jax.random.key(1), [law.n for law in laws]
    found = [study(law, key, tasks=tasks, steps=steps) for law in laws]
    lines = {
        "plain descent": ([one.gd.min() for one in found], {"color": style.color(0), "marker": "o"}),
        "preprocess, then optimize": ([one.pto.min() for one in found], {"color": style.color(1), "marker": "o", "linewidth": 2.0}),
        "best ridge": ([one.ridge for one in found], {"color": style.color(2), "linestyle": ":"}),
        "least squares": ([one.least_squares for one in found], {"color": style.color(5), "linestyle": "--"}),
        "support known": ([one.oracle for one in found], {"color": "0.5", "linestyle": "-."}),
    }
    if lasso.present():
        lines["Lasso"] = ([lasso.risk(law, key, tasks=tasks) for law in laws], {"color": style.color(3), "marker": "s"})
    for words, (risks, look) in lines.items():
        axes.loglog(n, np.asarray(risks), label=words, markersize=3.5, **look)
    axes.axvline(laws[0].d, color="0.85", linewidth=0.8, zorder=0)
    axes.annotate(
        "$n = d$",
        (laws[0].d, 0.02),
        (3, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=style.SMALL,
        color="0.45",
    )
    axes.set_xticks(n, [str(each) for each in n])
    axes.minorticks_off()
