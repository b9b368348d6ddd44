r"""The cubic features through which linear attention sees a sequence, every block included.

With tokens X = [x_1 ... x_n x_q; y_1 ... y_n 0], Ghat = f X X^T and e = D + 1 (arXiv:2501.16265; this form is ours):

    yhat = sum_{abc} T_abc Ghat_ab x_q,c = t.phi,        T_abc = sum_h a_h[a] W_h[b, c]

a_h is the last row of head h's value matrix, W_h its key-query matrix (W^K^T W^Q for separate ones) without the column of the query's
label, which is zero. Ghat is symmetric, so phi holds the F = D (D+1)(D+2)/2 products of its entries a <= b with x_q, and t holds
T_ab + T_ba for a != b. The loss over any set or law of sequences is a quadratic form in t:

    L = E y^2 - 2 t.E[phi y] + t^T E[phi phi^T] t
"""

import equinox as eqx
import jax
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
    # Products and sums, which XLA fuses, instead of tiny matrix products.
    return _fold(jnp.sum(row[:, :, None, None] * W[:, None], axis=0)).reshape(-1)


def features(tokens: Float[Array, "e n"], factor: Float[Array, ""]) -> Float[Array, " F"]:
    """The vector phi of one prompt, whose last token is the query."""
    gram = factor * (tokens @ tokens.T)
    a, b = np.triu_indices(tokens.shape[0])
    return (gram[a, b][:, None] * tokens[None, :-1, -1]).reshape(-1)


@jax.custom_vjp
def _fold(T: Float[Array, "e e d"]) -> Float[Array, "pairs d"]:
    """T_ab + T_ba for each pair a < b, and T_aa."""
    a, b = np.triu_indices(T.shape[0])
    return jnp.where(a == b, 0.5, 1.0).astype(T.dtype)[:, None] * (T[a, b] + T[b, a])


def _unfold(slope: Float[Array, "pairs d"]) -> Float[Array, "e e d"]:
    """The slope of each T_ab is that of its pair."""
    size = slope.shape[1] + 1
    a, b = np.triu_indices(size)
    pair = np.zeros((size, size), int)
    pair[a, b] = pair[b, a] = np.arange(a.size)
    return slope[pair]


# JAX would go back through a scatter, which is slow on a CPU: looking up the pair instead halves the time of a training step.
_fold.defvjp(lambda T: (_fold(T), None), lambda _, slope: (_unfold(slope),))
