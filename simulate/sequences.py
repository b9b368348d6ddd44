"""Training of linear or softmax attention on sequences of linear regression (arXiv:2501.16265). Runs are batched with `vmap`."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from simulate import loss as losses
from simulate.attention import AbstractModel, model_of
from simulate.checkpoint import Keeper
from simulate.descent import AbstractStep, Carry, Tell, descend, phase_names, scheduled, stack, trajectory, wide
from simulate.mesh import ALONE, Deal, spread
from simulate.normals import MOST
from simulate.tasks import TESTS, Sampler
from spectral_ode import systems, weights
from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.systems.linear.blocks import MergedBlocks
from spectral_ode.trajectory import Trajectory


def train_sequences(
    problem: Problem,
    *,
    model: type[AbstractModel] | None,
    optimizer: optax.GradientTransformation | None,
    tell: Tell | None,
    deal: Deal = ALONE,
    keep: Keeper | None = None,
) -> Trajectory:
    """Train every run of a problem on its sequences; `simulate.train` says what the arguments are."""
    step, starts = build(problem, deal, model=model, optimizer=optimizer)
    session = keep.session(problem, deal, model=type(starts).__name__) if keep else None
    found, observables = descend(step, starts, problem.steps, tell, session)
    return trajectory(problem, found, observables, phase_names(step.system, weights.draw(problem)), step.method)


def build(
    problem: Problem,
    deal: Deal = ALONE,
    *,
    model: type[AbstractModel] | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> tuple["Step", AbstractModel]:
    """The step of all runs, with their data, and their starts."""
    system = systems.load(problem.system).from_problem(problem)
    method = method_of(problem)
    optimizer = scheduled(problem.segments) if optimizer is None else optimizer
    samplers = stack([Sampler.from_problem(problem, run=run) for run in range(problem.runs)])
    kind = model_of(problem.attention.kind) if model is None else model
    dtype, activation = problem.training.dtype, problem.attention.activation
    starts = [kind.from_weights(weights.draw(problem, run=run), dtype, activation) for run in range(problem.runs)]
    sequences = problem.sequence_training.sequences
    data = _prepare(samplers, sequences, method, deal) if problem.sequence_training.data == "fixed" else None
    if data is None and sequences * len(problem.regression.spectrum) * (problem.task.context + 1) >= MOST:
        raise BadInput(f"training.sequences is {sequences}, but the fresh tokens of one step may have at most {MOST} entries")
    theory = None if {"reduced", "population"} <= set(system.missing(problem)) else system
    step = Step(theory, optimizer, samplers, data, _tests(problem, method, deal), sequences, method, deal=deal)
    return step, stack(starts)


def method_of(problem: Problem) -> str:
    """How the loss is evaluated: moments for a fixed data set, Gram matrices for fresh ones, token by token for a softmax."""
    if problem.sequence_training.method != "auto":
        return problem.sequence_training.method
    if problem.attention.activation == "softmax":
        return "attention"
    return "moments" if problem.sequence_training.data == "fixed" else "gram"


def _tests(problem: Problem, method: str, deal: Deal) -> dict[str, losses.AbstractLoss]:
    """Test losses by name, stacked over runs; none without test sequences."""
    if not problem.sequence_training.test_sequences:
        return {}
    road = "attention" if method == "attention" else "moments"
    samplers = {name: stack([Sampler.from_problem(problem, run=run, test=name) for run in range(problem.runs)]) for name in TESTS}
    return {name: _prepare(sampler, problem.sequence_training.test_sequences, road, deal) for name, sampler in samplers.items()}


class Step(AbstractStep):
    """One step on sequences (arrays are stacked over runs, the system is not)."""

    system: AbstractSystem | None  # whose eyes the model is seen through; None: no theory speaks of it
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    sampler: Sampler | None  # None: the data are given, and nothing but losses is asked for
    data: losses.AbstractLoss | None
    tests: dict[str, losses.AbstractLoss]
    sequences: int = eqx.field(static=True)
    method: str = eqx.field(static=True)
    deal: Deal = eqx.field(static=True, default=ALONE, kw_only=True)

    def loss(self, step: Array) -> losses.AbstractLoss:
        """The loss that this step descends."""
        if self.data is not None:
            return self.data
        assert self.sampler is not None
        return losses.of_step(self.sampler, step, self.sequences, self.method, self.deal)

    def seen(self, model: AbstractModel) -> Any:
        """The part of the model that the theory speaks of, in the widest float type."""
        if self.system is None or not self.system.every_block:
            return model.weights(wide())
        return MergedBlocks(*(part.astype(wide()) for part in model.bilinear()))

    def slope(self, carry: Carry) -> tuple[Float[Array, ""], Any]:
        """Half the mean squared error, which this step descends, and its gradient."""
        return losses.slope(self.loss(carry.step), carry.model)

    def observe(self, carry: Carry, value: Float[Array, ""]) -> dict[str, Array]:
        """What is recorded: the descended loss, the tests, the theory's observables (or else the plain weights), the idle blocks."""
        observed = {}
        if self.sampler is not None:
            seen = self.seen(carry.model)
            observed = dict(vars(seen)) if self.system is None else self.system.observe_weights(seen)
            if "loss" in observed:  # the loss that is descended takes the place of the population's, which stays beside it
                observed["population loss"] = observed["loss"]
            observed["idle"] = carry.model.idle().astype(wide())
        observed["loss"] = (2 * value).astype(wide())
        if self.tests:
            observed["tests"] = jnp.stack([self.tests[name](carry.model).astype(wide()) for name in TESTS if name in self.tests])
        return observed


@eqx.filter_jit
def _prepare(samplers: Sampler, sequences: int, method: str, deal: Deal) -> losses.AbstractLoss:
    return spread(eqx.filter_vmap(lambda sampler: losses.of_data_set(sampler, sequences, method, deal)), deal, samplers)
