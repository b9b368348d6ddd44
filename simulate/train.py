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
    found, observables = descend(step, stack(starts), problem.steps, tell)
    names = eqx.filter_eval_shape(lambda: theory.phases(theory.observe_weights(weights.draw(problem)))) if theory else {}
    phases = {name: found[:, i] * problem.eta for i, name in enumerate(sorted(names))}
    # A diverged training ends, for all runs, at the last record at which every run was still a number.
    finite = np.isfinite(observables["loss"]).all(axis=0)
    kept = max(1, int(np.cumprod(finite).sum()))
    stopped = f"reached step {problem.steps[-1]} at flow time {problem.times[-1]:g}"
    if not finite.all():
        stopped = f"the loss is no longer a number after flow time {problem.times[kept - 1]:g}; try a smaller --training.learning-rate"
    observables = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, :kept]), observables)
    origin = {"source": "training", "method": method, "dtype": dtype, "ok": bool(finite.all()), "stopped": stopped}
    time = jnp.broadcast_to(jnp.asarray(problem.times[:kept]), (problem.runs, kept))
    return Trajectory(time, observables, phases, origin=json.dumps(origin))


def descend(
    step: "Step", models: AbstractModel, records: np.ndarray, tell: Callable[[int, float], None] | None = None
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

    def slope(self, carry: _Carry) -> tuple[Float[Array, ""], Any]:
        """Half the mean squared error, which this step descends, and its gradient."""
        loss = self.loss(carry.step)
        return jax.value_and_grad(lambda model: 0.5 * loss(model))(carry.model)

    def descend(self, carry: _Carry, gradient: Any) -> _Carry:
        """One step down, noticing the phases crossed on the way."""
        updates, optimizer = self.optimizer.update(gradient, carry.optimizer, cast(Any, carry.model))
        model = eqx.apply_updates(carry.model, updates)
        now = self.phases(model)
        here = jnp.isnan(carry.found) & (carry.before < 0) & (now >= 0)
        found = jnp.where(here, carry.step.astype(now.dtype) + carry.before / (carry.before - now), carry.found)
        return _Carry(carry.step + 1, model, optimizer, now, found)

    def observe(self, carry: _Carry, loss: Float[Array, ""]) -> dict[str, Array]:
        """What is recorded: the descended loss, the tests, the theory's observables (or else the plain weights), the idle blocks."""
        wide = _wide()
        observed = {}
        if self.sampler is not None:
            seen = self.seen(carry.model)
            observed = dict(vars(seen)) if self.system is None else self.system.observe_weights(seen)
            if "loss" in observed:  # the loss that is descended takes the place of the population's, which stays beside it
                observed["population loss"] = observed["loss"]
            observed["idle"] = carry.model.idle().astype(wide)
        observed["loss"] = loss.astype(wide)
        if self.tests:
            observed["tests"] = jnp.stack([self.tests[name](carry.model).astype(wide) for name in TESTS if name in self.tests])
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
    # By numpy, which has nothing to compile; random keys are beyond it.
    join = lambda leaves: jnp.stack(leaves) if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key) else jax.device_put(np.stack(leaves))
    return jax.tree.map(lambda *leaves: join(leaves), *members)


@eqx.filter_jit
def _advance(step: Step, carry: _Carry, gaps: Array, every: bool) -> tuple[_Carry, dict[str, Array]]:
    """All runs through some records, with so many steps after each; observables have a leading run axis, then time."""

    def one(step: Step, carry: _Carry) -> tuple[_Carry, dict[str, Array]]:
        def record(carry: _Carry, gap: Array) -> tuple[_Carry, dict[str, Array]]:
            half, gradient = step.slope(carry)
            observed = step.observe(carry, 2 * half)
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
