r"""The universal curve behind every direction: its implicit solution and the inverse of that.

    ds/dt = s^2 - s^5,    0 < s < 1
    t = g(s) - g(s_0),    g(s) = F(s) - 1/s
    F(s) = -ln(1-s)/3 + ln(1+s+s^2)/6 - arctan((2s+1)/sqrt 3)/sqrt 3

($dF/ds = s / (1 - s^3)$; derived here, the paper's own solution was not at hand.)
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _rest(s: Float[Array, "..."]) -> Float[Array, "..."]:
    """F(s) without its logarithm of 1-s."""
    return jnp.log1p(s + s**2) / 6 - jnp.arctan((2 * s + 1) / math.sqrt(3)) / math.sqrt(3)


def g(s: Float[Array, "..."]) -> Float[Array, "..."]:
    """The time of the curve, up to a constant; minus infinity at s = 0."""
    return _rest(s) - jnp.log1p(-s) / 3 - 1 / s


def inverse(h: Float[Array, "..."]) -> Float[Array, "..."]:
    """The s with g(s) = h, to machine precision: Newton in -1/s below one half, in -ln(1-s) above, where g is nearly linear."""
    upper = h > g(jnp.asarray(0.5, h.dtype))
    h_low, h_high = jnp.where(upper, -10.0, h), jnp.where(upper, h, 0.0)

    def low(_, w):  # w = -1/s, dg/dw = 1/(1 - s^3)
        s = -1 / w
        return jnp.minimum(w - (g(s) - h_low) * (1 - s**3), -1.5)

    def high(_, x):  # x = -ln(1-s), dg/dx = 1/(s^2 (1 + s + s^2))
        s = -jnp.expm1(-x)
        return jnp.maximum(x - (x / 3 + _rest(s) - 1 / s - h_high) * s**2 * (1 + s + s**2), 0.5)

    w = jax.lax.fori_loop(0, 8, low, jnp.minimum(h_low, -1.5))
    x = jax.lax.fori_loop(0, 8, high, jnp.maximum(3 * h_high, 0.7))
    return jnp.where(upper, -jnp.expm1(-x), -1 / w)
