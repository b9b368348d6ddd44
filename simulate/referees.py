"""Preprocessed and plain descent against their referees on sampled tasks: mean risks, every method at its best.

Steps have size 1/lam_max of each task. Ridge has the best penalty of a grid for the mean over tasks, least squares and the known support
need no choice. Lasso is not here: it needs a library of its own (`figures.lasso`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from spectral_ode.systems.sparse import _algorithms
from spectral_ode.systems.sparse.data import Law

PENALTIES = np.geomspace(1e-4, 3e1, 60)


class Study(NamedTuple):
    """Mean risks over tasks: of descent after 0, 1, 2, ... steps, of the others at their best."""

    pto: np.ndarray
    gd: np.ndarray
    ridge: float
    least_squares: float
    oracle: float

    @property
    def ratio(self) -> float:
        """Lowest risk of PTO over lowest risk of GD."""
        return float(self.pto.min() / self.gd.min())


def study(law: Law, key: PRNGKeyArray, *, tasks: int, steps: int) -> Study:
    """All methods on the same tasks."""
    pto, gd, ridge, least, oracle = (np.asarray(jnp.mean(part, axis=0)) for part in _study(law, jax.random.split(key, tasks), steps))
    exists = law.n > law.d + 1  # elsewhere least squares has no finite mean risk, or is not unique
    return Study(pto, gd, float(ridge.min()), float(least) if exists else float("inf"), float(oracle))


@eqx.filter_jit
def _study(law: Law, keys: Key[Array, " tasks"], steps: int) -> tuple[Float[Array, "tasks ..."], ...]:
    def one(key: PRNGKeyArray):
        sample = law.sample(key)
        moments = sample.moments()
        kinds = [_algorithms.diagonalize(moments, algorithm) for algorithm in _algorithms.ALGORITHMS]
        (pto, gd), plain = (_algorithms.step_curve(kind, sample, steps) for kind in kinds), kinds[1]
        shrink = lambda penalty: _algorithms.risk(plain.basis @ (plain.c / (plain.lam + penalty)), sample)
        oracle = _algorithms.risk(_algorithms.oracle(moments, sample.w != 0), sample)
        return pto, gd, jax.vmap(shrink)(jnp.asarray(PENALTIES)), shrink(1e-12), oracle

    return jax.lax.map(one, keys)
