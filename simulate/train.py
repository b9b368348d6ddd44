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
from simulate.attention import AbstractModel, model_of
from simulate.tasks import TESTS, Sampler
from spectral_ode import systems, weights
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem
from spectral_ode.systems.linear.blocks import MergedBlocks
from spectral_ode.trajectory import Trajectory

CHUNKS = 40  # progress is told about this often


def train(
    problem: Problem,
    *,
    model: type[AbstractModel] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    progress: Callable[[float, float, float], None] | None = None,
) -> Trajectory:
    """Train every run of a problem, each from its own start on its own data; plain gradient descent unless told otherwise.

    `model` is the problem's attention unless given (`simulate.networks` has its twins). `progress(share, time, loss)` is called now
    and then. The result is a stack of runs.
    """
    system = systems.load(problem.system).from_problem(problem)
    method = method_of(problem)
    optimizer = sgd(problem.eta) if optimizer is None else optimizer
    samplers = stack([Sampler.from_problem(problem, run=run) for run in range(problem.runs)])
    kind = model_of(problem.attention.kind) if model is None else model
    dtype, activation = problem.training.dtype, problem.attention.activation
    starts = [kind.from_weights(weights.draw(problem, run=run), dtype, activation) for run in range(problem.runs)]
    data = _prepare(samplers, problem.training.sequences, method) if problem.training.data == "fixed" else None
    theory = None if {"reduced", "population"} <= set(system.missing(problem)) else system
    step = Step(theory, optimizer, samplers, data, _tests(problem, method), problem.training.sequences, method)
    tell = (lambda done, loss: progress(done / len(problem.steps), float(problem.times[done - 1]), loss)) if progress else None
    carry, observables = descend(step, stack(starts), problem.steps, tell)
    names = eqx.filter_eval_shape(lambda: theory.phases(theory.observe_weights(weights.draw(problem)))) if theory else {}
    phases = {name: carry.found[:, i] * problem.eta for i, name in enumerate(sorted(names))}
    # A diverged training ends, for all runs, at the last record at which every run was still a number.
    finite = np.isfinite(np.asarray(observables["loss"])).all(axis=0)
    kept = max(1, int(np.cumprod(finite).sum()))
    stopped = f"reached step {problem.steps[-1]} at flow time {problem.times[-1]:g}"
    if not finite.all():
        stopped = f"the loss is no longer a number after flow time {problem.times[kept - 1]:g}; try a smaller --training.learning-rate"
    observables = jax.tree.map(lambda leaf: leaf[:, :kept], observables)
    origin = {"source": "training", "method": method, "dtype": dtype, "ok": bool(finite.all()), "stopped": stopped}
    time = jnp.broadcast_to(jnp.asarray(problem.times[:kept]), (problem.runs, kept))
    return Trajectory(time, observables, phases, origin=json.dumps(origin))


