r"""Unbiased estimators of the loss of softmax attention (arXiv:2402.19442), and its gradient in chunks of contexts.

The loss is the sum over tasks of the mean squared error. It depends on the four matrices of a head only through

    U^h = O^h V^h = (U_X, U_Y)   and   W^h = K^h^T Q^h / sqrt(d_e),   of which the first d columns act (a query has no label).

With p^h = softmax(Z^T W^h q) the prediction is yhat_i = sum_h (U_X^h[i] X + sum_j U_Y^h[i,j] y_j) p^h. Since y = G x + noise, no labels
need be made: W_Y acts on x through G^T and on the noise, and y p = G (X p) + noise p.

`sampled` is the squared error itself. `integrated` is its expectation over tasks and noise, given x and q, while scores do not see y
(W_Y = 0). Then p is fixed, and the residual

    r_i = g_i . q_i - yhat_i = sum_j g_j . (delta_ij q_j - a_ij) - b_i - sigma sum_j e_ij . eps_j

is linear in the independent g_j ~ N(0, lam_j I) and eps_j ~ N(0, I), where

    a_ij = sum_h U_Y^h[i,j] X_j p^h,    b_i = sum_h U_X^h[i] X p^h,    e_ij = sum_h U_Y^h[i,j] p^h.

Cross terms have mean zero:

    E r_i^2 = sum_j lam_j |delta_ij q_j - a_ij|^2 + b_i^2 + sigma^2 sum_j |e_ij|^2.

`controlled` holds for any W_Y:  sampled(U, W) - sampled(U, W with W_Y = 0) + integrated(U, W with W_Y = 0), all on one batch.

A run may use `integrated` throughout if K_Y = 0 and V_X = 0: then r_i, yhat and y change sign with (g, eps), so that the true
gradients of K_Y and of V_X are zero and both stay zero. With K_Y = 0 alone the loss and the gradients of O, V, K_X and Q_X are
still right, but the true gradient of K_Y is not zero: it is of the order of U_X, and `integrated` leaves it out.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from simulate.episodes import Batch, Contexts
from simulate.full_attention import FullAttention
from simulate.mesh import ALONE, Deal, total

CHUNK = 200  # contexts whose arrays fit into the caches of a CPU: with all 2000 a step takes 1.5 (M = 1) to 2.3 (M = 16) times as long

OutputValue = Float[Array, "heads tasks z"]
KeyQuery = Float[Array, "heads z d"]
PerContext = Float[Array, "contexts tasks"]
Attention = Float[Array, "contexts queries_heads L"]
Attended = Float[Array, "contexts queries_heads d"]
Estimator = Callable[[OutputValue, KeyQuery, Batch], PerContext]


def sampled(U: OutputValue, W: KeyQuery, batch: Batch) -> PerContext:
    """The squared errors of each context, averaged over its queries."""
    return _squared(U, *_attend(W, batch), batch)


def integrated(U: OutputValue, W: KeyQuery, batch: Batch) -> PerContext:
    """The expected squared errors of each context over its task and noise; W_Y is taken to be zero."""
    return _expected(U, *_attend(W[:, : batch.x.shape[1]], batch), batch)


def controlled(U: OutputValue, W: KeyQuery, batch: Batch) -> PerContext:
    """Unbiased for any W_Y, with little variance while W_Y is small."""
    unseen = _attend(W[:, : batch.x.shape[1]], batch)
    return _squared(U, *_attend(W, batch), batch) - _squared(U, *unseen, batch) + _expected(U, *unseen, batch)


ESTIMATORS: dict[str, Estimator] = {"sampled": sampled, "integrated": integrated, "controlled": controlled}


def products(model: FullAttention) -> tuple[OutputValue, KeyQuery]:
    """(U, W) of a model."""
    d = model.value.shape[2] - model.output.shape[1]
    U = jnp.einsum("hye,hez->hyz", model.output, model.value)
    return U, jnp.einsum("hez,hed->hzd", model.key, model.query[..., :d]) / math.sqrt(model.key.shape[1])


def slope(
    model: FullAttention,
    sampler: Contexts,
    step: Array | int,
    *,
    contexts: int,
    queries: int = 2,
    estimator: str = "sampled",
    chunk: int = CHUNK,
    deal: Deal = ALONE,
) -> tuple[Float[Array, " tasks"], FullAttention]:
    """The losses of the tasks on the fresh contexts of a step, and the gradient of their sum.

    Chunks of `chunk` contexts are drawn and used up one after the other, unless `deal` says otherwise; the last may be smaller.
    """
    estimate = _named(estimator)
    (U, W), pull = jax.vjp(products, model)

    def summed(weights: tuple[OutputValue, KeyQuery], first: Array | int, size: int):
        losses = jnp.sum(estimate(*weights, sampler.piece(step, first, size, queries, chunk=chunk)), axis=0)
        return jnp.sum(losses), losses

    def part(first: Array | int, size: int):
        gradient, losses = jax.grad(summed, has_aux=True)((U, W), first, size)
        return losses, gradient

    losses, gradient = jax.tree.map(lambda leaf: leaf / contexts, total(part, contexts, deal.size(contexts, chunk, chunk), deal))
    return losses, pull(gradient)[0]


def losses(
    model: FullAttention,
    sampler: Contexts,
    step: Array | int,
    *,
    contexts: int,
    queries: int = 2,
    estimator: str = "sampled",
    chunk: int = CHUNK,
    deal: Deal = ALONE,
) -> tuple[Float[Array, " tasks"], Float[Array, " tasks"]]:
    """The losses of the tasks on the contexts of a step, without a gradient, and their standard errors over contexts."""
    estimate, (U, W) = _named(estimator), products(model)

    def part(first: Array | int, size: int):
        found = estimate(U, W, sampler.piece(step, first, size, queries, chunk=chunk))
        return jnp.sum(found, axis=0), jnp.sum(found**2, axis=0)

    mean, square = jax.tree.map(lambda leaf: leaf / contexts, total(part, contexts, deal.size(contexts, chunk, chunk), deal))
    return mean, jnp.sqrt(jnp.maximum(square - mean**2, 0) / max(1, contexts - 1))


def shares(
    model: FullAttention,
    sampler: Contexts,
    step: Array | int,
    *,
    contexts: int,
    queries: int = 2,
    estimator: str = "sampled",
    chunk: int = CHUNK,
    deal: Deal = ALONE,
) -> tuple[Float[Array, " tasks"], Float[Array, ""], Float[Array, ""]]:
    """What is left of the signal of each task, and of all, with the standard error of the latter.

    Losses are divided by the signal of the same queries (squared targets, or their expectation lam_i |q_i|^2), so that a silent model
    has 1.
    """
    estimate, (U, W) = _named(estimator), products(model)

    def part(first: Array | int, size: int):
        batch = sampler.piece(step, first, size, queries, chunk=chunk)
        asked = batch.targets**2 if estimator == "sampled" else batch.signal[None, None] * (batch.q**2 @ batch.member.T)
        own = jnp.mean(asked, axis=1)
        found = estimate(U, W, batch)
        pair = jnp.stack([jnp.sum(found, axis=1), jnp.sum(own, axis=1)])
        return jnp.sum(found, axis=0), jnp.sum(own, axis=0), pair @ pair.T

    losses, signal, second = jax.tree.map(lambda leaf: leaf / contexts, total(part, contexts, deal.size(contexts, chunk, chunk), deal))
    share = jnp.sum(losses) / jnp.sum(signal)
    apart = jnp.stack([jnp.ones_like(share), -share])  # loss - share x signal, whose mean is zero
    variance = jnp.maximum(apart @ second @ apart, 0)  # a difference of squares may round below zero
    return losses / signal, share, jnp.sqrt(variance / max(1, contexts - 1)) / jnp.sum(signal)


def _attend(W: Float[Array, "heads a d"], batch: Batch) -> tuple[Attention, Attended]:
    """p^h and X p^h for every query and head of a context; a W without the rows of y does not see labels."""
    contexts, _, d = batch.q.shape
    # Queries and heads are the rows of one matrix per context, which makes all of this matrix products without copies.
    asked = (batch.q.reshape(-1, d) @ W.reshape(-1, d).T).reshape(contexts, -1, W.shape[1])
    if W.shape[1] == d:
        scores = asked @ batch.x
    else:
        scores = (asked[..., :d] + asked[..., d:] @ batch.G) @ batch.x
        if batch.noise is not None:
            scores = scores + asked[..., d:] @ batch.noise
    p = jax.nn.softmax(scores, axis=-1)
    return p, p @ batch.x.mT


def _squared(U: OutputValue, p: Attention, x: Attended, batch: Batch) -> PerContext:
    """Squared errors, from p^h and X p^h."""
    y = x @ batch.G.mT
    if batch.noise is not None:
        y = y + p @ batch.noise.mT
    predicted = _read(U, jnp.concatenate([x, y], axis=-1)).reshape(batch.targets.shape)
    return jnp.mean((batch.targets - predicted) ** 2, axis=1)


def _expected(U: OutputValue, p: Attention, x: Attended, batch: Batch) -> PerContext:
    """Expected squared errors, from p^h and X p^h that do not depend on labels."""
    contexts, queries, d = batch.q.shape
    heads, tasks, _ = U.shape
    U_X, U_Y = U[..., :d], U[..., d:]
    x = x.reshape(contexts * queries, heads, d)
    root = jnp.sqrt(batch.signal)[:, None] * batch.member  # sqrt(lam_i) where a coordinate belongs to task i
    spread = jnp.einsum("hij,jd->hid", U_Y, root)
    # A sum over heads written out is one loop to XLA; a contraction would be small matrix products with copies around them.
    a = sum(spread[None, h] * x[:, h, None] for h in range(heads))
    loss = jnp.sum((batch.q.reshape(-1, 1, d) * root[None] - a) ** 2, axis=-1) + _read(U_X, x) ** 2
    if batch.sigma is not None:
        p = p.reshape(contexts * queries, heads, -1)
        overlap = (p @ p.mT).reshape(-1, heads**2)
        loss = loss + batch.sigma**2 * (overlap @ jnp.einsum("hij,gij->hgi", U_Y, U_Y).reshape(-1, tasks))
    return jnp.mean(loss.reshape(contexts, queries, tasks), axis=1)


def _read(U: Float[Array, "heads tasks a"], z: Float[Array, "..."]) -> Float[Array, "all_queries tasks"]:
    """sum_h U^h z^h of every query, from an array with the memory layout of (queries, heads, a)."""
    heads, tasks, a = U.shape
    return z.reshape(-1, heads * a) @ U.transpose(0, 2, 1).reshape(heads * a, tasks)


def _named(estimator: str) -> Estimator:
    if estimator not in ESTIMATORS:
        raise ValueError(f"unknown estimator {estimator!r}; choose one of {tuple(ESTIMATORS)}")
    return ESTIMATORS[estimator]
