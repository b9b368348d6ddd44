r"""The depth flow of a Gaussian design in two groups: the support, integrated exactly per task, and all other coordinates as one law.

Derived here, for $d >> s$. On the support (block $S_o$ of size $s$, correlations $r_o$, $R = diag(r_o)$) the PTO flow is that of
`_algorithms`, with $A = R S_o R = U diag(lam) U^T$, $c = U^T R r_o$; what the other coordinates do to it is left out. The residual of the
labels is then

    rho(tau) = rho_0 + sum_k e^{-lam_k tau} rho_k,   |rho_k|^2/n = c_k^2/lam_k
    |rho_0|^2/n = |y|^2/n - sum_k c_k^2/lam_k

all orthogonal, with $rho_0$ the residual of least squares on the support. A coordinate $j$ off the support has tokens independent of all
of this, so

    dw_j/dtau = r_j^2 (z_j(tau) - w_j),   z_j(tau) = b_0 + sum_k b_k e^{-lam_k tau}

with independent $b_k ~ N(0, V_k)$, $V_k = |rho_k|^2/n^2$, and $r_j = z_j(0) = sum_k b_k$. ($S_jj = 1$, and coordinates off the support do
not feel each other.) Hence $w_j = sum_k phi_k b_k$ with $q = r_j^2$, $lam_0 = 0$ and

    dphi_k/dtau = q (e^{-lam_k tau} - phi_k),    phi_k = q (e^{-lam_k tau} - e^{-q tau})/(q - lam_k)

and given $r_j ~ N(0, V)$, $V = sum_k V_k$, one integral is left:

    E[w_j^2 | r_j] = (r_j^2 - V) (phi.V/V)^2 + sum_k phi_k^2 V_k
    E_off = (d - s) int E[w_j^2 | r_j = sqrt(2 V u)] e^{-u} u^{-1/2} du / sqrt(pi)

Time scales: $1/lam_k ~ 1/beta^2$ on the support, $1/V ~ n/(W2 + sigma^2)$ off it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode import quadrature
from spectral_ode.systems.sparse import _algorithms
from spectral_ode.systems.sparse.data import Moments, Sample

NODES = 48  # over u: 1e-6 of E_off up to tau V ~ 1e3


class Block(eqx.Module):
    """The support block of one task in its eigen-directions, and the variances V_0..V_s of b."""

    spectral: _algorithms.Spectral  # of the s x s block
    w: Float[Array, " s"]
    V: Float[Array, " modes"]

    @property
    def rates(self) -> Float[Array, " modes"]:
        """lam_0 = 0, lam_1..lam_s."""
        return jnp.concatenate([jnp.zeros(1), self.spectral.lam])


def block(sample: Sample, s: int) -> Block:
    """The support block of a task with s non-zeros."""
    inside = jnp.argsort(-jnp.abs(sample.w))[:s]
    x = sample.x[:, inside]
    spectral = _algorithms.diagonalize(Moments(x.T @ x / x.shape[0], x.T @ sample.y / x.shape[0]), "pto")
    explained = spectral.c**2 / spectral.lam
    rest = jnp.mean(sample.y**2) - jnp.sum(explained)
    return Block(spectral, sample.w[inside], jnp.concatenate([rest[None], explained]) / x.shape[0])


def nodes() -> tuple[np.ndarray, np.ndarray]:
    """Values of r_j^2/V and their weights."""
    u, weight = quadrature.half_line(NODES)
    return 2 * u, weight * np.exp(-u) / np.sqrt(np.pi * u)


def decays(block: Block, tau: Float[Array, ""]) -> Float[Array, " modes"]:
    """e^{-lam_k tau}."""
    return jnp.exp(-block.rates * tau)


def response(block: Block, tau: Float[Array, ""]) -> Float[Array, "nodes modes"]:
    """phi_k at each node of r_j^2, in closed form."""
    q = (jnp.asarray(nodes()[0]) * jnp.sum(block.V))[:, None]
    lam = block.rates[None]
    apart = jnp.abs(q - lam) * tau
    ratio = jnp.where(apart > 0, -jnp.expm1(-apart) / jnp.where(apart > 0, apart, 1.0), 1.0)
    return q * tau * jnp.exp(-jnp.minimum(q, lam) * tau) * ratio


def on_support(block: Block, decay: Float[Array, " modes"]) -> Float[Array, " s"]:
    """The estimate on the support."""
    return block.spectral.basis @ ((1 - decay[1:]) / block.spectral.lam * block.spectral.c)


def off_support(block: Block, phi: Float[Array, "nodes modes"]) -> Float[Array, ""]:
    """E w_j^2 of one coordinate off the support."""
    V, (q, weight) = jnp.sum(block.V), (jnp.asarray(part) for part in nodes())
    mean = phi @ block.V / V
    return weight @ ((q - 1) * V * mean**2 + phi**2 @ block.V)


def risks(block: Block, tau: Float[Array, " time"], d: int) -> tuple[Float[Array, " time"], Float[Array, " time"]]:
    """E_on and E_off over time."""
    on = jax.vmap(lambda t: jnp.sum((on_support(block, decays(block, t)) - block.w) ** 2))(tau)
    off = jax.vmap(lambda t: off_support(block, response(block, t)))(tau)
    return on, (d - block.w.size) * off
