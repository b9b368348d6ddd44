r"""An ordinary transformer for in-context regression: pre-norm, softmax attention with several heads, an MLP, every head with a mask.

Tokens (x; y; 0) for the context and (x; 0; 1) for a query are embedded into D dimensions, without positions: the order of a context carries
nothing. Every token attends to the context alone, so queries do not see each other. For block l and heads h = 1..H of width D/H

    z <- z + sum_h M_lh O_h V_h norm(z)_context softmax((K_h norm(z)_context)^T Q_h norm(z)/sqrt(D/H)),     z <- z + MLP(norm(z))

with a mask M of zeros and ones, all ones while training. The prediction is a linear read-out of the last norm(z) of a query.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Block(eqx.Module):
    """Attention and MLP, each behind its norm."""

    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm
    key: Float[Array, "heads k D"]
    query: Float[Array, "heads k D"]
    value: Float[Array, "heads k D"]
    output: Float[Array, "heads D k"]
    rise: eqx.nn.Linear
    fall: eqx.nn.Linear

    def __call__(self, z: Float[Array, "m D"], n: int, mask: Float[Array, " heads"]) -> Float[Array, "m D"]:
        """The tokens after this block; the first n are the context."""
        seen = jax.vmap(self.first)(z)
        key, value = (jnp.einsum("hkD,nD->hnk", part, seen[:n]) for part in (self.key, self.value))
        scores = jnp.einsum("hnk,hkD,mD->hmn", key, self.query, seen) / math.sqrt(self.key.shape[1])
        heads = jnp.einsum("hmn,hnk,hDk->hmD", jax.nn.softmax(scores, axis=-1), value, self.output)
        z = z + jnp.einsum("h,hmD->mD", mask, heads)
        return z + jax.vmap(lambda token: self.fall(jax.nn.gelu(self.rise(self.second(token)))))(z)


class SoftmaxTransformer(eqx.Module):
    """Blocks between an embedding and a read-out."""

    embedding: eqx.nn.Linear
    blocks: tuple[Block, ...]
    norm: eqx.nn.LayerNorm
    read_out: eqx.nn.Linear
    mask: Float[Array, "layers heads"]

    def states(self, x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d"]) -> Float[Array, "depths q D"]:
        """The queries' tokens after the embedding and after each block."""
        n = y.shape[0]
        known = jnp.concatenate([x, y[:, None], jnp.zeros((n, 1), x.dtype)], axis=1)
        asked = jnp.concatenate([queries, jnp.zeros((queries.shape[0], 1), x.dtype), jnp.ones((queries.shape[0], 1), x.dtype)], axis=1)
        z = jax.vmap(self.embedding)(jnp.concatenate([known, asked]))
        seen = [z[n:]]
        for block, mask in zip(self.blocks, jax.lax.stop_gradient(self.mask), strict=True):
            z = block(z, n, mask)
            seen.append(z[n:])
        return jnp.stack(seen)

    def answer(self, x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d"]) -> Float[Array, " q"]:
        """The labels of queries, from the labelled tokens of a context."""
        return jax.vmap(lambda z: self.read_out(self.norm(z))[0])(self.states(x, y, queries)[-1])

    def masked(self, mask: Float[Array, "layers heads"]) -> "SoftmaxTransformer":
        """The same weights behind another mask."""
        return eqx.tree_at(lambda model: model.mask, self, mask)


def random(key: PRNGKeyArray, *, d: int, layers: int, heads: int, width: int, expand: int = 2) -> SoftmaxTransformer:
    """A start in float32: matrices of variance 1/(inputs), outputs of each block smaller by the number of layers."""
    embed, read, *each = jax.random.split(key, 2 + layers)
    inner, k = expand * width, width // heads
    narrow = lambda tree: jax.tree.map(lambda leaf: leaf.astype("float32") if eqx.is_array(leaf) else leaf, tree)

    def block(key: PRNGKeyArray) -> Block:
        keys = jax.random.split(key, 6)
        inward = [jax.random.normal(each, (heads, k, width)) / math.sqrt(width) for each in keys[:3]]
        outward = jax.random.normal(keys[3], (heads, width, k)) / math.sqrt(width * 2 * layers)
        rise, fall = eqx.nn.Linear(width, inner, key=keys[4]), eqx.nn.Linear(inner, width, key=keys[5])
        return Block(eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width), inward[0], inward[1], inward[2], outward, rise, fall)

    blocks = tuple(block(each) for each in each)
    ends = eqx.nn.Linear(d + 2, width, key=embed), eqx.nn.Linear(width, 1, key=read)
    return narrow(SoftmaxTransformer(ends[0], blocks, eqx.nn.LayerNorm(width), ends[1], jnp.ones((layers, heads))))
