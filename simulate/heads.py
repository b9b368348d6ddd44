r"""How many heads a layer of linear attention has, whatever its weights say, and how many it needs.

A layer acts as G -> sum_h V_h G W_h, that is through the matrix M = sum_h vec(V_h) vec(W_h)^T alone: mixing the heads by an invertible
matrix (and its inverse) changes every head and nothing else. The singular values of M (the operator-Schmidt spectrum) do not depend on
that choice, its singular pairs are the canonical heads, and

    N_eff = (sum_k s_k^2)^2 / sum_k s_k^4,        best h-head layer: the h leading pairs, squared error 1 - sum_{k<=h} s_k^2/sum s_k^2

Preprocessing, G -> diag(G_xy), has d equal singular values: error 1 - h/d, zero at h = d and not before. That this is also the least error
on symmetric G, which is all a layer sees, is found by `fit` (alternating least squares from random starts), not proven here.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from simulate.linear_transformer import Layer, LinearTransformer

SWEEPS = 40  # of the alternating fit


def schmidt(layer: Layer) -> Float[Array, " heads"]:
    """Singular values of M, largest first, as many as there are heads."""
    return _decompose(layer)[1]


def _decompose(layer: Layer) -> tuple[Float[Array, "pp k"], Float[Array, " k"], Float[Array, "pp k"]]:
    heads = layer.value.shape[0]
    (left, L), (right, R) = (jnp.linalg.qr(part.reshape(heads, -1).T) for part in (layer.value, layer.key_query))
    U, s, Vt = jnp.linalg.svd(L @ R.T)
    return left @ U, s, right @ Vt.T


def effective(s: Float[Array, "*layers heads"]) -> Float[Array, "*layers"]:
    """N_eff: H for equal singular values, 1 for a single one."""
    return jnp.sum(s**2, axis=-1) ** 2 / jnp.sum(s**4, axis=-1)


def canonical(layer: Layer, keep: int) -> Layer:
    """The layer of the `keep` leading canonical heads."""
    left, s, right = _decompose(layer)
    p = layer.value.shape[-1]
    shape = lambda part: (part * jnp.sqrt(s)[None]).T[:keep].reshape(keep, p, p)
    return Layer(shape(left), shape(right))


def prune(model: LinearTransformer, keep: tuple[int, ...]) -> LinearTransformer:
    """Each layer reduced to so many canonical heads."""
    return LinearTransformer(tuple(canonical(layer, count) for layer, count in zip(model.layers, keep, strict=True)))


def fit(key: PRNGKeyArray, d: int, heads: int) -> float:
    """Relative squared error of the best fit of preprocessing with so many heads, over symmetric G, from one random start."""
    p = d + 1
    rows, columns = np.tril_indices(p)
    size, index = np.where(rows == columns, 1.0, 0.5**0.5), np.arange(rows.size)
    basis = np.zeros((rows.size, p, p))  # orthonormal, of symmetric matrices
    basis[index, rows, columns] = basis[index, columns, rows] = size
    target = np.zeros((rows.size, d, d))
    target[:, np.arange(d), np.arange(d)] = basis[:, :d, d]  # diag(G_xy)
    W, flat = np.asarray(jax.random.normal(key, (heads, p, d))), target.reshape(-1, d)
    gap = flat
    for _ in range(SWEEPS):
        seen = np.einsum("gpq,hqc->gchp", basis, W).reshape(-1, heads * p)  # for each row of V the same regressors
        V = np.linalg.lstsq(seen, np.swapaxes(target, 1, 2).reshape(-1, d))[0].T.reshape(d, heads, p)
        told = np.einsum("ahp,gpq->gahq", V, basis).reshape(-1, heads * p)
        W = np.linalg.lstsq(told, flat)[0].reshape(heads, p, d)
        gap = told @ W.reshape(heads * p, d) - flat
    return float(np.sum(gap**2) / np.sum(target**2))
