"""From numbers of members to systems and starts: members of equal structure are built together, by one program that traces their problem.

A bucket holds members that one program can solve: equal in everything that is not a float, and on one clock. Inside a bucket they stand in
the order of their start scale, so that members of one group leave their plateaus at about the same time and share their small steps.
Problems are made when they are needed and not kept: a bucket remembers a few numbers of each member.
"""

import math
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import Literal

from spectral_ode import batch, rungs, traced
from spectral_ode.problem import BadInput, Problem
from spectral_ode.sweeps.axes import SEEDS, Plan
from spectral_ode.system import AbstractSystem

FEW = 8  # clocks with fewer members than this are solved together, each member on its own
START = ("start", "seed", "solver")  # sections on which it does not depend whether there is a rung


@dataclass(frozen=True)
class Member:
    """One problem of a sweep."""

    plan: Plan
    number: int

    @cached_property
    def row(self) -> dict[str, Any]:
        """Its values on the axes."""
        return self.plan.row(self.number)

    @cached_property
    def problem(self) -> Problem:
        """The whole problem; raises `BadInput` where the combination is not allowed."""
        return self.plan.member(self.row)

    @property
    def values(self) -> dict[str, Any]:
        """What is traced: floats of the row by name, and the seeds."""
        found: dict[str, Any] = {}
        for name, value in self.row.items():
            if name == "seed":
                found |= {stream: traced.read(self.plan.problem, stream) + value for stream in SEEDS}
            elif _traced(name, value):
                found[name] = value
            elif _floats(value):
                found |= {f"{name}.{entry + 1}": part for entry, part in enumerate(value)}
        return found

    @property
    def structure(self) -> tuple:
        """What is not."""
        return tuple((name, len(value) if _floats(value) else value) for name, value in self.row.items() if not _traced(name, value))


def _floats(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(part, float) for part in value)


def _traced(name: str, value: Any) -> bool:
    return name == "seed" or name in SEEDS or isinstance(value, float)


@dataclass
class Bucket:
    """Members that one program solves: their numbers, and one row (start scale, rtol, atol) for each."""

    plan: Plan
    rung: str
    numbers: np.ndarray
    tolerances: np.ndarray
    times: np.ndarray | None  # the clock of all; None where each has its own
    points: int
    _builder: Any = None
    _lock: Any = field(default_factory=threading.Lock)

    def width(self, most: int) -> int:
        """The width of its groups: `most`, or as many as a bucket with fewer members needs."""
        return min(most, 2 ** math.ceil(math.log2(len(self.numbers))))

    def some(self, place: int, count: int) -> list[Member]:
        """Members in a row."""
        return [Member(self.plan, int(number)) for number in self.numbers[place : place + count]]

    def clock(self, members: list[Member]) -> np.ndarray:
        """[time], or [members, time] where each has its own."""
        return self.times if self.times is not None else np.stack([member.problem.times for member in members])

    @cached_property
    def settings(self) -> batch.Settings:
        """How they are solved."""
        solver = self.some(0, 1)[0].problem.solver
        return batch.Settings(solver.name, solver.max_steps, solver.steady)

    @cached_property
    def shapes(self) -> tuple[Any, dict[str, Any]]:
        """Shapes of one member's state and of its observables."""
        system, state = rungs.made(self.some(0, 1)[0].problem, self.rung)
        return state, jax.eval_shape(system.observe, state)

    def build(self, place: int, count: int, width: int) -> batch.Members:
        """Systems and starts of some members, filled up to the width of a group with copies of the last one."""
        index = np.minimum(np.arange(place, place + width), place + count - 1)
        members = self.some(place, count)
        filled = members + members[-1:] * (width - count)
        system, many, state = self._traced(filled) or _stacked([rungs.made(member.problem, self.rung) for member in filled])
        return batch.Members(system, many, state, *self.tolerances[index].T)

    @property
    def lapack(self) -> bool:
        """Whether building them calls LAPACK (`batch.Cost`)."""
        return self._builder.lapack if self._builder else False

    def _traced(self, members: list[Member]):
        """Built by a program, where the way from problem to system can be traced; otherwise None."""
        with self._lock:
            if self._builder is None:
                try:
                    self._builder = _Builder(members, self.rung)
                except jax.errors.JAXTypeError:  # somewhere a number has to be known
                    self._builder = False
        return self._builder(members) if self._builder else None


