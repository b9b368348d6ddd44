r"""Two answers to one question: the losses of decomposable weights and how they pull, to leading order in 1/L or exactly at finite L.

The flows of `spectral` need nothing else. Both orders are smooth in $(mu, omega)$; the second is slower by the average over query norms.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from spectral_ode.problem import FullHeads, MultiTask, Problem
from spectral_ode.systems.softmax import _leading, _optimal
from spectral_ode.systems.softmax._expectations import Expectations, default_queries, expectations, query_rule, reach
from spectral_ode.systems.softmax._leading import Spectrum, Tasks
from spectral_ode.systems.softmax._tables import LARGEST

HALVINGS, BRACKET = 48, (0.5, 1.9)  # of omega sqrt(d) at the limit for finite L
WIDEST = lambda L: 1.1 + 22 / L  # d omega^2 up to which the queries of a rule stay within the tables; the limits lie a little lower


class AbstractOrder(eqx.Module):
    """Losses of the tasks as a function of the spectrum."""

    tasks: eqx.AbstractVar[Tasks]

    @abc.abstractmethod
    def losses(self, spectrum: Spectrum) -> Float[Array, " tasks"]:
        """Loss_i."""

    @abc.abstractmethod
    def pull(self, spectrum: Spectrum) -> Spectrum:
        """-dLoss/dmu and -dLoss/domega of the sum over tasks."""

    @abc.abstractmethod
    def limit(self) -> _optimal.Limit:
        """Where the balanced flow ends with one head for each task."""

    @abc.abstractmethod
    def reach(self, spectrum: Spectrum) -> Float[Array, ""]:
        """Largest variance of a score over what the order's formulas are made for; above 1 they must not be trusted."""


class LeadingOrder(AbstractOrder):
    """The paper's order: 1/L, and large d_i."""

    tasks: Tasks

    def losses(self, spectrum: Spectrum) -> Float[Array, " tasks"]:
        """Loss_i to leading order."""
        return _leading.losses(spectrum, self.tasks)

    def pull(self, spectrum: Spectrum) -> Spectrum:
        """By hand."""
        return _leading.pull(spectrum, self.tasks)

    def limit(self) -> _optimal.Limit:
        """In closed form."""
        return _optimal.limit(self.tasks)

    def reach(self, spectrum: Spectrum) -> Float[Array, ""]:
        """e^kappa << L is the condition: kappa over ln L."""
        return jnp.max(jnp.diag(_leading.kappa(spectrum.omega, self.tasks.d))) / jnp.log(self.tasks.L)


class FiniteOrder(AbstractOrder):
    """Exact for decomposable weights at any L and d_i (ours)."""

    tasks: Tasks
    expectations: Expectations
    dimensions: tuple[int, ...] = eqx.field(static=True)
    queries: tuple[int, ...] = eqx.field(static=True)

    def losses(self, spectrum: Spectrum) -> Float[Array, " tasks"]:
        """Loss_i, averaged over tokens and queries."""
        return self.expectations.loss(spectrum, self.dimensions, self.tasks.S, self.tasks.sigma2, queries=self.queries)

    def pull(self, spectrum: Spectrum) -> Spectrum:
        """By reverse differentiation."""
        return jax.tree.map(jnp.negative, jax.grad(lambda spectrum: jnp.sum(self.losses(spectrum)))(spectrum))

    def limit(self) -> _optimal.Limit:
        """For each task alone: the best omega by bisection of the slope, with the best mu for each omega."""
        found: dict[tuple[int, float], tuple[Array, Array, Array]] = {}
        keys = [(number, float(S)) for number, S in zip(self.dimensions, self.tasks.S, strict=True)]
        for key, d, count in zip(keys, self.dimensions, self.queries, strict=True):
            if key not in found:
                found[key] = _best(self.expectations, d, count, key[1], self.tasks.sigma2)
        return _optimal.Limit(*(jnp.stack(part) for part in zip(*(found[key] for key in keys), strict=True)))

    def reach(self, spectrum: Spectrum) -> Float[Array, ""]:
        """Variances of the scores over those of the tables."""
        return reach(spectrum.omega, self.dimensions, queries=self.queries)


@eqx.filter_jit
def _best(exact: Expectations, d: int, queries: int, S: float, sigma2: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """mu, omega and loss of the best head for one task."""

    def parts(omega: Array) -> tuple[Array, Array]:
        # Loss = S - 2 mu a + mu^2 b: two values of mu give a and b.
        at = lambda mu: exact.loss(Spectrum(jnp.full((1, 1), mu), omega[None, None]), (d,), jnp.full(1, S), sigma2, queries=queries)[0]
        one, two = at(1.0), at(-1.0)
        return (two - one) / 4, (one + two) / 2 - S

    gain = lambda omega: parts(omega)[0] ** 2 / parts(omega)[1]
    halve = lambda _, ends: jnp.where(jax.grad(gain)(jnp.mean(ends)) > 0, ends.at[0].set(jnp.mean(ends)), ends.at[1].set(jnp.mean(ends)))
    omega = jnp.mean(jax.lax.fori_loop(0, HALVINGS, halve, jnp.asarray(BRACKET) * d**-0.5))
    a, b = parts(omega)
    return a / b, omega, S - a**2 / b


def tasks_of(problem: Problem, context: int | None = None) -> Tasks:
    """The tasks of a problem, at its context length or another."""
    task, attention = problem.task, problem.attention
    assert isinstance(task, MultiTask)
    assert isinstance(attention, FullHeads)
    d = np.asarray(task.dimensions, float)
    return Tasks(d=d, S=d * jnp.asarray(task.signals, float), sigma2=task.noise**2, L=context or task.context, d_e=attention.width(task))


def finite(tasks: Tasks, dimensions: tuple[int, ...]) -> FiniteOrder:
    """The exact order for some tasks, with as many query norms per task as fit the tables."""
    counts = []
    for d in dimensions:
        count = default_queries(len(dimensions))
        while count > 4 and query_rule((d,), count)[0].max() * WIDEST(tasks.L) / d > LARGEST:
            count -= 1
        counts.append(count)
    return FiniteOrder(tasks, expectations(int(tasks.L)), dimensions, tuple(counts))
