"""Training of linear or softmax attention on sequences of linear regression (arXiv:2501.16265). Runs are batched with `vmap`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from simulate import loss as losses
from simulate.attention import AbstractModel, model_of
from simulate.descent import AbstractStep, Carry, Tell, descend, phase_names, scheduled, stack, trajectory, wide
from simulate.tasks import TESTS, Sampler
from spectral_ode import systems, weights
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.systems.linear.blocks import MergedBlocks
from spectral_ode.trajectory import Trajectory


def train_sequences(
    problem: Problem, *, model: type[AbstractModel] | None, optimizer: optax.GradientTransformation | None, tell: Tell | None
) -> Trajectory:
    """Train every run of a problem on its sequences; `simulate.train` says what the arguments are."""
    system = systems.load(problem.system).from_problem(problem)
    method = method_of(problem)
    optimizer = scheduled(problem.segments) if optimizer is None else optimizer
    samplers = stack([Sampler.from_problem(problem, run=run) for run in range(problem.runs)])
    kind = model_of(problem.attention.kind) if model is None else model
    dtype, activation = problem.training.dtype, problem.attention.activation
    starts = [kind.from_weights(weights.draw(problem, run=run), dtype, activation) for run in range(problem.runs)]
    data = _prepare(samplers, problem.sequence_training.sequences, method) if problem.sequence_training.data == "fixed" else None
    theory = None if {"reduced", "population"} <= set(system.missing(problem)) else system
    step = Step(theory, optimizer, samplers, data, _tests(problem, method), problem.sequence_training.sequences, method)
    found, observables = descend(step, stack(starts), problem.steps, tell)
    return trajectory(problem, found, observables, phase_names(theory, weights.draw(problem)), method)


def method_of(problem: Problem) -> str:
    """How the loss is evaluated: moments for a fixed data set, Gram matrices for fresh ones, token by token for a softmax."""
    if problem.sequence_training.method != "auto":
        return problem.sequence_training.method
    if problem.attention.activation == "softmax":
        return "attention"
    return "moments" if problem.sequence_training.data == "fixed" else "gram"


def _tests(problem: Problem, method: str) -> dict[str, losses.AbstractLoss]:
    """Test losses by name, stacked over runs; none without test sequences."""
    if not problem.sequence_training.test_sequences:
        return {}
    road = "attention" if method == "attention" else "moments"
    samplers = {name: stack([Sampler.from_problem(problem, run=run, test=name) for run in range(problem.runs)]) for name in TESTS}
    return {name: _prepare(sampler, problem.sequence_training.test_sequences, road) for name, sampler in samplers.items()}


class Step(AbstractStep):
    """One step on sequences (arrays are stacked over runs, the system is not)."""

    system: AbstractSystem | None  # whose eyes the model is seen through; None: no theory speaks of it
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    sampler: Sampler | None  # None: the data are given, and nothing but losses is asked for
    data: losses.AbstractLoss | None
    tests: dict[str, losses.AbstractLoss]
    sequences: int = eqx.field(static=True)
    method: str = eqx.field(static=True)

    def loss(self, step: Array) -> losses.AbstractLoss:
        """The loss that this step descends."""
        if self.data is not None:
            return self.data
        assert self.sampler is not None
        return losses.of_prompts(self.sampler(step, self.sequences), self.method)

    def seen(self, model: AbstractModel) -> Any:
        """The part of the model that the theory speaks of, in the widest float type."""
        if self.system is None or not self.system.every_block:
            return model.weights(wide())
        return MergedBlocks(*(part.astype(wide()) for part in model.bilinear()))

    def slope(self, carry: Carry) -> tuple[Float[Array, ""], Any]:
        """Half the mean squared error, which this step descends, and its gradient."""
        loss = self.loss(carry.step)
        return jax.value_and_grad(lambda model: 0.5 * loss(model))(carry.model)

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
def _prepare(samplers: Sampler, sequences: int, method: str) -> losses.AbstractLoss:
    return eqx.filter_vmap(lambda sampler: losses.of_data_set(sampler, sequences, method))(samplers)
