r"""The cubic features through which linear attention sees a sequence, every block included.

With tokens X = [x_1 ... x_n x_q; y_1 ... y_n 0], Ghat = f X X^T and e = D + 1 (arXiv:2501.16265; this form is ours):

    yhat = sum_{abc} T_abc Ghat_ab x_q,c = t.phi,        T_abc = sum_h a_h[a] W_h[b, c]

a_h is the last row of head h's value matrix, W_h its key-query matrix (W^K^T W^Q for separate ones) without the column of the query's
label, which is zero. Ghat is symmetric, so phi holds the F = D (D+1)(D+2)/2 products of its entries a <= b with x_q, and t holds
T_ab + T_ba for a != b. The loss over any set or law of sequences is a quadratic form in t:

    L = E y^2 - 2 t.E[phi y] + t^T E[phi phi^T] t
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Moments(eqx.Module):
    """Second moments of features and label: all that linear attention can know of a set, or a law, of sequences."""

    M: Float[Array, "F F"]
    b: Float[Array, " F"]
    power: Float[Array, ""]

    def loss(self, t: Float[Array, " F"]) -> Float[Array, ""]:
        """Mean squared error of the query's label."""
        return self.power + jnp.dot(t, self.M @ t - 2 * self.b)


def coefficients(row: Float[Array, "heads e"], W: Float[Array, "heads e d"]) -> Float[Array, " F"]:
    """The vector t with yhat = t.phi."""
    # Products and sums, which XLA fuses, instead of tiny matrix products and gathers: half the time of a training step.
    T = jnp.sum(row[:, :, None, None] * W[:, None], axis=0)
    size, d = T.shape[1:]
    return (jnp.asarray(_pairs(size), T.dtype) @ T.reshape(size * size, d)).reshape(-1)


def features(tokens: Float[Array, "e n"], factor: Float[Array, ""]) -> Float[Array, " F"]:
    """The vector phi of one prompt, whose last token is the query."""
    gram = factor * (tokens @ tokens.T)
    a, b = np.triu_indices(tokens.shape[0])
    return (gram[a, b][:, None] * tokens[None, :-1, -1]).reshape(-1)


def _pairs(size: int) -> np.ndarray:
    """Sums T_ab and T_ba for each pair a < b, and takes T_aa."""
    a, b = np.triu_indices(size)
    pairs = np.zeros((a.size, size, size))
    pairs[np.arange(a.size), a, b] = pairs[np.arange(a.size), b, a] = 1
    return pairs.reshape(a.size, -1)
