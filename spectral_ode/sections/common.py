"""Sections that every problem has: how it is integrated, and its seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spectral_ode.sections.checks import above_zero, at_least, documented, one_of, require


@dataclass(frozen=True, kw_only=True)
class Solver:
    """How the reduced and the population flow are integrated, in float64."""

    name: Literal["tsit5", "dopri5", "dopri8", "kvaerno5"] = documented("dopri8", "Diffrax solver")
    rtol: float = documented(1e-8, "relative tolerance")
    atol: float | None = documented(None, "absolute tolerance; unset: rtol x start.scale")
    max_steps: int = documented(1_000_000, "most steps of one solve")
    steady: bool = documented(False, "stop at the steady state behind the last phase")

    def __post_init__(self) -> None:
        one_of("solver.name", self.name, ("tsit5", "dopri5", "dopri8", "kvaerno5"))
        require(1e-13 <= self.rtol <= 1e-2, f"solver.rtol is {self.rtol:g}, but it must lie between 1e-13 and 1e-2")
        if self.atol is not None:
            above_zero("solver.atol", self.atol)
        at_least("solver.max_steps", self.max_steps, 1, 10**9)


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Seeds of the independent streams of randomness; run number r adds r to each."""

    start: int = documented(0, "seed of the initial weights")
    task: int = documented(0, "seed of the tasks w")
    data: int = documented(0, "seed of the tokens x")
    noise: int = documented(0, "seed of the label noise")

    def __post_init__(self) -> None:
        for name in ("start", "task", "data", "noise"):
            require(0 <= getattr(self, name) < 2**31, f"seed.{name} is {getattr(self, name)}, but it must lie between 0 and 2147483647")
