"""Descent of the two-layer construction on fresh tasks: head gains and the step size, watched through the eyes of their ODE.

The construction estimates w_j = eta g_j^2 r_j^3 (a test holds it against the transformer itself), and queries are integrated out: a step
descends half the mean over fresh tasks of |w - w*|^2. Runs differ in their tasks. The recorded loss is the exact risk of the gains.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PRNGKeyArray

from simulate.checkpoint import Keeper
from simulate.descent import AbstractStep, Carry, descend, phase_names, sgd, stack, trajectory, wide
from simulate.mesh import ALONE, Deal, mean
from spectral_ode import systems, weights
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.systems.sparse import Gains
from spectral_ode.systems.sparse.data import Law, Sample
from spectral_ode.trajectory import Trajectory
from spectral_ode.weights import GainWeights

PIECE = 1024  # tasks that are made at once, unless told otherwise


def train(
    problem: Problem, *, progress: Callable[[float, float, float], None] | None = None, deal: Deal = ALONE, keep: Keeper | None = None
) -> Trajectory:
    """Every run of a problem, as a stack."""
    step, starts = build(problem, deal)
    tell = (lambda done, loss: progress(done / len(problem.steps), float(problem.times[done - 1]), loss)) if progress else None
    session = keep.session(problem, deal) if keep else None
    found, observables = descend(step, starts, problem.steps, tell, session)
    return trajectory(problem, found, observables, phase_names(step.system, weights.draw(problem)), "fresh tasks")


def build(problem: Problem, deal: Deal = ALONE) -> tuple["Step", GainWeights]:
    """The step of all runs, and their starts."""
    system = systems.load(problem.system).from_problem(problem)
    assert isinstance(system, Gains)
    narrow = jax.tree.map(lambda leaf: leaf.astype(problem.training.dtype), weights.draw(problem))
    keys = stack([weights.stream(problem, "data", run) for run in range(problem.runs)])
    return Step(system, sgd(problem.eta), keys, problem.sparse_training.tasks, deal=deal), stack([narrow] * problem.runs)


def loss(model: GainWeights, law: Law, key: PRNGKeyArray, tasks: int, first: Array | int = 0) -> Float[Array, ""]:
    """Half the mean excess risk over fresh tasks, from number `first` of all that the key has."""

    def one(sample: Sample) -> Float[Array, ""]:
        return jnp.sum((model.eta * model.g**2 * (sample.x.T @ sample.y / law.n) ** 3 - sample.w) ** 2)

    return 0.5 * jnp.mean(jax.vmap(one)(law.samples(key, tasks, model.g.dtype, first)))


class Step(AbstractStep):
    """One step on fresh tasks."""

    system: AbstractSystem | None
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    key: Key[Array, "*runs"]
    tasks: int = eqx.field(static=True)
    deal: Deal = eqx.field(static=True, default=ALONE, kw_only=True)

    def seen(self, model: Any) -> GainWeights:
        """The gains in the widest float type."""
        return jax.tree.map(lambda leaf: leaf.astype(wide()), model)

    def slope(self, carry: Carry) -> tuple[Float[Array, ""], GainWeights]:
        """Half the mean risk over this step's tasks, and its gradient."""
        assert isinstance(self.system, Gains)
        key, law = jax.random.fold_in(self.key, carry.step), self.system.law
        part = lambda first, size: jax.value_and_grad(loss)(carry.model, law, key, size, first)
        return mean(part, self.tasks, self.deal.size(self.tasks, PIECE), self.deal)

    def observe(self, carry: Carry, value: Float[Array, ""]) -> dict[str, Array]:
        """What the ODE observes, with the risk of this step's tasks."""
        assert self.system is not None
        return self.system.observe_weights(self.seen(carry.model)) | {"sampled": 2 * value.astype(wide())}
