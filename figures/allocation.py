"""Ours, on task allocation in arXiv:2402.19442: which head takes which task, from the start alone.

a  one task, two heads: the head that ends up with the task in the flow to leading order, over the ratios of mu and omega-bar at the start,
   and the line on which both heads, each alone, would emerge at the same time
b  random starts with fewer, as many and more heads than tasks: tasks that go to the predicted head, and starts with a head for each task
c  trained networks of four heads: predicted head and head of the network, for each run and task
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures import panels, style
from spectral_ode import document
from spectral_ode.integrate import solve
from spectral_ode.problem import DecomposableStart, Problem
from spectral_ode.systems.softmax import Balanced, _optimal
from spectral_ode.systems.softmax._leading import Spectrum, Tasks
from spectral_ode.systems.softmax._orders import LeadingOrder
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from validate.experiment import Experiment

PAPER = "arXiv:2402.19442, ours"
SECONDS = (220, 20)
HEADS, STARTS = (2, 3, 4), 200
GRID, REACH = 41, 3.0  # points along each axis of panel a, and the largest logarithm of a ratio
LATE, MOST = 150.0, 4000  # flow time by which every task has emerged, and solver steps: a solve that stalls is found out
CAPTION = (
    "Which head takes a task is decided by the start: the head with the smallest emergence time T, each head alone. (a) One task, two "
    "heads: the winner of the flow to leading order (colors) and the line T_1 = T_2, right at 99 % of the points; wrong ones have times "
    "within 9 %. (b) Random starts, spread 0.25: 96, 94 and 95 % of the tasks go to the predicted head for 2, 3 and 4 heads; all three "
    "tasks get different heads in 0, 29 and 48 % of the starts, so sharing is the rule. (c) Five trained networks: 14 of the 14 tasks "
    "that were learned by t = 30 are on the predicted head (left half of a cell: predicted, right half: trained)."
)


def problems(fast: bool) -> dict[str, Problem]:
    """Five runs of four heads for three tasks."""
    small = {"task__dimensions": [10, 10], "attention__heads": 3, "runs": 1, "points": 31, "solver__rtol": 1e-5, "training__contexts": 4}
    return {"allocation": panels.small(document.load("allocation"), fast, **small, training__test_contexts=50)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Three panels."""
    experiment = experiments["allocation"]
    system, start = experiment.system, experiment.problem.start
    assert isinstance(system, AbstractSpectral)
    assert isinstance(start, DecomposableStart)
    with plt.style.context(style.STYLE):
        figure, (left, middle, right) = style.grid(width, 1, 3, height=2.9, ratios=(1, 1.05, 0.85))
        _plane(left, system.order.tasks, experiment.problem.scale)
        _shares(middle, system.order.tasks, experiment.problem.scale, start.spread)
        _table(right, experiment)
    return figure


def allocated(logs: Spectrum, tasks: Tasks) -> tuple[np.ndarray, np.ndarray]:
    """For each start (logarithms: starts x heads x tasks): the predicted heads of the tasks, and those in the flow."""
    flow = Balanced(LeadingOrder(tasks), (), tuple(int(d) for d in tasks.d), logs.mu.shape[1])

    @jax.jit
    @jax.vmap
    def both(start: Spectrum) -> tuple[Array, Array, Array]:
        end = solve(flow, start, jnp.asarray([0.0, LATE]), atol=1e-8, max_steps=MOST)
        return _optimal.allocate(flow.spectrum(start), tasks), end["head"][-1], jnp.max(end["learned"][-1])

    predicted, found, learned = (np.asarray(part) for part in both(logs))
    if not np.all(learned > 0.5):
        raise ValueError(f"{int(np.sum(learned <= 0.5))} of {len(learned)} starts have learned nothing by t = {LATE:g}")
    return predicted, found


def around(tasks: Tasks, scale: float) -> tuple[float, float]:
    """Logarithms of mu and omega of a start of this scale."""
    return 2 * np.log(scale), 2 * np.log(scale) - 0.5 * np.log(float(tasks.d_e))


