r"""How full weights are seen as a spectrum, and what lies outside of it.

    mu_i^h = (O^h V^h)_{i, y_i},        omega_i^h = mean over block i of the diagonal of (K^h)^T Q^h / sqrt(d_e)

For decomposable weights nothing else is there, and gradient flow keeps it so. Otherwise the rest is measured: the spread of the diagonal
inside a block, and the norms of the four parts that the theory sets to zero. The balances $o^2 - v^2$ and $k^2 - q^2$ are those of the
norms of rows and columns, which full gradient flow conserves, too:

    |O_i|^2 - |V_{y_i}|^2,    (|K_block|^2 - |Q_block|^2) / d_i
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode.systems.softmax._leading import Factors, Spectrum
from spectral_ode.weights import FullWeights

ZEROS = ("U_X", "U_Y off the diagonal", "W_Y", "W_X off the diagonal")  # what the theory sets to zero


def _blocks(dimensions: tuple[int, ...]) -> np.ndarray:
    """Which coordinates belong to a task, [d, tasks]."""
    return np.repeat(np.eye(len(dimensions)), dimensions, axis=0)


def spectrum(weights: FullWeights, dimensions: tuple[int, ...]) -> Spectrum:
    """The eigenvalues, as averages where the weights are not decomposable."""
    d, block = sum(dimensions), jnp.asarray(_blocks(dimensions))
    mu = jnp.diagonal(weights.output_value[..., d:], axis1=1, axis2=2)
    along = jnp.diagonal(weights.key_query[:, :d, :d], axis1=1, axis2=2)
    return Spectrum(mu, along @ (block / jnp.sum(block, axis=0)[None]))


def factors(weights: FullWeights, dimensions: tuple[int, ...]) -> Factors:
    """The four factors with these eigenvalues and the balances of the weights."""
    d, block, root = sum(dimensions), jnp.asarray(_blocks(dimensions)), jnp.sqrt(jnp.asarray(weights.key.shape[1], float))
    mean = block / jnp.sum(block, axis=0)[None]
    mu, omega = spectrum(weights, dimensions)
    square = lambda part: jnp.sum(part[..., :d] ** 2, axis=1) @ mean
    o, v = _split(mu, jnp.sum(weights.output**2, axis=2) - jnp.sum(weights.value[..., d:] ** 2, axis=1))
    return Factors(o, v, *_split(omega * root, square(weights.key) - square(weights.query)))


def _split(product: Float[Array, "..."], balance: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """(a, b) with a b = product and a^2 - b^2 = balance; the larger one is positive."""
    larger = jnp.sqrt(0.5 * (jnp.abs(balance) + jnp.sqrt(balance**2 + 4 * product**2)))
    smaller = product / jnp.where(larger > 0, larger, 1.0)
    return jnp.where(balance >= 0, larger, smaller), jnp.where(balance >= 0, smaller, larger)


def outside(weights: FullWeights, dimensions: tuple[int, ...]) -> dict[str, Array]:
    """Spread of omega inside each block, norms of the parts in `ZEROS`, and the share of the squared U and W that is not spectrum."""
    d, block = sum(dimensions), jnp.asarray(_blocks(dimensions))
    U, W = weights.output_value, weights.key_query[..., :d]
    mu, omega = spectrum(weights, dimensions)
    along = jnp.diagonal(W[:, :d], axis1=1, axis2=2)
    apart = (along - omega @ block.T) ** 2
    off = lambda matrix: jnp.sum(matrix**2) - jnp.sum(jnp.diagonal(matrix, axis1=1, axis2=2) ** 2)
    squares = jnp.stack([jnp.sum(U[..., :d] ** 2), off(U[..., d:]), jnp.sum(W[:, d:] ** 2), off(W[:, :d])])
    squares = jnp.maximum(squares, 0.0)  # a difference of squares may round below zero
    lost = jnp.sum(squares) + jnp.sum(apart)
    kept = jnp.sum(mu**2) + jnp.sum(omega**2 @ jnp.sum(block, axis=0))
    return {
        "spread": jnp.sqrt(apart @ (block / jnp.sum(block, axis=0)[None])),
        "zeros": jnp.sqrt(squares),
        "outside": lost / (lost + kept),
    }
