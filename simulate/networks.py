r"""The linear networks that attention is in disguise (arXiv:2501.16265): they see only the cubic feature z = vec(beta x_q^T).

    merged, H heads               yhat = w2^T W1 z                      a two-layer network of width H
    separate, rank one, H heads   yhat = sum_i v_i q_i^T (k_i * z)      a sum of three-layer networks whose first layer is a convolution
                                                                        with kernel k_i of size D and stride D

z is stacked by columns: z = x_q (x) beta, so that a kernel of size D and stride D meets beta once for each entry of x_q. Trained on the
same sequences from the same start, attention and network are one trajectory as long as the blocks that the paper starts at zero stay there.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from simulate.attention import AbstractModel, Prompt
from spectral_ode.weights import MergedWeights, SeparateWeights


def cubic(prompt: Prompt) -> Float[Array, " d2"]:
    """The feature z of one prompt."""
    beta = prompt.factor * (prompt.tokens[:-1] @ prompt.tokens[-1])
    return jnp.kron(prompt.tokens[:-1, -1], beta)


class TwoLayer(AbstractModel):
    """w2^T W1 z."""

    w2: Float[Array, " heads"]
    W1: Float[Array, "heads d2"]

    @classmethod
    def from_weights(cls, weights: MergedWeights, dtype: str, activation: str = "linear") -> "TwoLayer":
        """Rows of W1 are the key-query matrices, stacked by columns."""
        W1 = jnp.swapaxes(weights.key_query, 1, 2).reshape(weights.value.size, -1)
        return cls(weights.value.astype(dtype), W1.astype(dtype))

    def predict(self, prompt: Prompt) -> Float[Array, ""]:
        """The network on z."""
        return jnp.dot(self.w2, self.W1 @ cubic(prompt))

    def bilinear(self) -> tuple[Float[Array, "heads e"], Float[Array, "heads e d"]]:
        """The attention that this network is."""
        return _padded(self.w2, self.weights(self.w2.dtype.name).key_query)

    def weights(self, dtype: str = "float64") -> MergedWeights:
        """The same numbers as attention weights."""
        d = round(self.W1.shape[1] ** 0.5)
        key_query = jnp.swapaxes(self.W1.reshape(-1, d, d), 1, 2)
        return MergedWeights(self.w2.astype(dtype), key_query.astype(dtype))

    def idle(self) -> Float[Array, ""]:
        """There are no other blocks."""
        return jnp.zeros((), self.w2.dtype)


class Convolutional(AbstractModel):
    """Sum over heads of v_i q_i^T (k_i * z)."""

    v: Float[Array, " heads"]
    q: Float[Array, "heads d"]
    k: Float[Array, "heads d"]

    @classmethod
    def from_weights(cls, weights: SeparateWeights, dtype: str, activation: str = "linear") -> "Convolutional":
        """One kernel per head: rank one."""
        return cls(*(part.astype(dtype) for part in (weights.value, weights.query[:, 0], weights.key[:, 0])))

    def predict(self, prompt: Prompt) -> Float[Array, ""]:
        """Convolution with stride D, then the query layer, then the value layer."""
        windows = cubic(prompt).reshape(self.k.shape[1], -1)  # one row per step of the kernel
        return jnp.dot(self.v, jnp.sum(self.q * (self.k @ windows.T), axis=1))

    def bilinear(self) -> tuple[Float[Array, "heads e"], Float[Array, "heads e d"]]:
        """The attention that this network is."""
        return _padded(self.v, self.k[:, :, None] * self.q[:, None, :])

    def weights(self, dtype: str = "float64") -> SeparateWeights:
        """The same numbers as attention weights."""
        return SeparateWeights(self.v.astype(dtype), self.k[:, None].astype(dtype), self.q[:, None].astype(dtype))

    def idle(self) -> Float[Array, ""]:
        """There are no other blocks."""
        return jnp.zeros((), self.v.dtype)


def _padded(value: Float[Array, " heads"], key_query: Float[Array, "heads d d"]) -> tuple:
    return jnp.zeros((value.size, key_query.shape[1] + 1), value.dtype).at[:, -1].set(value), jnp.pad(key_query, ((0, 0), (0, 1), (0, 0)))


def twin_of(kind: str) -> type[AbstractModel]:
    """The network behind a kind of attention."""
    return TwoLayer if kind == "merged" else Convolutional
