"""Ours, on arXiv:2402.19442: one head per task, where the paper's flow ends, is a saddle of the full model.

a  loss of the flow from the three-phase start for three imbalances o^2 - v^2, to leading order; training over its finite-L flow
b  time of escape against the imbalance, started at the limit, and the slope 1/rate that the closed form of the escape rate gives
c  the Hessian of the leading-order loss at the limit with idle heads at zero, by automatic differentiation in the coordinates
   (o, v, k sqrt(d_i), q sqrt(d_i)), in which the flow is steepest descent: each eigenvalue is a rate, a negative one a way out
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document, systems, weights
from spectral_ode.integrate import solve_problem
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import _leading, _optimal
from spectral_ode.systems.softmax._leading import Factors, Spectrum, Tasks
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment
from validate.spectral import system_of
from validate.spectral_trials import escape_times

PAPER = "arXiv:2402.19442, ours"
SECONDS = (95, 25)
IMBALANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
SMALL = {
    "horizon": 45,
    "points": 46,
    "solver__rtol": 1e-5,
    "training__contexts": 4,
    "training__learning_rate": 0.05,
    "training__test_contexts": 100,
}
CAPTION = (
    "One head per task, where the balanced flow ends, is a saddle. (a) Loss from the three-phase start: exact balance o = v stays at "
    "the limit for ever, any imbalance leaves it towards the bound for three heads; a trained network (pale) and its finite-L flow "
    "(dashed), no fit, do so too, from the higher limit that they have at d = 10, L = 100. (b) The escape from the limit takes "
    "ln(1/imbalance) / rate with rate 2 S (phi/L) mu* = 0.4973 in closed form; the last three points have 0.4978. (c) Eigenvalues of "
    "the Hessian at the limit: there are six ways out, o = -v of two idle heads for each of three tasks, all at minus that rate."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Three tasks on three heads, started with an imbalance."""
    return {"superposition": panels.small(document.load("superposition"), fast, **SMALL)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Three panels."""
    experiment = experiments["superposition"]
    system = system_of(experiment)
    with plt.style.context(style.STYLE):
        if width >= style.FULL:
            figure, grid = plt.subplot_mosaic([["a", "b"], ["a", "c"]], figsize=(width, 4.3), width_ratios=(1.25, 1))
        else:
            figure, grid = plt.subplot_mosaic([["a"], ["b"], ["c"]], figsize=(width, 7.6), height_ratios=(1.5, 1, 1))
        _losses(grid["a"], experiment, system.order.tasks)
        _times(grid["b"], system)
        _eigenvalues(grid["c"], system.order.tasks)
    return figure


def flow(problem: Problem, imbalance: float) -> Trajectory:
    """The flow to leading order from the problem's start with another imbalance; without one, in logarithms, which keep o = v."""
    name = "softmax.factored" if imbalance else "softmax.balanced"
    other = panels.varied(problem, system=name, start__imbalance=imbalance, spacing="linear", points=301)
    system = systems.load(name).from_problem(other)
    return solve_problem(system, other, system.project(weights.draw(other)), rtol=1e-8, atol=1e-9)


def hessian(tasks: Tasks) -> Float[Array, "n n"]:
    """Second derivatives of the leading-order loss at one head per task, the other heads at zero."""
    limit = _optimal.limit(tasks)
    factors = _leading.balanced(Spectrum(jnp.diag(limit.mu), jnp.diag(limit.omega)), tasks)
    root = jnp.broadcast_to(jnp.sqrt(tasks.d)[None], factors.k.shape)
    size = Factors(jnp.ones_like(root), jnp.ones_like(root), root, root)  # k and q stand for d_i entries each
    at, back = ravel_pytree(jax.tree.map(jnp.multiply, factors, size))
    loss = lambda y: _leading.loss(jax.tree.map(jnp.divide, back(y), size).spectrum(tasks), tasks)
    return jax.hessian(loss)(at)


def _losses(axes: Axes, experiment: Experiment, tasks: Tasks) -> None:
    training, exact = experiment.rungs["training"], experiment.rungs["population"]
    axes.plot(training.time[0], training["loss"][0], color="0.75", linewidth=3.5, label=r"training, $10^{-3}$")
    axes.plot(exact.time[0], exact["loss"][0], label=r"finite-$L$ flow, $10^{-3}$, no fit", **panels.dashed(1.1))
    for index, imbalance in enumerate((0.0, 1e-6, 1e-3)):
        found = flow(experiment.problem, imbalance)
        word = f"$10^{{{np.log10(imbalance):.0f}}}$" if imbalance else "0"
        axes.plot(found.time, found["loss"], color=style.color(index), linewidth=1.6, label=f"leading order, {word}")
    total, heads = float(jnp.sum(tasks.S)), experiment.problem.attention.heads
    limit = float(jnp.sum(_optimal.limit(tasks).loss)) / total
    bound = float(jnp.sum(_optimal.lower_bound(heads, tasks))) / total
    end = experiment.problem.end
    for level, text, side in ((limit, "limit of one head per task", 4), (bound, f"lower bound for {heads} heads", -10)):
        axes.axhline(level, color="0.6", linewidth=0.6, zorder=0)
        axes.annotate(f"{text}, {level:.4f}", (end, level), xytext=(0, side), textcoords="offset points", ha="right", fontsize=style.SMALL)
    axes.set(xlim=(15, end), ylim=(0.11, 0.4), xlabel="flow time $t$", ylabel="loss / signal")
    axes.legend(title="imbalance $o^2 - v^2$:", title_fontsize=8, loc="upper right", alignment="left")
    panels.title(axes, "a", "a plateau that only exact balance keeps")


def _times(axes: Axes, system: AbstractSpectral) -> None:
    rate = float(jnp.min(_optimal.escape_rate(system.order.tasks)))
    times = np.asarray(escape_times(system, IMBALANCES))
    wide = np.asarray([3e-2, 3e-8])
    label = rf"slope $1/\mathrm{{rate}}$, rate $= 2S\phi\mu^*\!/L = {rate:.3f}$"
    axes.plot(wide, times[-1] + np.log(IMBALANCES[-1] / wide) / rate, label=label, **panels.DASHED)
    axes.plot(IMBALANCES, times, "o", color=style.color(1), markersize=4.5, label="flow from the limit, leading order")
    axes.set(xlim=wide, ylim=(0, 1.45 * times[-1]), xscale="log", xlabel="imbalance $o^2 - v^2$", ylabel="escape time")
    axes.minorticks_off()
    axes.legend(loc="upper left")
    panels.title(axes, "b", "escape time")


def _eigenvalues(axes: Axes, tasks: Tasks) -> None:
    values, rate = np.linalg.eigvalsh(np.asarray(hessian(tasks))), float(jnp.min(_optimal.escape_rate(tasks)))
    down = values < -1e-9
    index = np.arange(values.size)
    axes.axhline(0, color="0.85", linewidth=0.6, zorder=0)
    axes.axhline(-rate, label=r"$-2S\phi\mu^*\!/L$", **panels.DASHED)
    axes.plot(index[~down], np.where(np.abs(values) < 1e-9, 0.0, values)[~down], "o", color="0.65", markersize=3.5)
    axes.plot(index[down], values[down], "o", color=style.color(1), markersize=4.5, label=f"{down.sum()} ways out: ${values[0]:.4f}$")
    slow, fast = (float(rates[0]) for rates in _leading.convergence_rates(tasks))
    axes.annotate(
        f"rates of convergence,\n{slow:.3f} and {fast:.2f}",
        (values.size - 4.5, 4),
        ha="right",
        va="center",
        fontsize=style.SMALL,
        color="0.4",
    )
    axes.set_yscale("symlog", linthresh=1)
    axes.set_yticks([-1, 0, 1, 10], ["$-1$", "0", "1", "10"])
    axes.set(ylim=(-1.2, 900), xlabel="number of the eigenvalue", ylabel="eigenvalue")
    axes.legend(loc="upper left")
    panels.title(axes, "c", "Hessian at the limit")
