r"""Averages of the softmax over L Gaussian tokens, by integrals over t and u on a plain grid: the referee of the tables at finite L.

With Z = sum_l e^{s_l}, 1/(Z Z') = intint e^{-t Z - u Z'} dt du, and [a] = E a e^{-t e^s - u e^{s'}} over one token,

    E sum_l a_l p_l p'_l            = intint L [a e^{s+s'}] f^{L-1},                     f = [1]
    E (sum_l a_l p_l)(sum_m b_m p'_m) = the same with a b, + intint L (L-1) [a e^s] [b e^{s'}] f^{L-2}
    E sum_l p_l^2 sum_m p'_m^2      = intint t u ( L [e^{2s+2s'}] f^{L-1} + L (L-1) [e^{2s}] [e^{2s'}] f^{L-2} )

In one dimension (d = 1) tokens x and a query q make scores s = omega q x of all heads from one number, so that a whole loss is such an
integral, averaged over q ~ N(0, 1).
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from spectral_ode.systems.softmax._expectations import expectations, query_rule, reach
from spectral_ode.systems.softmax._leading import Spectrum
from spectral_ode.systems.softmax._tables import LARGEST

TOKENS = 20
LOG_T, STEP = np.linspace(-30.0, 5.0, 141, retstep=True)  # both tails fall exponentially or faster: the trapezoid rule is exact
T = np.exp(LOG_T)


class _Pair:
    """Two heads whose scores at some nodes of one token, and the weights of the nodes, are given."""

    def __init__(self, s: np.ndarray, s2: np.ndarray, weight: np.ndarray) -> None:
        self.s, self.s2, self.weight = s, s2, weight
        self.fall, self.fall2 = np.exp(-np.outer(T, np.exp(s))), np.exp(-np.outer(T, np.exp(s2)))
        self.f = self.over(np.ones_like(s))

    def over(self, a: np.ndarray) -> np.ndarray:
        """[a] at all t (rows) and u."""
        return (self.fall * (self.weight * a)) @ self.fall2.T

    def integral(self, values: np.ndarray) -> float:
        """Over t and u."""
        return float(T @ values @ T * STEP**2)

    def together(self, a: np.ndarray | float = 1.0) -> float:
        """E sum_l a_l p_l p'_l."""
        return self.integral(TOKENS * self.over(a * np.exp(self.s + self.s2)) * self.f ** (TOKENS - 1))

    def product(self, a: np.ndarray, b: np.ndarray) -> float:
        """E (sum_l a_l p_l)(sum_m b_m p'_m)."""
        apart = self.over(a * np.exp(self.s)) * self.over(b * np.exp(self.s2)) * self.f ** (TOKENS - 2)
        return self.together(a * b) + self.integral(TOKENS * (TOKENS - 1) * apart)

    def squares(self) -> float:
        """E sum_l p_l^2 sum_m p'_m^2."""
        one, two = self.over(np.exp(2 * self.s)), self.over(np.exp(2 * self.s2))
        both = TOKENS * self.over(np.exp(2 * (self.s + self.s2))) * self.f ** (TOKENS - 1)
        return self.integral(np.outer(T, T) * (both + TOKENS * (TOKENS - 1) * one * two * self.f ** (TOKENS - 2)))


def _normal(count: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = hermegauss(count)
    return nodes, weights / weights.sum()


def _correlated(v: float, v2: float, k: float) -> _Pair:
    """Scores of variances v, v2 and covariance k."""
    z, weight = _normal(36)
    one, two = (axis.ravel() for axis in np.meshgrid(z, z, indexing="ij"))
    return _Pair(np.sqrt(v) * one, k / np.sqrt(v) * one + np.sqrt(v2 - k**2 / v) * two, np.outer(weight, weight).ravel())


def averages() -> Iterator[tuple[Any, Any]]:
    """c, m2, C and its derivatives, K, T, a loss; and the law of the query norms."""
    exact, (v, v2, k) = expectations(TOKENS), (0.8, 0.5, 0.3)
    z, weight = _normal(60)
    same = _Pair(np.sqrt(v) * z, np.sqrt(v) * z, weight)
    c = same.together()
    yield exact.concentration(jnp.asarray(v)), c
    yield exact.second(jnp.asarray(v)), same.product(same.s, same.s)
    yield exact.spread(jnp.asarray(v)), (same.product(same.s, same.s) / v - c) / v
    pair, found = _correlated(v, v2, k), exact.pair(*jnp.asarray([v, v2, k]))
    yield found.C, pair.together()
    h = 1e-3  # central differences of fourth order
    slope = lambda at: (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    yield found.C_h, slope(lambda by: _correlated(v + by, v2, k).together())
    yield found.C_g, slope(lambda by: _correlated(v, v2 + by, k).together())
    yield found.C_k, slope(lambda by: _correlated(v, v2, k + by).together())
    other = _Pair(np.sqrt(v2) * z, np.sqrt(v2) * z, weight)
    yield found.K, 1 - c - other.together() + pair.squares()
    parts = (pair.s, pair.s2)
    yield exact.moment(*jnp.asarray([v, v2, k])), [[pair.product(a, b) for b in parts] for a in parts]
    mu, omega, S, sigma2 = np.array([1.3, -0.6]), np.array([0.3, 0.17]), 0.9, 0.4
    ours = exact.loss(Spectrum(jnp.asarray(mu)[:, None], jnp.asarray(omega)[:, None]), (1,), jnp.asarray([S]), jnp.asarray(sigma2))
    yield ours, [_loss(mu, omega, S, sigma2)]
    square, weight = query_rule((4, 5))
    yield weight.sum(), 1
    yield np.concatenate([weight @ square, weight @ square**2]), [4, 5, 24, 35]  # E chi^2_d = d, E (chi^2_d)^2 = d (d + 2)
    yield reach(jnp.asarray([[0.1, 0.2], [0.3, 0.1]]), (4, 5)), np.max(square @ np.array([[0.01, 0.04], [0.09, 0.01]]).T) / LARGEST


def _loss(mu: np.ndarray, omega: np.ndarray, S: float, sigma2: float) -> float:
    """S E (q - sum_h mu_h sum_l x_l p^h_l)^2 + sigma2 E |sum_h mu_h p^h|^2 of one task in one dimension."""
    x, weight = _normal(40)
    total = 0.0
    for q, share in zip(*_normal(12), strict=True):
        value = S * q**2
        for h in range(2):
            value -= 2 * S * mu[h] * q * _mean(omega[h] * q * x, x, weight)
            for g in range(2):
                pair = _Pair(omega[h] * q * x, omega[g] * q * x, weight)
                value += mu[h] * mu[g] * (S * pair.product(x, x) + sigma2 * pair.together())
        total += share * value
    return total


def _mean(s: np.ndarray, a: np.ndarray, weight: np.ndarray) -> float:
    """E sum_l a_l p_l = int L [a e^s] f^{L-1} dt."""
    fall = np.exp(-np.outer(T, np.exp(s)))
    return float(T @ (TOKENS * (fall @ (weight * a * np.exp(s))) * (fall @ weight) ** (TOKENS - 1)) * STEP)
