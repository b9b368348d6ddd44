r"""The Marchenko-Pastur law: eigenvalues of X^T X/n for n rows N(0, I_d) as n and d grow with gamma = d/n.

Continuous part, on ((1-sqrt gamma)^2, (1+sqrt gamma)^2), with lam = (1-sqrt gamma)^2 + 4 sqrt(gamma) sin^2(theta/2):

    int f dF = (2/pi) int_0^pi f(lam) sin^2(theta)/lam dtheta,      and an atom of mass 1 - 1/gamma at zero for gamma > 1

The resolvent m(p) = int (s + p)^{-1} dMP(s), atom included, solves gamma p m^2 + (1 - gamma + p) m = 1; m2 = -m'.

Linear regression in the proportional limit, task of squared length S, noise variance sigma2:

    Bayes, and ridge at its best penalty z = gamma sigma2/S      S z m(z)
    ridge with (X^T X/n + p)^{-1} X^T y/n                         S p^2 m2 + sigma2 gamma (m - p m2)
    gradient flow from zero at time tau (the atom keeps its part of S for ever)

        S int e^{-2 lam tau} dMP + sigma2 gamma int (1 - e^{-lam tau})^2/lam dF
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode import quadrature

Number = Float[Array, ""] | float | int
NODES = 300  # of the quadrature over theta: 1e-13 for gamma up to 0.999 and tau up to 1e4


def resolvent(gamma: Float[Array, "..."], p: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The products p m(p) and p^2 m2(p), without cancellation and down to p = 0."""
    b = 1 - gamma + p
    root = jnp.sqrt(b**2 + 4 * gamma * p)
    first = jnp.where(b > 0, 2 * p / jnp.where(b > 0, b + root, 1.0), (root - b) / (2 * gamma))
    return first, first * (p + gamma * first) / root


def spectrum(gamma: float, *, nodes: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """Nodes lam and weights of the continuous part, whose mass is min(1, 1/gamma)."""
    x, weight = quadrature.interval(nodes)
    root = np.sqrt(gamma)
    lam = (1 - root) ** 2 + 4 * root * np.sin(0.5 * np.pi * x) ** 2
    return lam, 2 * weight * np.sin(np.pi * x) ** 2 / lam


def bayes_risk(gamma: Float[Array, "*shape"] | float | int, *, S: Number = 1.0, sigma2: Number = 1.0) -> Float[Array, "*shape"]:
    """Risk of the Bayes estimator (MMSE), which is ridge at its best penalty."""
    gamma = jnp.asarray(gamma, float)
    return S * resolvent(gamma, gamma * sigma2 / S)[0]


def ridge_risk(
    gamma: Float[Array, "*shape"] | float | int, penalty: Number, *, S: Number = 1.0, sigma2: Number = 1.0
) -> Float[Array, "*shape"]:
    """Risk of ridge regression with a given penalty > 0."""
    gamma = jnp.asarray(gamma, float)
    first, second = resolvent(gamma, jnp.asarray(penalty, float))
    return S * second + sigma2 * gamma * (first - second) / penalty


def flow_risk(tau: Float[Array, " time"], gamma: float, *, S: Number = 1.0, sigma2: Number = 1.0) -> Float[Array, " time"]:
    """Risk of gradient flow from zero at each time."""
    lam, weight = (jnp.asarray(part) for part in spectrum(gamma))
    decay = jnp.exp(-tau[:, None] * lam[None])
    kept, learned = decay**2 @ weight, jnp.expm1(-tau[:, None] * lam[None]) ** 2 @ (weight / lam)
    return S * (kept + max(1 - 1 / gamma, 0.0)) + sigma2 * gamma * learned
