r"""Contexts with queries for multi-head softmax attention (arXiv:2402.19442): fresh data for every step.

L tokens x_l ~ N(0, I_d) per context. The d coordinates are split among I tasks, d_i to task i, and every context has a fresh vector
g_i ~ N(0, lam_i I_{d_i}) for each task:

    y_{l,i} = g_i . x_{l,i} + sigma eps_{l,i},    eps ~ N(0, 1),     target  y_{q,i} = g_i . q_i  (no noise),    q ~ N(0, I_d)

so that the signal of task i is S_i = E y_{q,i}^2 = lam_i d_i. A chunk of contexts is a pure function of (key, step, number of the chunk):
it is the same whoever makes it, on however many devices, and so is any part of it.

Queries. M = 1 query per context is plain. An even M is M/2 antithetic pairs (q, -q), the negatives last: each query has the law above, and
the part of the gradient noise that is odd in q cancels.

Normals are those of `simulate.normals`: "threefry", the reference, or "box-muller", which is faster.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from simulate.normals import NORMALS


class Batch(eqx.Module):
    """Contexts, their tasks and noise, several queries for each, and the law they were drawn from."""

    x: Float[Array, "contexts d L"]
    g: Float[Array, "contexts d"]
    noise: Float[Array, "contexts tasks L"] | None  # sigma eps; None: the labels have none
    q: Float[Array, "contexts queries d"]
    signal: Float[Array, " tasks"]  # lam_i
    sigma: Float[Array, ""] | None
    dimensions: tuple[int, ...] = eqx.field(static=True)  # d_i

    @property
    def member(self) -> Float[Array, "tasks d"]:
        """One where a coordinate belongs to a task, zero elsewhere."""
        return jnp.asarray(np.repeat(np.eye(len(self.dimensions)), self.dimensions, axis=1), self.x.dtype)

    @property
    def G(self) -> Float[Array, "contexts tasks d"]:
        """The tasks as block diagonal matrices: y = G x + noise."""
        return self.g[:, None] * self.member[None]

    @property
    def labels(self) -> Float[Array, "contexts tasks L"]:
        """The labels y of the contexts."""
        y = self.G @ self.x
        return y if self.noise is None else y + self.noise

    @property
    def targets(self) -> Float[Array, "contexts queries tasks"]:
        """The noise-free labels of the queries."""
        return self.q @ self.G.mT


class Contexts(eqx.Module):
    """Draws contexts; a chunk of them depends on the key, the step and the chunk's number, and on nothing else."""

    signal: Float[Array, " tasks"]  # lam_i
    sigma: Float[Array, ""] | None  # None: no noise is drawn
    key: PRNGKeyArray
    dimensions: tuple[int, ...] = eqx.field(static=True)  # d_i
    context: int = eqx.field(static=True)  # L
    normals: str = eqx.field(static=True)

    @classmethod
    def build(
        cls,
        dimensions: tuple[int, ...],
        context: int,
        key: PRNGKeyArray,
        *,
        signal: float | tuple[float, ...] = 1.0,
        noise: float = 0.0,
        normals: str = "threefry",
        dtype: str = "float32",
    ) -> "Contexts":
        """From plain numbers: d_i, L, lam (one, or one per task), sigma, and the float type of the draws."""
        if dtype not in ("float32", "float64"):
            raise ValueError(f"contexts are drawn in float32 or float64, not in {dtype!r}")
        if normals not in NORMALS:
            raise ValueError(f"normals are made by one of {tuple(NORMALS)}, not by {normals!r}")
        lam = jnp.broadcast_to(jnp.asarray(signal, dtype), (len(dimensions),))
        return cls(lam, jnp.asarray(noise, dtype) if noise else None, key, tuple(dimensions), context, normals)

    def __call__(self, step: Array | int, chunk: Array | int, contexts: int, queries: int, *, first: Array | int = 0) -> Batch:
        """Chunk number `chunk` of a step, or so many contexts of it from `first` on, each with so many queries."""
        if queries != 1 and queries % 2:
            raise ValueError(f"queries are one or come in pairs (q, -q); {queries} is neither")
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(self.key, step), chunk), 4)
        d, tasks = sum(self.dimensions), len(self.dimensions)
        draw = lambda number, *shape: NORMALS[self.normals](keys[number], shape, self.signal.dtype, first)
        q = draw(2, contexts, max(1, queries // 2), d)
        lam = jnp.repeat(self.signal, np.array(self.dimensions), total_repeat_length=d)
        return Batch(
            x=draw(0, contexts, d, self.context),
            g=jnp.sqrt(lam)[None] * draw(1, contexts, d),
            noise=None if self.sigma is None else self.sigma * draw(3, contexts, tasks, self.context),
            q=q if queries == 1 else jnp.concatenate([q, -q], axis=1),
            signal=self.signal,
            sigma=self.sigma,
            dimensions=self.dimensions,
        )

    def piece(self, step: Array | int, first: Array | int, contexts: int, queries: int, *, chunk: int) -> Batch:
        """Contexts `first`, `first + 1`, ... of a step whose chunks are of this size: part of one, or several."""
        if contexts <= chunk:
            return self(step, first // chunk, contexts, queries, first=first % chunk)
        whole, rest = divmod(contexts, chunk)
        many = jax.vmap(lambda number: self(step, first // chunk + number, chunk, queries))(jnp.arange(whole))
        flat = lambda leaf: None if leaf is None else leaf.reshape(-1, *leaf.shape[2:])
        parts = [(flat(many.x), flat(many.g), flat(many.noise), flat(many.q))]
        if rest:
            last = self(step, first // chunk + whole, rest, queries)
            parts.append((last.x, last.g, last.noise, last.q))
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        return Batch(*joined, signal=self.signal, sigma=self.sigma, dimensions=self.dimensions)
