"""Random problems, solved: every system on tiny sizes, with values up to the edges of what is allowed, in a handful of compiled shapes."""

import contextlib
import functools
import json
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from spectral_ode import document, systems, weights
from spectral_ode.integrate import solve_problem
from spectral_ode.problem import BadInput, Problem
from spectral_ode.trajectory import Trajectory
from validate import report
from validate.check import check
from validate.experiment import match, perform
from validate.fuzz import Property, attempt
from validate.fuzz_problems import Flat, bases, having, sensible

LARGEST = 8  # of every size: what is compiled and solved is tiny
STEPS = 128  # of one solve: a stiff corner ends with its sentence instead of taking a minute
EDGES = (0.0, 1e-12, 1e-6, 1e-3, 1.0, 1e2, 1e3, 1e6, 1e12, 1e150, 1e300)


def tiny(base: Flat) -> Flat:
    """The same kinds with every size at most `LARGEST`; sizes are found by looking, also in sections that are new."""
    problem, small = document.override(Problem(), base), dict(base)
    sections = {name: getattr(problem, name) for name in document.sections() if name not in ("solver", "seed")}
    for name, section in sections.items():
        assert is_dataclass(section)
        for entry in fields(section):
            value = getattr(section, entry.name)
            if type(value) is int and value > LARGEST:
                small[f"{name}.{entry.name}"] = LARGEST
            elif isinstance(value, tuple) and value and type(value[0]) is int:
                small[f"{name}.{entry.name}"] = [min(part, 2) for part in value]
    return small | {"points": 9, "solver.max_steps": STEPS, "solver.rtol": 1e-6, "training.learning_rate": 0.01}


@functools.cache
def shapes(names: tuple[str, ...] = ()) -> tuple[Flat, ...]:
    """Every kind of problem on every system that takes it, or on those named."""
    found = []
    for base in bases():
        for name in names or systems.names():
            flat = tiny(base) | {"system": name}
            with contextlib.suppress(BadInput):
                systems.load(name).from_problem(_problem(flat, 100))
                found.append(flat)
    return tuple(found)


def _problem(flat: Flat, steps: int) -> Problem:
    """The problem, as long as so many steps of its training."""
    rate = 1.0 if flat["training.kind"] == "adam" or flat.get("units") == "script" else flat["training.learning_rate"]
    return document.override(Problem(), flat | {"horizon": steps * rate})


def cases(kinds: tuple[type, ...], lengths: tuple[int, ...], names: tuple[str, ...] = ()) -> Any:
    """A strategy of tiny problems with a few fields of some types changed: floats up to the edges, the shapes as they are."""
    from hypothesis import strategies as st

    fits = lambda leaf: _type(leaf) in kinds and leaf.name not in ("horizon", "system", *document.DESCRIPTIVE)
    choices = [(flat, {leaf.name: _value(leaf) for leaf in having(flat) if fits(leaf)}) for flat in shapes(names)]

    @st.composite
    def drawn(draw):
        flat, values = draw(st.sampled_from(choices))
        chosen = draw(st.lists(st.sampled_from(list(values)), max_size=3, unique=True))
        return flat | {name: draw(values[name]) for name in chosen}, draw(st.sampled_from(lengths))

    return drawn()


def _type(leaf: document.Field) -> Any:
    """What a field is made of."""
    if typing.get_origin(leaf.type) is typing.Literal:
        return str
    return next(option for option in (float, bool, int, str) if option is leaf.type or option in typing.get_args(leaf.type))


def _value(leaf: document.Field) -> Any:
    from hypothesis import strategies as st

    if _type(leaf) is not float:
        return sensible(leaf)
    many = isinstance(leaf.default, tuple)
    sizes = leaf.default or (1.0,) if many else (leaf.default or 1.0,)
    one = lambda size: st.one_of(st.floats(-3.0, 3.0).map(lambda power: size * 10**power), st.sampled_from(EDGES))
    return st.tuples(*map(one, sizes)).map(list) if many else one(sizes[0])


def finite(trajectory: Trajectory, end: float) -> None:
    """Assert that all of it is numbers on a growing clock, and that it says why it ended."""
    time = np.asarray(trajectory.time)
    assert np.isfinite(time).all()
    assert (np.diff(time) > 0).all()
    for name, values in trajectory.observables.items():
        assert np.isfinite(np.asarray(values)).all(), f"{name} is not a number, though {trajectory.stopped}"
    for name, moment in trajectory.phases.items():
        inside = np.isnan(moment) | ((np.asarray(moment) >= 0) & (np.asarray(moment) <= end * (1 + 1e-9)))
        assert inside.all(), f"phase {name} at {moment}, outside of 0 to {end:g}"
    assert trajectory.stopped.isprintable(), trajectory.stopped
    assert len(trajectory.stopped) > 10


def solved(case: tuple[Flat, int]) -> None:
    """Each rung of the theory is finite numbers that say why they ended; claims, levels and forecasts can be stated."""
    problem = attempt(lambda: _problem(*case))
    system = problem and attempt(lambda: systems.load(problem.system).from_problem(problem))
    if system is None:
        return
    missing, start = system.missing(problem), weights.draw(problem)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(start)), "the start is not finite"
    assert all(np.isfinite(level) for levels in system.landmarks().values() for level in levels.values()), "a level is not finite"
    assert all(claim.bound >= 0 for claim in system.claims(problem)), "a bound is not a number"
    if "reduced" not in missing:
        _, states = match(system, [start])
        rung = attempt(lambda: solve_problem(system, problem, states[0]))
        finite(rung, problem.end) if rung else None
    if "population" not in missing:
        flow = system.population()
        rung = attempt(lambda: solve_problem(flow, problem, flow.project(start)))
        finite(rung, problem.end) if rung else None


def trained(case: tuple[Flat, int]) -> None:
    """A whole experiment, training included, is finite on every rung, and its report is strict JSON."""
    problem = attempt(lambda: _problem(*case))
    experiment = problem and attempt(lambda: perform(problem))
    if experiment is None:
        return
    for rung in experiment.rungs.values():
        finite(rung, problem.end)
    summary = report.summarize("fuzz", experiment, check(experiment))
    assert json.loads(json.dumps(summary, allow_nan=False))
    assert report.table(summary | {"folder": ""})


PROPERTIES = (
    Property(
        "the theory of any problem is finite or refused",
        2.0,
        lambda: cases((float,), (9, 100, 10**4, 10**6)),
        solved,
        "numbers or a sentence",
    ),
    Property(
        "the training of any problem is finite or refused",
        0.3,
        lambda: cases((float, str, bool), (1, 16)),
        trained,
        "numbers or a sentence",
    ),
)
