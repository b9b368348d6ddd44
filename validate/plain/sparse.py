r"""Sparse regression (arXiv:2408.04532) in plain numbers.

    gains       g_j' = 2 eta g_j (B - C eta g_j^2),  eta' = sum_j g_j^2 (B - C eta g_j^2)
    depth       theta' = R (r - S R theta),  w' = r - S w,  of one task: the flow does not mix tasks
    two groups  decay_k' = -lam_k decay_k,  phi_k' = q (decay_k - phi_k), with lam_k the eigenvalues of R S_o R on the support

B = E w r^3 and C = E r^6 are averaged here by Gauss quadrature over |x_j|^2 (chi^2_n) and over the variance T of the rest of the label,
given which r_j is Gaussian: exact for these polynomials, and another road than the products of `_moments`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import mpmath
import numpy as np
from scipy.special import roots_genlaguerre

from spectral_ode.problem import Problem
from spectral_ode.sections.sparse import SparseRegression
from spectral_ode.systems.sparse import Law
from validate.plain.numbers import Field, many

WHOLE = slice(None)


def task_of(problem: Problem) -> SparseRegression:
    """The task, which is of this paper."""
    assert isinstance(problem.task, SparseRegression)
    return problem.task


def _chi_square(freedom: int, degree: int) -> list[tuple[float, float]]:
    """Nodes and probabilities of chi^2, exact up to a degree."""
    if freedom == 0:
        return [(0.0, 1.0)]
    node, weight = roots_genlaguerre(degree // 2 + 1, freedom / 2 - 1)
    return list(zip(2 * node, weight / weight.sum(), strict=True))


def averages(task: SparseRegression) -> tuple[float, float, float]:
    """A, B and C of one coordinate by quadrature."""
    x, p = np.polynomial.hermite_e.hermegauss(6)
    p = p / p.sum()
    share, n, signs = task.sparsity / task.dimension, task.context, task.coefficients == "signs"
    A = B = C = 0.0
    own = [(1.0, 0.5), (-1.0, 0.5)] if signs else list(zip(x, p, strict=True))
    for chance, coefficients, others in ((share, own, task.sparsity - 1), (1 - share, [(0.0, 1.0)], task.sparsity)):
        rest = [(float(others), 1.0)] if signs else _chi_square(others, 6)
        for w, of_w in coefficients:
            for square, of_square in _chi_square(n, 12):
                for extra, of_extra in rest:
                    Q, T = square / n, task.noise**2 + extra
                    r = w * Q + np.sqrt(T * Q / n) * x
                    weight = chance * of_w * of_square * of_extra
                    A, B, C = A + weight * w**2, B + weight * w * float(p @ r**3), C + weight * float(p @ r**6)
    return A, B, C


def gains(problem: Problem) -> Field:
    """g, eta."""
    _, B, C = (mpmath.mpf(value) for value in averages(task_of(problem)))

    def rate(flat: np.ndarray) -> np.ndarray:
        g, eta = flat[:-1], flat[-1]
        pull = B - C * eta * g**2
        return np.concatenate([2 * eta * g * pull, [sum(g**2 * pull)]])

    return Field(WHOLE, rate)


def first_task(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, labels and coefficients of the first task that a problem's depth averages over."""
    task = task_of(problem)
    key = jax.random.fold_in(jax.random.key(problem.seed.task), 1)  # the stream of the tasks
    for seed in (problem.seed.data, problem.seed.noise):
        key = jax.random.fold_in(key, seed)
    law = Law(task.dimension, task.sparsity, task.context, task.noise, task.coefficients)
    sample = law.sample(jax.random.split(key, problem.sparse_training.tasks)[0])
    return tuple(np.asarray(part) for part in (sample.x, sample.y, sample.w))  # pyright: ignore[reportReturnType]


def depth_weights(problem: Problem) -> Field:
    """Theta of the first task."""
    x, y, _ = first_task(problem)
    n = len(y)
    S, r = many(x.T @ x / n), many(x.T @ y / n)
    return Field(slice(0, r.size), lambda theta: r * (r - S @ (r * theta)))


def depth_reduced(problem: Problem) -> Field:
    """Decays of the first task's modes."""
    x, y, w = first_task(problem)
    n, s = len(y), task_of(problem).sparsity
    inside = np.sort(np.argsort(-np.abs(w), kind="stable")[:s])
    S, r = x[:, inside].T @ x[:, inside] / n, x[:, inside].T @ y / n
    lam: Any = mpmath.eigsy(mpmath.matrix((r[:, None] * S * r[None]).tolist()), eigvals_only=True)
    rates = np.asarray([mpmath.mpf(0), *lam], object)
    return Field(slice(0, s + 1), lambda decay: -rates * decay)


FIELDS: Mapping[tuple[str, str], Callable[[Problem], Field | None]] = {
    ("sparse.gains", "reduced"): gains,
    ("sparse.depth", "population"): depth_weights,
    ("sparse.depth", "reduced"): depth_reduced,
}
