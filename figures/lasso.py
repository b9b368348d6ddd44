"""Lasso as a referee, by scikit-learn, which is an optional dependency: `pip install 'spectral-ode[lasso]'`."""

import importlib.util
import warnings

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from spectral_ode.systems.sparse.data import Law

ABSENT = "Lasso needs scikit-learn: pip install 'spectral-ode[lasso]'"
PENALTIES = np.geomspace(1.0, 1e-3, 60)  # in units of sigma sqrt(2 log d/n) x 3


def present() -> bool:
    """Whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def risk(law: Law, key: PRNGKeyArray, *, tasks: int) -> float:
    """Mean risk over tasks at the best penalty for the mean, on the tasks of `simulate.referees.study` with the same key."""
    from sklearn.linear_model import lasso_path  # pyright: ignore[reportMissingImports]

    draw = jax.jit(law.sample)
    penalties = 3 * law.sigma * np.sqrt(2 * np.log(max(law.d, 2)) / law.n) * PENALTIES
    risks = []
    for one in jax.random.split(key, tasks):
        sample = draw(one)
        with warnings.catch_warnings():  # for n < d the smallest penalties do not converge, and are not the best ones
            warnings.simplefilter("ignore")
            path = lasso_path(np.asarray(sample.x), np.asarray(sample.y), alphas=penalties, precompute="auto")[1]
        risks.append(np.sum((path - np.asarray(sample.w)[:, None]) ** 2, axis=0))
    return float(np.mean(risks, axis=0).min())
