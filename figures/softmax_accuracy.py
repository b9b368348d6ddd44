"""Ours, on arXiv:2402.19442: how far the leading order in 1/L is from the exact loss of a softmax head, over dimension and context length.

For each (d, L) the exact loss of one head for one noise-free task (`systems.softmax._expectations`, no Monte Carlo) is minimized over
omega, with the best mu for each omega in closed form, and compared with the limit of gradient flow to leading order.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _optimal
from spectral_ode.systems.softmax._expectations import expectations, in_range
from spectral_ode.systems.softmax._leading import Spectrum, Tasks
from validate.experiment import Experiment

SECONDS = (25, 25)
DIMENSIONS, LENGTHS = (6, 10, 20, 40), (30, 100, 300, 1000)  # smaller ones leave the tables of the expectations
NODES = 8  # of the query norm: enough for 1e-5 of the loss at the smallest d, and within the tables
CAPTION = (
    "One softmax head, one noise-free task of dimension d, context length L. (a) Loss at the limit of gradient flow to leading "
    "order in 1/L, relative to the smallest exact loss: leading order is too optimistic, by O(1/d) even for long contexts, because "
    "|q|^2 fluctuates. (b) The same for omega, whose two errors (fluctuation of |q|^2, saturation of the softmax) have opposite "
    "signs."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Nothing is computed but expectations."""
    return {}


def draw(experiments: dict[str, Experiment]) -> Figure:
    """Two heat maps."""
    loss, omega = (np.zeros((len(DIMENSIONS), len(LENGTHS))) for _ in range(2))
    for (row, d), (column, L) in itertools.product(enumerate(DIMENSIONS), enumerate(LENGTHS)):
        exact_loss, exact_omega = best(d, L)
        leading = _optimal.limit(Tasks(d=[d], S=[1.0], sigma2=0.0, L=L, d_e=1.0))
        loss[row, column] = float(leading.loss[0]) / exact_loss - 1
        omega[row, column] = float(leading.omega[0]) / exact_omega - 1
    with plt.style.context(style.STYLE):
        figure, grid = plt.subplots(1, 2, figsize=(style.FULL, 3.0))
        image = None
        for letter, axes, values, name in zip("ab", grid, (loss, omega), ("loss", r"$\bar\omega$"), strict=True):
            image = axes.imshow(100 * values, cmap="RdBu_r", vmin=-25, vmax=25, origin="lower")
            axes.set_xticks(range(len(LENGTHS)), map(str, LENGTHS))
            axes.set_yticks(range(len(DIMENSIONS)), map(str, DIMENSIONS))
            for (row, column), value in np.ndenumerate(values):
                ink = "white" if abs(value) > 0.14 else style.INK
                axes.annotate(f"{100 * value:+.1f}", (column, row), ha="center", va="center", fontsize=7.5, color=ink)
            axes.set_xlabel("context length $L$")
            axes.set_ylabel("task dimension $d$")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            panels.title(axes, letter, f"{name}: leading order vs exact, %")
        assert image is not None
        figure.colorbar(image, ax=grid, shrink=0.8)
    return figure


def best(d: int, L: int) -> tuple[float, float]:
    """The smallest exact loss of one head over its signal, and the omega that has it."""
    exact = expectations(L)

    def reached(omega: jax.Array) -> jax.Array:
        # Loss = 1 - 2 mu A + mu^2 B: two values of mu give A and B, and the best mu leaves 1 - A^2 / B.
        at = lambda mu: exact.loss(Spectrum(jnp.full((1, 1), mu), omega[None, None]), (d,), jnp.ones(1), jnp.zeros(()), queries=NODES)[0]
        one, two = at(1.0), at(-1.0)
        A, B = (two - one) / 4, (one + two) / 2 - 1
        return 1 - A**2 / B

    each = jax.jit(jax.vmap(reached))
    center, width = 1.0 / np.sqrt(d), 0.7 / np.sqrt(d)
    loss = np.inf
    for _ in range(4):  # a grid, then finer ones around its best point
        grid = jnp.linspace(center - width, center + width, 41)
        losses = each(grid)
        index = int(jnp.argmin(losses))
        loss, center, width = float(losses[index]), float(grid[index]), width / 15
    if not bool(in_range(jnp.full((1, 1), center), (d,), queries=NODES)):
        raise ValueError(f"omega {center:g} for d = {d} and L = {L} is outside of the tables of the expectations")
    return loss, center
