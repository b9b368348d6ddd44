r"""What the dynamics of linear attention knows about the sequences: two second moments, and the loss they make.

Paper: arXiv:2501.16265, Sections 2 and 3. Tokens $x ~ N(0, Lambda)$, task $w ~ N(0, Sigma)$, labels $y_m = w.x_m$ plus noise of variance
$s2$, $n$ context tokens, $beta = f_n sum_{m <= n} y_m x_m$ with $f_n = 1/n$ (or $1/(n+1)$, see `Problem.factor`). $Lambda$ and $Sigma$
share eigenvectors $e_d$, with eigenvalues $lam_d$, $sig_d$. Averages $<.>$ are over the context lengths of the loss (one, or all up to
$N$):

    E[y_q beta x_q^T] = sum_d g_d e_d e_d^T,     g_d = <n f_n> lam_d^2 sig_d
    E[beta beta^T] = sum_d C_d e_d e_d^T,     C_d = <n^2 f_n^2> lam_d^2 sig_d + <n f_n^2> (lam_d^2 sig_d + (tr(Lambda Sigma) + s2) lam_d)

Paper: $Sigma = I$, $s2 = 0$, $f_n = 1/N$: $g_d = lam_d^2$ and $C_d = lam_d^2 c_d$ with $c_d = 1 + (1 + tr(Lambda)/lam_d)/N$. Always
$c_d = C_d / g_d$. Noise, $Sigma$ and varying lengths are ours. For every $yhat = beta^T A x_q$ the loss and its best $A$, diagonal in the
$e_d$, are

    L(A) = tr(Lambda Sigma) - 2 <A, E[y_q beta x_q^T]> + tr(A^T E[beta beta^T] A Lambda)
    A*_d = g_d / (C_d lam_d) = 1 / (c_d lam_d)

and learning direction $d$ takes away $gain_d = g_d^2 / (C_d lam_d) = g_d / (c_d lam_d)$ ($lam_d / c_d$ in the paper). Directions are
numbered by falling $g_d$, the rate at which they are learned.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import require_task
from spectral_ode.weights import stream


class Statistics(eqx.Module):
    """Moments of a regression task, in its eigenbasis."""

    lam: Float[Array, " d"]
    sig: Float[Array, " d"]
    basis: Float[Array, "d d"]  # columns are the eigenvectors, by falling rate
    noise: Float[Array, ""]  # standard deviation
    reach: Float[Array, " three"]  # <n f>, <n^2 f^2>, <n f^2>

    @classmethod
    def from_problem(cls, problem: Problem) -> "Statistics":
        """The moments of the problem's task, averaged over its context lengths."""
        lam, sig, basis = directions(problem)
        n = np.asarray(problem.contexts, float)
        f = np.asarray([problem.factor(context) for context in problem.contexts])
        reach = jnp.asarray([np.mean(n * f), np.mean(n**2 * f**2), np.mean(n * f**2)])
        return cls(lam, sig, basis, jnp.asarray(problem.task.noise, float), reach)

    @property
    def g(self) -> Float[Array, " d"]:
        """Rate of each direction: E[y_q beta x_q^T] in the eigenbasis."""
        return self.reach[0] * self.lam**2 * self.sig

    @property
    def C(self) -> Float[Array, " d"]:
        """E[beta beta^T] in the eigenbasis."""
        signal = self.lam**2 * self.sig
        return self.reach[1] * signal + self.reach[2] * (signal + (self.power + self.noise**2) * self.lam)

    @property
    def c(self) -> Float[Array, " d"]:
        """C_d / g_d."""
        return self.C / self.g

    @property
    def power(self) -> Float[Array, ""]:
        """tr(Lambda Sigma): the loss of a model that predicts zero."""
        return jnp.sum(self.lam * self.sig)

    @property
    def best(self) -> Float[Array, " d"]:
        """A*_d, the best linear map in each direction."""
        return 1 / (self.c * self.lam)

    @property
    def gain(self) -> Float[Array, " d"]:
        """What learning each direction takes from the loss."""
        return self.g * self.best

    @property
    def covariance(self) -> Float[Array, "d d"]:
        """Lambda."""
        return self.matrix(self.lam)

    def matrix(self, eigenvalues: Float[Array, " d"]) -> Float[Array, "d d"]:
        """The matrix with these eigenvalues in the eigenbasis."""
        return self.basis * eigenvalues[None] @ self.basis.T

    def plateau_loss(self, learned: int) -> Float[Array, ""]:
        """Loss with the first `learned` directions learned (eq. 19)."""
        return self.power - jnp.sum(self.gain[:learned])

    def loss(self, A: Float[Array, "d d"]) -> Float[Array, ""]:
        """L(A), with A in the eigenbasis."""
        return self.power - 2 * jnp.sum(jnp.diag(A) * self.g) + jnp.sum(A**2 * self.C[:, None] * self.lam[None])

    def pull(self, A: Float[Array, "d d"]) -> Float[Array, "d d"]:
        """G(A) = -(1/2) dL/dA, with A and G in the coordinates of the tokens."""
        return self.matrix(self.g) - self.matrix(self.C) @ A @ self.covariance


def directions(problem: Problem) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, "d d"]]:
    """Token variances, task variances and eigenvectors of a problem, by falling rate lam^2 sig."""
    spectrum = jnp.asarray(problem.regression.spectrum, float)
    prior = jnp.broadcast_to(jnp.asarray(problem.regression.prior, float), spectrum.shape)
    order = jnp.argsort(-(spectrum**2 * prior), stable=True)
    return spectrum[order], prior[order], rotation(problem.regression.rotation, spectrum.size)


def rotation(seed: int, d: int) -> Float[Array, "d d"]:
    """The identity for seed 0, otherwise a random rotation."""
    if seed == 0:
        return jnp.eye(d)
    return jax.random.orthogonal(jax.random.key(seed), d)


def shared_task(problem: Problem) -> Float[Array, " d"]:
    """The one task of all in-weight sequences, of length sqrt(D), the same in every run."""
    w = jax.random.normal(jax.random.fold_in(stream(problem, "task"), 7), (len(problem.regression.spectrum),))
    return w * jnp.sqrt(w.size / jnp.sum(w**2))


def require(problem: Problem, kind: str) -> None:
    """Raise `BadInput` unless the acting blocks of that kind of attention describe the problem."""
    given = problem.attention.kind
    require_task(problem, f"linear.{kind}", "linear-regression")
    if given != kind:
        raise BadInput(f"system linear.{kind} is for attention.kind {kind}, but it is {given}; use --system linear.{given}")
    if problem.regression.in_context < 1:
        share = f"task.in_context is {problem.regression.in_context:g}"
        raise BadInput(f"system linear.{kind} is for sequences with a task each, but {share}; use --system linear.blocks")


def gaps(problem: Problem) -> dict[str, str]:
    """Rungs that no theory of this paper fills, each with the reason."""
    if problem.attention.activation == "softmax":
        return dict.fromkeys(("reduced", "population"), "softmax attention has no reduced equations in this paper: training only")
    return {}
