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
WIDTHS = {"column": COLUMN, "full": FULL}
SMALL = 8  # points, the smallest text of a figure at either width
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


def grid(
    width: float,
    rows: int,
    columns: int,
    *,
    height: float,
    across: int = 1,
    ratios: tuple[float, ...] | None = None,
    share: str = "",
) -> tuple[Figure, list[Axes]]:
    """Panels in reading order, each row `height` inches high: rows x columns over the full width, `across` in a row within one column.

    `share` names the axes that all panels have in common: "x", "y" or both.
    """
    if width < FULL:
        rows, columns, ratios, height = -(-rows * columns // across), across, None, 0.8 * height
    figure, found = plt.subplots(
        rows, columns, figsize=(width, rows * height), width_ratios=ratios, sharex="x" in share, sharey="y" in share, squeeze=False
    )
    return figure, list(found.ravel())


def outer(panels: list[Axes], *, x: str = "", y: str = "") -> None:
    """Axis labels at the left and at the bottom of a grid only."""
    for axes in panels:
        spec = axes.get_subplotspec()
        assert spec is not None
        if spec.is_last_row():
            axes.set_xlabel(x)
        if spec.is_first_col():
            axes.set_ylabel(y)


def legend(figure: Figure, axes: Axes, *, ncols: int, title: str | None = None) -> None:
    """The legend of one panel above the whole figure, in as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    ncols = ncols if figure.get_figwidth() >= FULL else max(1, ncols // 2)
    figure.legend(handles, labels, loc="outside upper center", ncols=ncols, title=title, title_fontsize=SMALL)


def steps_axis(axes: Axes, problem: Problem) -> None:
    """A second axis on top that counts training steps, by the problem's own conversion."""
    top = axes.secondary_xaxis("top", functions=(lambda t: np.divide(t, problem.eta), lambda step: np.multiply(step, problem.eta)))
    script = ", script's units" if problem.units == "script" else ""
    top.set_xlabel(f"training step (learning rate {problem.training.learning_rate:g}{script})")


def margin(axes: Axes, entries: list[tuple[float, str, str]], *, joined: str = "") -> None:
    """Labels in the right margin, (height, text, color) each, level with their heights; where they crowd, pushed up.

    With `joined`, a text with {} for labels, those that crowd become one, separated by commas.
    """
    low, high = axes.get_ylim()
    axes.figure.canvas.draw()
    gap = 10.0 / (axes.get_window_extent().height * 72 / axes.figure.dpi) * (high - low)  # ten points
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    if joined:
        groups: list[list[tuple[float, str, str]]] = []
        for entry in sorted(entries):
            if groups and entry[0] < groups[-1][0][0] + gap:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        together = lambda group: joined.format(",\\,".join(text for _, text, _ in reversed(group)))
        entries = [(float(np.mean([height for height, _, _ in group])), together(group), group[0][2]) for group in groups]
    previous = -np.inf
    for height, text, ink in sorted(entries):
        previous = max(height, previous + gap)
        axes.annotate(text, (1.0, previous), xytext=(4, 0), fontsize=SMALL, color=ink, **place)


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure aside, then rename; no date and no random name inside, so that the same data gives the same bytes."""
    try:
        for path in paths:
            kind = path.suffix[1:]
            aside = path.with_name(f".{path.stem}.{os.getpid()}.{kind}")
            metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {"Software": None})
            try:
                with plt.style.context(STYLE):
                    figure.savefig(aside, metadata=metadata)
                os.replace(aside, path)
            finally:
                aside.unlink(missing_ok=True)
    finally:
        plt.close(figure)
