"""Figure 3 of arXiv:2402.19442: the emergence of one head, by two variables and by omega alone."""

import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _leading
from validate.experiment import Experiment
from validate.spectral import system_of

PAPER = "arXiv:2402.19442, Figure 3"
SECONDS = (35, 20)
ORIGIN = 4.0  # the paper's clock at (0.01, 1)
CAPTION = (
    "One head for one task of ten dimensions, 100 noise-free tokens, embedding 30, from omega-bar = 0.01 and mu = 1 at t = 4. (a) "
    "omega-bar by the two equations of emergence (for one head they are the full flow to leading order), by the one equation in omega "
    "alone, and by training. (b) mu. (c) The speed of omega alone: slow at first, fastest near 0.09, zero at the limit d^-1/2 = 0.316. The "
    "overall factor of the paper's clock is not known to us: here time is the sum of learning rates with S/d = 1."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset."""
    return {"emergence": panels.small(document.load("emergence"), fast, points=41, training__contexts=8, training__test_contexts=100)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Three panels."""
    experiment = experiments["emergence"]
    training, full, slaved = (experiment.rungs[name] for name in ("training", "population", "reduced"))
    with plt.style.context(style.STYLE):
        figure, grid = style.grid(width, 1, 3, height=2.5)
        for axes, name, symbol, letter in ((grid[0], "omega", r"$\bar\omega$", "a"), (grid[1], "mu", r"$\mu$", "b")):
            axes.plot(training.time[0] + ORIGIN, training[name][0, :, 0], color=style.pale(0), linewidth=4, label="training")
            axes.plot(full.time[0] + ORIGIN, full[name][0, :, 0], color=style.color(1), linewidth=1.3, label=r"$\mu$ and $\bar\omega$")
            axes.plot(slaved.time[0] + ORIGIN, slaved[name][0, :, 0], label=r"$\bar\omega$ alone, $\mu$ slaved", **panels.DASHED)
            axes.set_xlabel("$t$")
            axes.set_xlim(ORIGIN, ORIGIN + experiment.problem.horizon)
            panels.title(axes, letter, symbol)
        limit = 10**-0.5
        grid[0].axhline(limit, color="0.7", linewidth=0.6, zorder=0)
        grid[0].annotate(r"$d^{-1/2}$", (ORIGIN + 0.2, limit), va="bottom", fontsize=style.SMALL, color="0.35")
        grid[0].set_ylim(0, 0.37)
        grid[0].legend(loc="lower right")
        omega = np.linspace(1e-3, 0.36, 400)
        speed = [float(_leading.slaved_field(jnp.asarray([each]), system_of(experiment).order.tasks)[0]) for each in omega]
        grid[2].plot(omega, speed, **panels.dashed(1.2))
        grid[2].axhline(0, color="0.7", linewidth=0.6, zorder=0)
        top = int(np.argmax(speed))
        top_text = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": style.SMALL}
        grid[2].annotate(f"{speed[top]:.3f} at {omega[top]:.3f}", (omega[top], speed[top]), **top_text)
        grid[2].set_ylim(top=1.2 * speed[top])
        grid[2].axvline(limit, color="0.7", linewidth=0.6, zorder=0)
        grid[2].set_xlabel(r"$\bar\omega$")
        panels.title(grid[2], "c", r"speed $d\bar\omega/dt$ of $\bar\omega$ alone")
    return figure
