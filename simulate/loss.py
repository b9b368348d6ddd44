r"""Three roads to one number: the mean squared error of the query's label over a set of sequences.

    Tokens   the model itself, token by token                              any model and data, cost ~ sequences x N
    Gram     yhat = t.phi from the features of each sequence               linear attention, any data, cost ~ sequences x F
    Summary  L = E y^2 - 2 t.E[phi y] + t^T E[phi phi^T] t                 linear attention, a fixed data set, cost ~ F^2 whatever its size

t and phi are those of `spectral_ode.features`: the roads are equal for every value of every block. By the first two, many sequences go in
pieces, which `simulate.mesh` deals out to devices: `Stored` holds those of a fixed data set, `Drawn` makes those of a fresh batch.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from simulate.attention import AbstractModel
from simulate.mesh import ALONE, Deal, Dealt, hand_out, mean, take, total
from simulate.tasks import BATCH, Prompts, Sampler, fixed
from spectral_ode.features import Moments, coefficients, features

TOGETHER = 2 * BATCH  # a set of at most so many sequences is one piece, unless told otherwise


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


class AbstractPieces(AbstractLoss):
    """A set in pieces, of which none is ever differentiated together with another."""

    sequences: eqx.AbstractVar[int]
    size: eqx.AbstractVar[int]
    deal: eqx.AbstractVar[Deal]

    @abc.abstractmethod
    def piece(self, first: Array | int, size: int) -> AbstractLoss:
        """The loss over so many sequences, from number `first` on."""

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        """Mean squared error."""
        return mean(lambda first, size: self.piece(first, size)(model), self.sequences, self.size, self.deal)

    def slope(self, model: AbstractModel) -> tuple[Float[Array, ""], AbstractModel]:
        """Half the mean squared error, and its gradient."""
        return mean(lambda first, size: slope(self.piece(first, size), model), self.sequences, self.size, self.deal)


class Stored(AbstractPieces):
    """A fixed data set; each device holds its own pieces, and all hold the last one if it is smaller."""

    pieces: Dealt
    rest: AbstractLoss | None
    sequences: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    deal: Deal = eqx.field(static=True)

    def piece(self, first: Array | int, size: int) -> AbstractLoss:
        """From memory."""
        if size != self.size:
            assert self.rest is not None
            return self.rest
        return take(self.pieces, first // size, self.deal)


class Drawn(AbstractPieces):
    """The fresh batch of a step; a piece is there only while it is used."""

    sampler: Sampler
    step: Array
    sequences: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    method: str = eqx.field(static=True)
    deal: Deal = eqx.field(static=True)

    def piece(self, first: Array | int, size: int) -> AbstractLoss:
        """From its random numbers."""
        return of_prompts(self.sampler(self.step, size, first=first, row=first), self.method)


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


def summary(sampler: Sampler, sequences: int, deal: Deal = ALONE) -> Summary:
    """The moments of `fixed(sampler, sequences)`, batch by batch: the data set itself is never held in memory."""
    wide = jnp.zeros((), float).dtype  # sums in the widest enabled float type

    def part(first, size):
        kept = (jnp.arange(size) < sequences - first).astype(sampler.root.dtype)
        batch = gram(sampler(first // size, size, first=first))
        kept = jnp.repeat(kept, batch.target.size // size)
        return jax.tree.map(lambda sum: sum.astype(wide), _sums(Gram(batch.phi * kept[:, None], batch.target * kept)))

    sums = total(part, -(-sequences // BATCH) * BATCH, BATCH, deal)
    count = sequences * len(sampler.contexts)
    return Summary(jax.tree.map(lambda sum: (sum / count).astype(sampler.root.dtype), sums))


def summarize(data: Gram) -> Summary:
    """The moments of given features."""
    return Summary(jax.tree.map(lambda total: total / data.target.size, _sums(data)))


def _sums(data: Gram) -> Moments:
    return Moments(data.phi.T @ data.phi, data.phi.T @ data.target, data.target @ data.target)


def slope(loss: AbstractLoss, model: AbstractModel) -> tuple[Float[Array, ""], AbstractModel]:
    """Half the mean squared error, and its gradient."""
    return loss.slope(model) if isinstance(loss, AbstractPieces) else jax.value_and_grad(lambda model: 0.5 * loss(model))(model)


def of_data_set(sampler: Sampler, sequences: int, method: str, deal: Deal = ALONE) -> AbstractLoss:
    """The loss over a fixed data set by one of the three roads."""
    if method == "moments":
        return summary(sampler, sequences, deal)
    size = piece_of(sampler.images.shape[0], sequences, deal)
    if size == sequences:
        return of_prompts(fixed(sampler, sequences), method)
    batch = lambda first, size: sampler(first // BATCH, size, first=first, row=first % BATCH)
    whole, rest = divmod(sequences, size)
    pieces = hand_out(lambda number: of_prompts(batch(number * size, size), method), whole, deal)
    last = of_prompts(batch(whole * size, rest), method) if rest else None
    return Stored(pieces=pieces, rest=last, sequences=sequences, size=size, deal=deal)


def piece_of(images: int, sequences: int, deal: Deal) -> int:
    """Sequences of a piece: all, or a power of two, so that a piece lies in one batch and has all mirror images of its draws."""
    size = deal.size(sequences, sequences if sequences <= TOGETHER else BATCH)
    return size if size == sequences else max(images, 1 << (min(size, BATCH).bit_length() - 1))


def of_step(sampler: Sampler, step: Array, sequences: int, method: str, deal: Deal = ALONE) -> AbstractLoss:
    """The loss over the fresh batch of a step by one of the three roads."""
    size = piece_of(sampler.images.shape[0], sequences, deal)
    if size == sequences:
        return of_prompts(sampler(step, sequences), method)
    return Drawn(sampler=sampler, step=step, sequences=sequences, size=size, method=method, deal=deal)


def of_prompts(prompts: Prompts, method: str) -> AbstractLoss:
    """The loss over given prompts by one of the three roads."""
    if method == "attention":
        return Tokens(prompts)
    return gram(prompts) if method == "gram" else summarize(gram(prompts))
