r"""Which heads of a transformer matter, layer by layer: masking, pruning, probing. Definitions ours, after arXiv:2408.04532.

    importance   I_lh = risk(head h of layer l off) - risk(all on);   share S_lh = max(I_lh, 0)/sum_h max(I_lh, 0), a row sums to 1
    heads used   N_l = 1/sum_h S_lh^2: H if all matter alike, 1 if one does it all
    pruning      some layers keep their most important head only: all but the first, in the paper
    refit        the read-out fitted anew by ridge regression, or some more training: what pruning merely shifts is not held against it
    probe        ridge regression from the queries' states after each block to their labels, fitted and tested on different tasks
    preprocessing probe   descent on phi, the states after the first block (centered, plus the mean label), against x and R x

Context tokens carry their labels, and a probe that reads them would find the labels themselves: phi(x_i) is the state of x_i asked again
as a query, with an empty label.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from simulate.in_context import CLIP, Episodes
from simulate.softmax_transformer import SoftmaxTransformer
from spectral_ode.systems.sparse import _algorithms
from spectral_ode.systems.sparse.data import Moments, Sample


@runtime_checkable
class Layered(Protocol):
    """A model whose queries' states can be seen at every depth."""

    def states(self, x: Float[Array, "n d"], y: Float[Array, " n"], queries: Float[Array, "q d"]) -> Float[Array, "depths q D"]:
        """The queries' tokens after the embedding and after each block."""
        ...


PENALTY = 1e-4  # of the probes' ridge, per feature of unit variance


def importance(model: SoftmaxTransformer, episodes: Episodes) -> Float[Array, "layers heads"]:
    """What each head is worth."""
    layers, heads = model.mask.shape
    off = 1 - jnp.eye(layers * heads, dtype=model.mask.dtype).reshape(-1, layers, heads)
    risks = jax.lax.map(lambda mask: episodes.risk(model.masked(mask * model.mask)), off)
    return risks.reshape(layers, heads) - episodes.risk(model)


def shares(importance: Float[Array, "*runs layers heads"]) -> Float[Array, "*runs layers heads"]:
    """Rows that sum to one (to zero where no head matters)."""
    positive = jnp.maximum(importance, 0.0)
    total = jnp.sum(positive, axis=-1, keepdims=True)
    return positive / jnp.where(total > 0, total, 1.0)


def used(shares: Float[Array, "*runs layers heads"]) -> Float[Array, "*runs layers"]:
    """Effective number of heads per layer."""
    return 1 / jnp.maximum(jnp.sum(shares**2, axis=-1), 1e-12)


def pruned(importance: Float[Array, "layers heads"], layers: tuple[int, ...]) -> Float[Array, "layers heads"]:
    """The mask that keeps only the most important head of these layers (from 0)."""
    best = (jnp.max(importance, axis=1, keepdims=True) == importance).astype(importance.dtype)
    cut = jnp.isin(jnp.arange(importance.shape[0]), jnp.asarray(layers, int))[:, None]
    return jnp.where(cut, best, jnp.ones_like(best))


def _ridge(inputs: Float[Array, "m D"], labels: Float[Array, " m"]) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """Coefficients on centered inputs (labels have mean zero by symmetry), and the center."""
    center = jnp.mean(inputs, axis=0)
    moved = inputs - center[None]
    S = moved.T @ moved / labels.size
    size = jnp.mean(jnp.diag(S))
    penalty = PENALTY * jnp.where(size > 0, size, 1.0)  # where all inputs are alike nothing is read from them
    return jnp.linalg.solve(S + penalty * jnp.eye(S.shape[0]), moved.T @ labels / labels.size), center


def probes(model: Layered, train: Episodes, test: Episodes) -> Float[Array, " depths"]:
    """Risk of the best linear read-out of the queries' states after the embedding and after each block."""

    def collect(episodes: Episodes) -> Float[Array, "depths m D"]:
        seen = jax.vmap(model.states)(episodes.context.x, episodes.context.y, episodes.queries)  # tasks depths q D
        return jnp.moveaxis(seen, 1, 0).reshape(seen.shape[1], -1, seen.shape[-1]).astype(float)

    def one(inputs: Float[Array, "m D"], fresh: Float[Array, "k D"]) -> Float[Array, ""]:
        coefficients, center = _ridge(inputs, train.targets.reshape(-1).astype(float))
        gap = (fresh - center[None]) @ coefficients - test.targets.reshape(-1).astype(float)
        return jnp.mean(jnp.minimum(gap**2, CLIP))

    return jax.vmap(one)(collect(train), collect(test))


def features(model: Layered, context: Sample, points: Float[Array, "m d"]) -> Float[Array, "m D"]:
    """Phi of points: their states after the first block, asked as queries of this context."""
    return model.states(context.x, context.y, points)[1].astype(float)


def preprocessing_probe(model: Layered, episodes: Episodes, steps: Int[Array, " steps"]) -> dict[str, Float[Array, " steps"]]:
    """Risk after so many steps of descent (step size 1/lam_max of each task) on phi, on x, and on R x."""

    def one(context: Sample, queries: Float[Array, "q d"]) -> dict[str, Float[Array, " steps"]]:
        wide = jax.tree.map(lambda leaf: leaf.astype(float), context)
        asked, y = queries.astype(float), wide.y
        inputs, fresh = features(model, context, context.x), features(model, context, queries)
        center = jnp.mean(inputs, axis=0)[None]
        inputs, fresh = inputs - center, fresh - center
        learned = {"phi": (Moments(inputs.T @ inputs / y.size, inputs.T @ y / y.size), "gd", fresh, jnp.mean(y))}
        learned |= {name: (wide.moments(), algorithm, asked, jnp.zeros(())) for name, algorithm in (("x", "gd"), ("R x", "pto"))}

        def risks(moments: Moments, algorithm: str, fresh: Float[Array, "q D"], offset: Float[Array, ""]) -> Float[Array, " steps"]:
            spectral = _algorithms.diagonalize(moments, algorithm)
            estimate = lambda count: _algorithms.after_steps(spectral, 0.5 * spectral.largest_step, count)
            gap = offset + jax.vmap(lambda count: fresh @ estimate(count))(steps) - (asked @ wide.w)[None]
            return jnp.mean(jnp.minimum(gap**2, CLIP), axis=1)

        return {name: risks(*parts) for name, parts in learned.items()}

    found = jax.lax.map(lambda pair: one(*pair), (episodes.context, episodes.queries))
    return {name: jnp.mean(curve, axis=0) for name, curve in found.items()}


def refitted(model: Layered, train: Episodes, test: Episodes) -> Float[Array, ""]:
    """Risk after the read-out was fitted anew."""
    return probes(model, train, test)[-1]
