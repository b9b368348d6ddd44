r"""The universal curve behind every direction: its implicit solution and the inverse of that.

    ds/dt = s^2 - s^5,    0 < s < 1
    t = g(s) - g(s_0),    g(s) = F(s) - 1/s
    F(s) = -ln(1-s)/3 + ln(1+s+s^2)/6 - arctan((2s+1)/sqrt 3)/sqrt 3

($dF/ds = s / (1 - s^3)$; derived here, the paper's own solution was not at hand.) Both logarithms are one: $ln(1 + 3s/(1-s)^2) / 6$.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

EARLY = -math.pi / 6 / math.sqrt(3)  # F(0)
LATE = math.log(3) / 6 - math.pi / 3 / math.sqrt(3) - 1  # g(s) + ln(1-s)/3 at s = 1
HALF = math.log(7) / 6 - math.atan(2 / math.sqrt(3)) / math.sqrt(3) - 2  # g(1/2)


def _turn(s: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.arctan((2 * s + 1) / math.sqrt(3)) / math.sqrt(3)


def g(s: Float[Array, "..."]) -> Float[Array, "..."]:
    """The time of the curve, up to a constant; minus infinity at s = 0."""
    return jnp.log1p(3 * s / (1 - s) ** 2) / 6 - _turn(s) - 1 / s


def inverse(h: Float[Array, "..."]) -> Float[Array, "..."]:
    """The s with g(s) = h, to machine precision: in y = -1/s below one half, in y = -ln(1-s) above, where g is nearly linear.

    The first y is within a hundredth. Each of two steps has an error of third order, because the curve is its own ODE: dy/dh is
    known, and so is its slope. All is one loop over the entries.
    """
    upper = h > HALF
    low, high = jnp.where(upper, -10.0, h - EARLY), jnp.where(upper, jnp.minimum(3 * (h - LATE), 700.0), 0.0)
    grown = jnp.exp(high)  # about 1/(1-s)
    y = jnp.where(upper, jnp.log(grown + 3 - 1 / (0.8 + grown)), low - 0.5 / low**2)
    s_of = lambda y: jnp.where(upper, -jnp.expm1(-y), -1 / y)
    for _ in range(2):
        s = s_of(y)
        p = 1 + s + s**2
        logarithm = jnp.log1p(jnp.where(upper, s + s**2, 3 * s / (1 - s) ** 2)) / 6
        off = h - (logarithm - _turn(s) + jnp.where(upper, y / 3 - 1 / s, y))
        rate = jnp.where(upper, s**2 * p, 1 - s**3)  # dy/dh
        bend = jnp.where(upper, s * (2 + 3 * s + 4 * s**2) * (1 - s), -3 * s**4)  # its slope in y
        y = y + off * rate * (1 + 0.5 * off * bend)
    return s_of(y)
