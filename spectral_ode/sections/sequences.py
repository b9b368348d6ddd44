"""Sections of a problem of in-context linear regression on sequences (arXiv:2501.16265)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spectral_ode.sections.checks import at_least, documented, moderate, not_above, one_of, require

if TYPE_CHECKING:
    from spectral_ode.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Regression:
    """In-context linear regression: x ~ N(0, Lambda), one task w ~ N(0, Sigma) per sequence, labels y_n = w.x_n + noise."""

    kind: Literal["linear-regression"] = documented("linear-regression", "the kind of task")
    spectrum: tuple[float, ...] = documented((0.4, 0.3, 0.2, 0.1), "eigenvalues of the token covariance, comma separated")
    context: int = documented(31, "context length N: labelled tokens before the query")
    noise: float = documented(0.0, "standard deviation of the noise on the context labels (the query's label has none)")
    rotation: int = documented(0, "0: eigenvectors are the axes; n > 0: a random rotation drawn from seed n")
    prior: tuple[float, ...] = documented((1.0,), "variances of the task w along the eigenvectors; one value: the same for all")
    lengths: Literal["full", "all"] = documented("full", "loss at the full context, or averaged over contexts 1 to N of each sequence")
    in_context: float = documented(1.0, "share of sequences with a task of their own; the others share one fixed task (in-weight)")

    def __post_init__(self) -> None:
        require(len(self.spectrum) > 0, "task.spectrum is empty, but it needs at least one eigenvalue")
        for eigenvalue in self.spectrum:
            moderate("an eigenvalue of task.spectrum", eigenvalue, 1e-6, 1e6)
        at_least("task.context", self.context, 1)
        not_above("task.noise", self.noise, 1e6)
        at_least("task.rotation", self.rotation, 0, 2**31 - 1)
        for variance in self.prior:
            moderate("a variance of task.prior", variance, 1e-6, 1e6)
        d = len(self.spectrum)
        require(len(self.prior) in (1, d), f"task.prior has {len(self.prior)} values, but it needs one, or one per eigenvalue: {d}")
        one_of("task.lengths", self.lengths, ("full", "all"))
        require(0 <= self.in_context <= 1, f"task.in_context is {self.in_context:g}, but it must lie between 0 and 1")

    def check(self, problem: Problem) -> None:
        """What must hold between the sections."""
        attention, training, d = problem.attention, problem.training, len(self.spectrum)
        assert isinstance(attention, SeparateHeads | MergedHeads)
        assert isinstance(training, Training)
        rank = attention.rank if isinstance(attention, SeparateHeads) else 1
        require(rank <= d, f"attention.rank is {rank}, but it can be at most the token dimension {d}")
        require(
            not (attention.activation == "softmax" and training.method in ("moments", "gram")),
            f"training.method is {training.method!r} with softmax attention, but that is for linear attention; use attention or auto",
        )
        require(
            not training.twin or (attention.activation == "linear" and rank == 1),
            "training.twin is true, but only linear attention with merged, or rank-one separate, key and query has such a network",
        )


@dataclass(frozen=True, kw_only=True)
class SeparateHeads:
    """Attention with separate key and query weights."""

    kind: Literal["separate"] = documented("separate", "the kind of attention: key and query separate, or merged in one matrix")
    heads: int = documented(4, "number of heads H")
    rank: int = documented(1, "rank R of each head's key and query")
    activation: Literal["linear", "softmax"] = documented("linear", "what is done to the scores")

    def __post_init__(self) -> None:
        at_least("attention.heads", self.heads, 1)
        at_least("attention.rank", self.rank, 1)
        one_of("attention.activation", self.activation, ("linear", "softmax"))


@dataclass(frozen=True, kw_only=True)
class MergedHeads:
    """Attention with key and query merged into one matrix."""

    kind: Literal["merged"] = documented("merged", "the kind of attention: key and query separate, or merged in one matrix")
    heads: int = documented(4, "number of heads H")
    activation: Literal["linear", "softmax"] = documented("linear", "what is done to the scores")

    def __post_init__(self) -> None:
        at_least("attention.heads", self.heads, 1)
        one_of("attention.activation", self.activation, ("linear", "softmax"))


@dataclass(frozen=True, kw_only=True)
class Start:
    """A random start of all weights."""

    kind: Literal["random"] = documented("random", "the kind of start")
    scale: float = documented(0.01, "start scale w0")

    def __post_init__(self) -> None:
        moderate("start.scale", self.scale, 1e-12, 1e3)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Full-parameter training on sampled sequences."""

    kind: Literal["sequences"] = documented("sequences", "the kind of training")
    data: Literal["fixed", "fresh"] = documented("fixed", "one fixed data set, or a fresh batch at every step")
    sequences: int = documented(80_000, "sequences in the data set, or in each fresh batch")
    sampling: Literal["iid", "even", "mirrored"] = documented(
        "iid", "independent sequences, a fixed set that covers their law evenly, or independent ones each with its mirror image"
    )
    learning_rate: float = documented(0.2, "learning rate eta; flow time is eta x step (in the paper's units)")
    method: Literal["auto", "moments", "gram", "attention"] = documented(
        "auto", "how the loss is evaluated: all equal, auto takes the fastest that applies"
    )
    dtype: Literal["float32", "float64"] = documented("float32", "float type of the training")
    test_sequences: int = documented(0, "sequences in each test set, in-weight and in-context; 0: no test")
    twin: bool = documented(False, "train the equivalent linear network beside it, on the same data from the same start")

    def __post_init__(self) -> None:
        one_of("training.data", self.data, ("fixed", "fresh"))
        at_least("training.sequences", self.sequences, 1, 10**7)
        one_of("training.sampling", self.sampling, ("iid", "even", "mirrored"))
        moderate("training.learning_rate", self.learning_rate, 1e-12, 1e12)
        one_of("training.method", self.method, ("auto", "moments", "gram", "attention"))
        one_of("training.dtype", self.dtype, ("float32", "float64"))
        at_least("training.test_sequences", self.test_sequences, 0, 10**7)
        require(
            not (self.data == "fresh" and self.sampling == "even"),
            "training.sampling is 'even' with fresh data, but it spreads one fixed data set; use --training.sampling iid",
        )
        require(
            not (self.data == "fresh" and self.method == "moments"),
            "training.method is 'moments' with fresh data, but moments summarize a fixed data set; use --training.method gram",
        )