def plane(tasks: Tasks, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One task, two heads, over ln mu_1/mu_2 (columns) and ln omega_1/omega_2 (rows): the axis, the head that wins, ln T_1/T_2."""
    alone = Tasks(tasks.d[:1], tasks.S[:1], tasks.sigma2, tasks.L, tasks.d_e)
    axis = np.linspace(-REACH, REACH, GRID)
    halves = np.asarray([0.5, -0.5])[None, :, None]
    ratios = (part.ravel()[:, None, None] for part in np.meshgrid(axis, axis))
    logs = Spectrum(*(jnp.asarray(middle + halves * ratio) for middle, ratio in zip(around(tasks, scale), ratios, strict=True)))
    _, found = allocated(logs, alone)
    T = np.asarray(jax.vmap(lambda mu, omega: _optimal.emergence_times(Spectrum(jnp.exp(mu), jnp.exp(omega)), alone))(*logs))
    return axis, found.reshape(GRID, GRID), np.log(T[:, 0, 0] / T[:, 1, 0]).reshape(GRID, GRID)


def trial(heads: int, tasks: Tasks, scale: float, spread: float) -> tuple[float, float]:
    """On random starts: share of tasks that go to the predicted head, and of starts that give each task a head of its own."""
    rng, shape = np.random.default_rng(heads), (STARTS, heads, tasks.d.size)
    logs = Spectrum(*(jnp.asarray(middle + 2 * spread * rng.normal(size=shape)) for middle in around(tasks, scale)))
    predicted, found = allocated(logs, tasks)
    return float(np.mean(predicted == found)), float(np.mean([len(set(row)) == tasks.d.size for row in found]))


def _plane(axes: Axes, tasks: Tasks, scale: float) -> None:
    axis, found, ahead = plane(tasks, scale)
    half = 0.5 * (axis[1] - axis[0])
    extent = (axis[0] - half, axis[-1] + half, axis[0] - half, axis[-1] + half)
    axes.imshow(found, cmap=ListedColormap([style.pale(0), style.pale(1)]), origin="lower", extent=extent, aspect="auto", vmin=0, vmax=1)
    axes.contour(axis, axis, ahead, levels=[0.0], colors=[style.INK], linewidths=1.3)
    axes.annotate("head 1 wins", (1.5, 1.9), ha="center", fontsize=8.5, color=style.color(0), fontweight="bold")
    axes.annotate("head 2 wins", (-1.5, -2.1), ha="center", fontsize=8.5, color=style.color(1), fontweight="bold")
    axes.annotate("predicted:\n$T_1 = T_2$", (-2.8, -0.35), fontsize=8, color=style.INK)
    axes.set(xlabel=r"$\ln\,\mu_1/\mu_2$ at the start", ylabel=r"$\ln\,\bar\omega_1/\bar\omega_2$ at the start")
    panels.title(axes, "a", "one task, two heads")


def _shares(axes: Axes, tasks: Tasks, scale: float, spread: float) -> None:
    words = ("tasks on the predicted head", "starts with a head for each task")
    found = [trial(heads, tasks, scale, spread) for heads in HEADS]
    for number, (word, values) in enumerate(zip(words, zip(*found, strict=True), strict=True)):
        place = np.arange(len(HEADS)) + 0.4 * (number - 0.5)
        axes.bar(place, values, width=0.38, color=(style.color(2), "0.75")[number], label=word)
        for x, value in zip(place, values, strict=True):
            axes.annotate(f"{100 * value:.0f} %", (x, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=style.SMALL)
    axes.set_xticks(range(len(HEADS)), [f"$H = {heads}$" for heads in HEADS])
    axes.set(ylim=(0, 1.5), yticks=[0, 0.5, 1], ylabel="share")
    axes.legend(loc="upper center", handlelength=1)
    panels.title(axes, "b", f"{tasks.d.size} tasks, {STARTS} random starts")


def _table(axes: Axes, experiment: Experiment) -> None:
    """Left half of a cell: the prediction; right half: the trained network, if it has learned the task by the end."""
    training = experiment.rungs["training"]
    predicted, found = experiment.forecast["head"], np.asarray(training["head"])[:, -1]
    learned = np.asarray(training["learned"])[:, -1] > 0.5
    runs, tasks = predicted.shape
    for (run, task), guess in np.ndenumerate(predicted):
        for side, (head, known) in enumerate(((guess, True), (found[run, task], learned[run, task]))):
            color = style.pale(int(head)) if known else "0.93"
            axes.add_patch(Rectangle((task + 0.46 * side + 0.05, run + 0.1), 0.42, 0.8, facecolor=color, linewidth=0))
            text = str(head + 1) if known else "-"
            axes.annotate(text, (task + 0.46 * side + 0.26, run + 0.5), ha="center", va="center", fontsize=style.SMALL)
    axes.set(xlim=(0, tasks), ylim=(runs, 0))
    axes.set_xticks(np.arange(tasks) + 0.49, [f"task {number + 1}" for number in range(tasks)])
    axes.set_yticks(np.arange(runs) + 0.5, [f"run {number + 1}" for number in range(runs)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(
        f"head: predicted, trained\n(-: not yet), {int(np.sum((predicted == found) & learned))} of {int(np.sum(learned))} right"
    )
    panels.title(axes, "c", f"training, $H = {experiment.problem.attention.heads}$")
