r"""Multi-head softmax attention with full output, value, key and query matrices (arXiv:2402.19442).

    yhat = sum_h O^h V^h Z softmax( Z^T K^h^T Q^h z_q / sqrt(d_e) )

over a context Z of L tokens (x; y) and a query token z_q = (q; 0), which attends to the context only. O^h is d_y x d_e; V^h, K^h, Q^h are
d_e x (d + d_y). All four are trained. The prediction depends on them through U^h = O^h V^h and W^h = K^h^T Q^h alone.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.weights import FullWeights


class Episode(eqx.Module):
    """A context with a query and its labels (or a batch of them)."""

    context: Float[Array, "*batch z L"]
    query: Float[Array, "*batch z"]
    target: Float[Array, "*batch y"]


class FullAttention(eqx.Module):
    """H heads with all four matrices; in shapes, e = d_e, z = d + d_y, y = d_y."""

    output: Float[Array, "heads y e"]
    value: Float[Array, "heads e z"]
    key: Float[Array, "heads e z"]
    query: Float[Array, "heads e z"]

    @classmethod
    def from_weights(cls, weights: FullWeights, dtype: str) -> "FullAttention":
        """The model with these weights."""
        return cls(*(part.astype(dtype) for part in (weights.output, weights.value, weights.key, weights.query)))

    def weights(self, dtype: str = "float64") -> FullWeights:
        """The four matrices."""
        return FullWeights(*(part.astype(dtype) for part in (self.output, self.value, self.key, self.query)))

    def __call__(self, context: Float[Array, "z L"], query: Float[Array, " z"]) -> Float[Array, " y"]:
        """The labels of the query."""
        asked = jnp.einsum("hea,heb,b->ha", self.key, self.query, query) / math.sqrt(self.key.shape[1])
        attention = jax.nn.softmax(asked @ context, axis=1)
        return jnp.einsum("hye,hez,hz->y", self.output, self.value, attention @ context.T)


class Episodes(eqx.Module):
    """The mean squared error over a set of episodes and all outputs."""

    episodes: Episode

    def __call__(self, model: FullAttention) -> Float[Array, ""]:
        """Mean squared error."""
        predicted = jax.vmap(model)(self.episodes.context, self.episodes.query)
        return jnp.mean((self.episodes.target - predicted) ** 2)
