"""From rows of numbers to systems and starts: members of equal structure are built together, by one program that traces their problem.

A bucket holds members that one program can solve: equal in everything that is not a float, and on one clock. Inside a bucket they stand in
the order of their start scale, so that members of one group leave their plateaus at about the same time and share their small steps.
"""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import Literal

from spectral_ode import batch, systems, traced, weights
from spectral_ode.problem import BadInput, Problem
from spectral_ode.sweep.axes import SEEDS, Plan
from spectral_ode.system import AbstractSystem

FEW = 8  # clocks with fewer members than this are solved together, each member on its own


@dataclass(frozen=True)
class Member:
    """One problem of a sweep."""

    number: int
    row: dict[str, Any]
    problem: Problem

    @property
    def values(self) -> dict[str, Any]:
        """What is traced: floats of the row by name, and the seeds."""
        found: dict[str, Any] = {}
        for name, value in self.row.items():
            if name == "seed":
                found |= {stream: traced.read(self.problem, stream) for stream in SEEDS}
            elif isinstance(value, float):
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
    return name == "seed" or isinstance(value, float)


@dataclass
class Bucket:
    """Members that one program solves, with their clock: [time], or [members, time] where each has its own."""

    members: list[Member]
    times: np.ndarray
    rung: str
    failures: dict[int, str] = field(default_factory=dict)  # by member number: what building it said
    _builder: Any = None

    @property
    def settings(self) -> batch.Settings:
        """How they are solved."""
        solver = self.members[0].problem.solver
        return batch.Settings(solver.name, solver.max_steps, solver.steady)

    def build(self, members: list[Member], width: int) -> batch.Members:
        """Systems and starts of some members, filled up to the width of a group with copies of the last one."""
        filled = members + members[-1:] * (width - len(members))
        rtol = np.asarray([member.problem.solver.rtol for member in filled])
        atol = np.asarray([member.problem.atol for member in filled])
        system, many, state = self._traced(filled) or _stacked([_made(member.problem, self.rung) for member in filled])
        return batch.Members(system, many, state, rtol, atol)

    def _traced(self, members: list[Member]):
        """Built by a program, where the way from problem to system can be traced; otherwise None."""
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
            system, state = _made(traced.insert(template, dict(zip(self.names, values, strict=True))), rung)
            arrays, self.rest = eqx.partition(system, eqx.is_array)
            return arrays, state

        example = self._columns(members)
        closed, self.shape = jax.make_jaxpr(one, return_shape=True)([column[0] for column in example])
        self.many = jax.tree.unflatten(jax.tree.structure(self.shape), _depending(closed.jaxpr))[0]
        self.program = jax.jit(jax.vmap(one))

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


def _made(problem: Problem, rung: str) -> tuple[AbstractSystem, Any]:
    system = systems.load(problem.system).from_problem(problem)
    system = system.population() if rung == "population" else system
    return system, system.project(weights.draw(problem))


def _stacked(made: list[tuple[AbstractSystem, Any]]):
    """Systems and starts that were built one by one; every array is taken to differ."""
    _, rest = eqx.partition(made[0][0], eqx.is_array)
    arrays = [eqx.filter(system, eqx.is_array) for system, _ in made]
    stacked, state = (jax.tree.map(lambda *leaves: np.stack(leaves), *parts) for parts in (arrays, [state for _, state in made]))
    return eqx.combine(stacked, rest), jax.tree.map(lambda _: True, stacked), state


def rung_of(problem: Problem, wanted: str | None) -> str:
    """The rung that is swept: the one asked for, or else the population flow, or else the reduced ODE."""
    if wanted == "training":
        return wanted
    missing = systems.load(problem.system).from_problem(problem).missing(problem)
    if wanted is None:
        wanted = next((rung for rung in ("population", "reduced") if rung not in missing), None)
    if wanted is None or wanted in missing:
        reason = next(iter(missing.values())) if wanted is None else missing[wanted]
        there = [rung for rung in ("population", "reduced") if rung not in missing]
        raise BadInput(f"there is no {wanted or 'theory'} rung here ({reason}); use --rung {' or '.join([*there, 'training'])}")
    return wanted


def gather(plan: Plan, rung: str) -> tuple[list[Bucket], dict[int, tuple[dict[str, Any], str]]]:
    """All members in buckets, and those that are refused with their row and the reason."""
    buckets: dict[tuple, list[Member]] = {}
    refused: dict[int, tuple[dict[str, Any], str]] = {}
    for number, row in enumerate(plan.rows()):
        try:
            member = Member(number, row, plan.member(row))
            if rung == "reduced":  # whether it is there may depend on the numbers
                rung_of(member.problem, rung)
        except BadInput as error:
            refused[number] = (row, str(error))
            continue
        buckets.setdefault((member.structure, member.problem.times.tobytes()), []).append(member)
    pooled: dict[tuple, list[Member]] = {}
    for (structure, clock), members in buckets.items():
        alone = len(members) < FEW and rung != "training"
        pooled.setdefault((structure, len(clock) if alone else clock), []).extend(members)
    found = []
    for members in pooled.values():
        members.sort(key=lambda member: (member.problem.scale, member.number))
        clocks = np.unique([member.problem.times for member in members], axis=0)
        found.append(Bucket(members, clocks[0] if len(clocks) == 1 else np.stack([member.problem.times for member in members]), rung))
    return found, refused
