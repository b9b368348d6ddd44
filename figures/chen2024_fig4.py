"""Figure 4 of arXiv:2402.19442: the lower bound for H heads against the Bayes risk (closed forms only)."""

import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import marchenko_pastur
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _optimal
from spectral_ode.systems.softmax._leading import Tasks
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, Figure 4"
SECONDS = (2, 2)
TASKS, HEADS = 10, (1, 2, 3, 5, 10, 11)
GAMMA = np.geomspace(1e-2, 10, 121)
CAPTION = (
    "What H heads of softmax attention can reach for ten tasks, to leading order in 1/L, against the Bayes risk in the "
    "proportional limit; risk per task in units of its signal, over task dimension per context length. Signal power S = 1 per task "
    "and noise variance 1 are our reading of the paper's lambda = sigma^2 = 1, and the bound is written with the budget min(H - 1, "
    "I) that we derived."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is computed but closed forms."""
    return {}


def risk(gamma: float, *, tasks: int = TASKS) -> Tasks:
    """Equal tasks with signal and noise 1 at d_i / L = gamma; the leading order depends on the ratio only."""
    return Tasks(d=np.full(tasks, gamma), S=np.ones(tasks), sigma2=1.0, L=1.0, d_e=1.0)


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """One panel."""
    with plt.style.context(style.STYLE):
        figure, (axes,) = style.grid(width, 1, 1, height=3.3)
        for index, heads in enumerate(HEADS):
            bound = [float(np.mean(_optimal.lower_bound(heads, risk(gamma)))) for gamma in GAMMA]
            axes.loglog(GAMMA, bound, color=style.color(index), label=f"lower bound, $H = {heads}$")
        axes.loglog(GAMMA, marchenko_pastur.bayes_risk(jnp.asarray(GAMMA)), label="Bayes risk", **panels.dashed(1.2))
        axes.set_xlabel(r"$\bar d / L$")
        axes.set_ylabel("risk per task / signal")
        axes.set_ylim(5e-3, 1.3)
        axes.legend(loc="lower right")
    return figure