def descend(
    step: "Step", models: AbstractModel, records: np.ndarray, tell: Callable[[int, float], None] | None = None
) -> tuple["_Carry", dict[str, Array]]:
    """All runs through the recorded steps; observables are runs x records x ... . `tell(records done, loss)` is called now and then."""
    carry = _begin(models, step)
    chunk = max(1, -(-len(records) // CHUNKS))
    padded = np.concatenate([records, np.repeat(records[-1:], -len(records) % chunk)])
    parts = []
    for first in range(0, len(padded), chunk):
        carry, observed = _advance(step, carry, jnp.asarray(padded[first : first + chunk]))
        parts.append(jax.tree.map(np.asarray, observed))
        if tell is not None:
            tell(min(first + chunk, len(records)), float(np.mean(parts[-1]["loss"][:, -1])))
    return carry, jax.tree.map(lambda *leaves: jnp.asarray(np.concatenate(leaves, axis=1)[:, : len(records)]), *parts)


def method_of(problem: Problem) -> str:
    """How the loss is evaluated: moments for a fixed data set, Gram matrices for fresh ones, token by token for a softmax."""
    if problem.training.method != "auto":
        return problem.training.method
    if problem.attention.activation == "softmax":
        return "attention"
    return "moments" if problem.training.data == "fixed" else "gram"


def _tests(problem: Problem, method: str) -> dict[str, losses.AbstractLoss]:
    """Test losses by name, stacked over runs; none without test sequences."""
    if not problem.training.test_sequences:
        return {}
    road = "attention" if method == "attention" else "moments"
    samplers = {name: stack([Sampler.from_problem(problem, run=run, test=name) for run in range(problem.runs)]) for name in TESTS}
    return {name: _prepare(sampler, problem.training.test_sequences, road) for name, sampler in samplers.items()}


class _Carry(eqx.Module):
    step: Array
    model: AbstractModel
    optimizer: Any
    before: Float[Array, " phases"]  # phase values at the previous step
    found: Float[Array, " phases"]  # step at which each phase was crossed; nan: not yet


class Step(eqx.Module):
    """One step of one run, and everything that stays the same along the way (arrays are stacked over runs, the system is not)."""

    system: AbstractSystem | None  # whose eyes the model is seen through; None: no theory speaks of it
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    sampler: Sampler | None  # None: the data are given
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

    def phases(self, model: AbstractModel) -> Float[Array, " phases"]:
        """Values of the theory's phases, by name."""
        if self.system is None:
            return jnp.zeros(0)
        phases = self.system.phases(self.system.observe_weights(self.seen(model)))
        return jnp.stack([phases[name] for name in sorted(phases)])

    def seen(self, model: AbstractModel) -> Any:
        """The part of the model that the theory speaks of, in the widest float type."""
        if self.system is None or not self.system.every_block:
            return model.weights(_wide())
        return MergedBlocks(*(part.astype(_wide()) for part in model.bilinear()))

    def __call__(self, carry: _Carry) -> _Carry:
        """Descend half the mean squared error, and notice the phases crossed on the way."""
        loss = self.loss(carry.step)
        gradient = jax.grad(lambda model: 0.5 * loss(model))(carry.model)
        updates, optimizer = self.optimizer.update(gradient, carry.optimizer, cast(Any, carry.model))
        model = eqx.apply_updates(carry.model, updates)
        now = self.phases(model)
        here = jnp.isnan(carry.found) & (carry.before < 0) & (now >= 0)
        found = jnp.where(here, carry.step.astype(now.dtype) + carry.before / (carry.before - now), carry.found)
        return _Carry(carry.step + 1, model, optimizer, now, found)

    def observe(self, carry: _Carry) -> dict[str, Array]:
        """What is recorded: the theory's observables (or else the plain weights), the descended loss, the tests, the idle blocks."""
        wide = _wide()
        seen = self.seen(carry.model)
        observed = dict(vars(seen)) if self.system is None else self.system.observe_weights(seen)
        if "loss" in observed:  # the loss that is descended takes the place of the population's, which stays beside it
            observed["population loss"] = observed["loss"]
        observed["loss"] = self.loss(carry.step)(carry.model).astype(wide)
        observed["idle"] = carry.model.idle().astype(wide)
        if self.tests:
            observed["tests"] = jnp.stack([self.tests[name](carry.model).astype(wide) for name in TESTS])
        return observed


def _wide() -> str:
    return jnp.zeros((), float).dtype.name


@functools.cache  # one object per learning rate, so that a second training does not compile again
def sgd(learning_rate: float) -> optax.GradientTransformation:
    """Plain gradient descent."""
    return optax.sgd(learning_rate)


@eqx.filter_jit
def _prepare(samplers: Sampler, sequences: int, method: str) -> losses.AbstractLoss:
    return eqx.filter_vmap(lambda sampler: losses.of_data_set(sampler, sequences, method))(samplers)


@eqx.filter_jit
def _begin(models: AbstractModel, step: Step) -> _Carry:
    def one(model: AbstractModel) -> _Carry:
        before = step.phases(model)
        found = jnp.where(before >= 0, jnp.zeros_like(before), jnp.full_like(before, jnp.nan))
        return _Carry(jnp.zeros((), int), model, step.optimizer.init(cast(Any, model)), before, found)

    return eqx.filter_vmap(one)(models)


def stack(members: list) -> Any:
    """Equal trees as one, with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


@eqx.filter_jit
def _advance(step: Step, carry: _Carry, records: Array) -> tuple[_Carry, dict[str, Array]]:
    """All runs to each of the recorded steps in turn; observables have a leading run axis, then time."""

    def one(step: Step, carry: _Carry) -> tuple[_Carry, dict[str, Array]]:
        def record(carry: _Carry, target: Array) -> tuple[_Carry, dict[str, Array]]:
            carry = jax.lax.fori_loop(carry.step, target, lambda _, carry: step(carry), carry)
            return carry, step.observe(carry)

        return jax.lax.scan(record, carry, records)

    alone = jax.tree.map(lambda _: 0, step)
    shared = alone
    if step.system is not None:
        shared = eqx.tree_at(lambda step: step.system, alone, replace=jax.tree.map(lambda _: None, step.system))
    return eqx.filter_vmap(one, in_axes=(shared, 0))(step, carry)
