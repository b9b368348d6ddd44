r"""The weights both sides speak: small named containers, and how an experiment's start is drawn.

Separate key and query (arXiv:2501.16265, Section 2): head i holds the scalar value weight v_i and R pairs of vectors k_ir, q_ir.
Merged: v_i and one matrix U_i. These are the blocks that act; the blocks which the paper starts at zero live in the full model
(`simulate.attention`) and in `systems.linear.blocks`.

Start of scale w0, in the paper's units (scores divided by N), as the authors' script draws it:

    separate   v_i ~ N(0, w0^2 / (H (D+1)^2)),     k_ir, q_ir ~ N(0, w0^2 / (H R (D+1)) I_D)
    merged     v_i ~ N(0, w0^2 / H),               entries of U_i ~ N(0, w0^2 / (H D^2)): both layers have norm w0
               (units = "script", whose start is not balanced: v_i and entries of U_i ~ N(0, w0^2))

Sparse regression (arXiv:2408.04532): estimates over depth, or gains and a step size; their starts are those of `sections.sparse`.

Full (arXiv:2402.19442): head h holds O^h, V^h, K^h, Q^h. Their decomposable, balanced and random starts are those of `sections.episodes`.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from spectral_ode.problem import BalancedStart, DecomposableStart, FullHeads, MergedHeads, MultiTask, Problem, SeparateHeads
from spectral_ode.sections.sparse import AdamTraining, DepthTraining, GainsStart, SparseRegression

# Each stream of randomness has its own number, so that equal seeds of two streams are still independent draws.
STREAMS = {"start": 0, "task": 1, "data": 2, "noise": 3}


class SeparateWeights(eqx.Module):
    """The acting blocks of H heads with separate key and query of rank R."""

    value: Float[Array, " heads"]
    key: Float[Array, "heads rank d"]
    query: Float[Array, "heads rank d"]

    @property
    def A(self) -> Float[Array, "d d"]:
        """The map of the whole layer: yhat = beta^T A x_q."""
        return jnp.einsum("h,hra,hrb->ab", self.value, self.key, self.query)


class MergedWeights(eqx.Module):
    """The acting blocks of H heads with merged key and query."""

    value: Float[Array, " heads"]
    key_query: Float[Array, "heads d d"]

    @property
    def A(self) -> Float[Array, "d d"]:
        """The map of the whole layer: yhat = beta^T A x_q."""
        return jnp.einsum("h,hab->ab", self.value, self.key_query)


class FullWeights(eqx.Module):
    """All four matrices of H heads; in shapes, e = d_e, z = d + I, y = I."""

    output: Float[Array, "heads y e"]
    value: Float[Array, "heads e z"]
    key: Float[Array, "heads e z"]
    query: Float[Array, "heads e z"]

    @property
    def output_value(self) -> Float[Array, "heads y z"]:
        """U = O V."""
        return jnp.einsum("hye,hez->hyz", self.output, self.value)

    @property
    def key_query(self) -> Float[Array, "heads z z"]:
        """W = K^T Q / sqrt(d_e)."""
        return jnp.einsum("hea,heb->hab", self.key, self.query) / math.sqrt(self.key.shape[1])


class DepthWeights(eqx.Module):
    """What layers of descent have estimated of each task: coefficients of the preprocessed features R x, and of the plain ones x."""

    theta: Float[Array, "tasks d"]
    plain: Float[Array, "tasks d"]


class GainWeights(eqx.Module):
    """The two-layer construction: gains of the first layer's heads, and the step size of the second."""

    g: Float[Array, " d"]
    eta: Float[Array, ""]


def stream(problem: Problem, name: str, run: int = 0) -> PRNGKeyArray:
    """The key of one stream of randomness ("start", "task", "data" or "noise") in run number `run` of a problem."""
    return jax.random.fold_in(jax.random.key(getattr(problem.seed, name) + run), STREAMS[name])


