r"""The universal curve behind every direction: its implicit solution and the inverse of that.

    ds/dt = s^2 - s^5,    0 < s < 1
    t = g(s) - g(s_0),    g(s) = F(s) - 1/s
    F(s) = -ln(1-s)/3 + ln(1+s+s^2)/6 - arctan((2s+1)/sqrt 3)/sqrt 3

($dF/ds = s / (1 - s^3)$; derived here, the paper's own solution was not at hand.) Both logarithms are one: $ln(1 + 3s/(1-s)^2) / 6$.
The same g holds for s > 1, where the curve comes down. There, with u = 1/s (derived, too):

    du/dt = (1 - u^3) / u^3
    t = p(u) - p(u_0),    p(u) = sum_{k>=0} u^(4+3k) / (4+3k)
    p(u) = -u - ln(1-u)/3 + ln(1+u+u^2)/6 + (arctan((2u+1)/sqrt 3) - pi/6)/sqrt 3
"""

import functools
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

EARLY = -math.pi / 6 / math.sqrt(3)  # F(0)
LATE = math.log(3) / 6 - math.pi / 3 / math.sqrt(3) - 1  # g(s) + ln(1-s)/3 at s = 1
HALF = math.log(7) / 6 - math.atan(2 / math.sqrt(3)) / math.sqrt(3) - 2  # g(1/2)
SUMMED, TERMS = 0.3, 12  # below this u the series of p is summed, so far that the rest is rounding


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


def after(s: Float[Array, "..."], t: Float[Array, "..."]) -> Float[Array, "..."]:
    """Where the curve is a time t later, from either side of its rest at 1."""
    above = s > 1
    rising = inverse(g(jnp.where(s < 1, s, 0.5)) + t)
    falling = fallen(fall(jnp.where(above, s, 2.0)) + t)
    return jnp.where(above, falling, jnp.where(s < 1, rising, 1.0))


def fall(s: Float[Array, "..."]) -> Float[Array, "..."]:
    """p(1/s): the time in which the curve comes down from infinity to s > 1."""
    u = 1 / s
    return _p(u, -jnp.log1p(-(u**4)) / 4)


def fallen(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """The s > 1 with p(1/s) = t, by three steps of Newton in z = -ln(1-u^4)/4, of which p is between 1 and 4/3 times."""
    u_of = lambda z: jnp.sqrt(jnp.sqrt(-jnp.expm1(-4 * z)))
    z = t
    for _ in range(3):
        u = u_of(z)
        z = z - (_p(u, z) - t) * (1 + u + u**2) / ((1 + u) * (1 + u**2))  # dz/dp
    return 1 / u_of(z)


def _p(u: Float[Array, "..."], z: Float[Array, "..."]) -> Float[Array, "..."]:
    """p(u), given z as well: near u = 1 that has the digits which 1 - u has lost."""
    series = functools.reduce(lambda rest, k: rest * u**3 + 1 / (4 + 3 * k), reversed(range(TERMS)), 0.0)
    logarithms = 4 * z / 3 + jnp.log(((1 + u) * (1 + u**2)) ** 2 * (1 + u + u**2)) / 6
    return jnp.where(u < SUMMED, u**4 * series, logarithms - u + _turn(u) - math.pi / 6 / math.sqrt(3))
