r"""Preprocess, then optimize; plain gradient descent; and the referees they are measured against.

Paper: arXiv:2408.04532. Its text was not at hand: that the first layer reweights features by in-context correlations and later layers
descend is the paper's statement, the formulas are derived here. With $S = X^T X/n$, $r = X^T y/n$ and $R = diag(r)$ (preprocessed, PTO) or
$R = I$ (plain, GD), descent on the features $R x$ from zero reads, in $w = R theta$,

    w_{t+1} = w_t - eta R^2 (S w_t - r),        dw/dtau = -R^2 (S w - r)  as  eta -> 0,  tau = eta t

and is solved per eigen-direction of $A = R S R = U diag(lam) U^T$, $c = U^T R r$:

    w_t = R U [ (1 - (1 - eta lam)^t)/lam ] c,      w(tau) = R U [ (1 - e^{-lam tau})/lam ] c

where a zero eigenvalue ($n < d$) has the factor $eta t$, or $tau$. Steps converge for $eta < 2/lam_max$. One step of PTO is $eta r^3$, of
GD $eta r$.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from spectral_ode.systems.sparse.data import Moments, Sample

ALGORITHMS = ("pto", "gd")


class Spectral(eqx.Module):
    """The descent of one task in its eigen-directions: w = basis @ (factor * c), with basis = R U."""

    basis: Float[Array, "d d"]
    lam: Float[Array, " d"]
    c: Float[Array, " d"]

    @property
    def largest_step(self) -> Float[Array, ""]:
        """The step size 2/lam_max from which on descent diverges."""
        return 2 / jnp.max(self.lam)


def preprocessing(moments: Moments, algorithm: str) -> Float[Array, " d"]:
    """The diagonal of R."""
    return moments.r if algorithm == "pto" else jnp.ones_like(moments.r)


def diagonalize(moments: Moments, algorithm: str) -> Spectral:
    """The eigen-directions of A = R S R; rounding is kept from making an eigenvalue negative."""
    R = preprocessing(moments, algorithm)
    lam, U = jnp.linalg.eigh(R[:, None] * moments.S * R[None])
    return Spectral(R[:, None] * U, jnp.maximum(lam, 0.0), U.T @ (R * moments.r))


def _over(learned: Float[Array, " d"], lam: Float[Array, " d"], limit: Float[Array, ""]) -> Float[Array, " d"]:
    """learned/lam, and `limit` where lam is zero."""
    return jnp.where(lam > 0, learned / jnp.where(lam > 0, lam, 1.0), limit)


def after_flow(spectral: Spectral, tau: Float[Array, ""]) -> Float[Array, " d"]:
    """w(tau)."""
    return spectral.basis @ (_over(-jnp.expm1(-spectral.lam * tau), spectral.lam, tau) * spectral.c)


def after_steps(spectral: Spectral, eta: Float[Array, ""], steps: Int[Array, ""]) -> Float[Array, " d"]:
    """w_t after `steps` steps."""
    count = jnp.asarray(steps).astype(spectral.lam.dtype)
    x = eta * spectral.lam
    gentle = x < 0.5  # where the power is close to one its difference to one is taken without cancellation
    small = -jnp.expm1(count * jnp.log1p(-jnp.where(gentle, x, 0.0)))
    learned = jnp.where(gentle, small, 1 - jnp.where(gentle, 1.0, 1 - x) ** count)
    return spectral.basis @ (_over(learned, spectral.lam, eta * count) * spectral.c)


def iterate(moments: Moments, algorithm: str, eta: Float[Array, ""], steps: int) -> Float[Array, "time d"]:
    """w_0, ..., w_steps by the iteration itself."""
    R2 = preprocessing(moments, algorithm) ** 2
    advance = lambda w, _: (w - eta * R2 * (moments.S @ w - moments.r), w)
    last, before = jax.lax.scan(advance, jnp.zeros_like(moments.r), None, length=steps)
    return jnp.concatenate([before, last[None]])


def ridge(moments: Moments, penalty: Float[Array, ""]) -> Float[Array, " d"]:
    """(S + penalty)^{-1} r."""
    return jnp.linalg.solve(moments.S + penalty * jnp.eye(moments.r.size), moments.r)


def least_squares(moments: Moments) -> Float[Array, " d"]:
    """Ordinary least squares; of smallest length for n < d."""
    return jnp.linalg.lstsq(moments.S, moments.r)[0]


def oracle(moments: Moments, support: Bool[Array, " d"]) -> Float[Array, " d"]:
    """Least squares on the true support."""
    inside = support[:, None] & support[None]
    return jnp.linalg.solve(jnp.where(inside, moments.S, jnp.eye(support.size)), jnp.where(support, moments.r, 0.0))


def risk(w: Float[Array, "*time d"], sample: Sample) -> Float[Array, "*time"]:
    """Excess risk |w - w*|^2."""
    return jnp.sum((w - jnp.broadcast_to(sample.w, w.shape)) ** 2, axis=-1)


def step_curve(spectral: Spectral, sample: Sample, steps: int) -> Float[Array, " time"]:
    """Risk after 0 to `steps` steps of size 1/lam_max of this very task."""
    eta = 0.5 * spectral.largest_step
    return jax.vmap(lambda t: risk(after_steps(spectral, eta, t), sample))(jnp.arange(steps + 1))


def flow_curve(sample: Sample, algorithm: str, tau: Float[Array, " time"]) -> Float[Array, " time"]:
    """Risk of the flow at each time."""
    spectral = diagonalize(sample.moments(), algorithm)
    return jax.vmap(lambda t: risk(after_flow(spectral, t), sample))(tau)
