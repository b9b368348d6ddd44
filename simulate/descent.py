"""Gradient descent of a full-parameter model, watched through the eyes of its theory.

Everything runs inside compiled scans: Optax steps, the reduction's observables at the problem's recorded steps, and its phases,
whose crossing is noticed at every step and interpolated inside it. Time is the cumulative learning rate, by the problem. Observables are
computed in the widest enabled float type, whatever type the training has. What a step is depends on the kind of training:
`simulate.sequences` and `simulate.episode_training` have theirs.
"""

import abc
import functools
import json
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.trajectory import Trajectory

CHUNKS = 40  # progress is told about this often
Tell = Callable[[int, float], None]  # records done, loss


class Carry(eqx.Module):
    """Where a run has got to."""

    step: Array
    model: Any
    optimizer: Any
    before: Float[Array, " phases"]  # phase values at the previous step
    found: Float[Array, " phases"]  # step at which each phase was crossed; nan: not yet


class AbstractStep(eqx.Module):
    """One step of one run, and everything that stays the same along the way."""

    system: eqx.AbstractVar[AbstractSystem | None]  # whose eyes the model is seen through; None: no theory speaks of it
    optimizer: eqx.AbstractVar[optax.GradientTransformation]

    @abc.abstractmethod
    def seen(self, model: Any) -> Any:
        """The part of the model that the theory speaks of, in the widest float type."""

    @abc.abstractmethod
    def slope(self, carry: Carry) -> tuple[Float[Array, ""], Any]:
        """What this step descends, and its gradient."""

    @abc.abstractmethod
    def observe(self, carry: Carry, value: Float[Array, ""]) -> dict[str, Array]:
        """What is recorded, given the value that is descended."""

    def phases(self, model: Any) -> Float[Array, " phases"]:
        """Values of the theory's phases, by name."""
        if self.system is None:
            return jnp.zeros(0)
        phases = self.system.phases(self.system.observe_weights(self.seen(model)))
        return jnp.stack([phases[name] for name in sorted(phases)])

    def descend(self, carry: Carry, gradient: Any) -> Carry:
        """One step down, noticing the phases crossed on the way."""
        updates, optimizer = self.optimizer.update(gradient, carry.optimizer, cast(Any, carry.model))
        model = eqx.apply_updates(carry.model, updates)
        now = self.phases(model)
        here = jnp.isnan(carry.found) & (carry.before < 0) & (now >= 0)
        found = jnp.where(here, carry.step.astype(now.dtype) + carry.before / (carry.before - now), carry.found)
        return Carry(carry.step + 1, model, optimizer, now, found)


def trajectory(problem: Problem, found: Array, observables: dict[str, np.ndarray], names: list[str], method: str) -> Trajectory:
    """All runs as one result; `found` are the steps at which the phases `names` were crossed."""
    ends = np.concatenate([[0], np.cumsum([count for _, count in problem.segments])])
    when = lambda steps: np.interp(np.asarray(steps), ends, problem.clock(ends))
    phases = {name: jnp.asarray(when(found[:, i])) for i, name in enumerate(names)}
    # A diverged training ends, for all runs, at the last record at which everything was still a number.
    finite = np.all([np.isfinite(array.reshape(*array.shape[:2], -1)).all(axis=(0, 2)) for array in observables.values()], axis=0)
    kept = int(np.cumprod(finite).sum())
    if kept == 0:
        raise BadInput("what is recorded of the training is not a number at its start already; use a smaller --start.scale or task")
    stopped = f"reached step {problem.steps[-1]} at flow time {problem.times[-1]:g}"
    if not finite.all():
        stopped = f"the loss is no longer a number after flow time {problem.times[kept - 1]:g}; try a smaller --training.learning-rate"
    kept_observables = {name: jnp.asarray(array[:, :kept]) for name, array in observables.items()}
    origin = {"source": "training", "method": method, "dtype": problem.training.dtype, "ok": bool(finite.all()), "stopped": stopped}
    time = jnp.broadcast_to(jnp.asarray(problem.times[:kept]), (problem.runs, kept))
    return Trajectory(time, kept_observables, phases, origin=json.dumps(origin))


