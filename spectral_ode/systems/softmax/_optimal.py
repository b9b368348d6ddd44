r"""Where softmax attention ends and what it is measured against: closed forms, all to leading order (`_leading`) unless said otherwise.

Paper: arXiv:2402.19442; its text was not at hand, so every formula is derived here, in its symbols (those of `_leading`).

Limit of gradient flow, one head per task (GF), with $x = e d phi/L$; for $n$ equal tasks on one head $d -> n d$:

    omega* = d^{-1/2},    mu* = d^{1/2} / (1 + x),    Loss* = S x/(1 + x)

In general the best $mu$ for given $omega$ leaves $Loss_i = S_i / (1 + (L/(phi_i d_i)) b_i)$ with

    b_i = d_i omega_i^T E^{-1} omega_i,   E_hg = e^{kappa_hg},      sum_i b_i = M(kappa) = tr(kappa E^{-1})

so heads differ only in the budget $M$ that they share out. One head has $b_i = d_i omega_i^2 e^{-B}$, $B = sum_i d_i omega_i^2$, and so
$M = B e^{-B} <= 1/e$ whatever the shares, with equality at $B = 1$. The best shares (OptS) are a water filling; unequal tasks (ours) may
stay dry:

    b_i = [ l sqrt(S_i/a_i) - 1/a_i ]_+,   a_i = L/(phi_i d_i),   l such that sum_i b_i = M

Equiangular heads, $kappa_hh = a$ and $kappa_hg = b$:

    M(a, b) = (H-1)(a-b)/(e^a-e^b) + (a-b+H b)/(e^a-e^b+H e^b)

For $H >= 2$ the supremum is $min(H-1, I)$, approached at $omega -> 0$ and not attained ($M <= I$ is proven by $E >= kappa$;
$M <= H-1$ is ours, from a numerical search).

Signed pair, heads $(mu, omega)$ and $(-mu, -omega)$; linear attention is $k -> 0$:

    Loss = S y/(1 + y),    y = (phi d/L) sinh(k)/k,    k = d omega^2

Benchmarks in the proportional limit, $gamma = d_i/L$: the Bayes risk and the risk of ridge regression of `spectral_ode.marchenko_pastur`.

Allocation (ours). In the warm-up a head alone obeys a quadratic system. With $D = d sqrt(d_e)$, $p = 1/(1 + phi D/L)$ and
$rho = mu(0) (1 + phi D/L) / (D omega(0))$ it blows up at

    T = (1/(4 S omega(0))) int_0^inf e^{-p u} / (1 - (1 - rho) e^{-u}) du = 2F1(1, p; 1+p; 1-rho) / (4 S p omega(0))

($phi D/L -> 0$: $1/(4 S)$ times $D$ over the logarithmic mean of $mu(0)$ and $D omega(0)$). The head with the smallest $T$ takes the
task. This is sure when one head of the task starts with both the largest $mu$ and the largest $omega$ (the warm-up keeps that order; for
equal $omega$ it is the largest $mu$), unless another task has emerged on that head before: then a task may go to another head. Where
heads start crossed, the drag that they share, which $T$ leaves out, can also matter in near ties. On random starts $T$ is right for 19
tasks of 20 (the tests).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from spectral_ode import quadrature
from spectral_ode.systems.softmax._leading import Spectrum, Tasks

Number = Float[Array, ""] | float | int
NODES = 160  # of the quadrature of T: relative error below 1e-12 for rho in [1e-6, 1e6]


class Limit(NamedTuple):
    """Weights of the head of each task and the losses they leave."""

    mu: Float[Array, " tasks"]
    omega: Float[Array, " tasks"]
    loss: Float[Array, " tasks"]


def limit(tasks: Tasks, *, sharing: Number = 1.0) -> Limit:
    """Where gradient flow ends when each head serves `sharing` equal tasks."""
    d, x = sharing * tasks.d, sharing * tasks.x
    return Limit(jnp.sqrt(d) / (1 + x), 1 / jnp.sqrt(d), tasks.S * x / (1 + x))


def fill(budget: Number, tasks: Tasks, member: Bool[Array, " tasks"] | None = None) -> Float[Array, " tasks"]:
    """The shares b of a budget M that minimize the sum of S_i / (1 + a_i b_i) over the member tasks (all, if not given)."""
    member = jnp.ones(tasks.d.shape, bool) if member is None else member
    dry = tasks.phi * tasks.d / tasks.L  # 1/a
    rise = jnp.sqrt(tasks.S * dry)
    shore = jnp.where(member, dry / rise, jnp.inf)  # the level at which a task begins to fill
    order = jnp.argsort(shore)
    total = lambda values: jnp.cumsum(jnp.where(member, values, 0.0)[order])
    someone = total(rise) > 0
    levels = jnp.where(someone, (budget + total(dry)) / jnp.where(someone, total(rise), 1.0), -jnp.inf)
    level = levels[jnp.maximum(jnp.sum(levels > shore[order]) - 1, 0)]
    wet = level > shore
    return jnp.where(wet, jnp.where(wet, level, 0.0) * rise - dry, 0.0)


def shared_losses(shares: Float[Array, " tasks"], tasks: Tasks) -> Float[Array, " tasks"]:
    """Loss_i = S_i / (1 + (L/(phi_i d_i)) b_i)."""
    return tasks.S / (1 + tasks.L / (tasks.phi * tasks.d) * shares)


def one_head(tasks: Tasks, member: Bool[Array, " tasks"] | None = None) -> Limit:
    """The best single head for the member tasks (all, if not given); the others are left alone."""
    shares = fill(jnp.exp(-1.0), tasks, member)
    wet = shares > 0
    omega = jnp.where(wet, jnp.sqrt(jnp.where(wet, jnp.e * shares / tasks.d, 1.0)), 0.0)
    return Limit(omega / (omega**2 + jnp.e * tasks.phi / tasks.L), omega, shared_losses(shares, tasks))


def budget(kappa: Float[Array, "heads heads"]) -> Float[Array, ""]:
    """M(kappa) = tr(kappa E^{-1})."""
    return jnp.trace(jnp.linalg.solve(jnp.exp(kappa), kappa))


def equiangular_budget(a: Number, b: Number, *, heads: int) -> Float[Array, ""]:
    """M(a, b) for kappa_hh = a > kappa_hg = b."""
    a, b = jnp.asarray(a, float), jnp.asarray(b, float)
    apart = jnp.exp(b) * jnp.expm1(a - b)
    return (heads - 1) * (a - b) / apart + (a - b + heads * b) / (apart + heads * jnp.exp(b))


def best_budget(heads: int, tasks: int) -> float:
    """The supremum of M: 1/e for one head, else min(heads - 1, tasks)."""
    return 1 / np.e if heads == 1 else float(min(heads - 1, tasks))


def lower_bound(heads: int, tasks: Tasks) -> Float[Array, " tasks"]:
    """The losses whose sum no heads can beat (LB), to leading order: the supremum of M, shared out by `fill`."""
    return shared_losses(fill(best_budget(heads, tasks.d.size), tasks), tasks)


def signed_pair(k: Number, tasks: Tasks) -> Float[Array, " tasks"]:
    """Loss of two heads of opposite signs for each task, with d omega^2 = k > 0."""
    y = tasks.phi * tasks.d / tasks.L * jnp.sinh(k) / k
    return tasks.S * y / (1 + y)


def escape_rate(tasks: Tasks) -> Float[Array, " tasks"]:
    """Rate 2 S (phi/L) mu* at which o - v of an idle head grows at the limit: the loss has the term rate o v there, a saddle (ours)."""
    return 2 * tasks.S * tasks.phi / tasks.L * limit(tasks).mu


def linear_attention(tasks: Tasks) -> Float[Array, " tasks"]:
    """Loss of signed pairs at omega -> 0 with mu omega kept: one step of gradient descent on the context, S x/(e + x)."""
    return tasks.S * tasks.x / (jnp.e + tasks.x)


def other_length(tasks: Tasks, L: Number) -> Float[Array, " tasks"]:
    """Loss at context length L of the heads that were trained at tasks.L."""
    r = 1 / (1 + tasks.x)  # mu* omega*
    return tasks.S * ((1 - r) ** 2 + r**2 * jnp.e * tasks.d * tasks.phi / L)


def exponential(v: Float[Array, "*shape"] | float | int, L: Number) -> Float[Array, "*shape"]:
    """E |p|^2 = e^v/L of the softmax of L scores N(0, v), in the exponential regime that leading order supposes."""
    return jnp.exp(jnp.asarray(v, float)) / L


def saturation(L: Number) -> Float[Array, ""]:
    """The v = ln(L)/2 beyond which e^v/L overestimates: the largest score then makes the sum of e^{2s}, and |p|^2 saturates towards 1."""
    return 0.5 * jnp.log(jnp.asarray(L, float))


def hermite_transfer(degree: int, head: Limit) -> Float[Array, " tasks"]:
    """Share of a label He_k of one coordinate that the prediction keeps: mu omega^k, from E_z He_k(z + omega q) = (omega q)^k at L -> inf.

    Trained on linear tasks mu omega = 1/(1 + x), so that degree k is damped by d^{-(k-1)/2}: nonlinear targets do not transfer.
    The prediction is the monomial (omega q)^k, whose lower Hermite components are errors too.
    """
    return head.mu * head.omega**degree


NODE, WEIGHT = quadrature.half_line(NODES)


def emergence_times(start: Spectrum, tasks: Tasks) -> Float[Array, "heads tasks"]:
    """T of each head and task, each alone, from mu(0) > 0 and omega(0) > 0."""
    D = tasks.d * jnp.sqrt(tasks.d_e)
    p = 1 / (1 + tasks.phi * D / tasks.L)
    rho = start.mu / (start.omega * (p * D)[None])

    def integral(rho, p):
        u = jnp.asarray(NODE) / p
        return jnp.sum(jnp.asarray(WEIGHT) * jnp.exp(-jnp.asarray(NODE)) / (rho * jnp.exp(-u) - jnp.expm1(-u)))

    each = jax.vmap(jax.vmap(integral), in_axes=(0, None))(rho, p)
    return each / (start.omega * (4 * tasks.S * p)[None])


def allocate(start: Spectrum, tasks: Tasks) -> Int[Array, " tasks"]:
    """The head that takes each task in the balanced flow from `start`: the one with the smallest T."""
    return jnp.argmin(emergence_times(start, tasks), axis=0)


def allocation_limit(head: Int[Array, " tasks"], tasks: Tasks, *, heads: int) -> tuple[Spectrum, Float[Array, " tasks"]]:
    """Weights and losses where the balanced flow ends when head[i] has taken task i; surplus heads have none."""
    taken = head[None] == jnp.arange(heads)[:, None]
    found = jax.vmap(lambda member: one_head(tasks, member))(taken)
    return Spectrum(found.mu, found.omega), jnp.sum(jnp.where(taken, found.loss, 0.0), axis=0)
