r"""Every block of linear attention: the exact flow when some sequences share one task (in-weight against in-context learning).

Paper: arXiv:2501.16265, Figure 14; the equations are ours. A share $p$ of the sequences has a task $w ~ N(0, Sigma)$ of its own, the
others share one fixed task $w_0$ ($p = 0$ as in the authors' script: the context labels are pure noise of variance one). Then the blocks
that start at zero are driven, so the state is all of them: the last row $a_h$ of each value matrix and the key-query matrix $W_h$ (or
$K_h$, $Q_h$) of `spectral_ode.features`, which has the features $phi$ and their coefficients $t = t(theta)$, and

    dtheta/dt = -(1/2) d/dtheta ( E y^2 - 2 t.b + t^T M t )

$M = E[phi phi^T]$ and $b = E[phi y]$ are exact. Given $w$, a token $(x; y)$ is Gaussian with covariance

    Gamma(w) = [[Lambda, Lambda w], [w^T Lambda, w^T Lambda w + s2]],

the context is a Wishart matrix $S$ of $n$ of them, $Ghat = f (S + q q^T)$ with $q = (x_q; 0)$, and

    E[S_ab S_cd | w] = n^2 Gamma_ab Gamma_cd + n (Gamma_ac Gamma_bd + Gamma_ad Gamma_bc).

What is left are Gaussian moments of $x_q$ of order up to six (by Isserlis' recursion) and polynomials of $w$ of degree four, which three
Gauss-Hermite nodes per direction integrate exactly. Test losses are the same quadratic form with the moments of the test laws: "in-weight"
(context labels are noise, the query's is $w_0.x_q$) and "in-context" (every sequence has its own task).
"""

import itertools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.features import Moments, coefficients
from spectral_ode.flow import AbstractReduction
from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import Observed, require_task
from spectral_ode.systems.linear import _blocks_claims
from spectral_ode.systems.linear.data import directions, gaps, shared_task
from spectral_ode.weights import MergedWeights, SeparateWeights

MOST = 8  # token dimensions: M has (D (D+1)(D+2)/2)^2 entries


class MergedBlocks(eqx.Module):
    """All blocks of heads with merged key and query."""

    row: Float[Array, "heads e"]
    W: Float[Array, "heads e d"]

    @property
    def t(self) -> Float[Array, " F"]:
        """Coefficients of the features."""
        return coefficients(self.row, self.W)


class SeparateBlocks(eqx.Module):
    """All blocks of heads with separate key and query."""

    row: Float[Array, "heads e"]
    key: Float[Array, "heads rank e"]
    query: Float[Array, "heads rank d"]

    @property
    def t(self) -> Float[Array, " F"]:
        """Coefficients of the features."""
        return coefficients(self.row, jnp.sum(self.key[..., :, None] * self.query[..., None, :], axis=1))


