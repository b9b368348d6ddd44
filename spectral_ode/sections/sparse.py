"""Sections of a problem of sparse regression in context (arXiv:2408.04532): the clock is depth, or the training of a transformer.

Three things can be asked of one task. A constructed transformer whose layers are steps of descent (training.kind depth: nothing is
trained, flow time is learning rate x layer). The gains and the step size of a two-layer construction under descent (training.kind gains). A
linear or softmax transformer trained with Adam on fresh tasks (training.kind adam: the clock counts training steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from spectral_ode.sections.checks import at_least, documented, moderate, not_above, one_of, require

if TYPE_CHECKING:
    from spectral_ode.problem import Problem


@dataclass(frozen=True, kw_only=True)
class SparseRegression:
    """In-context regression on a few of many coordinates: x ~ N(0, I), y = <w, x> + noise, w with few non-zeros on a random support."""

    kind: Literal["sparse-regression"] = documented("sparse-regression", "the kind of task")
    dimension: int = documented(32, "coordinates d of a token")
    sparsity: int = documented(4, "non-zero coordinates s of a task")
    context: int = documented(256, "context length n: labelled tokens")
    noise: float = documented(0.5, "standard deviation of the noise on the context labels")
    coefficients: Literal["signs", "normal"] = documented("signs", "non-zeros of a task: +-1, or N(0, 1)")

    def __post_init__(self) -> None:
        require(1 <= self.dimension <= 4096, f"task.dimension is {self.dimension}, but it must lie between 1 and 4096")
        require(
            1 <= self.sparsity <= self.dimension,
            f"task.sparsity is {self.sparsity}, but it must lie between 1 and the dimension {self.dimension}",
        )
        require(1 <= self.context <= 10**6, f"task.context is {self.context}, but it must lie between 1 and 1000000")
        not_above("task.noise", self.noise, 1e6)
        one_of("task.coefficients", self.coefficients, ("signs", "normal"))

    def check(self, problem: Problem) -> None:
        """What must hold between the sections."""
        attention, training, start = problem.attention, problem.training, problem.start
        require(problem.units == "paper", "units is 'script', but that is for the script of linear attention; use --units paper")
        trained = isinstance(training, AdamTraining)
        require(
            trained != isinstance(attention, Constructed),
            f"training.kind is {training.kind}, but attention.kind {attention.kind} goes with "
            + ("depth or gains; use --training.kind depth" if trained else "adam; use --training.kind adam"),
        )
        wanted = "gains" if isinstance(training, GainsTraining) else "random" if trained else "zero"
        require(
            start.kind == wanted,
            f"start.kind is {start.kind}, but training.kind {training.kind} begins at {wanted}; use --start.kind {wanted}",
        )
        if isinstance(training, DepthTraining):
            layers = problem.end / training.learning_rate
            require(
                1 - 1e-9 <= layers <= 10**5,
                f"horizon {problem.horizon:g} at step size {training.learning_rate:g} is {layers:.3g} layers of descent, "
                "but 1 to 100000 are allowed",
            )
            require(problem.runs == 1, f"runs is {problem.runs}, but depth is one run over many tasks; use --runs 1 and --training.tasks")
            require(
                self.context >= self.sparsity,
                f"task.context is {self.context}, but the support of {self.sparsity} coordinates needs at least as many tokens",
            )


@dataclass(frozen=True, kw_only=True)
class Constructed:
    """The transformer that is the algorithm: one head per coordinate in the first layer, one head in every later one."""

    heads: ClassVar[int] = 1  # of the later layers
    kind: Literal["constructed"] = documented("constructed", "a transformer by construction")
    activation: Literal["linear"] = documented("linear", "what is done to the scores")

    def __post_init__(self) -> None:
        one_of("attention.activation", self.activation, ("linear",))


@dataclass(frozen=True, kw_only=True)
class LinearLayers:
    """A transformer of linear attention only, all matrices trained."""

    kind: Literal["linear-transformer"] = documented("linear-transformer", "layers of linear attention")
    layers: int = documented(3, "number of layers")
    heads: int = documented(4, "number of heads H of every layer")
    activation: Literal["linear"] = documented("linear", "what is done to the scores")

    def __post_init__(self) -> None:
        _stack(self.layers, self.heads)
        one_of("attention.activation", self.activation, ("linear",))


@dataclass(frozen=True, kw_only=True)
class SoftmaxLayers:
    """A transformer with norms, softmax attention and MLPs."""

    kind: Literal["softmax-transformer"] = documented("softmax-transformer", "blocks of softmax attention and MLP")
    layers: int = documented(3, "number of blocks")
    heads: int = documented(4, "number of heads H of every block")
    width: int = documented(32, "embedding dimension D of a softmax transformer")
    expand: int = documented(2, "width of the MLPs in units of D")
    activation: Literal["softmax"] = documented("softmax", "what is done to the scores")

    def __post_init__(self) -> None:
        _stack(self.layers, self.heads)
        at_least("attention.expand", self.expand, 1)
        require(
            self.width >= 1 and self.width % self.heads == 0,
            f"attention.width is {self.width}, but it must be a multiple of the number of heads {self.heads}",
        )
        one_of("attention.activation", self.activation, ("softmax",))


def _stack(layers: int, heads: int) -> None:
    require(1 <= layers <= 100, f"attention.layers is {layers}, but it must lie between 1 and 100")
    require(1 <= heads <= 1000, f"attention.heads is {heads}, but it must lie between 1 and 1000")


@dataclass(frozen=True, kw_only=True)
class ZeroStart:
    """The start of every descent in depth: nothing is estimated yet."""

    kind: Literal["zero"] = documented("zero", "the kind of start")
    scale: float = documented(0.01, "what counts as small along the way: sets the solver's tolerance")

    def __post_init__(self) -> None:
        moderate("start.scale", self.scale, 1e-12, 1e3)


@dataclass(frozen=True, kw_only=True)
class GainsStart:
    """Gains of the heads, evenly spaced, and the step size."""

    kind: Literal["gains"] = documented("gains", "the kind of start")
    scale: float = documented(0.1, "largest gain at the start")
    ratio: float = documented(1.0, "smallest gain over the largest; 1: all equal")
    step: float = documented(0.1, "step size eta at the start; from a negative one nothing is ever learned")

    def __post_init__(self) -> None:
        moderate("start.scale", self.scale, 1e-6, 10.0)
        require(0 < self.ratio <= 1, f"start.ratio is {self.ratio:g}, but it must lie above 0 (a head at zero never wakes) and up to 1")
        moderate("start.step", self.step, 1e-6, 10.0)


@dataclass(frozen=True, kw_only=True)
class DepthTraining:
    """No training: the layers of the construction are steps of descent."""

    kind: Literal["depth"] = documented("depth", "the kind of training")
    tasks: int = documented(32, "tasks: averaged over in depth, fresh ones in each step of a training")
    learning_rate: float = documented(0.25, "step size eta of a layer; flow time is eta x layer")
    dtype: Literal["float32", "float64"] = documented("float64", "float type of the training")

    def __post_init__(self) -> None:
        _descent(self.tasks, self.learning_rate, self.dtype, ("float32", "float64"))


@dataclass(frozen=True, kw_only=True)
class GainsTraining:
    """Descent of gains and step size on fresh tasks."""

    kind: Literal["gains"] = documented("gains", "the kind of training")
    tasks: int = documented(256, "tasks: averaged over in depth, fresh ones in each step of a training")
    learning_rate: float = documented(0.01, "learning rate; flow time is learning rate x step")
    dtype: Literal["float32", "float64"] = documented("float32", "float type of the training")

    def __post_init__(self) -> None:
        _descent(self.tasks, self.learning_rate, self.dtype, ("float32", "float64"))


@dataclass(frozen=True, kw_only=True)
class AdamTraining:
    """Adam on fresh tasks, in float32; the horizon counts steps."""

    kind: Literal["adam"] = documented("adam", "the kind of training")
    tasks: int = documented(128, "tasks: averaged over in depth, fresh ones in each step of a training")
    queries: int = documented(8, "queries per task")
    learning_rate: float = documented(5e-3, "largest learning rate, after the warm-up")
    test_tasks: int = documented(4000, "tasks of the test set, which the recorded risk is measured on")
    dtype: Literal["float32"] = documented("float32", "float type of the training")

    def __post_init__(self) -> None:
        _descent(self.tasks, self.learning_rate, self.dtype, ("float32",))
        require(1 <= self.queries <= 10_000, f"training.queries is {self.queries}, but it must lie between 1 and 10000")
        require(2 <= self.test_tasks <= 10**6, f"training.test_tasks is {self.test_tasks}, but it must lie between 2 and 1000000")

    def segments(self, end: float) -> tuple[tuple[float, int], ...]:
        """The clock counts steps."""
        return ((1.0, max(1, round(end))),)


def _descent(tasks: int, learning_rate: float, dtype: str, types: tuple[str, ...]) -> None:
    require(1 <= tasks <= 10**6, f"training.tasks is {tasks}, but it must lie between 1 and 1000000")
    moderate("training.learning_rate", learning_rate, 1e-12, 1e12)
    one_of("training.dtype", dtype, types)
