"""The moving picture of saddle to saddle: the loss falls down its stairs while each key turns into an eigenvector.

Left: loss with plateau losses, training over population flow; middle: value weights over their scalar ODEs; right: keys in the eigenbasis.
Frames are spread evenly over the length of the path (loss and weights together), so that drops are slow and plateaus quick.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure

from figures import panels, style
from spectral_ode import document
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import Separate
from validate.experiment import Experiment

PAPER = "arXiv:2501.16265, ours"
SECONDS = (20, 10)
FRAMES = (140, 12)  # full, fast
CAPTION = (
    "Saddle to saddle in motion. Left: loss of training (pale) and of the population flow (orange). Middle: value weights of the "
    "four heads (pale) and the scalar ODE of the eigenvector that each was forecast to learn (dashed). Right: keys of the heads in "
    "the eigenbasis; drops are shown slowly."
)


def problems(fast: bool) -> dict[str, Problem]:
    """The headline staircase, recorded often enough for the drops to be seen."""
    changes = {"points": 400, "horizon": 15_000, "start__scale": 0.1, "training__sequences": 4096}
    return {"saddle-to-saddle": panels.varied(document.load("saddle-to-saddle"), **(changes if fast else {"points": 8000}))}


def animate(experiments: dict[str, Experiment], path: Path, tell: Callable[[float], None]) -> None:
    """Render the frames aside, then rename."""
    experiment = experiments["saddle-to-saddle"]
    count = FRAMES[int(experiment.problem.points <= 400)]
    moments = frames(experiment, count)
    aside = path.with_name(f".{path.stem}.{os.getpid()}.gif")
    writer = PillowWriter(fps=14)
    try:
        with plt.style.context(style.STYLE):
            figure, update = _scene(experiment)
            with writer.saving(figure, str(aside), dpi=110):
                for number, moment in enumerate(moments):
                    update(moment)
                    writer.grab_frame()
                    tell((number + 1) / count)
            plt.close(figure)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def frames(experiment: Experiment, count: int) -> np.ndarray:
    """Indices of saved points, evenly spread over the path of loss and value weights, with a little clock time mixed in."""
    training = experiment.rungs["training"]
    loss, value = np.asarray(training["loss"])[0], np.abs(np.asarray(training["value"])[0])
    steps = np.abs(np.diff(loss)) / np.ptp(loss) + np.abs(np.diff(value, axis=0)).sum(axis=1) / value.max()
    length = np.concatenate([[0], np.cumsum(steps / steps.sum() + 0.4 / steps.size)])
    return np.searchsorted(length, np.linspace(0, length[-1], count)).clip(0, loss.size - 1)


def _scene(experiment: Experiment) -> tuple[Figure, Callable[[int], None]]:
    training, population, reduced, system = *(experiment.rungs[name] for name in ("training", "population", "reduced")), experiment.system
    assert isinstance(system, Separate)
    time, basis, heads = np.asarray(training.time[0]), np.asarray(system.data.basis), experiment.forecast["head"][0]
    keys = np.asarray(training["key"])[0, :, :, 0] @ basis
    keys = keys / np.abs(keys).max(axis=2, keepdims=True)
    figure, (loss, value, map_) = plt.subplots(1, 3, figsize=(9.0, 3.0), width_ratios=(1.2, 1.2, 1))
    loss.plot(time, training["loss"][0], color="#B8D4E8", linewidth=4)
    loss.plot(population.time[0], population["loss"][0], color=style.color(1), linewidth=1.2)
    panels.levels(loss, experiment)
    for d, head in enumerate(heads):
        value.plot(time, np.abs(training["value"][0, :, head]), color=style.pale(d), linewidth=4, label=f"head {head + 1}: $e_{d + 1}$")
        value.plot(reduced.time[0], reduced["v"][0, :, d], **panels.DASHED)
    for axes, name in ((loss, "loss"), (value, r"value weights $|v_i|$")):
        axes.set_title(name, loc="left")
        axes.set_xlabel(r"flow time $t$")
        panels.symlog(axes, 1000, time[-1])
    value.legend(loc="upper left")
    image = map_.imshow(keys[0], cmap="RdBu_r", vmin=-1, vmax=1)
    map_.set_xticks(range(keys.shape[2]), [f"$e_{d + 1}$" for d in range(keys.shape[2])])
    map_.set_yticks(range(keys.shape[1]), [f"head {h + 1}" for h in range(keys.shape[1])])
    map_.tick_params(length=0)
    title = map_.set_title("", loc="left")
    dot = loss.plot([], [], "o", color=style.INK, markersize=5, zorder=5)[0]
    lines = [axes.axvline(0, color="0.6", linewidth=0.7) for axes in (loss, value)]

    def update(moment: int) -> None:
        dot.set_data([time[moment]], [float(training["loss"][0, moment])])
        for line in lines:
            line.set_xdata([time[moment]] * 2)
        image.set_data(keys[moment])
        title.set_text(f"keys in the eigenbasis, $t$ = {time[moment]:,.0f}")

    return figure, update
