"""One problem, answered on every rung: forecast, reduced ODE, population flow, training."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

import simulate
from simulate import networks
from spectral_ode import runtime, systems, weights
from spectral_ode.integrate import solve_problem
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem, State, Weights
from spectral_ode.trajectory import Trajectory

TIGHTER = "population, rtol/100"


@dataclass(frozen=True)
class Experiment:
    """All rungs of a problem, each a stack of runs, with what was forecast from the starts."""

    problem: Problem
    system: AbstractSystem
    rungs: dict[str, Trajectory]
    forecast: dict[str, np.ndarray]
    states: list[State] = field(default_factory=list)  # where the reduced ODE of each run started
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, str]:
        """Why a rung is not there; a forecast belongs to the reduction."""
        gaps = self.system.missing(self.problem)
        also = {TIGHTER: "population", "forecast": "reduced"}
        return gaps | {name: gaps[rung] for name, rung in also.items() if rung in gaps}


@runtime_checkable
class Progress(Protocol):
    """Who is told how far an experiment is."""

    def stage(self, text: str) -> None:
        """A new part of the work begins."""

    def training(self, share: float, time: float, loss: float) -> None:
        """Training has got this far."""


def perform(problem: Problem, progress: Progress | None = None, *, train: bool = True, **scale: Any) -> Experiment:
    """Answer a problem on every rung that applies; each run's theory starts from that run's own weights. `train=False`: theory only.

    `scale` is told to `simulate.train`: devices, microbatch, memory, checkpoints.
    """
    system = systems.load(problem.system).from_problem(problem)
    starts = [weights.draw(problem, run=run) for run in range(problem.runs)]
    rungs, forecast, states, seconds = {}, {}, [], {}
    missing = system.missing(problem)
    if "reduced" not in missing:
        with _stage("reduced ODE", progress, seconds):
            forecast, states = match(system, starts)
            rungs["reduced"] = _solve(system, problem, states)
    if "population" not in missing:
        flow = system.population()
        with _stage("population flow", progress, seconds):
            begin = [flow.project(start) for start in starts]
            rungs["population"] = _solve(flow, problem, begin)
            tighter = max(problem.solver.rtol / 100, 1e-13)
            rungs[TIGHTER] = _solve(flow, problem, begin, rtol=tighter, atol=problem.atol * tighter / problem.solver.rtol)
    if train:
        with _stage("training", progress, seconds):
            rungs["training"] = simulate.train(problem, progress=progress.training if progress else None, **scale)
        if problem.training.kind == "sequences" and problem.training.twin:
            with _stage("equivalent network", progress, seconds):
                rungs["network"] = simulate.train(problem, model=networks.twin_of(problem.attention.kind), **scale)
    origin = runtime.provenance(problem)
    rungs = {name: rung.with_provenance(rung=name, **origin) for name, rung in rungs.items()}
    return Experiment(problem, system, rungs, forecast, states, seconds)


def match(system: AbstractSystem, starts: list[Weights]) -> tuple[dict[str, np.ndarray], list[State]]:
    """What follows from each start alone: the forecast, stacked over runs, and the state where the reduced ODE begins."""
    found = [_match(system, start) for start in starts]
    return {name: np.stack([np.asarray(one[name]) for one, _ in found]) for name in found[0][0]}, [state for _, state in found]


@eqx.filter_jit
def _match(system: AbstractSystem, start: Weights) -> tuple[dict[str, Array], State]:
    return system.forecast(start), system.project(start)


def _solve(system: AbstractSystem, problem: Problem, starts: list, **changes: float) -> Trajectory:
    found: dict[bytes, Trajectory] = {}  # runs that differ in their data alone have one theory
    keys = [b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(start)) for start in starts]
    for key, start in zip(keys, starts, strict=True):
        if key not in found:
            found[key] = solve_problem(system, problem, start, **changes)
    return Trajectory.stack([found[key] for key in keys])


@contextmanager
def _stage(name: str, progress: Progress | None, seconds: dict[str, float]) -> Iterator[None]:
    if progress:
        progress.stage(name)
    begun = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begun
