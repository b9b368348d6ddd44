r"""Normal numbers that depend on a key and their place alone, so that any rows of an array can be drawn without the others.

Word number i of a key is Threefry-2x32 of the counter i, as in JAX: a batch may be cut into pieces of any size, drawn in any order on any
number of devices, and is always the same batch.

`threefry` are the numbers of jax.random.normal, bit by bit, about twice as fast on a CPU: the twenty rounds are written out, where JAX
loops over them. `box_muller` makes two normals from the two words (a, b) of a counter,

    r = sqrt(-2 log u),  u = (a + 1/2) / 2^32,      z_1, z_2 = +-r (cos t, sin t)  or  +-r (sin t, cos t),   t in [-pi/4, pi/4),

where the sign and the order are the two upper bits of b, and t its other 30. Sine and cosine are Taylor polynomials, better than 3e-8 on
that range. It works in float32, whatever the float type of the result: |z| < 6.8, beyond which lies 1e-11 of the normal law. (JAX's
normals in bfloat16 have a wrong mean and variance, so that type is refused by those who draw.)
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of Threefry-2x32, in turn
PARITY = 0x1BD11BDA
MOST = 2**32  # numbers of one key: the counter is one word


def words(key: PRNGKeyArray, shape: tuple[int, ...], first: Array | int = 0) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry-2x32 with twenty rounds of the numbers 0, 1, 2, ..., from row `first` on: two arrays of random words."""
    one, two = jax.random.key_data(key)
    keys = (one, two, one ^ two ^ jnp.uint32(PARITY))
    begin = jnp.asarray(first).astype(jnp.uint32) * jnp.uint32(math.prod(shape[1:]))
    # The counter has the shape of the result: of a long vector, reshaped at the end, XLA makes code that is ten times slower.
    a, b = jnp.full(shape, keys[0]), jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + (begin + keys[1])
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ (b << rotation | b >> 32 - rotation)
        a, b = a + keys[(group + 1) % 3], b + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return a, b


def threefry(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32, first: Array | int = 0) -> Float[Array, "..."]:
    """Rows `first`, `first + 1`, ... of jax.random.normal(key, (..., *shape[1:]), dtype)."""
    a, b = words(key, shape, first)
    if jnp.dtype(dtype) == jnp.float64:
        bits, kept, one = a.astype(jnp.uint64) << 32 | b.astype(jnp.uint64), 52, np.float64(1).view(np.uint64)
    else:
        bits, kept, one = a ^ b, 23, np.float32(1).view(np.uint32)
    uniform = jax.lax.bitcast_convert_type(bits >> (bits.dtype.itemsize * 8 - kept) | one, dtype) - 1  # in [0, 1)
    kind = np.dtype(dtype).type
    low = np.nextafter(kind(-1), kind(0))
    return kind(math.sqrt(2)) * jax.lax.erf_inv(jnp.maximum(low, uniform * (kind(1) - low) + low))


def box_muller(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32, first: Array | int = 0) -> Float[Array, "..."]:
    """Independent normals (see the top of this file); the two of a pair lie half an array apart along the second axis."""
    a, b = words(key, (shape[0], -(-shape[1] // 2), *shape[2:]), first)
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


NORMALS = {"threefry": threefry, "box-muller": box_muller}