class _Builder:
    """A compiled program from the numbers of members to their systems and starts."""

    def __init__(self, members: list[Member], rung: str) -> None:
        template, self.rest = members[0].problem, None
        self.names = list(members[0].values)
        if not self.names:
            raise jax.errors.JAXTypeError("nothing to trace")

        def one(values):
            system, state = rungs.made(traced.insert(template, dict(zip(self.names, values, strict=True))), rung)
            arrays, self.rest = eqx.partition(system, eqx.is_array)
            return arrays, state

        example = self._columns(members)
        closed, self.shape = jax.make_jaxpr(one, return_shape=True)([column[0] for column in example])
        self.many = jax.tree.unflatten(jax.tree.structure(self.shape), _depending(closed.jaxpr))[0]
        self.program = jax.jit(jax.vmap(one))
        self.lapack = "lapack" in self.program.lower(example).as_text()

    def _columns(self, members: list[Member]) -> list[np.ndarray]:
        rows = [member.values for member in members]
        return [np.asarray([row[name] for row in rows]) for name in self.names]

    def __call__(self, members: list[Member]):
        arrays, state = self.program(self._columns(members))
        arrays = jax.tree.map(lambda flag, leaf: leaf if flag else leaf[0], self.many, arrays)
        return eqx.combine(arrays, self.rest), self.many, state


def _depending(jaxpr) -> list[bool]:
    """Which results of a jaxpr depend on its arguments."""
    known = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(not isinstance(variable, Literal) and variable in known for variable in eqn.invars):
            known |= set(eqn.outvars)
    return [not isinstance(variable, Literal) and variable in known for variable in jaxpr.outvars]


def _stacked(made: list[tuple[AbstractSystem, Any]]):
    """Systems and starts that were built one by one; every array is taken to differ."""
    _, rest = eqx.partition(made[0][0], eqx.is_array)
    arrays = [eqx.filter(system, eqx.is_array) for system, _ in made]
    stacked, state = (jax.tree.map(lambda *leaves: np.stack(leaves), *parts) for parts in (arrays, [state for _, state in made]))
    return eqx.combine(stacked, rest), jax.tree.map(lambda _: True, stacked), state


def gather(plan: Plan, rung: str) -> tuple[list[Bucket], dict[int, str]]:
    """All members in buckets, and those that are refused with the reason."""
    found: dict[tuple, list[tuple[int, float, float, float]]] = {}
    refused: dict[int, str] = {}
    checked: dict[tuple, str] = {}
    for number in range(plan.size):
        member = Member(plan, number)
        try:
            problem = member.problem
            if reason := _refusal(member, rung, checked):
                raise BadInput(reason)
        except BadInput as error:
            refused[number] = str(error)
            continue
        row = (number, float(problem.scale), float(problem.solver.rtol), float(problem.atol))
        clock = (problem.points, problem.spacing, problem.segments)
        found.setdefault((member.structure, clock), []).append(row)
    pooled: dict[tuple, list] = {}
    for (structure, clock), rows in found.items():
        alone = len(rows) < FEW and rung != "training"
        length = len(Member(plan, rows[0][0]).problem.times)
        pooled.setdefault((structure, None if alone else clock, length), []).append(rows)
    return [_bucket(plan, rung, parts, length) for (_, _, length), parts in pooled.items()], refused


def _bucket(plan: Plan, rung: str, parts: list[list[tuple[int, float, float, float]]], length: int) -> Bucket:
    rows = np.asarray([row for part in parts for row in part])
    rows = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
    times = Member(plan, int(rows[0, 0])).problem.times if len(parts) == 1 else None
    return Bucket(plan, rung, rows[:, 0].astype(int), rows[:, 2:], times, length)


def _refusal(member: Member, rung: str, checked: dict[tuple, str]) -> str:
    """Why a rung is not there, or nothing: asked once for all members for which it is the same."""
    relevant = tuple((name, value) for name, value in member.row.items() if name.split(".")[0] not in START)
    key = relevant if rung == "reduced" else member.structure  # whether a reduced ODE is there may depend on the numbers
    if key not in checked:
        try:
            rungs.chosen(member.problem, rung)
            checked[key] = ""
        except BadInput as error:
            checked[key] = str(error)
    return checked[key]
