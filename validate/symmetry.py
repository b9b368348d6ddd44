r"""Symmetries of the equations: what may not change when heads are renamed, coordinates are turned, or the unit of time is changed.

Heads. Every sum over heads is symmetric: permuted weights have the same loss at every time.

Coordinates. Linear attention: Lambda and Sigma turned together with the keys and queries. Softmax attention: tokens are isotropic in the
block of a task, so turning keys and queries there changes no eigenvalue. Sparse regression: coordinates may be exchanged and change
sign (r does, too; preprocessing by r is not invariant under other rotations).

Time. Each of the equations below goes into itself, with times divided by the last number (a > 0 is free):

    linear, separate     lam -> a lam, s2 -> a s2: g, C -> a^2 g, a^2 C;  v, k, q -> a^(-1/3) (v, k, q), loss -> a loss          a^(5/3)
    linear, merged       the same with v, U -> a^(-1/2) (v, U)                                                                     a^2
    every block          tokens (x; y) -> sqrt(a) (x; y): phi -> a^(3/2) phi, t -> t/a, as above                                   as above
    softmax, all         S -> a S, sigma^2 -> a sigma^2: phi_i, mu and omega as they are, Loss -> a Loss (shares as they are)      a
    sparse, depth        y, w* -> sqrt(a) (y, w*): R -> sqrt(a) R, theta as it is, risk -> a risk                                  a

Every block of linear attention. T = sum_h a_h W_h does not change when a_h grows as W_h shrinks, nor when K_h -> M K_h, Q_h -> M^-T Q_h; so
a_h.a_g - <W_h, W_g> (merged), |a_h|^2 - |K_h|^2 and K_h K_h^T - Q_h Q_h^T (separate) are conserved, whatever the law of the sequences.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode.claims import Claim, Trial
from spectral_ode.problem import MultiTask, Problem
from spectral_ode.system import AbstractSystem, Weights
from spectral_ode.systems.linear import Blocks
from spectral_ode.systems.linear.blocks import MergedBlocks, SeparateBlocks
from spectral_ode.systems.linear.data import rotation
from spectral_ode.systems.sparse import Depth, _two_groups
from spectral_ode.systems.sparse.data import Sample
from spectral_ode.weights import FullWeights, GainWeights, MergedWeights, SeparateWeights
from validate.courses import Flow, Flows
from validate.integration import present
from validate.metrics import Measured, Unmet

TIGHT = 1e-12  # rtol of both solves
FACTOR = 1.7  # a


class Turned(NamedTuple):
    """The same experiment in other coordinates or units: its system and weights, how much faster it runs, and its loss over ours."""

    system: AbstractSystem
    start: Weights
    rate: float = 1.0
    loss: float = 1.0


def claims(flows: Flows) -> tuple[Claim, ...]:
    """Claims about symmetries."""
    common = {
        "place": "ours",
        "tier": "validate",
        "exactness": "exact",
        "bound": 1e-7,
        "reason": "gap of the loss over its fall, both solved at rtol 1e-12, which a drop may turn into a gap some hundred times larger",
    }
    found = (
        Trial(name="renamed heads: the same loss at every time", trial=lambda _: _gap(flows, permuted), **common),
        Trial(name="turned coordinates: the same loss at every time", trial=lambda _: _gap(flows, turned), **common),
        Trial(name="another unit of time: the same course, rescaled", trial=lambda _: _gap(flows, rescaled), **common),
    )
    if not isinstance(flows.experiment.system, Blocks):
        return found
    rtol = flows.experiment.problem.solver.rtol
    kept = {"bound": 10 * rtol, "reason": "accumulated local error, 10 x rtol x largest squared weight"}
    name = "balances of all blocks: rows against keys, keys against queries"
    return (*found, Trial(name=name, trial=lambda _: drift(flows), **(common | kept)))


def drift(flows: Flows) -> Measured:
    """Largest drift of the balances of all blocks, in units of the largest squared weight."""
    if "reduced" not in present(flows):
        raise Unmet(flows.experiment.missing["reduced"])
    flow = flows.each["reduced"]
    values = np.asarray(eqx.filter_jit(jax.vmap(lambda flat: _balances(flow.unflatten(flat))))(jnp.asarray(flow.usual.state)))
    return float(np.max(np.abs(values - values[:1])) / np.max(flow.usual.state**2)), f"{values.shape[1]} balances"


def _balances(state: MergedBlocks | SeparateBlocks) -> Float[Array, " balances"]:
    if isinstance(state, MergedBlocks):
        flat = state.W.reshape(state.W.shape[0], -1)
        return (state.row @ state.row.T - flat @ flat.T).reshape(-1)
    first = jnp.sum(state.row**2, axis=1) - jnp.sum(state.key**2, axis=(1, 2))
    return jnp.concatenate([first, (state.key @ state.key.mT - state.query @ state.query.mT).reshape(-1)])


def _gap(flows: Flows, change: Callable[[Flows], Turned]) -> Measured:
    found, other = {}, change(flows)
    for name, flow in present(flows).items():
        system = other.system if name == "reduced" else other.system.population()
        again = Flow(system, eqx.filter_jit(system.project)(other.start), flow.problem).course(rtol=TIGHT, time=flow.time / other.rate)
        mine = flow.course(rtol=TIGHT).loss
        length = min(mine.size, again.loss.size)
        if length < flow.time.size:
            return np.inf, f"the {name} flow stopped early"
        found[name] = float(np.max(np.abs(again.loss / other.loss - mine)) / np.ptp(mine))
    return max(found.values()), ", ".join(f"{name} {value:.1e}" for name, value in found.items())


def permuted(flows: Flows) -> Turned:
    """Every head one place further."""
    start, heads = flows.start, flows.experiment.problem.attention.heads
    if isinstance(start, GainWeights):
        return Turned(flows.experiment.system, GainWeights(jnp.roll(start.g, 1), start.eta))
    if heads < 2 or not all(leaf.ndim and leaf.shape[0] == heads for leaf in jax.tree.leaves(start)):
        raise Unmet("there are no two heads to exchange")
    return Turned(flows.experiment.system, jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), start))


def turned(flows: Flows) -> Turned:
    """Other coordinates of the tokens."""
    problem, system, start = flows.experiment.problem, flows.experiment.system, flows.start
    if isinstance(start, SeparateWeights | MergedWeights):
        return _turned_linear(problem, start)
    if isinstance(start, FullWeights):
        assert isinstance(problem.task, MultiTask)
        blocks = [jax.random.orthogonal(jax.random.key(number), size) for number, size in enumerate(problem.task.dimensions)]
        turn = jax.scipy.linalg.block_diag(*blocks, jnp.eye(len(blocks)))
        return Turned(system, FullWeights(start.output, start.value, start.key @ turn, start.query @ turn))
    if isinstance(system, Depth):
        sign = jnp.where(jnp.arange(system.law.d) % 2 == 0, 1.0, -1.0)[None]
        x, w = (jnp.roll(part, 3, axis=-1) for part in (system.sample.x, system.sample.w))
        return Turned(_remade(system, jax.vmap(Sample)(x * sign[None], system.sample.y, w * sign)), start)
    raise Unmet("nothing in its state belongs to a coordinate of the tokens other than the heads")


def _turned_linear(problem: Problem, start: SeparateWeights | MergedWeights) -> Turned:
    if problem.regression.in_context < 1:
        raise Unmet("the shared task of the in-weight sequences is not turned with the tokens")
    seed, d = problem.regression.rotation, len(problem.regression.spectrum)
    other = 0 if seed else 3
    turn = rotation(seed, d) @ rotation(other, d).T
    if isinstance(start, SeparateWeights):
        moved = SeparateWeights(start.value, start.key @ turn, start.query @ turn)
    else:
        moved = MergedWeights(start.value, turn.T[None] @ start.key_query @ turn[None])
    return Turned(_made(replace(problem, task=replace(problem.task, rotation=other))), moved)


def rescaled(flows: Flows) -> Turned:
    """Another unit of time, by the scalings at the top of this file."""
    problem, system, start = flows.experiment.problem, flows.experiment.system, flows.start
    a, task = FACTOR, problem.task
    if isinstance(start, SeparateWeights | MergedWeights):
        if problem.regression.in_context == 0:
            raise Unmet("context labels of in-weight sequences are noise of variance one, in whatever unit")
        layers = 3 if isinstance(start, SeparateWeights) else 2
        scaled = replace(task, spectrum=tuple(a * value for value in problem.regression.spectrum), noise=a**0.5 * task.noise)
        smaller = jax.tree.map(lambda leaf: leaf * a ** (-1 / layers), start)
        return Turned(_made(replace(problem, task=scaled)), smaller, a ** (1 + 2 / layers), a)
    if isinstance(task, MultiTask):
        louder = replace(task, signal=tuple(a * value for value in task.signals), noise=a**0.5 * task.noise)
        return Turned(_made(replace(problem, task=louder)), start, a)
    if isinstance(system, Depth):
        sample = jax.vmap(Sample)(system.sample.x, a**0.5 * system.sample.y, a**0.5 * system.sample.w)
        return Turned(_remade(system, sample), start, a, a)
    raise Unmet("its equations have no free unit of time (validate/symmetry.py has those that do)")


def _made(problem: Problem) -> AbstractSystem:
    from spectral_ode import systems

    return systems.load(problem.system).from_problem(problem)


def _remade(system: Depth, sample: Sample) -> Depth:
    return Depth(system.law, sample, jax.vmap(Sample.moments)(sample), jax.vmap(lambda one: _two_groups.block(one, system.law.s))(sample))
