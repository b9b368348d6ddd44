"""The pictures of a sweep: a quantity over one axis with its spread over seeds, or as a map over two, and loss curves with bands."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style
from spectral_ode.sweep.axes import Plan
from spectral_ode.sweep.table import LOSS, column

CURVES, RUNS = 5, 100  # values of an axis whose loss is drawn, and members of each at most
BAND = (10, 90)  # percent


def draw(plan: Plan, table: list[dict[str, Any]], shown: str, fits: dict, losses: Callable[[set[int]], dict]) -> dict[str, Figure]:
    """All pictures that apply, by the name of their file."""
    table = [row for row in table if not row["stopped"].startswith("refused")]
    numeric = [axis.name for axis in plan.axes if _numbers(table, axis.name) and np.unique(column(table, axis.name)).size > 1]
    random = {axis.name for axis in plan.axes if axis.law}
    found = {}
    for name in [name for name in numeric if name in random] or numeric[:1]:
        found["scaling" if name == numeric[0] else f"scaling {name}"] = _scaling(
            table, name, shown, fits, [a for a in numeric if a != name]
        )
    grid = [axis.name for axis in plan.axes if not axis.law and len(axis.values) > 1]
    if len(grid) >= 2:
        found["map"] = _map(table, grid[0], grid[1], shown, more=len(grid) > 2 or plan.seeds > 1 or bool(random))
    found["losses"] = _losses(table, (grid or [None])[0], losses)
    return found


def _numbers(table: list[dict[str, Any]], name: str) -> bool:
    return all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in table)


def _label(name: str) -> str:
    return f"time of {name!r}" if name != LOSS else name


def _scales(axes: Axes, x: np.ndarray, y: np.ndarray, *, fitted: bool) -> None:
    """Logarithmic where the numbers are positive and span a factor of five, or a power law is drawn through them."""
    for values, change in ((x, axes.set_xscale), (y[np.isfinite(y)], axes.set_yscale)):
        if values.size and values.min() > 0 and (fitted or values.max() > 5 * values.min()):
            change("log")


def _scaling(table: list[dict[str, Any]], name: str, shown: str, fits: dict, others: list[str]) -> Figure:
    """Median and band over seeds at each value of an axis, one line per value of a second one; the fitted power law dashed."""
    x, q = column(table, name), column(table, shown)
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.COLUMN * 1.3, 2.7))
        second = others[0] if others and np.unique(column(table, others[0])).size <= CURVES else None
        groups = [(None, np.ones(x.size, bool))]
        if second:
            values = column(table, second)
            groups = [(value, values == value) for value in np.unique(values)]
        _scales(axes, x, q, fitted=name in fits)
        for index, (value, inside) in enumerate(groups):
            _band(axes, x[inside], q[inside], index, f"{second} = {value:g}" if second else None)
        if name in fits:
            usable = np.isfinite(q) & (q > 0)
            p = fits[name]["exponent"]
            offset = np.mean(np.log(q[usable]) - p * np.log(x[usable]))
            ends = np.asarray([x.min(), x.max()])
            label = f"exponent {p:.4g} ± {fits[name]['standard error']:.2g}"
            axes.plot(ends, np.exp(offset) * ends**p, color=style.INK, linewidth=0.8, linestyle=(0, (4, 2)), label=label)
        axes.set_xlabel(name)
        axes.set_ylabel(_label(shown))
        if second or name in fits:
            axes.legend()
    return figure


def _band(axes: Axes, x: np.ndarray, q: np.ndarray, index: int, label: str | None) -> None:
    """A line through the medians with a band, or dots where every value is there once."""
    values, counts = np.unique(x, return_counts=True)
    reached = np.isfinite(q)
    if counts.max() == 1 and values.size > 40:
        axes.plot(x[reached], q[reached], ".", markersize=3, color=style.color(index), label=label)
        return
    parts = [q[(x == value) & reached] for value in values]
    there = [(value, part) for value, part in zip(values, parts, strict=True) if part.size]
    if not there:
        return
    at = [value for value, _ in there]
    axes.plot(at, [np.median(part) for _, part in there], "-o", markersize=2.5, color=style.color(index), label=label)
    if counts.max() > 1:
        low, high = zip(*(np.percentile(part, BAND) for _, part in there), strict=True)
        axes.fill_between(at, low, high, color=style.color(index), alpha=0.2, linewidth=0)


def _map(table: list[dict[str, Any]], across: str, up: str, shown: str, *, more: bool) -> Figure:
    """The median at every pair of values; hatched where it was never reached."""
    shows = lambda value: f"{value:.3g}" if isinstance(value, float) else str(value)
    xs, ys = (sorted({row[name] for row in table}) for name in (across, up))
    places: dict[tuple[int, int], list[float]] = {}
    for row in table:
        places.setdefault((ys.index(row[up]), xs.index(row[across])), []).append(float(row.get(shown, np.nan)))
    values = np.full((len(ys), len(xs)), np.nan)
    for place, found in places.items():
        finite = [value for value in found if np.isfinite(value)]
        values[place] = np.median(finite) if finite else np.nan
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.FULL * 0.7, 3.0))
        axes.set_facecolor("0.93")
        positive = values[np.isfinite(values) & (values > 0)]
        wide = positive.size and positive.size == np.isfinite(values).sum() and positive.max() > 5 * positive.min()
        image = axes.pcolormesh(np.ma.masked_invalid(values), norm="log" if wide else None, cmap="viridis", rasterized=True)
        for ticks, names, change in ((len(xs), xs, axes.set_xticks), (len(ys), ys, axes.set_yticks)):
            chosen = np.unique(np.linspace(0, ticks - 1, min(ticks, 8)).astype(int))
            change(chosen + 0.5, [shows(names[index]) for index in chosen])
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        figure.colorbar(image, label=_label(shown) + (", median" if more else ""))
        if np.isnan(values).any():
            axes.set_title("grey: not reached", fontsize=8, color="0.4")
    return figure


def _losses(table: list[dict[str, Any]], name: str | None, losses: Callable[[set[int]], dict]) -> Figure:
    """Loss over time at a few values of the first axis: median, and a band over everything else."""
    found = sorted({row[name] for row in table}, key=lambda value: (str(type(value)), value)) if name else [None]
    chosen = [found[index] for index in np.unique(np.linspace(0, len(found) - 1, min(CURVES, len(found))).astype(int))]
    groups = {value: [row["member"] for row in table if name is None or row[name] == value][:RUNS] for value in chosen}
    curves = losses({member for those in groups.values() for member in those})
    shows = lambda value: f"{value:.3g}" if isinstance(value, float) else str(value)
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.FULL * 0.75, 2.8))
        for index, (value, those) in enumerate(groups.items()):
            clock = curves[those[0]][0]
            same = [np.interp(clock, *curves[member]) for member in those]
            label = None if name is None else f"{name} = {shows(value)}"
            axes.plot(clock, np.median(same, axis=0), color=style.color(index), label=label)
            if len(same) > 1:
                axes.fill_between(clock, *np.percentile(same, BAND, axis=0), color=style.color(index), alpha=0.18, linewidth=0)
        axes.set_xlabel("flow time")
        axes.set_ylabel("loss")
        axes.set_ylim(bottom=0)
        if name:
            axes.legend()
    return figure
