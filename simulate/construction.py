r"""The linear-attention transformer that is the algorithm: preprocess in one layer, then one step of descent per layer.

Rows of a token: x_1..x_d, slots 1..d, u. Construction ours, after the statement of arXiv:2408.04532 (e_a: unit vectors).

    layer 1, head j = 1..d     V_j = e_{slot j} e_{x_j}^T,  W_j = g_j e_u e_{x_j}^T      slot_j += g_j r_j x_j,  r_j = (1/n) sum_i x_ij y_i
    layers 2, 3, ..., 1 head   V = -eta e_u e_u^T,          W = projection on the slots     u_m -= (eta/n) sum_i u_i <slot_i, slot_m>

With gains g = 1 the label row is y_i - <theta_t, R x_i> for the context and -<theta_t, R x_q> for a query, at every depth: the iteration of
`spectral_ode.systems.sparse._algorithms` with R = diag(r). Plain descent is the same with slots that hold x itself (`preprocess=False`).
The mask matters from the second step on, when the query's u is no longer zero. Feeding the d unit vectors as queries reads w off.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from simulate.linear_transformer import Layer, LinearTransformer, prompt
from spectral_ode.systems.sparse.data import Sample


def preprocessing(gains: Float[Array, " d"]) -> Layer:
    """The first layer: one head per coordinate."""
    d = gains.size
    j = jnp.arange(d)
    value = jnp.zeros((d, 2 * d + 1, 2 * d + 1), gains.dtype).at[j, d + j, j].set(1.0)
    return Layer(value, jnp.zeros_like(value).at[j, 2 * d, j].set(gains))


def step(eta: Float[Array, ""], d: int) -> Layer:
    """One layer of descent: one head."""
    slots = jnp.arange(d, 2 * d)
    value = jnp.zeros((1, 2 * d + 1, 2 * d + 1), eta.dtype)
    return Layer(value.at[0, -1, -1].set(-eta), jnp.zeros_like(value).at[0, slots, slots].set(1.0))


def construct(gains: Float[Array, " d"], eta: Float[Array, ""], steps: int) -> LinearTransformer:
    """One layer of preprocessing and `steps` layers of descent."""
    return LinearTransformer((preprocessing(gains), *[step(eta, gains.size)] * steps))


def read_out(
    gains: Float[Array, " d"], eta: Float[Array, ""], sample: Sample, steps: int, *, preprocess: bool = True, masked: bool = True
) -> Float[Array, "depth d"]:
    """The estimate w after 0, 1, ..., `steps` layers of descent, read off the label row of unit queries."""
    n, d = sample.x.shape
    tokens = prompt(sample.x, sample.y, jnp.eye(d, dtype=sample.x.dtype))
    first = preprocessing(gains)
    tokens = first(tokens, n, masked=masked) if preprocess else tokens.at[d : 2 * d].set(tokens[:d])
    descend = step(eta, d)
    advance = lambda tokens, _: (descend(tokens, n, masked=masked), -tokens[-1, n:])
    last, before = jax.lax.scan(advance, tokens, None, length=steps)
    return jnp.concatenate([before, -last[-1:, n:]])
