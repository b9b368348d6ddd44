r"""The weights both sides speak: small named containers, and how an experiment's start is drawn.

Separate key and query (arXiv:2501.16265, Section 2): head i holds the scalar value weight v_i and R pairs of vectors k_ir, q_ir.
Merged: v_i and one matrix U_i. These are the blocks that act; the blocks which the paper starts at zero live in the full model
(`simulate.attention`) and in `systems.linear.blocks`.

Start of scale w0, in the paper's units (scores divided by N), as the authors' script draws it:

    separate   v_i ~ N(0, w0^2 / (H (D+1)^2)),     k_ir, q_ir ~ N(0, w0^2 / (H R (D+1)) I_D)
    merged     v_i ~ N(0, w0^2 / H),               entries of U_i ~ N(0, w0^2 / (H D^2)): both layers have norm w0
               (units = "script", whose start is not balanced: v_i and entries of U_i ~ N(0, w0^2))
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from spectral_ode.problem import MergedHeads, Problem

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


def stream(problem: Problem, name: str, run: int = 0) -> PRNGKeyArray:
    """The key of one stream of randomness ("start", "task", "data" or "noise") in run number `run` of a problem."""
    return jax.random.fold_in(jax.random.key(getattr(problem.seed, name) + run), STREAMS[name])


def draw(problem: Problem, *, run: int = 0) -> SeparateWeights | MergedWeights:
    """The random start of run number `run`, in the paper's units and the default float type."""
    heads, d, scale = problem.attention.heads, len(problem.task.spectrum), problem.scale
    value, key, query = jax.random.split(stream(problem, "start", run), 3)
    if isinstance(problem.attention, MergedHeads):
        small, large = (scale, scale) if problem.units == "script" else (scale / (math.sqrt(heads) * d), scale / math.sqrt(heads))
        return MergedWeights(large * jax.random.normal(value, (heads,)), small * jax.random.normal(key, (heads, d, d)))
    rank = problem.attention.rank
    small, large = scale / (math.sqrt(heads) * (d + 1)), scale / math.sqrt(heads * rank * (d + 1))
    return SeparateWeights(
        value=small * jax.random.normal(value, (heads,)),
        key=large * jax.random.normal(key, (heads, rank, d)),
        query=large * jax.random.normal(query, (heads, rank, d)),
    )


def largest(tree) -> Float[Array, ""]:
    """The largest absolute entry of a tree of arrays."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))
