r"""A transformer of linear attention only: the class in which arXiv:2408.04532 makes its construction, and that is trained beside it.

Tokens are columns of p = 2d + 1 rows: x (d), an empty slot (d), and u, the label (y_i for the context, 0 for a query). One layer with
heads (V_h, W_h), W_h = K_h^T Q_h, adds to every token z_m what it reads from the n context tokens,

    z_m <- z_m + (1/n) sum_h sum_{i<=n} V_h z_i <z_i, W_h z_m> = z_m + (sum_h V_h G W_h) z_m,      G = (1/n) sum_{i<=n} z_i z_i^T

so that a layer costs one Gram matrix whatever the number of heads, and queries are a mask: they are read by nobody. The prediction is
minus the label row of a query. The layer depends on its heads only through sum_h V_h (x) W_h (`simulate.heads`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Layer(eqx.Module):
    """One layer of heads."""

    value: Float[Array, "heads p p"]
    key_query: Float[Array, "heads p p"]

    def operator(self, gram: Float[Array, "p p"]) -> Float[Array, "p p"]:
        """The matrix sum_h V_h G W_h."""
        heads, p, _ = self.value.shape
        left = self.value.reshape(heads * p, p) @ gram  # all heads in one product
        return jnp.einsum("hab,hbc->ac", left.reshape(heads, p, p), self.key_query)

    def __call__(self, tokens: Float[Array, "p m"], n: int, *, masked: bool = True) -> Float[Array, "p m"]:
        """The tokens after this layer; the first n are the context. Without the mask queries are read, too."""
        read = tokens[:, :n] if masked else tokens
        return tokens + self.operator(read @ read.T / n) @ tokens

    def only(self, kept: Float[Array, " heads"]) -> "Layer":
        """The layer with each head's output multiplied by 0 or 1."""
        return Layer(self.value * kept[:, None, None], self.key_query)


class LinearTransformer(eqx.Module):
    """Layers of linear attention, one after the other; they may have different numbers of heads."""

    layers: tuple[Layer, ...]

    def depths(self, tokens: Float[Array, "p m"], n: int, *, masked: bool = True) -> list[Float[Array, "p m"]]:
        """The tokens before the first layer and after each."""
        seen = [tokens]
        for layer in self.layers:
            seen.append(layer(seen[-1], n, masked=masked))
        return seen

    def predict(self, tokens: Float[Array, "p m"], n: int) -> Float[Array, " queries"]:
        """The labels of the queries."""
        for layer in self.layers:
            tokens = layer(tokens, n)
        return -tokens[-1, n:]

    def answer(self, x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d"]) -> Float[Array, " q"]:
        """The labels of queries, from the labelled tokens of a context."""
        return self.predict(prompt(x, y, queries), y.shape[0])


def prompt(x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d"]) -> Float[Array, "p m"]:
    """The tokens of a context and its queries."""
    every = jnp.concatenate([x, queries])
    labels = jnp.concatenate([y, jnp.zeros(queries.shape[0], y.dtype)])
    return jnp.concatenate([every.T, jnp.zeros_like(every.T), labels[None]])


def random(key: PRNGKeyArray, *, d: int, layers: int, heads: int, scale: float, dtype: str = "float32") -> LinearTransformer:
    """All entries of all heads N(0, scale^2/heads)."""
    shape = (2, heads, 2 * d + 1, 2 * d + 1)
    draws = [scale / heads**0.5 * jax.random.normal(each, shape, dtype) for each in jax.random.split(key, layers)]
    return LinearTransformer(tuple(Layer(*draw) for draw in draws))