class Blocks(AbstractReduction):
    """all blocks, merged or separate: in-weight learning first, then in-context learning takes over."""

    every_block: ClassVar[bool] = True
    train: Moments
    in_weight: Moments
    in_context: Moments

    @classmethod
    def from_problem(cls, problem: Problem) -> "Blocks":
        """The exact moments of the problem's training and test laws."""
        require_task(problem, "linear.blocks", "linear-regression")
        if len(problem.regression.spectrum) > MOST:
            raise BadInput(f"task.spectrum has {len(problem.regression.spectrum)} eigenvalues, but linear.blocks takes at most {MOST}")
        whole = (problem.task.context,)  # tests are on the full context whatever the training is on
        tests = [population_moments(problem, share, whole) for share in (0.0, 1.0)]
        return cls(population_moments(problem, problem.regression.in_context, problem.contexts), *tests)

    def missing(self, problem: Problem) -> dict[str, str]:
        """The flow of all blocks is the population flow: there is no rung beside it."""
        return {"population": "the exact flow of all blocks is the reduced rung"} | gaps(problem)

    def project(self, weights: SeparateWeights | MergedWeights) -> MergedBlocks | SeparateBlocks:
        """The acting blocks among zeros."""
        row = jnp.zeros((weights.value.size, weights.A.shape[0] + 1)).at[:, -1].set(weights.value)
        if isinstance(weights, MergedWeights):
            return MergedBlocks(row, jnp.pad(weights.key_query, ((0, 0), (0, 1), (0, 0))))
        return SeparateBlocks(row, jnp.pad(weights.key, ((0, 0), (0, 0), (0, 1))), weights.query)

    def vector_field(self, t: Float[Array, ""], state: MergedBlocks | SeparateBlocks) -> MergedBlocks | SeparateBlocks:
        """Minus half the gradient of the population loss."""
        return jax.tree.map(lambda slope: -0.5 * slope, jax.grad(lambda state: self.train.loss(state.t))(state))

    def observe(self, state: MergedBlocks | SeparateBlocks) -> Observed:
        """Training loss, both test losses, and the share of the squared weights in the blocks that start at zero."""
        last = state.W[:, -1] if isinstance(state, MergedBlocks) else state.key[..., -1]
        idle = jnp.sum(state.row[:, :-1] ** 2) + jnp.sum(last**2)
        total = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(state))
        tests = jnp.stack([self.in_weight.loss(state.t), self.in_context.loss(state.t)])
        return {"loss": self.train.loss(state.t), "tests": tests, "idle": idle / total}

    def observe_weights(self, weights: SeparateWeights | MergedWeights | MergedBlocks) -> Observed:
        """The same; acting blocks alone are put among zeros."""
        return self.observe(weights if isinstance(weights, MergedBlocks) else self.project(weights))

    @property
    def floor(self) -> Float[Array, ""]:
        """The lowest training loss of any function of the features."""
        return self.train.power - jnp.dot(self.train.b, jnp.linalg.lstsq(self.train.M, self.train.b)[0])

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """The training loss has come half of the way to its floor; each test loss has fallen by half."""
        half = lambda now, moments: 0.5 - now / moments.power
        course = {"half 1": 0.5 * (self.train.power + self.floor) - observed["loss"]}
        tests = {"in-weight": half(observed["tests"][0], self.in_weight), "in-context": half(observed["tests"][1], self.in_context)}
        return course | tests

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """Where the training loss starts, and the floor under it; where the test losses start."""
        starts = {"in-weight": self.in_weight.power, "in-context": self.in_context.power}
        return {"loss": {"start": self.train.power, "floor": self.floor}, "tests": starts}

    def population_loss(self, weights: SeparateWeights | MergedWeights) -> Float[Array, ""]:
        """Training loss with all other blocks zero."""
        return self.train.loss(self.project(weights).t)

    def weights_field(self, weights: SeparateWeights | MergedWeights) -> SeparateWeights | MergedWeights:
        """The flow of the acting blocks alone; they do not stay alone unless every sequence has its own task."""
        return jax.tree.map(lambda slope: -0.5 * slope, jax.grad(self.population_loss)(weights))

    def forecast(self, weights: SeparateWeights | MergedWeights) -> dict[str, Array]:
        """No law is known."""
        return {}

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """What the paper shows in Figure 14, and ours."""
        return _blocks_claims.blocks(self, problem)


