"""Ours, on arXiv:2402.19442: how far the leading order in 1/L is from the exact loss of a softmax head, over dimension and context length.

For each (d, L) the exact loss of one head for one noise-free task (`systems.softmax._expectations`, no Monte Carlo) is minimized over
omega, with the best mu for each omega in closed form, and compared with the limit of gradient flow to leading order.
"""

import itertools

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _optimal, _orders
from spectral_ode.systems.softmax._leading import Spectrum, Tasks
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, ours"
SECONDS = (25, 25)
DIMENSIONS, LENGTHS = (6, 10, 20, 40), (30, 100, 300, 1000)  # smaller ones leave the tables of the expectations
CAPTION = (
    "One softmax head, one noise-free task of dimension d, context length L. (a) Loss at the limit of gradient flow to leading "
    "order in 1/L, relative to the smallest exact loss: leading order is too optimistic, by O(1/d) even for long contexts, because "
    "|q|^2 fluctuates. (b) The same for omega, whose two errors (fluctuation of |q|^2, saturation of the softmax) have opposite "
    "signs."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is computed but expectations."""
    return {}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Two heat maps."""
    loss, omega = (np.zeros((len(DIMENSIONS), len(LENGTHS))) for _ in range(2))
    for (row, d), (column, L) in itertools.product(enumerate(DIMENSIONS), enumerate(LENGTHS)):
        tasks = Tasks(d=[d], S=[1.0], sigma2=0.0, L=L, d_e=1.0)
        (exact_loss, exact_omega), leading = best(tasks, d), _optimal.limit(tasks)
        loss[row, column] = float(leading.loss[0]) / exact_loss - 1
        omega[row, column] = float(leading.omega[0]) / exact_omega - 1
    with plt.style.context(style.STYLE):
        figure, grid = style.grid(width, 1, 2, height=3.0)
        image = None
        for letter, axes, values, name in zip("ab", grid, (loss, omega), ("loss", r"$\bar\omega$"), strict=True):
            image = axes.imshow(100 * values, cmap="RdBu_r", vmin=-25, vmax=25, origin="lower")
            axes.set_xticks(range(len(LENGTHS)), map(str, LENGTHS))
            axes.set_yticks(range(len(DIMENSIONS)), map(str, DIMENSIONS))
            for (row, column), value in np.ndenumerate(values):
                ink = "white" if abs(value) > 0.14 else style.INK
                axes.annotate(f"{100 * value:+.1f}", (column, row), ha="center", va="center", fontsize=style.SMALL, color=ink)
            axes.set_xlabel("context length $L$")
            axes.set_ylabel("task dimension $d$")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            panels.title(axes, letter, f"{name}: leading order vs exact, %")
        assert image is not None
        figure.colorbar(image, ax=grid, shrink=0.8)
    return figure


def best(tasks: Tasks, d: int) -> tuple[float, float]:
    """The smallest exact loss of one head over its signal, and the omega that has it."""
    order = _orders.finite(tasks, (d,))
    limit = order.limit()
    if float(order.reach(Spectrum(limit.mu[None], limit.omega[None]))) > 1:
        raise ValueError(
            f"omega {float(limit.omega[0]):g} for d = {d}, L = {float(tasks.L):g} is outside of the tables of the expectations"
        )
    return float(limit.loss[0]), float(limit.omega[0])
