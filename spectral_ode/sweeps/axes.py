"""What a sweep goes over: axes from text, and the members they make. No jax here.

    start.scale=1e-3,1e-2,0.1            these values          task.spectrum=0.4,0.3/0.5,0.2    lists, separated by /
    start.scale=linspace:0.1,1,10        10 even steps         start.scale=logspace:1e-3,1,200  200 steps of equal ratio
    task.context=range:16,64,16          16, 32, 48, 64        task.spectrum.2=0.1,0.2          the second entry of a list
    start.scale=uniform:0.1,1            drawn at random       start.scale=loguniform:1e-3,1    evenly in its logarithm

Axes with values make a grid, the last one moving fastest; at every point of it stand the same `--sample` draws of the random axes, and at
each of these the same `--seeds` seeds: seed number r adds r to all four seeds of the problem, as run number r does. A longer sample begins
with the draws of a shorter one. Nothing is listed: a member is made from its number when it is needed.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from spectral_ode import document, traced
from spectral_ode.problem import BadInput, Problem

MOST = 1_000_000  # members
RANDOM = ("uniform", "loguniform")
SEEDS = ("seed.start", "seed.task", "seed.data", "seed.noise")
FORMS = {"linspace": 3, "logspace": 3, "range": 3, "uniform": 2, "loguniform": 2}  # how many numbers each takes at most


@dataclass(frozen=True)
class Axis:
    """One field with the values it takes, or with the law it is drawn from."""

    name: str
    text: str
    values: tuple[Any, ...] = ()
    law: tuple[str, float, float] | None = None


@dataclass(frozen=True)
class Plan:
    """A whole sweep: a problem, its axes, and how many samples and seeds."""

    problem: Problem
    axes: tuple[Axis, ...]
    samples: int = 1
    sample_seed: int = 0
    seeds: int = 1

    def __post_init__(self) -> None:
        random = [axis.name for axis in self.axes if axis.law]
        names = [axis.name for axis in self.axes]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadInput(f"--over {twice} is given twice, but an axis has one list of values")
        if random and self.samples < 1:
            raise BadInput(f"{random[0]} is drawn at random, but --sample does not say how often; use --sample 100")
        if not random and self.samples > 1:
            raise BadInput("--sample is given, but no axis is random; use for example --over start.scale=loguniform:1e-3,1")
        if self.seeds > 1 and (clash := next((name for name in names if name in SEEDS), None)):
            raise BadInput(f"--over {clash} and --seeds both set the seeds; use one of them")
        if not 1 <= self.size <= MOST:
            raise BadInput(f"the sweep has {self.size} members, but 1 to {MOST} are allowed")

    @property
    def size(self) -> int:
        """Number of members."""
        return math.prod(self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        """How many values the axes of the grid have, then the samples and the seeds."""
        return (*(len(axis.values) for axis in self.axes if not axis.law), max(self.samples, 1), self.seeds)

    @cached_property
    def _draws(self) -> dict[str, list[Any]]:
        """The values of the random axes, sample by sample."""
        laws = [(number, axis) for number, axis in enumerate(self.axes) if axis.law]
        return {axis.name: _draw(np.random.default_rng([self.sample_seed, number]), axis, self.samples) for number, axis in laws}

    def row(self, number: int) -> dict[str, Any]:
        """The values of a member by name, with its number among the seeds where there are several."""
        *places, sample, seed = map(int, np.unravel_index(number, self._shape))
        grid = iter(places)
        row = {axis.name: self._draws[axis.name][sample] if axis.law else axis.values[next(grid)] for axis in self.axes}
        return row | ({"seed": seed} if self.seeds > 1 else {})

    def columns(self) -> dict[str, list[Any]]:
        """The same for all members: a list of values for every name."""
        *places, sample, seed = np.unravel_index(np.arange(self.size), self._shape)
        grid = iter(places)
        chosen = lambda axis: (self._draws[axis.name], sample) if axis.law else (axis.values, next(grid))
        found = {axis.name: [values[place] for place in index] for axis in self.axes for values, index in [chosen(axis)]}
        return found | ({"seed": seed.tolist()} if self.seeds > 1 else {})

    def member(self, row: dict[str, Any]) -> Problem:
        """The problem of one member; raises `BadInput` where the combination is not allowed."""
        changes: dict[str, Any] = {}
        for name, value in row.items():
            base, _, entry = name.rpartition(".")
            if name == "seed":
                changes |= {stream: traced.read(self.problem, stream) + value for stream in SEEDS}
            elif entry.isdigit():
                values = list(changes.get(base, traced.read(self.problem, base)))
                values[int(entry) - 1] = value
                changes[base] = values
            else:
                changes[name] = value
        return document.override(self.problem, changes)


def axis(problem: Problem, text: str) -> Axis:
    """One axis from `name=values`."""
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not (equals and name and values):
        raise BadInput(f"--over is {text!r}, but it must be FIELD=VALUES, such as start.scale=logspace:1e-3,1,20")
    now = traced.read(problem, name)
    if name in document.DESCRIPTIVE or name == "runs":
        raise BadInput(f"--over {name} changes nothing that is computed; sweep another field")
    form, colon, rest = values.partition(":")
    if colon:
        return _spread(name, text, now, form, rest)
    entries = values.split("/") if isinstance(now, tuple) else values.split(",")
    field = _field(name)
    return Axis(name, text, tuple(dict.fromkeys(document.coerce(field, entry.strip()) for entry in entries)))


def _field(name: str) -> document.Field:
    """The field behind a name; an entry of a list has the type of the entries."""
    base, _, entry = name.rpartition(".")
    if not entry.isdigit():
        return document.known()[name]
    whole = document.known()[base]
    return document.Field(name, whole.type.__args__[0], None, whole.doc)


def _spread(name: str, text: str, now: Any, form: str, rest: str) -> Axis:
    known = ", ".join(FORMS)
    if form not in FORMS:
        raise BadInput(f"--over {name} has values {form}:..., but known are {known}, or a plain list")
    if isinstance(now, bool) or not (isinstance(now, int | float) or now is None):
        raise BadInput(f"--over {name} is not a number, so {form}: does not apply; give a plain list")
    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        numbers = []
    if not (all(map(math.isfinite, numbers)) and len(numbers) in ((2, 3) if form == "range" else (FORMS[form],))):
        wanted = {2: "two numbers a,b", 3: "three numbers a,b,n"}[FORMS[form]] if form != "range" else "first,last or first,last,step"
        raise BadInput(f"--over {name}={form}:{rest} does not fit; {form} takes {wanted}")
    first, last = numbers[:2]
    if form in ("logspace", "loguniform") and min(first, last) <= 0:
        plain = {"logspace": "linspace", "loguniform": "uniform"}[form]
        raise BadInput(f"--over {name}={form}:{rest} has an end at or below zero, but its logarithm is taken; use {plain}")
    if form in RANDOM:
        return Axis(name, text, law=(form, first, last))
    if form == "range":
        step = numbers[2] if len(numbers) > 2 else 1.0
        if step == 0 or (last - first) * step < 0 or (last - first) / step > MOST:
            raise BadInput(f"--over {name}={form}:{rest} never gets from {first:g} to {last:g}; give another step")
        values = first + step * np.arange(int((last - first) / step + 1e-9) + 1)
    else:
        count = numbers[2]
        if not (count.is_integer() and 1 <= count <= MOST):
            raise BadInput(f"--over {name}={form}:{rest} asks for {count:g} values, but a whole number from 1 on is needed")
        make = np.linspace if form == "linspace" else np.geomspace
        values = make(first, last, int(count))
    return Axis(name, text, tuple(dict.fromkeys(_whole(value) if _integer(name) else float(value) for value in values)))


def _integer(name: str) -> bool:
    return _field(name).type is int


def _whole(value: float) -> int:
    return round(float(value))


def _draw(generator: np.random.Generator, axis: Axis, count: int) -> list[Any]:
    assert axis.law
    form, low, high = axis.law
    values = generator.uniform(low, high, count) if form == "uniform" else np.exp(generator.uniform(math.log(low), math.log(high), count))
    return [_whole(value) if _integer(axis.name) else float(value) for value in values]
