"""The experiment, described once: plain frozen data that the theory and the training both read.

Nothing here imports jax, so that `--help`, `list` and every complaint about bad input answer at once. A problem that exists is
valid: each section checks itself when it is made and raises `BadInput`, whose text is one sentence.

Time. Training descends half the mean squared error, so that one step of learning rate eta is an Euler step of length eta of the
paper's flow tau dW/dt = -(1/2) dL/dW with tau = 1. Flow time is therefore the cumulative learning rate, t = eta * step.

Units. The authors' script leaves out the 1/N of the scores and the half of the loss. A weight W there is alpha W in the paper's units,
alpha^2 = N for merged and N^(2/3) for separate key and query, and descent with its learning rate lr is, step by step, descent with
eta = 2 alpha^2 lr here. With units = "script", `start.scale`, `training.learning_rate` and `horizon` (epochs) are read as the script reads
them; everything else, the training included, works in the paper's units. Over all context lengths the script divides by the number of
tokens n + 1 instead of n, and a softmax is not divided at all: then alpha = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np


class BadInput(ValueError):
    """A user's mistake, told in one sentence: what was given, what is allowed, what to do."""


def _documented(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise BadInput(sentence)


def _above_zero(name: str, value: float) -> None:
    _require(math.isfinite(value) and value > 0, f"{name} is {value:g}, but it must be a positive number")


def _moderate(name: str, value: float, least: float, most: float) -> None:
    """A positive number of a size that float64 can square and cube along the way."""
    _above_zero(name, value)
    _require(least <= value <= most, f"{name} is {value:g}, but it must lie between {least:g} and {most:g}")


def _at_least(name: str, value: int, least: int) -> None:
    _require(value >= least, f"{name} is {value}, but it must be a whole number of at least {least}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    _require(value in allowed, f"{name} is {value!r}, but it must be one of {', '.join(allowed)}")


@dataclass(frozen=True, kw_only=True)
class Regression:
    """In-context linear regression: x ~ N(0, Lambda), one task w ~ N(0, Sigma) per sequence, labels y_n = w.x_n + noise."""

    kind: Literal["linear-regression"] = _documented("linear-regression", "the kind of task")
    spectrum: tuple[float, ...] = _documented((0.4, 0.3, 0.2, 0.1), "eigenvalues of the token covariance, comma separated")
    context: int = _documented(31, "context length N: labelled tokens before the query")
    noise: float = _documented(0.0, "standard deviation of the noise on the context labels (the query's label has none)")
    rotation: int = _documented(0, "0: eigenvectors are the axes; n > 0: a random rotation drawn from seed n")
    prior: tuple[float, ...] = _documented((1.0,), "variances of the task w along the eigenvectors; one value: the same for all")
    lengths: Literal["full", "all"] = _documented("full", "loss at the full context, or averaged over contexts 1 to N of each sequence")
    in_context: float = _documented(1.0, "share of sequences with a task of their own; the others share one fixed task (in-weight)")

    def __post_init__(self) -> None:
        _require(len(self.spectrum) > 0, "task.spectrum is empty, but it needs at least one eigenvalue")
        for eigenvalue in self.spectrum:
            _moderate("an eigenvalue of task.spectrum", eigenvalue, 1e-6, 1e6)
        _at_least("task.context", self.context, 1)
        _require(math.isfinite(self.noise) and self.noise >= 0, f"task.noise is {self.noise:g}, but it must be zero or a positive number")
        _at_least("task.rotation", self.rotation, 0)
        for variance in self.prior:
            _moderate("a variance of task.prior", variance, 1e-6, 1e6)
        d = len(self.spectrum)
        _require(len(self.prior) in (1, d), f"task.prior has {len(self.prior)} values, but it needs one, or one per eigenvalue: {d}")
        _one_of("task.lengths", self.lengths, ("full", "all"))
        _require(0 <= self.in_context <= 1, f"task.in_context is {self.in_context:g}, but it must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SeparateHeads:
    """Attention with separate key and query weights."""

    kind: Literal["separate"] = _documented("separate", "the kind of attention: key and query separate, or merged in one matrix")
    heads: int = _documented(4, "number of heads H")
    rank: int = _documented(1, "rank R of each head's key and query")
    activation: Literal["linear", "softmax"] = _documented("linear", "what is done to the scores")

    def __post_init__(self) -> None:
        _at_least("attention.heads", self.heads, 1)
        _at_least("attention.rank", self.rank, 1)
        _one_of("attention.activation", self.activation, ("linear", "softmax"))


@dataclass(frozen=True, kw_only=True)
class MergedHeads:
    """Attention with key and query merged into one matrix."""

    kind: Literal["merged"] = _documented("merged", "the kind of attention: key and query separate, or merged in one matrix")
    heads: int = _documented(4, "number of heads H")
    activation: Literal["linear", "softmax"] = _documented("linear", "what is done to the scores")

    def __post_init__(self) -> None:
        _at_least("attention.heads", self.heads, 1)
        _one_of("attention.activation", self.activation, ("linear", "softmax"))


@dataclass(frozen=True, kw_only=True)
class Start:
    """The random start of the weights."""

    scale: float = _documented(0.01, "start scale w0")

    def __post_init__(self) -> None:
        _moderate("start.scale", self.scale, 1e-12, 1e3)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Full-parameter training on sampled sequences."""

    data: Literal["fixed", "fresh"] = _documented("fixed", "one fixed data set, or a fresh batch at every step")
    sequences: int = _documented(80_000, "sequences in the data set, or in each fresh batch")
    sampling: Literal["iid", "even", "mirrored"] = _documented(
        "iid", "independent sequences, a fixed set that covers their law evenly, or independent ones each with its mirror image"
    )
    learning_rate: float = _documented(0.2, "learning rate eta; flow time is eta x step (in the paper's units)")
    method: Literal["auto", "moments", "gram", "attention"] = _documented(
        "auto", "how the loss is evaluated: all equal, auto takes the fastest that applies"
    )
    dtype: Literal["float32", "float64"] = _documented("float32", "float type of the training")
    test_sequences: int = _documented(0, "sequences in each test set, in-weight and in-context; 0: no test")
    twin: bool = _documented(False, "train the equivalent linear network beside it, on the same data from the same start")

    def __post_init__(self) -> None:
        _one_of("training.data", self.data, ("fixed", "fresh"))
        _at_least("training.sequences", self.sequences, 1)
        _one_of("training.sampling", self.sampling, ("iid", "even", "mirrored"))
        _above_zero("training.learning_rate", self.learning_rate)
        _one_of("training.method", self.method, ("auto", "moments", "gram", "attention"))
        _one_of("training.dtype", self.dtype, ("float32", "float64"))
        _at_least("training.test_sequences", self.test_sequences, 0)
        _require(
            not (self.data == "fresh" and self.sampling == "even"),
            "training.sampling is 'even' with fresh data, but it spreads one fixed data set; use --training.sampling iid",
        )
        _require(
            not (self.data == "fresh" and self.method == "moments"),
            "training.method is 'moments' with fresh data, but moments summarize a fixed data set; use --training.method gram",
        )


@dataclass(frozen=True, kw_only=True)
class Solver:
    """How the reduced and the population flow are integrated, in float64."""

    name: Literal["tsit5", "dopri5", "dopri8", "kvaerno5"] = _documented("dopri8", "Diffrax solver")
    rtol: float = _documented(1e-8, "relative tolerance")
    atol: float | None = _documented(None, "absolute tolerance; unset: rtol x start.scale")
    max_steps: int = _documented(1_000_000, "most steps of one solve")
    steady: bool = _documented(False, "stop at the steady state behind the last phase")

    def __post_init__(self) -> None:
        _one_of("solver.name", self.name, ("tsit5", "dopri5", "dopri8", "kvaerno5"))
        _require(1e-13 <= self.rtol <= 1e-2, f"solver.rtol is {self.rtol:g}, but it must lie between 1e-13 and 1e-2")
        if self.atol is not None:
            _above_zero("solver.atol", self.atol)
        _at_least("solver.max_steps", self.max_steps, 1)


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Seeds of the independent streams of randomness; run number r adds r to each."""

    start: int = _documented(0, "seed of the initial weights")
    task: int = _documented(0, "seed of the tasks w")
    data: int = _documented(0, "seed of the tokens x")
    noise: int = _documented(0, "seed of the label noise")

    def __post_init__(self) -> None:
        for name in ("start", "task", "data", "noise"):
            _require(0 <= getattr(self, name) < 2**31, f"seed.{name} is {getattr(self, name)}, but it must lie between 0 and 2147483647")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One experiment: a task, an attention, a start, a horizon; how to train it and how to integrate it."""

    title: str = _documented("", "one line on what the experiment shows")
    reference: str = _documented("", "paper and figure")
    headline: bool = _documented(False, "part of a run without a preset")
    system: str = _documented("linear.separate", "reduced dynamics; see the list command")
    units: Literal["paper", "script"] = _documented("paper", "units of start.scale, training.learning_rate and horizon")
    horizon: float = _documented(60_000.0, "flow time at which everything ends (units script: epochs)")
    points: int = _documented(800, "number of recorded times")
    spacing: Literal["linear", "log"] = _documented("linear", "spacing of the recorded times")
    runs: int = _documented(1, "number of runs, each with its own seeds")
    task: Regression = field(default_factory=Regression)
    attention: SeparateHeads | MergedHeads = field(default_factory=SeparateHeads)
    start: Start = field(default_factory=Start)
    training: Training = field(default_factory=Training)
    solver: Solver = field(default_factory=Solver)
    seed: Seed = field(default_factory=Seed)

    def __post_init__(self) -> None:
        _above_zero("horizon", self.horizon)
        _require(2 <= self.points <= 10**6, f"points is {self.points}, but it must lie between 2 and 1000000")
        _one_of("spacing", self.spacing, ("linear", "log"))
        _one_of("units", self.units, ("paper", "script"))
        _at_least("runs", self.runs, 1)
        d, eta = len(self.task.spectrum), self.training.learning_rate
        if isinstance(self.attention, SeparateHeads):
            _require(self.attention.rank <= d, f"attention.rank is {self.attention.rank}, but it can be at most the token dimension {d}")
        _require(
            not (self.attention.activation == "softmax" and self.training.method in ("moments", "gram")),
            f"training.method is {self.training.method!r} with softmax attention, but that is for linear attention; use attention or auto",
        )
        _require(
            not self.training.twin or (self.attention.activation == "linear" and getattr(self.attention, "rank", 1) == 1),
            "training.twin is true, but only linear attention with merged, or rank-one separate, key and query has such a network",
        )
        _require(
            1 - 1e-9 <= self.horizon / (self.eta if self.units == "paper" else 1.0) <= 1e9,
            f"horizon {self.horizon:g} at learning rate {eta:g} is {self.end / self.eta:.3g} training steps, but 1 to 1e9 are allowed",
        )
        _require(
            self.atol <= 1e-2 * self.scale,
            f"solver.atol is {self.atol:g}, too coarse for start.scale {self.start.scale:g} (it moves escape times); "
            f"use at most {1e-2 * self.scale:g}",
        )

    @property
    def alpha(self) -> float:
        """A weight as given times alpha is the weight in the paper's units."""
        if self.units == "paper" or self.attention.activation == "softmax" or self.task.lengths == "all":
            return 1.0
        return self.task.context ** (1 / 2 if self.attention.kind == "merged" else 1 / 3)

    @property
    def eta(self) -> float:
        """Flow time of one training step."""
        return self.training.learning_rate * (1.0 if self.units == "paper" else 2 * self.alpha**2)

    @property
    def scale(self) -> float:
        """Start scale in the paper's units."""
        return self.alpha * self.start.scale

    @property
    def end(self) -> float:
        """Flow time at which everything ends."""
        return self.horizon * (1.0 if self.units == "paper" else self.eta)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths that the loss averages over."""
        return tuple(range(1, self.task.context + 1)) if self.task.lengths == "all" else (self.task.context,)

    def factor(self, context: int) -> float:
        """What the sum over tokens is multiplied with when there are `context` labelled ones."""
        if self.units == "script" and self.task.lengths == "all":
            return 1.0 / (context + 1)
        return 1.0 if self.attention.activation == "softmax" else 1.0 / context

    @property
    def atol(self) -> float:
        """Absolute tolerance: tied to the start scale unless it was given."""
        return self.solver.rtol * self.scale if self.solver.atol is None else self.solver.atol

    @cached_property
    def steps(self) -> np.ndarray:
        """Training steps at which both sides are recorded: step 0, and increasing from there."""
        last = round(self.end / self.eta)
        if self.spacing == "log":
            grid = np.concatenate([[0.0], np.geomspace(1.0, last, self.points - 1)[:-1], [last]])
        else:
            grid = np.linspace(0.0, last, self.points)
        return np.unique(np.round(grid).astype(np.int64))

    @cached_property
    def times(self) -> np.ndarray:
        """Flow times of the recorded steps."""
        return self.eta * self.steps
