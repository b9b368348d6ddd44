r"""Excess risks in closed form, all derived here: an orthogonal design, where coordinates decouple, and when to stop.

Orthogonal design ($S = I$, $n >= d$): $r_j = w*_j + xi_j$, $xi_j ~ N(0, v)$, $v = sigma^2/n$. PTO flow: $w_j = r_j (1 - e^{-r_j^2 tau})$.
With $E_a[f] = E f(r) e^{-a r^2}$ over $r ~ N(beta, v)$, a Gaussian integral with mean $beta/(1 + 2 a v)$ and variance $v/(1 + 2 a v)$,

    E (w_j - beta)^2 = v - 2 (E_tau[r^2] - beta E_tau[r]) + E_{2 tau}[r^2]

which on the support falls to $v$ and off it ($beta = 0$) is $v [1 - 2 (1+2 tau v)^{-3/2} + (1+4 tau v)^{-3/2}]$, about $15 tau^2 v^3$ at
first: coordinates without signal hardly move while $tau v << 1$, and for $tau -> inf$ everything returns to least squares, $d v$. Beside
it:

- GD at its best time, and ridge at its best penalty (all coordinates shrink alike): $W2 d v/(W2 + d v)$ with $W2 = E |w*|^2$;
- Lasso is a soft threshold $lam = sigma sqrt(2 log d/n)$, per coordinate (`threshold_risk`);
- with the support known: $s v$.

Stopping (Gaussian design): the support needs $tau >> 1/beta^2$, noise and interference move the others from $tau ~ n/(W2 + sigma^2)$ on.
"""

import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from spectral_ode.systems.sparse.data import Law, Number


def _tilted(a: Float[Array, " time"], beta: Number, v: Number) -> tuple[Float[Array, " time"], Float[Array, " time"]]:
    """E r e^{-a r^2} and E r^2 e^{-a r^2} over r ~ N(beta, v)."""
    shrink = 1 / (1 + 2 * a * v)
    weight = jnp.sqrt(shrink) * jnp.exp(-a * beta**2 * shrink)
    return weight * beta * shrink, weight * ((beta * shrink) ** 2 + v * shrink)


def coordinate(tau: Float[Array, " time"], beta: Number, v: Number) -> Float[Array, " time"]:
    """Risk of one coordinate of the PTO flow in an orthogonal design."""
    (first, second), (_, twice) = _tilted(tau, beta, v), _tilted(2 * tau, beta, v)
    return v - 2 * (second - beta * first) + twice


def orthogonal(tau: Float[Array, " time"], law: Law) -> Float[Array, " time"]:
    """Risk of the PTO flow for coefficients +-1 in an orthogonal design."""
    return law.s * coordinate(tau, 1.0, law.v) + (law.d - law.s) * coordinate(tau, 0.0, law.v)


def shrinkage(law: Law) -> Number:
    """Best risk of all estimators rho r in an orthogonal design: gradient descent at its best time, ridge at its best penalty."""
    return law.W2 * law.d * law.v / (law.W2 + law.d * law.v)


def threshold_risk(beta: Number, v: Number, lam: Number) -> Float[Array, ""]:
    """E (soft(r, lam) - beta)^2 over r ~ N(beta, v), soft(r, lam) = sign(r) (|r| - lam)_+."""
    beta, lam = jnp.asarray(beta, float), jnp.asarray(lam, float)
    root = jnp.sqrt(jnp.asarray(v, float))
    up, down = (lam - beta) / root, (lam + beta) / root
    inside = norm.cdf(up) - norm.cdf(-down)
    return (v + lam**2) * (1 - inside) + beta**2 * inside - v * (up * norm.pdf(down) + down * norm.pdf(up))


def lasso(law: Law) -> Float[Array, ""]:
    """Risk of Lasso for coefficients +-1 in an orthogonal design, at the threshold sigma sqrt(2 log d/n)."""
    lam = jnp.sqrt(2 * law.v * jnp.log(jnp.asarray(law.d, float)))
    return law.s * threshold_risk(1.0, law.v, lam) + (law.d - law.s) * threshold_risk(0.0, law.v, lam)


def window(law: Law, *, beta: float = 1.0) -> tuple[Number, Number]:
    """Flow times between which to stop: the support is learned, the others have not moved."""
    return 1 / beta**2, law.n / (law.W2 + law.sigma**2)


def best(time: Float[Array, " time"], risk: Float[Array, " time"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """When a risk curve is lowest, and how low: the parabola through the lowest point and its neighbors."""
    i = jnp.clip(jnp.argmin(risk), 1, risk.size - 2)
    (a, b, c), (fa, fb, fc) = (time[i - 1], time[i], time[i + 1]), (risk[i - 1], risk[i], risk[i + 1])
    left, right = (fb - fa) / (b - a), (fc - fb) / (c - b)
    bend = (right - left) / (c - a)
    at = jnp.where(bend > 0, 0.5 * (a + b - left / jnp.where(bend > 0, bend, 1.0)), b)
    inside = (at >= a) & (at <= c) & (jnp.argmin(risk) == i)
    low = fa + left * (at - a) + bend * (at - a) * (at - b)
    first = jnp.argmin(risk)
    return jnp.where(inside, at, time[first]), jnp.where(inside, low, risk[first])
