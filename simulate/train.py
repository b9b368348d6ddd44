"""Train the full-parameter model of a problem and watch it through the eyes of its theory.

Everything runs inside compiled scans: Optax steps, the reduction's observables at the problem's recorded steps, and its phases,
whose crossing is noticed at every step and interpolated inside it. Runs are batched with `vmap`. Time is learning rate x step, by
the problem. Observables are computed in the widest enabled float type, whatever type the training has.
"""

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

from simulate import loss as losses
from simulate.attention import SeparateAttention
from simulate.tasks import Sampler
from spectral_ode import systems, weights
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.trajectory import Trajectory

CHUNKS = 40  # progress is told about this often


def train(
    problem: Problem,
    *,
    optimizer: optax.GradientTransformation | None = None,
    progress: Callable[[float, float, float], None] | None = None,
) -> Trajectory:
    """Train every run of a problem, each from its own start on its own data; plain gradient descent unless told otherwise.

    `progress(share, time, loss)` is called now and then. The result is a stack of runs.
    """
    system = systems.load(problem.system).from_problem(problem)
    method = method_of(problem)
    optimizer = _sgd(problem.training.learning_rate) if optimizer is None else optimizer
    samplers = _stack([Sampler.from_problem(problem, run=run) for run in range(problem.runs)])
    starts = [SeparateAttention.from_weights(weights.draw(problem, run=run), problem.training.dtype) for run in range(problem.runs)]
    data = _prepare(samplers, problem.training.sequences, method) if problem.training.data == "fixed" else None
    carry = _begin(_stack(starts), optimizer, system)
    step = _Step(system, optimizer, samplers, data, problem.training.sequences, method)
    chunk = max(1, -(-len(problem.steps) // CHUNKS))
    padded = np.concatenate([problem.steps, np.repeat(problem.steps[-1:], -len(problem.steps) % chunk)])
    parts = []
    for first in range(0, len(padded), chunk):
        carry, observed = _advance(step, carry, jnp.asarray(padded[first : first + chunk]))
        parts.append(jax.tree.map(np.asarray, observed))
        if progress is not None:
            done = min(first + chunk, len(problem.steps))
            progress(done / len(problem.steps), problem.times[done - 1], float(np.mean(parts[-1]["loss"][:, -1])))
    observables = jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves, axis=1)[:, : len(problem.steps)]), *parts)
    names = eqx.filter_eval_shape(lambda: system.phases(system.observe_weights(weights.draw(problem))))
    phases = {name: carry.found[:, i] * problem.training.learning_rate for i, name in enumerate(sorted(names))}
    # A diverged training ends, for all runs, at the last record at which every run was still a number.
    finite = np.isfinite(np.asarray(observables["loss"])).all(axis=0)
    kept = max(1, int(np.cumprod(finite).sum()))
    stopped = f"reached step {problem.steps[-1]} at flow time {problem.times[-1]:g}"
    if not finite.all():
        stopped = f"the loss is no longer a number after flow time {problem.times[kept - 1]:g}; try a smaller --training.learning-rate"
    observables = jax.tree.map(lambda leaf: leaf[:, :kept], observables)
    origin = {"source": "training", "method": method, "dtype": problem.training.dtype, "ok": bool(finite.all()), "stopped": stopped}
    time = jnp.broadcast_to(jnp.asarray(problem.times[:kept]), (problem.runs, kept))
    return Trajectory(time, observables, phases, origin=json.dumps(origin))


def method_of(problem: Problem) -> str:
    """How the loss is evaluated: moments for a fixed data set, Gram matrices for fresh ones, unless the problem says."""
    if problem.training.method != "auto":
        return problem.training.method
    return "moments" if problem.training.data == "fixed" else "gram"


class _Carry(eqx.Module):
    step: Array
    model: SeparateAttention
    optimizer: Any
    before: Float[Array, " phases"]  # phase values at the previous step
    found: Float[Array, " phases"]  # step at which each phase was crossed; nan: not yet


class _Step(eqx.Module):
    """One step of one run, and everything that stays the same along the way."""

    system: AbstractSystem
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    sampler: Sampler
    data: losses.AbstractLoss | None
    sequences: int = eqx.field(static=True)
    method: str = eqx.field(static=True)

    def loss(self, step: Array) -> losses.AbstractLoss:
        """The loss that this step descends."""
        if self.data is not None:
            return self.data
        return losses.of_prompts(self.sampler(step, self.sequences), self.method)

    def __call__(self, carry: _Carry) -> _Carry:
        """Descend half the mean squared error, and notice the phases crossed on the way."""
        loss = self.loss(carry.step)
        gradient = jax.grad(lambda model: 0.5 * loss(model))(carry.model)
        updates, optimizer = self.optimizer.update(gradient, carry.optimizer, cast(Any, carry.model))
        model = eqx.apply_updates(carry.model, updates)
        now = _phases(self.system, model)
        here = jnp.isnan(carry.found) & (carry.before < 0) & (now >= 0)
        found = jnp.where(here, carry.step.astype(now.dtype) + carry.before / (carry.before - now), carry.found)
        return _Carry(carry.step + 1, model, optimizer, now, found)


def _phases(system: AbstractSystem, model: SeparateAttention) -> Float[Array, " phases"]:
    phases = system.phases(system.observe_weights(model.weights(_wide())))
    return jnp.stack([phases[name] for name in sorted(phases)])


def _wide() -> str:
    return jnp.zeros((), float).dtype.name


@functools.cache  # one object per learning rate, so that a second training does not compile again
def _sgd(learning_rate: float) -> optax.GradientTransformation:
    return optax.sgd(learning_rate)


@eqx.filter_jit
def _prepare(samplers: Sampler, sequences: int, method: str) -> losses.AbstractLoss:
    return eqx.filter_vmap(lambda sampler: losses.of_data_set(sampler, sequences, method))(samplers)


@eqx.filter_jit
def _begin(models: SeparateAttention, optimizer: optax.GradientTransformation, system: AbstractSystem) -> _Carry:
    def one(model: SeparateAttention) -> _Carry:
        before = _phases(system, model)
        found = jnp.where(before >= 0, jnp.zeros_like(before), jnp.full_like(before, jnp.nan))
        return _Carry(jnp.zeros((), int), model, optimizer.init(cast(Any, model)), before, found)

    return eqx.filter_vmap(one)(models)


def _stack(members: list) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


@eqx.filter_jit
def _advance(step: _Step, carry: _Carry, records: Array) -> tuple[_Carry, dict[str, Array]]:
    """All runs to each of the recorded steps in turn; observables have a leading run axis, then time."""

    def one(step: _Step, carry: _Carry) -> tuple[_Carry, dict[str, Array]]:
        def record(carry: _Carry, target: Array) -> tuple[_Carry, dict[str, Array]]:
            carry = jax.lax.fori_loop(carry.step, target, lambda _, carry: step(carry), carry)
            return carry, _observe(step, carry)

        return jax.lax.scan(record, carry, records)

    shared = eqx.tree_at(lambda step: step.system, jax.tree.map(lambda _: 0, step), replace=jax.tree.map(lambda _: None, step.system))
    return eqx.filter_vmap(one, in_axes=(shared, 0))(step, carry)


def _observe(step: _Step, carry: _Carry) -> dict[str, Array]:
    wide = _wide()
    observed = step.system.observe_weights(carry.model.weights(wide))
    # The loss that is descended takes the place of the population's, which stays beside it.
    observed["population loss"] = observed["loss"]
    observed["loss"] = step.loss(carry.step)(carry.model).astype(wide)
    observed["idle"] = carry.model.idle().astype(wide)
    return observed
