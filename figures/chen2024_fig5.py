"""Figure 5 of arXiv:2402.19442: trained attention against one head, ridge regression and the Bayes risk (closed forms only)."""

import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from figures.chen2024_fig4 import GAMMA, risk
from spectral_ode import marchenko_pastur
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _optimal
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, Figure 5"
SECONDS = (2, 2)
PENALTIES = (0.05, 5.0)
CAPTION = (
    "Risk of gradient flow with one head per task (GF) and of the best single head for ten tasks (OptS), to leading order in 1/L, "
    "against ridge regression with a small and a large penalty and the Bayes risk in the proportional limit. A small penalty has a "
    "double descent at d = L, a large one none; many heads are far better than one where d is small against L. Signal S = 1 per "
    "task and noise variance 1 are our reading of the paper's lambda = sigma^2 = 1; the penalty p is that of (X X^T/L + p)^-1 X "
    "Y/L, which shows the double descent that the caption tells of."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is computed but closed forms."""
    return {}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """One panel."""
    each = lambda form: [float(np.mean(form(risk(gamma)).loss)) for gamma in GAMMA]
    with plt.style.context(style.STYLE):
        figure, (axes,) = style.grid(width, 1, 1, height=3.3)
        axes.loglog(GAMMA, each(_optimal.limit), color=style.color(0), label="GF: one head per task", linewidth=1.8)
        axes.loglog(GAMMA, each(_optimal.one_head), color=style.color(1), label="OptS: one head, ten tasks", linewidth=1.8)
        for index, penalty in enumerate(PENALTIES):
            axes.loglog(
                GAMMA,
                marchenko_pastur.ridge_risk(jnp.asarray(GAMMA), penalty),
                color=style.color(2 + index),
                label=f"ridge, penalty {penalty:g}",
            )
        axes.loglog(GAMMA, marchenko_pastur.bayes_risk(jnp.asarray(GAMMA)), label="Bayes risk", **panels.dashed(1.2))
        axes.set_xlabel(r"$\bar d / L$")
        axes.set_ylabel("risk per task / signal")
        axes.set_ylim(5e-3, 2.6)
        axes.legend(loc="lower right")
    return figure
