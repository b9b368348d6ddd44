r"""Linear attention with separate key and query, every block trainable (arXiv:2501.16265, Section 2).

    ATTN_S(X) = X + sum_i (1/N) W_i^V X X^T (W_i^K)^T W_i^Q X,        prediction = bottom right entry of the output

W^V_i is (D+1) x (D+1) with last row [ (value vector)^T, v_i ];  W^K_i, W^Q_i are R x (D+1) with rows [k_ir^T, scalar], [q_ir^T, *].
The paper starts the value vector and the scalar key at zero; on infinitely many sequences they stay there, on a sample they drift.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.weights import SeparateWeights


class SeparateAttention(eqx.Module):
    """H heads over one prompt matrix; `vmap` it for a batch. In shapes, e = D + 1 and n = N + 1."""

    value: Float[Array, "heads e e"]
    key: Float[Array, "heads rank e"]
    query: Float[Array, "heads rank e"]

    @classmethod
    def from_weights(cls, weights: SeparateWeights, dtype: str) -> "SeparateAttention":
        """The full model around the acting blocks; everything else starts at zero."""
        heads, _, d = weights.key.shape
        value = jnp.zeros((heads, d + 1, d + 1), dtype).at[:, -1, -1].set(weights.value.astype(dtype))
        key, query = (jnp.pad(part.astype(dtype), ((0, 0), (0, 0), (0, 1))) for part in (weights.key, weights.query))
        return cls(value, key, query)

    def __call__(self, tokens: Float[Array, "e n"]) -> Float[Array, "e n"]:
        """Every output token, as the paper writes it."""
        scores = jnp.einsum("an,hra,hrb,bm->hnm", tokens, self.key, self.query, tokens) / (tokens.shape[1] - 1)
        return tokens + jnp.einsum("hab,bn,hnm->am", self.value, tokens, scores)

    def predict(self, tokens: Float[Array, "e n"]) -> Float[Array, ""]:
        """The query's label."""
        return self(tokens)[-1, -1]

    def weights(self, dtype: str = "float64") -> SeparateWeights:
        """The acting blocks, which the theory speaks of."""
        return SeparateWeights(self.value[:, -1, -1].astype(dtype), self.key[..., :-1].astype(dtype), self.query[..., :-1].astype(dtype))

    def idle(self) -> Float[Array, ""]:
        """Share of the squared weights in the blocks that theory keeps at zero."""
        idle = jnp.sum(self.value[:, -1, :-1] ** 2) + jnp.sum(self.key[..., -1] ** 2)
        acting = jnp.sum(self.value[:, -1, -1] ** 2) + jnp.sum(self.key[..., :-1] ** 2) + jnp.sum(self.query[..., :-1] ** 2)
        return idle / (idle + acting)
