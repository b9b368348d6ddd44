r"""Softmax attention to leading order (arXiv:2402.19442) in plain numbers, in the form of its two coupled equations.

    (ln mu_i^h)'    = 4 S_i [ om_i^h (1 - sum_g mu_i^g om_i^g) - (phi_i/L) sum_g mu_i^g e^{kappa_hg} ]
    (ln om_i^h)'    = (4/sqrt(d_e)) { (S_i/d_i) mu_i^h (1 - sum_g mu_i^g om_i^g) - sum_jg S_j (phi_j/L) mu_j^h mu_j^g e^{kappa_hg} om_i^g }
    o' = (v/2) (ln mu)',  v' = (o/2) (ln mu)',  k' = (q/2) (ln omega)',  q' = (k/2) (ln omega)'

The equations of the phases are those of one head per task, or of vanishing omega and mu omega.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import numpy as np

from spectral_ode.problem import FullHeads, MultiTask, Problem
from validate.plain.numbers import Field, exp, many

WHOLE = slice(None)


class Tasks:
    """d, S, phi, L and d_e of a problem."""

    def __init__(self, problem: Problem):
        task, attention = problem.task, problem.attention
        assert isinstance(task, MultiTask)
        assert isinstance(attention, FullHeads)
        self.H, self.I = attention.heads, len(task.dimensions)
        self.d, signals = many(task.dimensions), np.broadcast_to(np.asarray(task.signal, float), (self.I,))
        self.S = self.d * many(signals)
        self.sigma2: Any = mpmath.mpf(task.noise) ** 2
        self.L: Any = mpmath.mpf(task.context)
        self.phi = 1 + self.sigma2 / self.S
        self.root: Any = mpmath.sqrt(attention.embedding or sum(task.dimensions) + self.I)  # of d_e

    def rates(self, mu: np.ndarray, om: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ln mu)' and (ln omega)' of all heads and tasks."""
        E = exp(np.asarray([[sum(self.d * om[h] * om[g]) for g in range(self.H)] for h in range(self.H)], object))
        left = 1 - np.sum(mu * om, axis=0)
        to_mu = 4 * self.S * (om * left - self.phi / self.L * (E @ mu))
        crowd = E * ((mu * self.S * self.phi / self.L) @ mu.T)
        return to_mu, 4 / self.root * (self.S / self.d * mu * left - crowd @ om)


def _spectrum(tasks: Tasks, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    both = exp(flat).reshape(2, tasks.H, tasks.I)
    return both[0], both[1]


def balanced(problem: Problem) -> Field:
    """Ln mu, ln omega."""
    tasks = Tasks(problem)
    return Field(WHOLE, lambda flat: np.concatenate([part.ravel() for part in tasks.rates(*_spectrum(tasks, flat))]))


def factored(problem: Problem) -> Field:
    """o, v, k, q."""
    tasks = Tasks(problem)

    def rate(flat: np.ndarray) -> np.ndarray:
        o, v, k, q = flat.reshape(4, tasks.H, tasks.I)
        to_mu, to_omega = tasks.rates(o * v, k * q / tasks.root)
        return np.concatenate([part.ravel() / 2 for part in (v * to_mu, o * to_mu, q * to_omega, k * to_omega)])

    return Field(WHOLE, rate)


def warm_up(problem: Problem) -> Field:
    """Ln mu, ln omega; a task of which one head has reached mu omega = 1 stands still."""
    tasks = Tasks(problem)

    def rate(flat: np.ndarray) -> np.ndarray:
        mu, om = _spectrum(tasks, flat)
        moving = np.asarray([1 if max(row) < 1 else 0 for row in (mu * om).T])
        to_mu = 4 * tasks.S * (om - tasks.phi / tasks.L * np.sum(mu, axis=0)) * moving
        return np.concatenate([to_mu.ravel(), (4 * tasks.S / tasks.d / tasks.root * mu * moving).ravel()])

    return Field(WHOLE, rate)


def emergence(problem: Problem) -> Field:
    """Ln mu_i, ln omega_i of each task's own head."""
    tasks = Tasks(problem)

    def rate(flat: np.ndarray) -> np.ndarray:
        mu, om = exp(flat).reshape(2, tasks.I)
        E = tasks.phi / tasks.L * exp(tasks.d * om**2)
        grow = 4 * tasks.S * (om - mu * (om**2 + E))
        return np.concatenate([grow, 4 * tasks.S / tasks.d / tasks.root * mu * (1 - mu * om * (1 + tasks.d * E))])

    return Field(WHOLE, rate)


def slaved(problem: Problem) -> Field:
    """Ln omega_i, mu_i = omega/(omega^2 + E) put into the equation of omega."""
    tasks = Tasks(problem)

    def rate(flat: np.ndarray) -> np.ndarray:
        om = exp(flat)
        E = tasks.phi / tasks.L * exp(tasks.d * om**2)
        mu = om / (om**2 + E)
        return 4 * tasks.S / tasks.d / tasks.root * mu * (1 - mu * om * (1 + tasks.d * E))

    return Field(WHOLE, rate)


FIELDS: Mapping[tuple[str, str], Callable[[Problem], Field | None]] = {
    ("softmax.balanced", "reduced"): balanced,
    ("softmax.factored", "reduced"): factored,
    ("softmax.warmup", "reduced"): warm_up,
    ("softmax.emergence", "reduced"): emergence,
    ("softmax.slaved", "reduced"): slaved,
} | {(f"softmax.{phase}", "population"): balanced for phase in ("warmup", "emergence", "slaved")}
