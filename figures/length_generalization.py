"""Length generalization of arXiv:2402.19442: heads that were trained at one context length, tested at others.

More context averages the noise of the attended labels away, but mu omega-bar = r < 1, which was best for the length of the training, stays:
the loss falls to the floor (1 - r)^2. Without noise on the labels the Bayes risk is 0 as soon as L' >= d_i.
"""

import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import MultiTask, Problem
from spectral_ode.systems.softmax import _optimal, _orders
from spectral_ode.systems.softmax._leading import Spectrum
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, ours"
SECONDS = (135, 8)
LENGTHS = np.geomspace(22, 2e4, 121)
CAPTION = (
    "Three softmax heads trained at 100 tokens on three noise-free tasks, tested at L' = 30, 100, 300, 1000: 0.591, 0.238, 0.113, 0.066 "
    "of the signal is missed (points), 0.598, 0.236, 0.113, 0.066 by the exact theory for the same weights (crosses), 0.606, 0.214, "
    "0.102, 0.062 by leading order (line). More context takes the noise of attention away but leaves the floor (1 - r)^2, r = mu* omega*, "
    "which heads trained at the longer length would not have (dotted), nor the Bayes risk, which is 0 without noise on the labels."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Three tasks on three heads, trained at 100 tokens."""
    small = {"task__dimensions": [10], "attention__heads": 1, "points": 7, "training__changes": [], "training__rates": []}
    rough = {"training__contexts": 4, "training__queries": 2, "training__test_contexts": 100}
    return {"length-generalization": panels.small(document.load("length-generalization"), fast, **small, **rough)}


def measured(experiment: Experiment) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Context lengths, losses of the trained network there, and the finite-L losses of its spectrum: the same weights, nothing else."""
    task, training, system = experiment.problem.task, experiment.rungs["training"], experiment.system
    assert isinstance(task, MultiTask)
    assert isinstance(system, AbstractSpectral)
    lengths = np.asarray([task.context, *task.tested])
    losses = np.concatenate([np.asarray(training["loss"])[0, -1:], np.asarray(training["tests"])[0, -1]])
    spectrum = Spectrum(training["mu of heads"][0, -1], training["omega of heads"][0, -1])
    exact = [_orders.finite(_orders.tasks_of(experiment.problem, int(length)), system.dimensions).losses(spectrum) for length in lengths]
    order = np.argsort(lengths)
    return lengths[order], losses[order], np.asarray([float(jnp.sum(each)) for each in exact])[order] / float(jnp.sum(system.order.tasks.S))


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """One panel."""
    experiment = experiments["length-generalization"]
    assert isinstance(experiment.system, AbstractSpectral)
    tasks, context = experiment.system.order.tasks, experiment.problem.task.context
    total = float(jnp.sum(tasks.S))
    lengths, losses, exact = measured(experiment)
    leading = [float(jnp.sum(_optimal.other_length(tasks, length))) / total for length in LENGTHS]
    floor = float(jnp.sum(_optimal.other_length(tasks, jnp.inf))) / total
    there = [float(jnp.sum(_optimal.limit(_orders.tasks_of(experiment.problem, length)).loss)) / total for length in LENGTHS]
    with plt.style.context(style.STYLE):
        figure, (axes,) = style.grid(width, 1, 1, height=3.3)
        axes.axvline(context, color="0.85", linewidth=5, zorder=0)
        axes.annotate(" length of\n the training", (1.05 * context, 0.0135), va="bottom", fontsize=style.SMALL, color="0.4")
        axes.plot(LENGTHS, leading, color=style.color(0), label=f"trained at $L = {context}$, leading order")
        axes.plot(LENGTHS, there, color=style.color(0), linewidth=0.9, linestyle=":", label="trained at each $L'$, leading order")
        axes.plot(lengths, losses, "o", color=style.color(1), markersize=8, alpha=0.5, markeredgewidth=0, label="trained network")
        axes.plot(lengths, exact, "+", color=style.INK, markersize=9, label="finite $L'$, same weights, no fit")
        axes.axhline(floor, **panels.DASHED)
        axes.annotate(
            f"floor $(1 - r)^2 = {floor:.3f}$\nBayes risk: 0",
            (LENGTHS[-1], floor),
            xytext=(0, -4),
            fontsize=8,
            textcoords="offset points",
            ha="right",
            va="top",
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(LENGTHS[0], LENGTHS[-1])
        axes.set_ylim(0.012, 1.0)
        axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1.0], ["0.02", "0.05", "0.1", "0.2", "0.5", "1"])
        axes.minorticks_off()
        axes.set_xlabel("context length $L'$ of the test")
        axes.set_ylabel("loss / signal")
        axes.legend(loc="upper right")
    return figure
