"""The pictures of a sweep: a quantity over one axis with its spread over seeds, or as a map over two, and loss curves with bands."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from figures import style
from spectral_ode.sweeps.axes import Plan
from spectral_ode.sweeps.table import LOSS, REFUSED, Table, bent

CURVES, RUNS = 4, 100  # values of an axis whose loss is drawn, and members of each at most
BAND = (10, 90)  # percent
MARKERS = "os^vD"
LINES, TICKS = 5, 6  # values of a second axis that become lines, and labels along a map at most
SPREAD = f"line: median, band: {BAND[0]} to {BAND[1]} % of all members there"
DOTS = 40  # members with values of their own from which on they are dots, not a line
Losses = Callable[[set[int]], dict[int, tuple[np.ndarray, np.ndarray]]]


def draw(plan: Plan, table: Table, shown: str, fits: dict[str, dict[str, float]], losses: Losses) -> dict[str, Figure]:
    """All pictures that apply, by the name of their file."""
    there = np.flatnonzero(table["ended"] != REFUSED)
    table = Table({name: _pick(values, there) for name, values in table.items()})
    numeric = [axis.name for axis in plan.axes if (x := np.unique(table.numbers(axis.name))).size > 1 and np.isfinite(x).all()]
    random = [axis.name for axis in plan.axes if axis.law]
    found = {}
    for name in [name for name in numeric if name in random] or numeric[:1]:
        others = [other for other in numeric if other != name]
        found["scaling" if len(random) < 2 else f"scaling-{name}"] = _scaling(table, name, shown, fits, others)
    grid = [axis.name for axis in plan.axes if not axis.law and len(axis.values) > 1]
    if len(grid) >= 2:
        found["map"] = _map(table, grid[0], grid[1], shown, several=len(grid) > 2 or plan.seeds > 1 or bool(random))
    if LOSS in table:
        found["losses"] = _losses(table, (grid or [None])[0], losses)
    return found


def _pick(values: Any, index: np.ndarray) -> Any:
    return values[index] if isinstance(values, np.ndarray) else [values[place] for place in index]


def _label(name: str) -> str:
    return name if name == LOSS else f"flow time of {name!r}"


def _shows(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shows, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _sorted(values: list[Any]) -> list[Any]:
    return sorted(dict.fromkeys(values), key=lambda value: (str(type(value)), value))


def _positive(values: np.ndarray) -> bool:
    """Whether numbers are positive and span a factor of five: then their logarithm is shown."""
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > 5 * values.min())


def _scaling(table: Table, name: str, shown: str, fits: dict[str, dict[str, float]], others: list[str]) -> Figure:
    """Median and band over seeds at each value of an axis, one line per value of a second one; the fitted power law dashed."""
    x, q = table.numbers(name), table.numbers(shown)
    usable = np.isfinite(q) & (q > 0)
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.FULL * 0.7, 3.0))
        second = next((other for other in others if np.unique(table.numbers(other)).size <= LINES), None)
        groups = [(None, np.ones(x.size, bool))]
        if second:
            values = table.numbers(second)
            groups = [(value, values == value) for value in np.unique(values)]
        several = False
        for index, (value, inside) in enumerate(groups):
            several |= _band(axes, x[inside], q[inside], index, f"{second} = {value:g}" if second else None)
        if name in fits:
            p, ends = fits[name]["exponent"], np.geomspace(x[usable].min(), x[usable].max())
            level = np.exp(np.mean(np.log(q[usable]) - p * np.log(x[usable])))
            label = f"fit: exponent {p:.3f} ± {fits[name]['standard error']:.1g}"
            label = label.replace("-", "\N{MINUS SIGN}", 1) + (", no power law" if bent(fits[name]) else "")
            axes.plot(ends, level * ends**p, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)), label=label)
        for change, axis, positive in ((axes.set_xscale, axes.xaxis, _positive(x)), (axes.set_yscale, axes.yaxis, _positive(q))):
            if positive:
                change("log")
                _ticks(axis)
        axes.set_xlabel(name)
        axes.set_ylabel(_label(shown))
        if several:
            axes.set_title(SPREAD, fontsize=style.SMALL, color="0.4")
        if second or name in fits:
            axes.legend()
    return figure


def _ticks(axis: Axis) -> None:
    """Plain numbers 1, 2, 5, 10 along a logarithmic axis."""
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def _band(axes: Axes, x: np.ndarray, q: np.ndarray, index: int, label: str | None) -> bool:
    """A line through the medians with a band (then true), or dots where every value is there once."""
    values, counts = np.unique(x, return_counts=True)
    reached = np.isfinite(q)
    if counts.max() == 1 and values.size > DOTS:
        axes.plot(x[reached], q[reached], ".", markersize=3, color=style.color(index), label=label)
        return False
    there = [(value, part) for value in values if (part := q[(x == value) & reached]).size]
    if not there:
        return False
    at, marker = [value for value, _ in there], MARKERS[index % len(MARKERS)] if values.size <= DOTS else ""
    line = {"linewidth": max(2.4 - 0.5 * index, 0.8), "marker": marker, "markersize": 5.5 - 0.8 * index}  # a line under another shows
    axes.plot(at, [np.median(part) for _, part in there], color=style.color(index), label=label, **line)
    if counts.max() == 1:
        return False
    low, high = zip(*(np.percentile(part, BAND) for _, part in there), strict=True)
    axes.fill_between(at, low, high, color=style.color(index), alpha=0.2, linewidth=0)
    return True


def _map(table: Table, across: str, up: str, shown: str, *, several: bool) -> Figure:
    """The median at every pair of values; grey where it was never reached."""
    xs, ys = (_sorted(table[name]) for name in (across, up))
    column, row = {value: place for place, value in enumerate(xs)}, {value: place for place, value in enumerate(ys)}
    places: dict[tuple[int, int], list[float]] = {}
    for x, y, value in zip(table[across], table[up], table.numbers(shown), strict=True):
        if np.isfinite(value):
            places.setdefault((row[y], column[x]), []).append(value)
    values = np.full((len(ys), len(xs)), np.nan)
    for place, found in places.items():
        values[place] = np.median(found)
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.FULL * 0.7, 3.0))
        axes.set_facecolor("0.85")
        norm = "log" if _positive(values) else None
        image = axes.pcolormesh(np.ma.masked_invalid(values), norm=norm, cmap="viridis", rasterized=True)
        for names, change in ((xs, axes.set_xticks), (ys, axes.set_yticks)):
            chosen = np.arange(0, len(names), -(-len(names) // TICKS))
            change(chosen + 0.5, [_shows(names[index]) for index in chosen])
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        bar = figure.colorbar(image, label=_label(shown) + (", median" if several else ""))
        if norm:
            _ticks(bar.ax.yaxis)
        if np.isnan(values).any():
            axes.set_title("grey: not reached", fontsize=style.SMALL, color="0.4")
    return figure


def _losses(table: Table, name: str | None, losses: Losses) -> Figure:
    """Loss over time at a few values of the first axis: median, and a band over everything else."""
    found = _sorted(table[name]) if name else [None]
    chosen = [found[index] for index in np.unique(np.linspace(0, len(found) - 1, min(CURVES, len(found))).astype(int))]
    numbers, fine = table["member"], np.isfinite(table[LOSS])
    inside = lambda value: [place for place in np.flatnonzero(fine) if name is None or table[name][place] == value]
    groups = {value: [int(numbers[place]) for place in inside(value)] for value in chosen}
    groups = {value: [those[place] for place in _spread(len(those))] for value, those in groups.items() if those}
    curves = losses({member for those in groups.values() for member in those})
    with plt.style.context(style.STYLE):
        figure, axes = plt.subplots(figsize=(style.FULL * 0.75, 2.8))
        several = False
        for index, (value, those) in enumerate(groups.items()):
            clock = max((curves[member][0] for member in those), key=lambda clock: clock[-1])
            same = [np.interp(clock, *curves[member]) for member in those]
            axes.plot(clock, np.median(same, axis=0), color=style.color(index), label=f"{name} = {_shows(value)}" if name else None)
            if len(same) > 1:
                several = True
                axes.fill_between(clock, *np.percentile(same, BAND, axis=0), color=style.color(index), alpha=0.18, linewidth=0)
        axes.set_xlabel("flow time")
        axes.set_ylabel("loss")
        axes.set_ylim(bottom=0)
        if several:
            axes.set_title(SPREAD, fontsize=style.SMALL, color="0.4")
        if name and groups:
            axes.legend()
    return figure


def _spread(count: int) -> list[int]:
    """At most `RUNS` of so many places, evenly."""
    return sorted({int(place) for place in np.linspace(0, count - 1, min(count, RUNS))})
