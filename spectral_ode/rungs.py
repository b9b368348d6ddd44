"""The rungs of a problem that are integrated: which there are, and the system with its start."""

from typing import Any

from spectral_ode import systems, weights
from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import AbstractSystem

THEORY = ("population", "reduced")


def chosen(problem: Problem, wanted: str | None) -> str:
    """The rung asked for, or else the population flow, or else the reduced ODE; raises `BadInput` where it is missing."""
    if wanted == "training":
        return wanted
    missing = systems.load(problem.system).from_problem(problem).missing(problem)
    there = [rung for rung in THEORY if rung not in missing]
    if wanted is None and there:
        return there[0]
    if wanted is None or wanted in missing:
        reason = missing[wanted or "reduced"]
        raise BadInput(f"there is no {wanted or 'theory'} rung here ({reason}); use --rung {' or '.join([*there, 'training'])}")
    return wanted


def made(problem: Problem, rung: str) -> tuple[AbstractSystem, Any]:
    """The system of a rung and its state at the start."""
    system = systems.load(problem.system).from_problem(problem)
    system = system.population() if rung == "population" else system
    return system, system.project(weights.draw(problem))
