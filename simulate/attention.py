r"""Attention with every block trainable (arXiv:2501.16265, Section 2), merged or separate key and query, linear or softmax.

    ATTN(X) = X + sum_i f W_i^V X act(X^T W_i^KQ X),        prediction = bottom right entry of the output

over prompts X = [x_1 ... x_n x_q; y_1 ... y_n 0], with f = 1/n for linear attention. Separate key and query: W_i^KQ = W_i^K^T W_i^Q with
R x (D+1) matrices. A softmax runs over the scores of all tokens, the query's own included, as in the authors' script. The paper starts
the vector part of the last row of W^V and the label's row of W^KQ (the scalar key) at zero; on infinitely many sequences they stay
there, on a sample they drift.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from spectral_ode.weights import MergedWeights, SeparateWeights


class Prompt(eqx.Module):
    """One prompt (or a batch), the query last; `present` marks the tokens that are there, the others are zero; `factor` is f."""

    tokens: Float[Array, "*batch e n"]
    present: Bool[Array, "*batch n"]
    factor: Float[Array, "*batch"]


class AbstractModel(eqx.Module):
    """What the trainer asks of a model: a prediction, its acting blocks, and how linear features enter it."""

    @classmethod
    @abc.abstractmethod
    def from_weights(cls, weights: Any, dtype: str, activation: str) -> "AbstractModel":
        """The full model around the acting blocks; everything else starts at zero."""

    @abc.abstractmethod
    def predict(self, prompt: Prompt) -> Float[Array, ""]:
        """The query's label."""

    @abc.abstractmethod
    def bilinear(self) -> tuple[Float[Array, "heads e"], Float[Array, "heads e d"]]:
        """Last row of each value matrix, and key-query matrix without its last column: what `spectral_ode.features` asks for."""

    @abc.abstractmethod
    def weights(self, dtype: str = "float64") -> SeparateWeights | MergedWeights:
        """The acting blocks, which the theory speaks of."""

    @abc.abstractmethod
    def idle(self) -> Float[Array, ""]:
        """Share of the squared weights in the blocks that theory keeps at zero."""


class SeparateAttention(AbstractModel):
    """H heads with separate key and query. In shapes, e = D + 1 and n = tokens."""

    value: Float[Array, "heads e e"]
    key: Float[Array, "heads rank e"]
    query: Float[Array, "heads rank e"]
    softmax: bool = eqx.field(static=True, default=False)

    @classmethod
    def from_weights(cls, weights: SeparateWeights, dtype: str, activation: str = "linear") -> "SeparateAttention":
        """The full model around the acting blocks; everything else starts at zero."""
        key, query = (jnp.pad(part.astype(dtype), ((0, 0), (0, 0), (0, 1))) for part in (weights.key, weights.query))
        return cls(_corner(weights.value, weights.key.shape[2] + 1, dtype), key, query, activation == "softmax")

    def __call__(self, prompt: Prompt) -> Float[Array, "e n"]:
        """Every output token, as the paper writes it."""
        return _attend(self.value, jnp.einsum("hra,hrb->hab", self.key, self.query), prompt, self.softmax)

    def predict(self, prompt: Prompt) -> Float[Array, ""]:
        """The query's label."""
        asked = jnp.sum(self.query * prompt.tokens[None, None, :, -1], axis=-1)
        return _answer(self.value, jnp.sum(self.key * asked[..., None], axis=1), prompt, self.softmax)

    def bilinear(self) -> tuple[Float[Array, "heads e"], Float[Array, "heads e d"]]:
        """The separate matrices multiplied."""
        return self.value[:, -1], jnp.sum(self.key[..., :, None] * self.query[..., None, :-1], axis=1)

    def weights(self, dtype: str = "float64") -> SeparateWeights:
        """The acting blocks."""
        return SeparateWeights(self.value[:, -1, -1].astype(dtype), self.key[..., :-1].astype(dtype), self.query[..., :-1].astype(dtype))

    def idle(self) -> Float[Array, ""]:
        """Share in the vector part of the value row and the scalar key."""
        acting = jnp.sum(self.key[..., :-1] ** 2) + jnp.sum(self.query[..., :-1] ** 2)
        return _idle(self.value, acting, jnp.sum(self.key[..., -1] ** 2))


