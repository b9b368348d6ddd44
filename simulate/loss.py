r"""Three roads to one number: the mean squared error of the query's label over a set of sequences.

A sequence enters linear attention only through its Gram matrix Ghat = X X^T / N and the query (every block included):

    yhat = sum_{abc} T_abc Ghat_ab x_q,c = t.phi,     T_abc = sum_h W^V_h[D+1, a] (W^K_h^T W^Q_h)[b, c]

phi holds the F = D (D+1)(D+2)/2 products of the entries a <= b of Ghat with x_q; its coefficient is T_ab + T_ba for a != b. Hence

    Tokens   the attention layer itself on every token                     any data, cost ~ sequences x N
    Gram     yhat from phi of each sequence                                any data, cost ~ sequences x F
    Moments  L = E y^2 - 2 t.E[phi y] + t^T E[phi phi^T] t                 a fixed data set, cost ~ F^2, whatever its size
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from simulate.attention import SeparateAttention
from simulate.tasks import BATCH, Prompts, Sampler, fixed


class AbstractLoss(eqx.Module):
    """The mean squared error of a model over a set of sequences."""

    @abc.abstractmethod
    def __call__(self, model: SeparateAttention) -> Float[Array, ""]:
        """Mean squared error."""


class Tokens(AbstractLoss):
    """All tokens through the attention layer."""

    prompts: Prompts

    def __call__(self, model: SeparateAttention) -> Float[Array, ""]:
        """Mean squared error."""
        return jnp.mean((self.prompts.target - jax.vmap(model.predict)(self.prompts.tokens)) ** 2)


class Gram(AbstractLoss):
    """The query's output only, from each sequence's features."""

    phi: Float[Array, "sequences F"]
    target: Float[Array, " sequences"]

    def __call__(self, model: SeparateAttention) -> Float[Array, ""]:
        """Mean squared error."""
        return jnp.mean((self.target - self.phi @ coefficients(model)) ** 2)


class Moments(AbstractLoss):
    """Second moments of the features: a data set of any size at one price."""

    M: Float[Array, "F F"]
    b: Float[Array, " F"]
    power: Float[Array, ""]

    def __call__(self, model: SeparateAttention) -> Float[Array, ""]:
        """Mean squared error."""
        t = coefficients(model)
        return self.power + jnp.dot(t, self.M @ t - 2 * self.b)


def coefficients(model: SeparateAttention) -> Float[Array, " F"]:
    """The vector t with yhat = t.phi."""
    # Products and sums, which XLA fuses, instead of tiny matrix products and gathers: half the time of a training step.
    W = jnp.sum(model.key[..., :, None] * model.query[..., None, :-1], axis=1)
    T = jnp.sum(model.value[:, -1, :, None, None] * W[:, None], axis=0)
    size, d = T.shape[1:]
    return (jnp.asarray(_pairs(size), T.dtype) @ T.reshape(size * size, d)).reshape(-1)


def _pairs(size: int) -> np.ndarray:
    """Sums T_ab and T_ba for each pair a < b, and takes T_aa."""
    a, b = np.triu_indices(size)
    pairs = np.zeros((a.size, size, size))
    pairs[np.arange(a.size), a, b] = pairs[np.arange(a.size), b, a] = 1
    return pairs.reshape(a.size, -1)


def features(tokens: Float[Array, "e n"]) -> Float[Array, " F"]:
    """The vector phi of one prompt."""
    gram = tokens @ tokens.T / (tokens.shape[1] - 1)
    a, b = jnp.triu_indices(tokens.shape[0])
    return (gram[a, b][:, None] * tokens[None, :-1, -1]).reshape(-1)


def gram(prompts: Prompts) -> Gram:
    """The features of a batch."""
    return Gram(jax.vmap(features)(prompts.tokens), prompts.target)


def moments(sampler: Sampler, sequences: int) -> Moments:
    """The moments of `fixed(sampler, sequences)`, batch by batch: the data set itself is never held in memory."""
    wide = jnp.zeros((), float).dtype  # sums in the widest enabled float type

    def add(sums, number):
        batch = gram(sampler(number, BATCH))
        kept = (jnp.arange(BATCH) < sequences - number * BATCH).astype(batch.phi.dtype)
        phi, target = batch.phi * kept[:, None], batch.target * kept
        new = Moments(phi.T @ phi, phi.T @ target, target @ target)
        return jax.tree.map(lambda total, part: total + part.astype(wide), sums, new), None

    d = sampler.root.shape[0]
    F = d * (d + 1) * (d + 2) // 2
    sums, _ = jax.lax.scan(
        add, Moments(jnp.zeros((F, F), wide), jnp.zeros(F, wide), jnp.zeros((), wide)), jnp.arange(-(-sequences // BATCH))
    )
    return jax.tree.map(lambda total: (total / sequences).astype(sampler.root.dtype), sums)


def of_data_set(sampler: Sampler, sequences: int, method: str) -> AbstractLoss:
    """The loss over a fixed data set by one of the three roads."""
    return moments(sampler, sequences) if method == "moments" else of_prompts(fixed(sampler, sequences), method)


def of_prompts(prompts: Prompts, method: str) -> AbstractLoss:
    """The loss over given prompts, token by token or through their features."""
    return Tokens(prompts) if method == "attention" else gram(prompts)
