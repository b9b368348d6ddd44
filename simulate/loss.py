r"""Three roads to one number: the mean squared error of the query's label over a set of sequences.

    Tokens   the model itself, token by token                              any model and data, cost ~ sequences x N
    Gram     yhat = t.phi from the features of each sequence               linear attention, any data, cost ~ sequences x F
    Summary  L = E y^2 - 2 t.E[phi y] + t^T E[phi phi^T] t                 linear attention, a fixed data set, cost ~ F^2 whatever its size

t and phi are those of `spectral_ode.features`: the roads are equal for every value of every block.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from simulate.attention import AbstractModel
from simulate.tasks import BATCH, Prompts, Sampler, fixed
from spectral_ode.features import Moments, coefficients, features


class AbstractLoss(eqx.Module):
    """The mean squared error of a model over a set of sequences."""

    @abc.abstractmethod
    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        """Mean squared error."""


class Tokens(AbstractLoss):
    """All tokens through the model."""

    prompts: Prompts

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        """Mean squared error."""
        return jnp.mean((self.prompts.target - jax.vmap(model.predict)(self.prompts.each())) ** 2)


class Gram(AbstractLoss):
    """The query's output only, from each sequence's features."""

    phi: Float[Array, "sequences F"]
    target: Float[Array, " sequences"]

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        """Mean squared error."""
        return jnp.mean((self.target - self.phi @ coefficients(*model.bilinear())) ** 2)


class Summary(AbstractLoss):
    """Second moments of the features: a data set of any size at one price."""

    moments: Moments

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        """Mean squared error."""
        return self.moments.loss(coefficients(*model.bilinear()))


def gram(prompts: Prompts) -> Gram:
    """The features of a batch."""
    each = prompts.each()
    return Gram(jax.vmap(features)(each.tokens, each.factor), prompts.target)


def summary(sampler: Sampler, sequences: int) -> Summary:
    """The moments of `fixed(sampler, sequences)`, batch by batch: the data set itself is never held in memory."""
    wide = jnp.zeros((), float).dtype  # sums in the widest enabled float type

    def add(sums, number):
        kept = (jnp.arange(BATCH) < sequences - number * BATCH).astype(sampler.root.dtype)
        batch = gram(sampler(number, BATCH, first=number * BATCH))
        kept = jnp.repeat(kept, batch.target.size // BATCH)
        new = _sums(Gram(batch.phi * kept[:, None], batch.target * kept))
        return jax.tree.map(lambda total, part: total + part.astype(wide), sums, new), None

    shapes = jax.eval_shape(lambda: _sums(gram(sampler(0, BATCH))))
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, wide), shapes)
    sums, _ = jax.lax.scan(add, zeros, jnp.arange(-(-sequences // BATCH)))
    count = sequences * len(sampler.contexts)
    return Summary(jax.tree.map(lambda total: (total / count).astype(sampler.root.dtype), sums))


def summarize(data: Gram) -> Summary:
    """The moments of given features."""
    return Summary(jax.tree.map(lambda total: total / data.target.size, _sums(data)))


def _sums(data: Gram) -> Moments:
    return Moments(data.phi.T @ data.phi, data.phi.T @ data.target, data.target @ data.target)


def of_data_set(sampler: Sampler, sequences: int, method: str) -> AbstractLoss:
    """The loss over a fixed data set by one of the three roads."""
    return summary(sampler, sequences) if method == "moments" else of_prompts(fixed(sampler, sequences), method)


def of_prompts(prompts: Prompts, method: str) -> AbstractLoss:
    """The loss over given prompts by one of the three roads."""
    if method == "attention":
        return Tokens(prompts)
    return gram(prompts) if method == "gram" else summarize(gram(prompts))
