"""Sections of a problem of several regression tasks in one context, learned by full softmax attention (arXiv:2402.19442).

I tasks: task i lives in d_i coordinates of every token x ~ N(0, I_d) and is read out in output i, y_i = g_i.x_i + noise with
g_i ~ N(0, lambda_i I), fresh in every context, so that its signal is S_i = E (g_i.q_i)^2 = lambda_i d_i (as in the authors' code).

Starts of the factors O, V, K, Q. As in the authors' code, decomposable: K = Q = s L^{-3/4} on every block, V_Y = O^T = s L^{-3/4} on every
task and `boost` times that for the head which the task prefers. `spread` multiplies each by its own random e^{spread n}, n ~ N(0, 1).
`imbalance` is the value of o^2 - v^2 of every head and task, which the flow conserves, with o v as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spectral_ode.sections.checks import Number, at_least, documented, moderate, not_above, one_of, require

if TYPE_CHECKING:
    from spectral_ode.problem import Problem


@dataclass(frozen=True, kw_only=True)
class MultiTask:
    """Several regressions at once: y_i = g_i.x_i + noise on disjoint blocks of coordinates."""

    kind: Literal["multi-task"] = documented("multi-task", "the kind of task")
    dimensions: tuple[int, ...] = documented((10, 10, 10), "dimensions d_i of the tasks, comma separated")
    dimension: int = documented(0, "token dimension d, which the task dimensions must add up to; 0: their sum")
    signal: tuple[float, ...] = documented((1.0,), "variances lambda_i of the entries of g_i; one value: the same for all tasks")
    context: int = documented(100, "context length N: labelled tokens before the query")
    noise: float = documented(0.0, "standard deviation of the noise on the context labels (the query's label has none)")
    tested: tuple[int, ...] = documented((), "context lengths at which the heads are tested too, beside the one they are trained at")

    def __post_init__(self) -> None:
        require(len(self.dimensions) > 0, "task.dimensions is empty, but it needs at least one task")
        for d in self.dimensions:
            require(1 <= d <= 10_000, f"an entry of task.dimensions is {d}, but it must lie between 1 and 10000")
        total = sum(self.dimensions)
        require(
            self.dimension in (0, total),
            f"task.dimension is {self.dimension}, but task.dimensions add up to {total}; give the blocks of all coordinates, or none",
        )
        tasks = len(self.dimensions)
        require(len(self.signal) in (1, tasks), f"task.signal has {len(self.signal)} values, but it needs one, or one per task: {tasks}")
        for value in self.signal:
            moderate("an entry of task.signal", value, 1e-6, 1e6)
        require(2 <= self.context <= 100_000, f"task.context is {self.context}, but softmax attention needs between 2 and 100000 tokens")
        not_above("task.noise", self.noise, 1e6)
        for length in self.tested:
            require(2 <= length <= 100_000, f"an entry of task.tested is {length}, but it must lie between 2 and 100000")

    @property
    def signals(self) -> tuple[Number, ...]:
        """The variances lambda_i of all tasks."""
        return self.signal if len(self.signal) > 1 else self.signal * len(self.dimensions)

    def check(self, problem: Problem) -> None:
        """What must hold between the sections."""
        attention, start, d = problem.attention, problem.start, sum(self.dimensions)
        assert isinstance(attention, FullHeads)
        require(problem.units == "paper", "units is 'script', but that is for the script of linear attention; use --units paper")
        training = problem.training
        assert isinstance(training, EpisodeTraining)
        require(
            not (start.kind == "random" and training.estimator == "integrated"),
            "training.estimator is 'integrated', but a random start has keys that see labels; use --training.estimator controlled",
        )
        if isinstance(start, DecomposableStart):
            require(
                attention.width(self) >= d,
                f"attention.embedding is {attention.embedding}, but a decomposable start of {d} coordinates needs at least {d}",
            )
            require(
                len(start.preferred) in (0, len(self.dimensions)),
                f"start.preferred names {len(start.preferred)} heads for {len(self.dimensions)} tasks; name one for each, or none",
            )
            for head in start.preferred:
                require(1 <= head <= attention.heads, f"start.preferred has head {head}, but there are heads 1 to {attention.heads}")


@dataclass(frozen=True, kw_only=True)
class FullHeads:
    """Softmax attention with full output, value, key and query matrices."""

    kind: Literal["full"] = documented("full", "the kind of attention: key and query separate, merged, or all four matrices")
    heads: int = documented(3, "number of heads H")
    embedding: int = documented(0, "embedding dimension d_e of each head; 0: as many as a token has entries, d + I")
    tied: bool = documented(False, "keep O = V_Y^T and K = Q, by descending the mean of their gradients (same flow, no imbalance)")
    activation: Literal["softmax"] = documented("softmax", "what is done to the scores")

    def __post_init__(self) -> None:
        at_least("attention.heads", self.heads, 1)
        at_least("attention.embedding", self.embedding, 0)
        one_of("attention.activation", self.activation, ("softmax",))

    def width(self, task: MultiTask) -> int:
        """d_e."""
        return self.embedding or sum(task.dimensions) + len(task.dimensions)


@dataclass(frozen=True, kw_only=True)
class DecomposableStart:
    """A start on the spectral manifold, which the flow never leaves."""

    kind: Literal["decomposable"] = documented("decomposable", "the kind of start")
    scale: float = documented(1.0, "start scale: factors in units of L^{-3/4}, the authors' choice")
    preferred: tuple[int, ...] = documented((), "the head that each task prefers, from 1; none: task i prefers head i")
    boost: float = documented(2.0, "how much larger o and v of the preferred head are")
    spread: float = documented(0.0, "random factors e^{spread n}, n ~ N(0, 1), on every factor")
    imbalance: float = documented(0.0, "o^2 - v^2 of every head and task")
    omega: float | None = documented(None, "omega-bar of every head and task, in place of the scale's")
    mu: float | None = documented(None, "mu of the preferred heads (the others have it over boost^2), in place of the scale's")

    def __post_init__(self) -> None:
        moderate("start.scale", self.scale, 1e-6, 1e3)
        moderate("start.boost", self.boost, 1e-3, 1e3)
        require(0 <= self.spread <= 3, f"start.spread is {self.spread:g}, but it must lie between 0 and 3")
        require(abs(self.imbalance) <= 10, f"start.imbalance is {self.imbalance:g}, but it must lie between -10 and 10")
        for name in ("omega", "mu"):
            if (value := getattr(self, name)) is not None:
                moderate(f"start.{name}", value, 1e-12, 1e2)


@dataclass(frozen=True, kw_only=True)
class BalancedStart:
    """A random start with K = Q and O = V_Y^T: every omega and mu is positive, and balance is conserved."""

    kind: Literal["balanced"] = documented("balanced", "the kind of start")
    scale: float = documented(0.04, "start scale: standard deviation of the entries")

    def __post_init__(self) -> None:
        moderate("start.scale", self.scale, 1e-6, 1e3)


@dataclass(frozen=True, kw_only=True)
class EpisodeTraining:
    """Descent of all four matrices on fresh contexts, each with several queries."""

    kind: Literal["episodes"] = documented("episodes", "the kind of training")
    contexts: int = documented(256, "fresh contexts in each step")
    queries: int = documented(8, "queries per context: 1, or an even number of antithetic ones, q and -q")
    estimator: Literal["sampled", "integrated", "controlled"] = documented(
        "integrated", "raw squared errors; tasks and noise integrated out in closed form (while K_Y = 0); or both, for any K_Y"
    )
    normals: Literal["threefry", "box-muller"] = documented("threefry", "how normal numbers are made; box-muller is faster")
    learning_rate: float = documented(0.02, "learning rate eta; flow time is the sum of eta over steps")
    changes: tuple[float, ...] = documented((), "flow times at which the learning rate changes")
    rates: tuple[float, ...] = documented((), "the learning rates from these times on")
    dtype: Literal["float32", "float64"] = documented("float32", "float type of the training")
    test_contexts: int = documented(2000, "contexts of the test set, which the recorded loss is measured on")

    def __post_init__(self) -> None:
        at_least("training.contexts", self.contexts, 1)
        require(
            self.queries == 1 or (self.queries >= 2 and self.queries % 2 == 0),
            f"training.queries is {self.queries}, but it must be 1 or an even number: antithetic queries come in pairs",
        )
        one_of("training.estimator", self.estimator, ("sampled", "integrated", "controlled"))
        one_of("training.normals", self.normals, ("threefry", "box-muller"))
        one_of("training.dtype", self.dtype, ("float32", "float64"))
        at_least("training.test_contexts", self.test_contexts, 1)
        for rate in (self.learning_rate, *self.rates):
            moderate("training.learning_rate", rate, 1e-12, 1e12)
        require(
            len(self.changes) == len(self.rates) and list(self.changes) == sorted({*self.changes, 0.0} - {0.0}),
            f"training.changes and training.rates are {list(self.changes)} and {list(self.rates)}, "
            "but they must be equally long, the times growing",
        )

    def segments(self, end: float) -> tuple[tuple[float, int], ...]:
        """Learning rates with the number of steps that have them, up to a flow time."""
        starts = [0.0, *(change for change in self.changes if change < end)]
        pieces = zip((self.learning_rate, *self.rates), starts, [*starts[1:], end], strict=False)
        return tuple((rate, max(1, round((until - begin) / rate))) for rate, begin, until in pieces)
