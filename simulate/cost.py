"""What a training costs, as the compiler counts it: operations of a step, and memory of each device.

Nothing is run: the program of the training is compiled, and XLA's own cost and memory analysis are read. A step is counted piece by piece,
since XLA counts the inside of a loop once; the memory is that of the whole program, on one device.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from simulate import adam, episode_training, gains, in_context, sequences
from simulate.descent import begin, lower, lower_slope
from simulate.estimators import CHUNK
from simulate.loss import piece_of
from simulate.mesh import Deal
from simulate.tasks import mirrors
from spectral_ode.problem import AdamTraining, BadInput, EpisodeTraining, GainsTraining, Problem, Training
from spectral_ode.systems.sparse.data import Law
from spectral_ode.weights import stream


@dataclass(frozen=True)
class Cost:
    """Of one run of a training, on one device."""

    batch: int  # sequences, contexts or tasks of a step
    microbatch: int  # of them at a time
    operations: float  # of a step
    fixed: int  # bytes of weights, records, and of the data set where there is one
    temporary: int  # bytes while a piece is at work
    donated: int  # bytes that the next weights take over from the last ones, instead of new ones

    @property
    def memory(self) -> int:
        """Bytes in all."""
        return self.fixed + self.temporary

    @property
    def member(self) -> float:
        """Temporary bytes for each sequence, context or task of a piece."""
        return self.temporary / self.microbatch


def cost(problem: Problem, *, microbatch: int | None = None) -> Cost:
    """What one run of a problem's training costs, if a batch goes in pieces of so many members (None: as it would without being told)."""
    problem = replace(problem, runs=1)
    deal = Deal(microbatch)
    batch, size = pieces(problem, deal)
    analysis = _program(problem, deal).memory_analysis()
    alone = _resized(problem, size)
    operations = gradient(alone, deal)[0].compiled.cost_analysis()["flops"] * (batch / size)
    return Cost(
        batch, size, operations, _bytes(analysis) - analysis.temp_size_in_bytes, analysis.temp_size_in_bytes, analysis.alias_size_in_bytes
    )


def fit(problem: Problem, memory: int) -> int | None:
    """The largest microbatch whose program stays below so many bytes on a device; None: a training that has no batch to cut.

    Memory grows in a straight line with the microbatch, so that two programs say where the bound is; the choice is compiled to be sure.
    """
    if problem.training.kind == "depth" or _moments(problem):
        return None
    need = lambda size: _bytes(_program(problem, Deal(size)).memory_analysis())
    size = pieces(problem, Deal())[1]
    if (most := need(size)) <= memory:
        return size
    low = pieces(problem, Deal(max(1, size // 4)))[1]
    least = need(low)
    slope = (most - least) / (size - low) if size > low else 0.0
    guess = int(low + (memory - least) / slope) if slope > 0 else low
    while guess >= 1:
        guess = pieces(problem, Deal(guess))[1]
        if need(guess) <= memory:
            return guess
        guess //= 2
    raise BadInput(f"--memory is {memory} bytes, but this training needs {need(1)} even if it takes one member of a batch at a time")


def pieces(problem: Problem, deal: Deal) -> tuple[int, int]:
    """How many members a batch has, and a piece of it."""
    training = problem.training
    if isinstance(training, EpisodeTraining):
        return training.contexts, deal.size(training.contexts, CHUNK, CHUNK)
    if isinstance(training, Training):
        images = mirrors(training.sampling, len(problem.regression.spectrum)).shape[0]
        size = training.sequences if _moments(problem) else piece_of(images, training.sequences, deal)
        return training.sequences, size
    if isinstance(training, GainsTraining | AdamTraining):
        default = gains.PIECE if isinstance(training, GainsTraining) else in_context.PIECE
        return training.tasks, deal.size(training.tasks, default)
    raise BadInput("training.kind is depth, but a transformer by construction is not trained; choose another problem")


def _bytes(analysis: Any) -> int:
    """What a program needs: all that goes in and comes out, once where it is donated, and what is there in between."""
    both = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    return both - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes


def _moments(problem: Problem) -> bool:
    """Whether a step knows nothing of the size of its batch."""
    training = problem.training
    return isinstance(training, Training) and training.data == "fixed" and sequences.method_of(problem) == "moments"


def _resized(problem: Problem, size: int) -> Problem:
    """The same problem with a batch of so many members."""
    if _moments(problem):
        return problem
    name = {"episodes": "contexts", "sequences": "sequences"}.get(problem.training.kind, "tasks")
    return replace(problem, training=replace(problem.training, **{name: size}))


def _build(problem: Problem, deal: Deal) -> tuple[Any, Any]:
    """The step of a training, and its start."""
    if isinstance(problem.training, EpisodeTraining):
        return episode_training.build(problem, deal)
    return gains.build(problem, deal) if isinstance(problem.training, GainsTraining) else sequences.build(problem, deal)


def _program(problem: Problem, deal: Deal) -> Any:
    """The compiled program that takes a training from record to record."""
    if isinstance(problem.training, AdamTraining):
        model, state, optimizer = adam.build(problem)
        law, key, steps = Law.from_problem(problem), stream(problem, "data"), jnp.arange(2)
        told = (problem.training.tasks, problem.training.queries)
        return cast(Any, in_context.advance).lower(model, state, optimizer, law, key, steps, *told, deal=deal).compile().compiled
    return lower(*_build(problem, deal)).compile().compiled


def gradient(problem: Problem, deal: Deal) -> tuple[Any, tuple[Any, ...]]:
    """The compiled gradient of one step of one run, on one device, and what to call it with."""
    if isinstance(problem.training, AdamTraining):
        model, _, _ = adam.build(problem)
        law, key, training = Law.from_problem(problem), stream(problem, "data"), problem.training

        def one(model: Any, key: Any) -> Any:
            episodes = in_context.Episodes.draw(law, key, tasks=training.tasks, queries=training.queries)
            return jax.grad(lambda model: episodes.risk(model))(model)

        return cast(Any, eqx.filter_jit(one)).lower(model, key).compile(), (model, key)
    step, models = _build(problem, deal)
    return lower_slope(step, models).compile(), (step, begin(models, step))
