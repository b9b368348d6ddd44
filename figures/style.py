"""The one style of all figures: sizes, colors, and how a figure is written to a file."""

import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: no window, no display needed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from spectral_ode.problem import Problem

COLUMN, FULL = 3.25, 6.75  # inches
INK = "#222222"  # theory: thin and dark, over the training
STYLE = Path(__file__).parent / "style.mplstyle"


def color(index: int) -> str:
    """The color of direction `index` (0 is the largest eigenvalue), the same in every figure."""
    with plt.style.context(STYLE):
        cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return cycle[index % len(cycle)]


def pale(index: int) -> tuple[float, ...]:
    """The same color, washed out: training is drawn wide and pale under the theory."""
    return tuple(0.45 * c + 0.55 for c in to_rgb(color(index)))


def steps_axis(axes: Axes, problem: Problem) -> None:
    """A second axis on top that counts training steps, by the problem's own conversion."""
    top = axes.secondary_xaxis("top", functions=(lambda t: np.divide(t, problem.eta), lambda step: np.multiply(step, problem.eta)))
    script = ", script's units" if problem.units == "script" else ""
    top.set_xlabel(f"training step (learning rate {problem.training.learning_rate:g}{script})")


def margin(axes: Axes, entries: list[tuple[float, str, str]], *, crowded: str = "push") -> None:
    """Labels in the right margin, (height, text, color) each, level with their heights; where they crowd, pushed up or skipped."""
    low, high = axes.get_ylim()
    axes.figure.canvas.draw()
    gap = 10.0 / (axes.get_window_extent().height * 72 / axes.figure.dpi) * (high - low)  # ten points
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    previous = -np.inf
    for height, text, ink in sorted(entries):
        if crowded == "skip" and height < previous + gap:
            continue
        previous = max(height, previous + gap)
        axes.annotate(text, (1.0, previous), xytext=(4, 0), fontsize=7.5, color=ink, **place)


def save(figure: Figure, path: Path) -> None:
    """Write a figure aside, then rename; no date inside, so that the same data gives the same bytes."""
    kind = path.suffix[1:]
    aside = path.with_name(f".{path.stem}.{os.getpid()}.{kind}")
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {"Software": None})
    try:
        with plt.style.context(STYLE):
            figure.savefig(aside, metadata=metadata)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
        plt.close(figure)