def population_moments(problem: Problem, share: float, contexts: tuple[int, ...]) -> Moments:
    """Exact moments of the law in which a share of the sequences has its own task, averaged over context lengths."""
    lam, sig, basis = directions(problem)
    covariance, w0, noise = basis * lam[None] @ basis.T, shared_task(problem), jnp.asarray(problem.task.noise, float) ** 2
    laws = []  # probabilities, Gammas and tasks, each along a first axis
    if share > 0:
        nodes, weights = np.polynomial.hermite_e.hermegauss(3)
        index = np.asarray(list(itertools.product(range(3), repeat=lam.size)))
        tasks = (jnp.sqrt(sig)[None] * nodes[index]) @ basis.T
        laws.append((share * np.prod((weights / weights.sum())[index], axis=1), _token_covariance(covariance, tasks, noise), tasks))
    if 0 < share < 1:
        laws.append((np.asarray([1 - share]), _token_covariance(covariance, w0[None], noise), w0[None]))
    if share == 0:
        laws.append((np.ones(1), _token_covariance(covariance, jnp.zeros((1, lam.size)), jnp.ones(())), w0[None]))
    lengths = [(n, problem.factor(n)) for n in contexts]
    weight, Gamma, w = (jnp.concatenate(part) for part in zip(*laws, strict=True))
    return _assemble(weight, Gamma, w, lengths, covariance)


def _token_covariance(covariance: Float[Array, "d d"], w: Float[Array, "laws d"], noise: Float[Array, ""]) -> Float[Array, "laws e e"]:
    """Gamma of each task."""
    cross = w @ covariance
    label = jnp.sum(w * cross, axis=1) + noise
    top = jnp.concatenate([jnp.broadcast_to(covariance[None], (w.shape[0], *covariance.shape)), cross[:, :, None]], axis=2)
    return jnp.concatenate([top, jnp.concatenate([cross, label[:, None]], axis=1)[:, None]], axis=1)


@eqx.filter_jit
def _assemble(
    weight: Float[Array, " laws"],
    Gamma: Float[Array, "laws e e"],
    w: Float[Array, "laws d"],
    lengths: list,
    covariance: Float[Array, "d d"],
) -> Moments:
    """M, b and power from the laws of a token given w, summed over lengths."""
    d = covariance.shape[0]
    e = d + 1
    one, two, three, four = (float(np.mean([n**i * f**j for n, f in lengths])) for i, j in ((1, 1), (2, 2), (1, 2), (0, 2)))
    last = float(np.mean([f for _, f in lengths]))
    product = jnp.einsum("l,lab,lcd->abcd", weight, Gamma, Gamma)
    second = two * product + three * (jnp.einsum("acbd->abcd", product) + jnp.einsum("adbc->abcd", product))
    third = one * jnp.einsum("l,lab,lc->abc", weight, Gamma, w @ covariance)
    mean, cross = jnp.einsum("l,lab->ab", weight, Gamma), weight @ w
    power = jnp.sum(weight * jnp.sum(w * (w @ covariance), axis=1))
    pad = lambda tensor, axes: jnp.pad(tensor, [(0, 1 if axis in axes else 0) for axis in range(tensor.ndim)])
    fourth, sixth = _gaussian(covariance, 4), _gaussian(covariance, 6)  # moments of x_q; the entry of its label is zero
    fourth_q, sixth_q = pad(fourth, (0, 1)), pad(sixth, (0, 1, 2, 3))
    M = jnp.einsum("abgh,cf->abcghf", second, covariance)
    M += three * (jnp.einsum("ab,ghcf->abcghf", mean, fourth_q) + jnp.einsum("gh,abcf->abcghf", mean, fourth_q))
    M += four * jnp.einsum("abghcf->abcghf", sixth_q)
    b = third + last * jnp.einsum("abcf,f->abc", fourth_q, cross)
    i, j = np.triu_indices(e)
    size = i.size * d
    return Moments(M[i, j][:, :, i, j].reshape(size, size), b[i, j].reshape(size), power)


def _gaussian(covariance: Float[Array | np.ndarray, "d d"], order: int) -> Array:
    """E[x_i x_j ...] of the given even order, by pairing the first index with each other one."""
    if order == 2:
        return jnp.asarray(covariance)
    lower, total = _gaussian(covariance, order - 2), 0.0
    for partner in range(1, order):
        product = jnp.multiply.outer(covariance, lower)  # axes: first, partner, the rest in order
        total = total + jnp.moveaxis(product, 1, partner)
    return jnp.asarray(total)
