"""Figure 1 of arXiv:2402.19442: warm-up, emergence and convergence of three tasks on three softmax heads, theory over training."""

import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.integrate import solve
from spectral_ode.problem import Problem
from spectral_ode.systems.softmax import Emergence, Slaved, Warmup, _leading, _optimal
from spectral_ode.systems.softmax._leading import Head
from validate.experiment import Experiment
from validate.spectral import system_of

PAPER = "arXiv:2402.19442, Figure 1"
SECONDS = (150, 45)
CAPTION = (
    "Three tasks of ten dimensions, three heads, 100 noise-free tokens, started at four times the factors of the authors' code (which only "
    "shortens the warm-up); three trainings of all four matrices on fresh contexts, no fit. (a) Loss per signal. (b, c) All nine omega-bar "
    "and mu: each head keeps one task, the other eigenvalues fade. (d) The equation of each phase, where it applies, over the full flow to "
    "leading order. The paper's loss and time units are not known to us: time is the sum of learning rates for the loss summed over tasks, "
    "with signals S_i = d_i."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The preset, three runs."""
    full = document.override(document.load("three-phases"), {"runs": 3})
    return {"three-phases": panels.small(full, fast, runs=1, points=41, training__contexts=16, training__test_contexts=100)}


def draw(experiments: dict[str, Experiment], width: float = style.FULL) -> Figure:
    """Four panels."""
    experiment = experiments["three-phases"]
    with plt.style.context(style.STYLE):
        figure, grid = style.grid(width, 2, 2, height=2.5, share="x")
        _loss(grid[0], experiment)
        for axes, name, letter, symbol in ((grid[1], "omega", "b", r"$\bar\omega_i^{(h)}$"), (grid[2], "mu", "c", r"$\mu_i^{(h)}$")):
            _heads(axes, experiment, name)
            panels.title(axes, letter, f"{symbol} of all heads and tasks")
            axes.set_ylabel(symbol)
        _phases(grid[3], experiment)
        for axes in grid[2:] if width >= style.FULL else grid[3:]:
            axes.set_xlabel("flow time $t$")
        grid[0].set_xlim(0, float(experiment.rungs["training"].time[0, -1]))
    return figure


def _shade(axes: Axes, experiment: Experiment, *, words: bool = True) -> None:
    """The three phases of the full flow, as bands, with their names where there is room for them."""
    phases = experiment.rungs["reduced"].phases
    begin, end = (float(phases[f"{name} 1"][0]) for name in ("emergence", "convergence"))
    axes.axvspan(begin, end, color="0.93", zorder=-2)
    if not words:
        return
    small = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": style.SMALL, "color": "0.35"}
    for x, word, align, side in ((begin, "warm-up", "right", -3), (end, "convergence", "left", 3)):
        axes.annotate(word, (x, 1.0), (side, -2), ha=align, va="top", **small)
    axes.annotate("emergence", ((begin + end) / 2, 1.0), (0, 2), ha="center", va="bottom", **small)  # wider than its band


def _loss(axes: Axes, experiment: Experiment) -> None:
    _shade(axes, experiment)
    training = experiment.rungs["training"]
    for run in range(training.runs):
        label = "training, three seeds" if run == 0 else None
        axes.plot(training.time[run], training["loss"][run], color=style.pale(0), linewidth=2.8, label=label)
    for name, look in (("population", {"color": style.color(1), "linewidth": 1.2}), ("reduced", panels.DASHED)):
        rung = experiment.rungs[name]
        axes.plot(rung.time[0], rung["loss"][0], label=experiment.system.labels[name], **look)
    axes.set_ylim(0, 1.25)  # room for the names of the phases
    axes.set_ylabel("loss / signal")
    axes.legend(loc="lower left")
    panels.title(axes, "a", "loss")


def _heads(axes: Axes, experiment: Experiment, name: str) -> None:
    """Training wide and pale, finite L in color, leading order dashed; heads that do not serve the task in gray."""
    training, flow, leading = (experiment.rungs[rung] for rung in ("training", "population", "reduced"))
    _shade(axes, experiment, words=False)
    values = np.asarray(flow[f"{name} of heads"])
    tasks, pairs = values.shape[3], values.shape[2] * values.shape[3]
    for head, task in np.ndindex(*values.shape[2:]):
        own = head == int(np.asarray(flow["head"])[0, -1, task])
        for run in range(training.runs):
            color = style.pale(task) if own else "0.85"
            axes.plot(
                training.time[run], training[f"{name} of heads"][run, :, head, task], color=color, linewidth=2.2 if own else 1.2, zorder=1
            )
        axes.plot(flow.time[0], values[0, :, head, task], color=style.color(task) if own else "0.5", linewidth=1.0, zorder=2)
        axes.plot(leading.time[0], leading[f"{name} of heads"][0, :, head, task], zorder=3, **panels.dashed(0.6))
    end, last = float(flow.time[0, -1]), np.asarray(flow[name])[0, -1, 0]
    own = f"head and task that\nfind each other:\n{tasks} curves that coincide"
    axes.annotate(own, (0.6 * end, 0.6 * last), ha="right", va="center", fontsize=style.SMALL, color=style.color(tasks - 1))
    axes.annotate(
        f"the other {pairs - tasks}", (end, 0), (-2, 4), textcoords="offset points", ha="right", fontsize=style.SMALL, color="0.35"
    )


def _phases(axes: Axes, experiment: Experiment) -> None:
    """One task's omega by the full flow, and by the equation of each phase from where it begins."""
    _shade(axes, experiment)
    full, system = experiment.rungs["reduced"].run(0), system_of(experiment)
    time, omega = np.asarray(full.time), np.asarray(full["omega"])[:, 0]
    axes.plot(time, omega, color="0.75", linewidth=4, label="full flow, leading order")
    same = lambda kind: kind(system.order, (), system.dimensions, system.heads)
    begin, settle = (int(np.searchsorted(time, float(full.phases[f"{name} 1"]))) for name in ("emergence", "convergence"))
    warm = solve(same(Warmup), experiment.states[0], time[: begin + 2])
    axes.plot(warm.time, warm["omega"][:, 0], color=style.color(0), label="warm-up equations")
    head = Head(jnp.log(full["mu"][begin]), jnp.log(full["omega"][begin]))
    for kind, state, index, words in (
        (Emergence, head, 1, r"emergence, $\mu$ and $\bar\omega$"),
        (Slaved, head.omega, 2, r"emergence, $\bar\omega$ alone"),
    ):
        found = solve(same(kind), state, time[begin:])
        axes.plot(found.time, found["omega"][:, 0], color=style.color(index), linewidth=1.0, label=words)
    late = (settle + time.size) // 2
    rate, limit = float(_leading.convergence_rates(system.order.tasks)[0][0]), float(_optimal.limit(system.order.tasks).omega[0])
    tail = limit + (omega[late] - limit) * np.exp(-rate * (time[late:] - time[late]))
    axes.plot(time[late:], tail, color=style.color(3), linewidth=1.4, linestyle=":", label=f"convergence, rate {rate:.3f}")
    axes.set_ylabel(r"$\bar\omega$")
    axes.set_ylim(0, 0.38)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, 0.9))
    panels.title(axes, "d", "the equation of each phase")
