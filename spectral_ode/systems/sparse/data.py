r"""Sparse regression in context: what the algorithms of this paper see.

    x_i ~ N(0, I_d),  i = 1..n,     y_i = <w*, x_i> + eps_i,     eps_i ~ N(0, sigma^2)

$w*$ has $s$ non-zeros on a uniformly random support: $+-1$ ("signs") or $N(0, 1)$ ("normal"). The paper varies the noise; the laws of the
non-zeros are our reading. For isotropic $x$ the excess risk of an estimate is $|w - w*|^2$.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from spectral_ode.problem import Problem
from spectral_ode.sections.sparse import SparseRegression
from spectral_ode.system import require_task

Number = float | Float[Array, ""]  # an array where it is traced


class Moments(eqx.Module):
    """What linear algorithms see of a context: S = X^T X/n and r = X^T y/n."""

    S: Float[Array, "d d"]
    r: Float[Array, " d"]


class Sample(eqx.Module):
    """The labelled tokens of one task, and the task."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    w: Float[Array, " d"]

    def moments(self) -> Moments:
        """S and r."""
        n = self.y.shape[0]
        return Moments(self.x.T @ self.x / n, self.x.T @ self.y / n)


class Law(eqx.Module):
    """The law of the tasks and of their tokens."""

    d: int = eqx.field(static=True)
    s: int = eqx.field(static=True)
    n: int = eqx.field(static=True)
    sigma: Number = 0.5
    coefficients: str = eqx.field(static=True, default="signs")

    @property
    def W2(self) -> float:
        """E |w*|^2."""
        return float(self.s)

    @property
    def v(self) -> Number:
        """sigma^2/n."""
        return self.sigma**2 / self.n

    @classmethod
    def from_problem(cls, problem: Problem) -> "Law":
        """The law of a problem's tasks; raises `BadInput` for another kind of task."""
        task = problem.task
        require_task(problem, problem.system, "sparse-regression")
        assert isinstance(task, SparseRegression)
        return cls(task.dimension, task.sparsity, task.context, task.noise, task.coefficients)

    def task(self, key: PRNGKeyArray, dtype: DTypeLike = float) -> Float[Array, " d"]:
        """One w*."""
        values, place = jax.random.split(key)
        draw = jax.random.rademacher if self.coefficients == "signs" else jax.random.normal
        w = jnp.zeros(self.d, dtype).at[: self.s].set(draw(values, (self.s,)).astype(dtype))
        return jax.random.permutation(place, w)

    def sample(self, key: PRNGKeyArray, dtype: DTypeLike = float) -> Sample:
        """One task with its labelled tokens."""
        task, tokens, noise = jax.random.split(key, 3)
        w, x = self.task(task, dtype), jax.random.normal(tokens, (self.n, self.d), dtype)
        return Sample(x, x @ w + self.sigma * jax.random.normal(noise, (self.n,), dtype), w)

    def samples(self, key: PRNGKeyArray, count: int, dtype: DTypeLike = float, first: Array | int = 0) -> Sample:
        """Independent tasks, along a leading axis, from number `first` of all that the key has."""
        return jax.vmap(lambda number: self.sample(jax.random.fold_in(key, number), dtype))(first + jnp.arange(count))

    def power(self, degree: int) -> float:
        """E w^degree of a non-zero coefficient, for an even degree."""
        return 1.0 if self.coefficients == "signs" else float(math.prod(range(1, degree, 2)))

    def square(self, count: int, degree: int) -> Number:
        """E T^degree of T = sigma^2 + the squares of `count` coefficients: what else makes a label."""
        chi = lambda k: float(count) ** k if self.coefficients == "signs" else float(math.prod(count + 2 * i for i in range(k)))
        return sum(math.comb(degree, k) * chi(k) * self.sigma ** (2 * (degree - k)) for k in range(degree + 1))