class MergedAttention(AbstractModel):
    """H heads with merged key and query. In shapes, e = D + 1 and n = tokens."""

    value: Float[Array, "heads e e"]
    key_query: Float[Array, "heads e e"]
    softmax: bool = eqx.field(static=True, default=False)

    @classmethod
    def from_weights(cls, weights: MergedWeights, dtype: str, activation: str = "linear") -> "MergedAttention":
        """The full model around the acting blocks; everything else starts at zero."""
        key_query = jnp.pad(weights.key_query.astype(dtype), ((0, 0), (0, 1), (0, 1)))
        return cls(_corner(weights.value, key_query.shape[1], dtype), key_query, activation == "softmax")

    def __call__(self, prompt: Prompt) -> Float[Array, "e n"]:
        """Every output token, as the paper writes it."""
        return _attend(self.value, self.key_query, prompt, self.softmax)

    def predict(self, prompt: Prompt) -> Float[Array, ""]:
        """The query's label."""
        return _answer(self.value, self.key_query @ prompt.tokens[:, -1], prompt, self.softmax)

    def bilinear(self) -> tuple[Float[Array, "heads e"], Float[Array, "heads e d"]]:
        """The matrix itself."""
        return self.value[:, -1], self.key_query[..., :-1]

    def weights(self, dtype: str = "float64") -> MergedWeights:
        """The acting blocks."""
        return MergedWeights(self.value[:, -1, -1].astype(dtype), self.key_query[:, :-1, :-1].astype(dtype))

    def idle(self) -> Float[Array, ""]:
        """Share in the vector part of the value row and the label's row of the key-query matrix."""
        return _idle(self.value, jnp.sum(self.key_query[:, :-1, :-1] ** 2), jnp.sum(self.key_query[:, -1, :-1] ** 2))


def _corner(value: Float[Array, " heads"], e: int, dtype: str) -> Float[Array, "heads e e"]:
    """Value matrices that are zero but for their last entry."""
    return jnp.zeros((value.size, e, e), dtype).at[:, -1, -1].set(value.astype(dtype))


def _idle(value: Float[Array, "heads e e"], acting: Float[Array, ""], idle: Float[Array, ""]) -> Float[Array, ""]:
    idle = idle + jnp.sum(value[:, -1, :-1] ** 2)
    return idle / (idle + acting + jnp.sum(value[:, -1, -1] ** 2))


def _act(scores: Float[Array, "heads n ..."], present: Bool[Array, " n"], softmax: bool) -> Float[Array, "heads n ..."]:
    if not softmax:
        return scores
    present = present.reshape(1, -1, *([1] * (scores.ndim - 2)))
    return jax.nn.softmax(jnp.where(present, scores, -jnp.inf), axis=1)


def _attend(value, key_query, prompt: Prompt, softmax: bool) -> Float[Array, "e n"]:
    """All output tokens."""
    X = prompt.tokens
    scores = _act(jnp.einsum("an,hab,bm->hnm", X, key_query, X), prompt.present, softmax)
    return X + prompt.factor * jnp.einsum("hab,bn,hnm->am", value, X, scores)


def _answer(value, key, prompt: Prompt, softmax: bool) -> Float[Array, ""]:
    """The last entry of the last output token alone, from each head's key for this query; the residual adds nothing to it."""
    scores = _act(key @ prompt.tokens, prompt.present, softmax)
    return prompt.factor * jnp.sum((value[:, -1] @ prompt.tokens) * scores)


def model_of(kind: str) -> type[AbstractModel]:
    """The attention of a kind."""
    return MergedAttention if kind == "merged" else SeparateAttention