def draw(problem: Problem, *, run: int = 0) -> SeparateWeights | MergedWeights | FullWeights | DepthWeights | GainWeights:
    """The random start of run number `run`, in the paper's units and the default float type."""
    if isinstance(problem.task, MultiTask):
        return _full(problem, stream(problem, "start", run))
    if isinstance(problem.task, SparseRegression):
        return _sparse(problem, problem.task.dimension)
    assert isinstance(problem.attention, SeparateHeads | MergedHeads)
    heads, d, scale = problem.attention.heads, len(problem.regression.spectrum), problem.scale
    value, key, query = jax.random.split(stream(problem, "start", run), 3)
    if isinstance(problem.attention, MergedHeads):
        small, large = (scale, scale) if problem.units == "script" else (scale / (math.sqrt(heads) * d), scale / math.sqrt(heads))
        return MergedWeights(large * jax.random.normal(value, (heads,)), small * jax.random.normal(key, (heads, d, d)))
    assert isinstance(problem.attention, SeparateHeads)
    rank = problem.attention.rank
    small, large = scale / (math.sqrt(heads) * (d + 1)), scale / math.sqrt(heads * rank * (d + 1))
    return SeparateWeights(
        value=small * jax.random.normal(value, (heads,)),
        key=large * jax.random.normal(key, (heads, rank, d)),
        query=large * jax.random.normal(query, (heads, rank, d)),
    )


def decomposable(factors: tuple[Array, ...], dimensions: tuple[int, ...], embedding: int) -> FullWeights:
    """Weights with the factors o, v, k, q, heads x tasks each: task i has block i of the scores and its own output."""
    o, v, k, q = factors
    (H, I), d = o.shape, sum(dimensions)
    x, y = jnp.arange(d), jnp.arange(I)
    repeated = lambda part: jnp.repeat(part, jnp.asarray(dimensions), axis=1, total_repeat_length=d)
    place = lambda rows, columns, entries, *shape: jnp.zeros((H, *shape)).at[:, rows, columns].set(entries)
    return FullWeights(
        output=place(y, y, o, I, embedding),
        value=place(y, d + y, v, embedding, d + I),
        key=place(x, x, repeated(k), embedding, d + I),
        query=place(x, x, repeated(q), embedding, d + I),
    )


def _sparse(problem: Problem, d: int) -> DepthWeights | GainWeights:
    """Descent begins at zero; gains begin evenly spaced, the largest first."""
    if isinstance(problem.start, GainsStart):
        return GainWeights(problem.start.scale * jnp.linspace(1.0, problem.start.ratio, d), jnp.asarray(problem.start.step))
    assert isinstance(problem.training, DepthTraining | AdamTraining)
    return DepthWeights(*(jnp.zeros((problem.training.tasks, d)) for _ in range(2)))


def _full(problem: Problem, key: PRNGKeyArray) -> FullWeights:
    task, attention, start = problem.task, problem.attention, problem.start
    assert isinstance(task, MultiTask)
    assert isinstance(attention, FullHeads)
    I, d = len(task.dimensions), sum(task.dimensions)
    H, e = attention.heads, attention.width(task)
    keys = jax.random.split(key, 4)
    if isinstance(start, DecomposableStart):
        return decomposable(_factors(start, task, H, e, keys), task.dimensions, e)
    normal = lambda key, *shape: start.scale * jax.random.normal(key, (H, *shape))
    if isinstance(start, BalancedStart):
        output, part = normal(keys[0], I, e), jnp.pad(normal(keys[1], e, d), ((0, 0), (0, 0), (0, I)))
        return FullWeights(output, jnp.pad(output.mT, ((0, 0), (0, 0), (d, 0))), part, part)
    return FullWeights(normal(keys[0], I, e), *(normal(key, e, d + I) for key in keys[1:]))


def _factors(start: DecomposableStart, task: MultiTask, H: int, e: int, keys: Key[Array, " four"]) -> tuple[Array, ...]:
    """o, v, k, q of every head and task."""
    I, s = len(task.dimensions), start.scale * task.context**-0.75
    preferred = jnp.asarray(start.preferred or [1 + i % H for i in range(I)]) - 1
    boost = jnp.where(preferred[None] == jnp.arange(H)[:, None], start.boost, 1.0)
    v = s * boost if start.mu is None else jnp.sqrt(start.mu) / start.boost * boost
    k = jnp.full((H, I), s if start.omega is None else jnp.sqrt(start.omega * math.sqrt(e)))
    spread = lambda key: jnp.exp(start.spread * jax.random.normal(key, (H, I)))
    v, k = v * spread(keys[0]), k * spread(keys[1])
    # o v = v^2 and o^2 - v^2 = imbalance: o = v e^a, v -> v e^-a with 2 v^2 sinh(2 a) = imbalance.
    tilt = jnp.exp(0.5 * jnp.arcsinh(start.imbalance / (2 * v**2)))
    return v * tilt, v / tilt, k, k


def largest(tree) -> Float[Array, ""]:
    """The largest absolute entry of a tree of arrays."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))
