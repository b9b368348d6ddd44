"""Training of full softmax attention on fresh contexts (arXiv:2402.19442).

A step descends the sum over tasks of the mean squared error, by an estimator of `simulate.estimators`. What is recorded as the loss is
that of a test set of its own, drawn once, as a share of that set's signal, with its standard error. The integrated estimator serves the
test, too, as long as no score sees a label; otherwise the controlled one.

Tied (O = V_Y^T, K = Q): both partners descend the mean of their gradients, which is the same flow, in which they can never part.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from simulate import estimators
from simulate.checkpoint import Keeper
from simulate.descent import AbstractStep, Carry, Tell, descend, phase_names, scheduled, stack, trajectory, wide
from simulate.episodes import Contexts
from simulate.full_attention import FullAttention
from simulate.mesh import ALONE, Deal
from spectral_ode import systems, weights
from spectral_ode.problem import EpisodeTraining, FullHeads, MultiTask, Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.trajectory import Trajectory
from spectral_ode.weights import FullWeights, stream

TEST = 1  # stream of the test contexts, beside 0 for the training


def sampler(problem: Problem, *, run: int = 0, test: bool = False, context: int | None = None) -> Contexts:
    """The contexts of one run, or of its test set, of the problem's length or another."""
    task, training = problem.task, problem.training
    assert isinstance(task, MultiTask)
    assert isinstance(training, EpisodeTraining)
    return Contexts.build(
        task.dimensions,
        context or task.context,
        jax.random.fold_in(stream(problem, "data", run), TEST if test else 0),
        signal=task.signals,
        noise=task.noise,
        normals=training.normals,
        dtype=training.dtype,
    )


def train_episodes(
    problem: Problem,
    *,
    optimizer: optax.GradientTransformation | None = None,
    tell: Tell | None = None,
    deal: Deal = ALONE,
    keep: Keeper | None = None,
) -> Trajectory:
    """Train every run of a problem, one after the other; `simulate.train` says what the arguments are."""
    training = problem.training
    assert isinstance(training, EpisodeTraining)
    found, observables = [], []
    names = phase_names(systems.load(problem.system).from_problem(problem), weights.draw(problem))
    for run in range(problem.runs):
        step, start = build(problem, deal, run=run, optimizer=optimizer)
        told = None if tell is None else lambda done, loss, run=run: tell(-(-(run * len(problem.steps) + done) // problem.runs), loss)
        one = descend(step, start, problem.steps, told, keep.session(problem, deal, run=run) if keep else None)
        found.append(one[0])
        observables.append(one[1])
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *observables)
    return trajectory(problem, jnp.concatenate(found), together, names, training.estimator)


def build(
    problem: Problem, deal: Deal = ALONE, *, run: int = 0, optimizer: optax.GradientTransformation | None = None
) -> tuple["Step", FullAttention]:
    """The step of one run, and its start."""
    task, attention, training = problem.task, problem.attention, problem.training
    assert isinstance(task, MultiTask)
    assert isinstance(attention, FullHeads)
    assert isinstance(training, EpisodeTraining)
    step = Step(
        systems.load(problem.system).from_problem(problem),
        scheduled(problem.segments) if optimizer is None else optimizer,
        stack([sampler(problem, run=run)]),
        stack([[sampler(problem, run=run, test=True, context=length) for length in (task.context, *task.tested)]]),
        training,
        attention.tied,
        deal=deal,
    )
    drawn = weights.draw(problem, run=run)
    assert isinstance(drawn, FullWeights)
    return step, stack([FullAttention.from_weights(drawn, training.dtype)])


class Step(AbstractStep):
    """One step on fresh contexts."""

    system: AbstractSystem | None
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    sampler: Contexts
    tests: list[Contexts]  # at the length of the training, then at others
    training: EpisodeTraining = eqx.field(static=True)
    tied: bool = eqx.field(static=True)
    deal: Deal = eqx.field(static=True, default=ALONE, kw_only=True)

    def seen(self, model: FullAttention) -> FullWeights:
        """All four matrices, in the widest float type."""
        return model.weights(wide())

    def slope(self, carry: Carry) -> tuple[Float[Array, ""], Any]:
        """The loss, summed over tasks, and its gradient."""
        about = {"contexts": self.training.contexts, "queries": self.training.queries, "estimator": self.training.estimator}
        losses, gradient = estimators.slope(carry.model, self.sampler, carry.step, **about, deal=self.deal)
        return jnp.sum(losses), tie(gradient) if self.tied else gradient

    def observe(self, carry: Carry, value: Float[Array, ""]) -> dict[str, Array]:
        """The theory's observables, with losses of the test set in place of the population's, which stay beside them."""
        assert self.system is not None
        observed = self.system.observe_weights(self.seen(carry.model))
        estimator = "integrated" if self.training.estimator == "integrated" else "controlled"
        about = {"contexts": self.training.test_contexts, "queries": 2, "estimator": estimator}
        tests = [[part.astype(wide()) for part in estimators.shares(carry.model, test, 0, **about, deal=self.deal)] for test in self.tests]
        observed |= {"theory loss": observed["loss"], "task losses": tests[0][0], "loss": tests[0][1], "standard error": tests[0][2]}
        if len(tests) > 1:
            observed["tests"] = jnp.stack([share for _, share, _ in tests[1:]])
        return observed


def tie(gradient: FullAttention) -> FullAttention:
    """Partners get the mean of their gradients; V_X has no partner."""
    d = gradient.value.shape[2] - gradient.output.shape[1]
    output = 0.5 * (gradient.output + gradient.value[..., d:].mT)
    key = 0.5 * (gradient.key + gradient.query)
    return FullAttention(output, jnp.concatenate([gradient.value[..., :d], output.mT], axis=2), key, key)