def phase_names(system: AbstractSystem | None, weights: Any) -> list[str]:
    """Names of the phases, in the order in which `AbstractStep.phases` stacks them."""
    return sorted(eqx.filter_eval_shape(lambda: system.phases(system.observe_weights(weights)))) if system else []


def descend(
    step: AbstractStep, models: Any, records: np.ndarray, tell: Tell | None = None
) -> tuple[Float[Array, "runs phases"], dict[str, np.ndarray]]:
    """All runs through the recorded steps, from step 0 on: when each phase was crossed, and observables, runs x records x ... .

    `tell(records done, loss)` is called now and then.
    """
    # With every step recorded and no phases to notice, one evaluation serves the record and the step that follows; steps after the last
    # record then touch nothing that is kept.
    every = step.system is None and np.array_equal(records, np.arange(len(records)))
    chunk = len(records) if tell is None else max(1, -(-len(records) // CHUNKS))
    gaps = np.pad(np.diff(records, append=records[-1]), (0, -len(records) % chunk))  # steps after each record
    carry = _begin(models, step)
    parts = []
    for first in range(0, len(gaps), chunk):
        carry, observed = _advance(step, carry, jax.device_put(gaps[first : first + chunk]), every)
        parts.append(jax.tree.map(np.asarray, observed))
        if tell is not None:
            tell(min(first + chunk, len(records)), float(np.mean(parts[-1]["loss"][:, -1])))
    return carry.found, jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1)[:, : len(records)], *parts)


def wide() -> str:
    """The widest enabled float type."""
    return jnp.zeros((), float).dtype.name


@functools.cache  # one object per learning rate, so that a second training does not compile again
def sgd(learning_rate: float) -> optax.GradientTransformation:
    """Plain gradient descent."""
    return optax.sgd(learning_rate)


@functools.cache
def scheduled(segments: tuple[tuple[float, int], ...]) -> optax.GradientTransformation:
    """Plain gradient descent with these learning rates, each for so many steps; the last one goes on."""
    if len(segments) == 1:
        return sgd(segments[0][0])
    rates, ends = [rate for rate, _ in segments], np.cumsum([count for _, count in segments])[:-1]
    return optax.sgd(lambda count: jnp.asarray(rates)[jnp.sum(jnp.asarray(count) >= jnp.asarray(ends, jnp.asarray(count).dtype))])


@eqx.filter_jit
def _begin(models: Any, step: AbstractStep) -> Carry:
    def one(model: Any) -> Carry:
        before = step.phases(model)
        found = jnp.where(before >= 0, jnp.zeros_like(before), jnp.full_like(before, jnp.nan))
        return Carry(jnp.zeros((), int), model, step.optimizer.init(cast(Any, model)), before, found)

    return eqx.filter_vmap(one)(models)


def stack(members: list) -> Any:
    """Equal trees as one, with a leading axis."""
    # By numpy, which has nothing to compile; random keys are beyond it.
    join = lambda leaves: jnp.stack(leaves) if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key) else jax.device_put(np.stack(leaves))
    return jax.tree.map(lambda *leaves: join(leaves), *members)


@eqx.filter_jit
def _advance(step: AbstractStep, carry: Carry, gaps: Array, every: bool) -> tuple[Carry, dict[str, Array]]:
    """All runs through some records, with so many steps after each; observables have a leading run axis, then time."""

    def one(step: AbstractStep, carry: Carry) -> tuple[Carry, dict[str, Array]]:
        def record(carry: Carry, gap: Array) -> tuple[Carry, dict[str, Array]]:
            value, gradient = step.slope(carry)
            observed = step.observe(carry, value)
            if every:
                return step.descend(carry, gradient), observed
            # The count is the same for all runs: one that depends on the carry would make `vmap` select between old and new.
            return jax.lax.fori_loop(0, gap, lambda _, carry: step.descend(carry, step.slope(carry)[1]), carry), observed

        return jax.lax.scan(record, carry, gaps)

    alone = jax.tree.map(lambda _: 0, step)
    shared = alone
    if step.system is not None:
        shared = eqx.tree_at(lambda step: step.system, alone, replace=jax.tree.map(lambda _: None, step.system))
    return eqx.filter_vmap(one, in_axes=(shared, 0))(step, carry)
