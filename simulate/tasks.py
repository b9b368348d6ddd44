"""Prompts of in-context regression: each batch is a pure function of the seeds and its number.

x_n, x_q ~ N(0, Lambda), w ~ N(0, I) per sequence, y_n = w.x_n + noise, y_q = w.x_q.  Prompt matrix (arXiv:2501.16265, Section 2):

    X = [x_1 ... x_N x_q; y_1 ... y_N 0]    of size (D+1) x (N+1)

Sampling. With "iid" every number is an independent normal. With "even" a fixed data set covers the same law evenly: tasks and queries
come from a scrambled Sobol sequence, and each sequence comes with its mirror images x_d, w_d -> +-x_d, +-w_d in the eigenbasis, with
signs from the rows of a Hadamard matrix (so that the off-diagonal sampling error of E[y beta x_q^T] cancels). It matters because that
error kicks the heads that still wait on a plateau: at 80,000 iid sequences late drops move by several percent, which has nothing to
do with the theory under test. Every single sequence still has exactly the law above.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import hadamard
from scipy.stats import qmc

from spectral_ode.problem import Problem
from spectral_ode.systems.linear import rotation
from spectral_ode.weights import stream

BATCH = 4096  # sequences of a fixed data set are drawn in batches of this size


class Prompts(eqx.Module):
    """A batch of prompt matrices and the labels of their queries."""

    tokens: Float[Array, "sequences e n"]
    target: Float[Array, " sequences"]


class Sampler(eqx.Module):
    """Draws prompts; a batch depends on the keys and its number, and on nothing else."""

    root: Float[Array, "d d"]  # a square root of Lambda
    noise: Float[Array, ""]
    keys: dict[str, PRNGKeyArray]
    even: Float[Array, "draws twice_d"] | None  # tasks and whitened queries, evenly spread; None: independent
    context: int = eqx.field(static=True)

    @classmethod
    def from_problem(cls, problem: Problem, *, run: int = 0) -> "Sampler":
        """The sampler of one run, in the float type of the problem's training."""
        dtype = problem.training.dtype
        spectrum = jnp.sort(jnp.asarray(problem.task.spectrum, dtype))[::-1]
        root = rotation(problem.task.rotation, spectrum.size).astype(dtype) * jnp.sqrt(spectrum)[None]
        keys = {name: stream(problem, name, run) for name in ("task", "data", "noise")}
        even = _even(problem, run, spectrum.size).astype(dtype) if problem.training.sampling == "even" else None
        return cls(root, jnp.asarray(problem.task.noise, dtype), keys, even, problem.task.context)

    def __call__(self, number: Array | int, sequences: int) -> Prompts:
        """Batch `number`."""
        d, dtype = self.root.shape[0], self.root.dtype
        keys = {name: jax.random.fold_in(key, number) for name, key in self.keys.items()}
        draws = sequences if self.even is None else sequences // mirrors(d).shape[0]
        x = jax.random.normal(keys["data"], (draws, d, self.context + 1), dtype)
        if self.even is None:
            w = jax.random.normal(keys["task"], (draws, d), dtype)
        else:
            rows = jax.lax.dynamic_slice_in_dim(self.even, number * draws, draws)
            signs = jnp.asarray(mirrors(d), dtype)[None]
            w = (rows[:, None, :d] * signs).reshape(sequences, d)
            x = (x.at[:, :, -1].set(rows[:, d:])[:, None] * signs[..., None]).reshape(sequences, d, -1)
        x = jnp.einsum("ab,sbn->san", self.root, x)
        y = jnp.einsum("sd,sdn->sn", w, x)
        noisy = y[:, :-1] + self.noise * jax.random.normal(keys["noise"], (sequences, self.context), dtype)
        labels = jnp.concatenate([noisy, jnp.zeros((sequences, 1), dtype)], axis=1)
        return Prompts(jnp.concatenate([x, labels[:, None]], axis=1), y[:, -1])


def mirrors(d: int) -> np.ndarray:
    """Signs of the mirror images of a sequence: rows whose columns are orthogonal."""
    return hadamard(1 << (d - 1).bit_length())[:, :d]


def _even(problem: Problem, run: int, d: int) -> Float[Array, "draws twice_d"]:
    """Standard normals from a scrambled Sobol sequence, enough for whole batches with their mirror images."""
    count = -(-problem.training.sequences // BATCH) * BATCH // mirrors(d).shape[0]
    points = qmc.Sobol(2 * d, rng=problem.seed.task + run).random(1 << (count - 1).bit_length())[:count]
    return jax.scipy.special.ndtri(jnp.clip(jnp.asarray(points), 1e-9, 1 - 1e-9))


def fixed(sampler: Sampler, sequences: int) -> Prompts:
    """A fixed data set: batches 0, 1, ... cut to the number of sequences."""
    batches = jax.lax.map(lambda number: sampler(number, BATCH), jnp.arange(-(-sequences // BATCH)))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:sequences], batches)
