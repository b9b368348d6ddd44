"""The experiment, described once: plain frozen data that the theory and the training both read.

Nothing here imports jax, so that `--help`, `list` and every complaint about bad input answer at once. A problem that exists is
valid: each section checks itself when it is made and raises `BadInput`, whose text is one sentence.

Time. Flow time is the cumulative learning rate. Linear attention descends half the mean squared error, so that one step of learning rate
eta is an Euler step of length eta of the paper's flow tau dW/dt = -(1/2) dL/dW with tau = 1; softmax attention descends the loss itself,
summed over tasks.

Units. The authors' script of linear attention leaves out the 1/N of the scores and the half of the loss. A weight W there is alpha W in
the paper's units, alpha^2 = N for merged and N^(2/3) for separate key and query, and descent with its learning rate lr is, step by step,
descent with eta = 2 alpha^2 lr here. With units = "script", `start.scale`, `training.learning_rate` and `horizon` (epochs) are read as the
script reads them; everything else, the training included, works in the paper's units. Over all context lengths the script divides by the
number of tokens n + 1 instead of n, and a softmax is not divided at all: then alpha = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from spectral_ode.sections.checks import BadInput as BadInput
from spectral_ode.sections.checks import Number, above_zero, at_least, documented, one_of, require
from spectral_ode.sections.common import Seed, Solver
from spectral_ode.sections.episodes import BalancedStart, DecomposableStart, EpisodeTraining, FullHeads, MultiTask
from spectral_ode.sections.sequences import MergedHeads, Regression, SeparateHeads, Start, Training
from spectral_ode.sections.sparse import (
    AdamTraining,
    Constructed,
    DepthTraining,
    GainsStart,
    GainsTraining,
    LinearLayers,
    SoftmaxLayers,
    SparseRegression,
    ZeroStart,
)

# The kinds of the other sections that go with a kind of task; the first one is taken unless another is asked for.
COMPANIONS: dict[type, dict[str, tuple[type, ...]]] = {
    Regression: {"attention": (SeparateHeads, MergedHeads), "start": (Start,), "training": (Training,)},
    MultiTask: {"attention": (FullHeads,), "start": (DecomposableStart, BalancedStart, Start), "training": (EpisodeTraining,)},
    SparseRegression: {
        "attention": (Constructed, LinearLayers, SoftmaxLayers),
        "start": (ZeroStart, GainsStart, Start),
        "training": (DepthTraining, GainsTraining, AdamTraining),
    },
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One experiment: a task, an attention, a start, a horizon; how to train it and how to integrate it."""

    title: str = documented("", "one line on what the experiment shows")
    reference: str = documented("", "paper and figure")
    headline: bool = documented(False, "part of a run without a preset")
    system: str = documented("linear.separate", "reduced dynamics; see the list command")
    units: Literal["paper", "script"] = documented("paper", "units of start.scale, training.learning_rate and horizon")
    horizon: float = documented(60_000.0, "flow time at which everything ends (units script: epochs)")
    points: int = documented(800, "number of recorded times")
    spacing: Literal["linear", "log"] = documented("linear", "spacing of the recorded times")
    runs: int = documented(1, "number of runs, each with its own seeds")
    task: Regression | MultiTask | SparseRegression = field(default_factory=Regression)
    attention: SeparateHeads | MergedHeads | FullHeads | Constructed | LinearLayers | SoftmaxLayers = field(default_factory=SeparateHeads)
    start: Start | DecomposableStart | BalancedStart | ZeroStart | GainsStart = field(default_factory=Start)
    training: Training | EpisodeTraining | DepthTraining | GainsTraining | AdamTraining = field(default_factory=Training)
    solver: Solver = field(default_factory=Solver)
    seed: Seed = field(default_factory=Seed)

    def __post_init__(self) -> None:
        above_zero("horizon", self.horizon)
        require(2 <= self.points <= 10**6, f"points is {self.points}, but it must lie between 2 and 1000000")
        one_of("spacing", self.spacing, ("linear", "log"))
        one_of("units", self.units, ("paper", "script"))
        at_least("runs", self.runs, 1)
        for name, classes in COMPANIONS[type(self.task)].items():
            section, kinds = getattr(self, name), [option.kind for option in classes]
            require(
                isinstance(section, classes),
                f"{name}.kind is {section.kind}, but task.kind {self.task.kind} goes with {' or '.join(kinds)}; "
                f"use --{name}.kind {kinds[0]}",
            )
        self.task.check(self)
        steps = sum(self.end / eta for eta, _ in self.segments) / len(self.segments)
        require(
            1 - 1e-9 <= steps <= 1e9,
            f"horizon {self.horizon:g} at learning rate {self.training.learning_rate:g} is {steps:.3g} training steps, "
            "but 1 to 1e9 are allowed",
        )
        require(
            self.atol <= 1e-2 * self.scale,
            f"solver.atol is {self.atol:g}, too coarse for start.scale {self.start.scale:g} (it moves escape times); "
            f"use at most {1e-2 * self.scale:g}",
        )

    @property
    def regression(self) -> Regression:
        """The task, where it is linear regression on sequences."""
        assert isinstance(self.task, Regression)
        return self.task

    @property
    def sequence_training(self) -> Training:
        """The training, where it is on such sequences."""
        assert isinstance(self.training, Training)
        return self.training

    @property
    def sparse_training(self) -> DepthTraining | GainsTraining | AdamTraining:
        """The training, where it is on sparse regression."""
        assert isinstance(self.training, DepthTraining | GainsTraining | AdamTraining)
        return self.training

    @property
    def transformer(self) -> LinearLayers | SoftmaxLayers:
        """The attention, where it is a trained transformer's."""
        assert isinstance(self.attention, LinearLayers | SoftmaxLayers)
        return self.attention

    @property
    def alpha(self) -> float:
        """A weight as given times alpha is the weight in the paper's units."""
        if self.units == "paper" or self.attention.activation == "softmax" or self.regression.lengths == "all":
            return 1.0
        return self.task.context ** (1 / 2 if self.attention.kind == "merged" else 1 / 3)

    @property
    def eta(self) -> Number:
        """Flow time of one training step (of the first, where the learning rate changes)."""
        return self.training.learning_rate * (1.0 if self.units == "paper" else 2 * self.alpha**2)

    @property
    def scale(self) -> Number:
        """Size of the weights at the start, in the paper's units."""
        if isinstance(self.start, DecomposableStart):
            return self.start.scale * self.task.context**-0.75
        return self.alpha * self.start.scale

    @property
    def end(self) -> Number:
        """Flow time at which everything ends."""
        return self.horizon * (1.0 if self.units == "paper" else self.eta)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths that the loss averages over."""
        return tuple(range(1, self.task.context + 1)) if self.regression.lengths == "all" else (self.task.context,)

    def factor(self, context: int) -> float:
        """What the sum over tokens is multiplied with when there are `context` labelled ones."""
        if self.units == "script" and self.regression.lengths == "all":
            return 1.0 / (context + 1)
        return 1.0 if self.attention.activation == "softmax" else 1.0 / context

    @property
    def atol(self) -> Number:
        """Absolute tolerance: tied to the start scale unless it was given."""
        return self.solver.rtol * self.scale if self.solver.atol is None else self.solver.atol

    @cached_property
    def segments(self) -> tuple[tuple[float, int], ...]:
        """Flow time of a step, with the number of steps that have it, in order."""
        if isinstance(self.training, EpisodeTraining | AdamTraining):
            return self.training.segments(self.end)
        return ((self.eta, round(self.end / self.eta)),)

    @cached_property
    def steps(self) -> np.ndarray:
        """Training steps at which both sides are recorded: step 0, and increasing from there."""
        ends = np.concatenate([[0], np.cumsum([count for _, count in self.segments])])
        last = ends[-1]
        if self.spacing == "log":
            grid = np.concatenate([[0.0], np.geomspace(1.0, last, self.points - 1)[:-1], [last]])
        else:
            clock = self.clock(ends) if len(self.segments) > 1 else ends  # one learning rate: evenly spaced steps
            grid = np.interp(np.linspace(0.0, clock[-1], self.points), clock, ends)
        return np.unique(np.round(grid).astype(np.int64))

    @cached_property
    def times(self) -> np.ndarray:
        """Flow times of the recorded steps."""
        return self.clock(self.steps)

    def clock(self, steps: np.ndarray) -> np.ndarray:
        """Flow times of steps."""
        time, before = np.zeros(steps.shape), 0
        for eta, count in self.segments:
            time = time + eta * np.clip(steps - before, 0, count)
            before += count
        return time
