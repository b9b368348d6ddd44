r"""Contexts with queries for multi-head softmax attention (arXiv:2402.19442): fresh data for every step.

L tokens x_l ~ N(0, I_d) per context. The d coordinates are split among I tasks, d_i to task i, and every context has a fresh vector
g_i ~ N(0, lam_i I_{d_i}) for each task:

    y_{l,i} = g_i . x_{l,i} + sigma eps_{l,i},    eps ~ N(0, 1),     target  y_{q,i} = g_i . q_i  (no noise),    q ~ N(0, I_d)

so that the signal of task i is S_i = E y_{q,i}^2 = lam_i d_i. A chunk of contexts is a pure function of (key, step, number of the chunk):
it is the same whoever makes it, on however many devices.

Queries. M = 1 query per context is plain. An even M is M/2 antithetic pairs (q, -q), the negatives last: each query has the law above, and
the part of the gradient noise that is odd in q cancels.

Normals. "threefry" is jax.random.normal, the reference. "box-muller" makes two normals from two words (a, b) of the same generator,

    r = sqrt(-2 log u),  u = (a + 1/2) / 2^32,      z_1, z_2 = +-r (cos t, sin t)  or  +-r (sin t, cos t),   t in [-pi/4, pi/4),

where the sign and the order are the two upper bits of b, and t its other 30. Sine and cosine are Taylor polynomials, better than 3e-8 on
that range. The twenty rounds of Threefry-2x32 are written out, where JAX loops over them and makes one word of every two: about twice as
fast in all. It works in float32, whatever the float type of the result: |z| < 6.8, beyond which lies 1e-11 of the normal law. (JAX's
normals in bfloat16 have a wrong mean and variance, so that type is refused.)
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, UInt32

NORMALS = ("threefry", "box-muller")
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of Threefry-2x32, in turn
PARITY = 0x1BD11BDA


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
            raise ValueError(f"normals are made by one of {NORMALS}, not by {normals!r}")
        lam = jnp.broadcast_to(jnp.asarray(signal, dtype), (len(dimensions),))
        return cls(lam, jnp.asarray(noise, dtype) if noise else None, key, tuple(dimensions), context, normals)

    def __call__(self, step: Array | int, chunk: Array | int, contexts: int, queries: int) -> Batch:
        """Chunk number `chunk` of a step: so many contexts, each with so many queries."""
        if queries != 1 and queries % 2:
            raise ValueError(f"queries are one or come in pairs (q, -q); {queries} is neither")
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(self.key, step), chunk), 4)
        d, tasks = sum(self.dimensions), len(self.dimensions)
        normal = box_muller if self.normals == "box-muller" else jax.random.normal
        draw = lambda number, *shape: normal(keys[number], shape, self.signal.dtype)
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


def threefry(key: PRNGKeyArray, shape: tuple[int, ...]) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry-2x32 with twenty rounds of the numbers 0, 1, 2, ...: two arrays of random words."""
    first, second = jax.random.key_data(key)
    keys = (first, second, first ^ second ^ jnp.uint32(PARITY))
    # The counter has the shape of the result: of a long vector, reshaped at the end, XLA makes code that is ten times slower.
    a, b = jnp.full(shape, keys[0]), jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ (b << rotation | b >> 32 - rotation)
        a, b = a + keys[(group + 1) % 3], b + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return a, b


def box_muller(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Float[Array, "..."]:
    """Independent normals (see the top of this file); the two of a pair lie half an array apart along the second axis."""
    a, b = threefry(key, (shape[0], -(-shape[1] // 2), *shape[2:]))
    u = a.astype(jnp.float32) * 2**-32 + 2**-33
    r = jnp.sqrt(-2 * jnp.log(u))
    r = jnp.where(b >> 31 == 0, r, -r)
    t = jax.lax.bitcast_convert_type(b << 2, jnp.int32).astype(jnp.float32) * (math.pi / 4 * 2**-31)
    s = t * t
    cosine = 1 - s * (1 / 2 - s * (1 / 24 - s * (1 / 720 - s * (1 / 40320))))
    sine = t * (1 - s * (1 / 6 - s * (1 / 120 - s * (1 / 5040 - s * (1 / 362880)))))
    turned = b >> 30 & 1 == 0
    pair = [r * jnp.where(turned, sine, cosine), r * jnp.where(turned, cosine, sine)]
    return jnp.concatenate(pair, axis=1)[:, : shape[1]].astype(dtype)
