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

from simulate.checkpoint import Session
from simulate.mesh import Deal, spread
from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.trajectory import Trajectory

CHUNKS = 40  # progress is told, and a checkpoint offered, about this often
RECORDS = 1000  # at most so many wait on a device
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
    deal: eqx.AbstractVar[Deal]  # to which devices its work goes

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
    step: AbstractStep, models: Any, records: np.ndarray, tell: Tell | None = None, keep: Session | None = None
) -> tuple[Float[Array, "runs phases"], dict[str, np.ndarray]]:
    """All runs through the recorded steps, from step 0 on: when each phase was crossed, and observables, runs x records x ... .

    `tell(records done, loss)` is called now and then. With `keep` it goes on from the last checkpoint, and what is recorded goes to disk.
    """
    # With every step recorded and no phases to notice, one evaluation serves the record and the step that follows; steps after the last
    # record then touch nothing that is kept.
    every = step.system is None and np.array_equal(records, np.arange(len(records)))
    chunk = -(-len(records) // max(-(-len(records) // RECORDS), 1 if tell is keep is None else CHUNKS))
    gaps = np.pad(np.diff(records, append=records[-1]), (0, chunk))  # steps after each record
    session = Session() if keep is None else keep
    carry, begun = session.begin(begin(models, step), len(records))
    for first in range(begun, len(records), chunk):
        carry, observed = _advance(step, carry, jax.device_put(gaps[first : first + chunk]), every)
        done = min(first + chunk, len(records))
        part = {name: np.asarray(array)[:, : done - first] for name, array in observed.items()}
        session.add(part)
        session.save(done, carry, end=done == len(records))
        if tell is not None:
            tell(done, float(np.mean(part["loss"][:, -1])))
    return carry.found, session.all()


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
def begin(models: Any, step: AbstractStep) -> Carry:
    """Every run before its first step."""

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


def lower_slope(step: AbstractStep, models: Any) -> Any:
    """The program of a single gradient, not yet compiled."""
    slopes = eqx.filter_jit(
        lambda step, carry: eqx.filter_vmap(lambda step, carry: step.slope(carry), in_axes=(_axes(step), 0))(step, carry)
    )
    return cast(Any, slopes).lower(step, begin(models, step))


def lower(step: AbstractStep, models: Any) -> Any:
    """The program between two records, not yet compiled."""
    return cast(Any, _advance).lower(step, begin(models, step), jnp.zeros(2, int), False)


@eqx.filter_jit(donate="all-except-first")
def _advance(step: AbstractStep, carry: Carry, gaps: Array, every: bool) -> tuple[Carry, dict[str, Array]]:
    """All runs through some records, with so many steps after each; observables have a leading run axis, then time."""

    def one(step: AbstractStep, carry: Carry, gaps: Array) -> tuple[Carry, dict[str, Array]]:
        def record(carry: Carry, gap: Array) -> tuple[Carry, dict[str, Array]]:
            value, gradient = step.slope(carry)
            observed = step.observe(carry, value)
            if every:
                return step.descend(carry, gradient), observed
            # The count is the same for all runs: one that depends on the carry would make `vmap` select between old and new.
            return jax.lax.fori_loop(0, gap, lambda _, carry: step.descend(carry, step.slope(carry)[1]), carry), observed

        return jax.lax.scan(record, carry, gaps)

    return spread(eqx.filter_vmap(one, in_axes=(_axes(step), 0, None)), step.deal, step, carry, gaps)


def _axes(step: AbstractStep) -> Any:
    """Everything in a step is stacked over runs, except for the system."""
    alone = jax.tree.map(lambda _: 0, step)
    if step.system is None:
        return alone
    return eqx.tree_at(lambda step: step.system, alone, replace=jax.tree.map(lambda _: None, step.system))
