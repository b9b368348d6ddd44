r"""The weights both sides speak: small named containers, and how an experiment's start is drawn.

Separate key and query (arXiv:2501.16265, Section 2): head i holds the scalar value weight v_i and R pairs of vectors k_ir, q_ir.
These are the blocks that act; the blocks which the paper starts at zero live only in the full model (`simulate.attention`).

Start of scale w0, in the paper's units (scores divided by N), as the authors' script draws it:

    v_i ~ N(0, w0^2 / (H (D+1)^2)),     k_ir, q_ir ~ N(0, w0^2 / (H R (D+1)) I_D).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from spectral_ode.problem import Problem

# Each stream of randomness has its own number, so that equal seeds of two streams are still independent draws.
STREAMS = {"start": 0, "task": 1, "data": 2, "noise": 3}


class SeparateWeights(eqx.Module):
    """The acting blocks of H heads with separate key and query of rank R."""

    value: Float[Array, " heads"]
    key: Float[Array, "heads rank d"]
    query: Float[Array, "heads rank d"]


def stream(problem: Problem, name: str, run: int = 0) -> PRNGKeyArray:
    """The key of one stream of randomness ("start", "task", "data" or "noise") in run number `run` of a problem."""
    return jax.random.fold_in(jax.random.key(getattr(problem.seed, name) + run), STREAMS[name])


def draw(problem: Problem, *, run: int = 0) -> SeparateWeights:
    """The random start of run number `run`, in the default float type."""
    heads, rank, d = problem.attention.heads, problem.attention.rank, len(problem.task.spectrum)
    value, key, query = jax.random.split(stream(problem, "start", run), 3)
    scale = problem.start.scale
    small, large = scale / (math.sqrt(heads) * (d + 1)), scale / math.sqrt(heads * rank * (d + 1))
    return SeparateWeights(
        value=small * jax.random.normal(value, (heads,)),
        key=large * jax.random.normal(key, (heads, rank, d)),
        query=large * jax.random.normal(query, (heads, rank, d)),
    )


def largest(tree) -> Float[Array, ""]:
    """The largest absolute entry of a tree of arrays."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))
