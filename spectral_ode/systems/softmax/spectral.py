r"""The spectral dynamics of softmax attention: warm-up, emergence, convergence of every head and task.

Paper: arXiv:2402.19442; the equations are those of `_leading`, derived there in the paper's symbols. State of one system, seen by all as
a spectrum $(mu_i^h, omega_i^h)$, heads by tasks:

- Balanced, in $ln mu$ and $ln omega$: $o = v$ and $k = q$, as the paper starts; signs stay positive, and rounding cannot leave the saddle.
- Factored, in $o$, $v$, $k$, $q$: any balance; signs can change, which one head per task does not survive (ours).

Both come at either order (`_orders`): the paper's leading one, and the exact one at finite $L$, which is their population flow.

The loss shown is $sum_i Loss_i / sum_i S_i$, the share of the signal that is left; the flow descends $sum_i Loss_i$. Landmarks of task
$i$, for the head that serves it (the largest $|mu omega|$): "emergence i", a twentieth of its signal is caught; "half i",
$omega = 0.15 sqrt(10/d_i)$, about half of its limit (and 0.15 in the setting of Figure 1); "convergence i", $omega = 0.7 d_i^{-1/2}$.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.problem import BadInput, DecomposableStart, MultiTask, Problem, Start
from spectral_ode.system import AbstractSystem, Observed, State, require_task
from spectral_ode.systems.softmax import _claims, _leading, _optimal, _orders, _view
from spectral_ode.systems.softmax._leading import Factors, Spectrum
from spectral_ode.weights import FullWeights

CAUGHT, HALF, LATE = 0.05, 0.15 * 10**0.5, 0.7
HUGE = 1e30


class AbstractSpectral(AbstractSystem):
    """What all reductions to a spectrum share; a subclass says what its state is and how it moves."""

    labels: ClassVar[dict[str, str]] = {"reduced": "leading order in 1/L", "population": "finite L, exact"}
    order: _orders.AbstractOrder
    tests: tuple[_orders.AbstractOrder, ...]  # the same at other context lengths
    dimensions: tuple[int, ...] = eqx.field(static=True)
    heads: int = eqx.field(static=True)

    @classmethod
    def from_problem(cls, problem: Problem) -> "AbstractSpectral":
        """The reduction of a multi-task problem, to leading order."""
        task = problem.task
        require_task(problem, problem.system, "multi-task")
        assert isinstance(task, MultiTask)
        cls.accept(problem)
        tests = tuple(_orders.LeadingOrder(_orders.tasks_of(problem, length)) for length in task.tested)
        return cls(_orders.LeadingOrder(_orders.tasks_of(problem)), tests, task.dimensions, problem.attention.heads)

    @classmethod
    @abc.abstractmethod
    def accept(cls, problem: Problem) -> None:
        """Raise `BadInput` where the problem does not admit the reduction."""

    @abc.abstractmethod
    def spectrum(self, state: State) -> Spectrum:
        """Eigenvalues of a state."""

    @abc.abstractmethod
    def balances(self, state: State) -> Observed:
        """What the flow conserves, by name."""

    def exact(self) -> "AbstractSpectral":
        """The same reduction at finite L."""
        at = lambda order: _orders.finite(order.tasks, self.dimensions)
        return type(self)(at(self.order), tuple(at(order) for order in self.tests), self.dimensions, self.heads)

    def missing(self, problem: Problem) -> dict[str, str]:
        """Every rung is there."""
        return {}

    def observe(self, state: State) -> Observed:
        """Losses, and omega and mu of every head and of the one that serves each task."""
        return self.observe_spectrum(self.spectrum(state)) | self.balances(state)

    def observe_weights(self, weights: FullWeights) -> Observed:
        """The same, and what lies outside of the spectrum."""
        seen = self.observe_spectrum(_view.spectrum(weights, self.dimensions)) | _view.outside(weights, self.dimensions)
        return seen | self.balances(self.project(weights))

    def observe_spectrum(self, spectrum: Spectrum) -> Observed:
        """The observables of a spectrum."""
        S, served = self.order.tasks.S, spectrum.mu * spectrum.omega
        head = jnp.argmax(jnp.abs(served), axis=0)
        own = lambda part: jnp.take_along_axis(part, head[None], axis=0)[0]
        losses = self.order.losses(spectrum)
        share = lambda order: jnp.sum(order.losses(spectrum)) / jnp.sum(S)
        return {
            "loss": jnp.sum(losses) / jnp.sum(S),
            "task losses": losses / S,
            "omega": own(spectrum.omega),
            "mu": own(spectrum.mu),
            "omega of heads": spectrum.omega,
            "mu of heads": spectrum.mu,
            "head": head,
            "learned": jnp.sum(served, axis=0) * (1 + self.order.tasks.x),
            "reach": self.order.reach(spectrum),
        } | ({"tests": jnp.stack([share(order) for order in self.tests])} if self.tests else {})

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """For each task: emergence begins, its middle, convergence begins."""
        found = {}
        for i, d in enumerate(self.dimensions):
            found[f"emergence {i + 1}"] = observed["learned"][i] - CAUGHT
            found[f"half {i + 1}"] = jnp.abs(observed["omega"][i]) - HALF * d**-0.5
            found[f"convergence {i + 1}"] = jnp.abs(observed["omega"][i]) - LATE * d**-0.5
        return found

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """Start and limit of loss, omega and mu with one head for each task, to the system's order."""
        limit, S = self.order.limit(), self.order.tasks.S
        levels = {"start": jnp.ones(()), "one head per task": jnp.sum(limit.loss) / jnp.sum(S)}
        named = lambda values: {f"task {i + 1}": value for i, value in enumerate(values)}
        return {"loss": levels, "omega": named(limit.omega), "mu": named(limit.mu)}

    def forecast(self, weights: FullWeights) -> dict[str, Array]:
        """Which head takes each task."""
        start = Spectrum(*(jnp.abs(part) for part in _view.spectrum(weights, self.dimensions)))
        return {"head": _optimal.allocate(start, self.order.tasks)}


def finite(rates: State) -> State:
    """A trial step may land where e^kappa overflows. A huge rate makes the solver reject it; not a number would stall it."""
    return jax.tree.map(lambda rate: jnp.where(jnp.isfinite(rate), rate, HUGE), rates)


def require_balanced(problem: Problem, name: str) -> None:
    """Raise `BadInput` unless the start is positive and balanced."""
    start = problem.start
    if isinstance(start, Start):
        raise BadInput(f"system softmax.{name} is for start.kind decomposable or balanced, but it is random; use --system softmax.factored")
    if isinstance(start, DecomposableStart) and start.imbalance != 0:
        raise BadInput(f"start.imbalance is {start.imbalance:g}, but system softmax.{name} is for 0; use --system softmax.factored")


class Balanced(AbstractSpectral):
    """softmax attention, balanced start: the spectral flow of all heads and tasks."""

    @classmethod
    def accept(cls, problem: Problem) -> None:
        """Positive and balanced."""
        require_balanced(problem, "balanced")

    def population(self) -> "AbstractSpectral":
        """The same flow at finite L."""
        return self.exact()

    def project(self, weights: FullWeights) -> Spectrum:
        """Logarithms of the eigenvalues."""
        return Spectrum(*(jnp.log(part) for part in _view.spectrum(weights, self.dimensions)))

    def spectrum(self, state: Spectrum) -> Spectrum:
        """Their exponentials."""
        return Spectrum(jnp.exp(state.mu), jnp.exp(state.omega))

    def balances(self, state: Spectrum) -> Observed:
        """Zero, by construction."""
        return {}

    def vector_field(self, t: Float[Array, ""], state: Spectrum) -> Spectrum:
        """(ln mu)' and (ln omega)'."""
        return finite(_leading.balanced_rates(self.order.pull(self.spectrum(state)), self.order.tasks))

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """The statements of the paper and ours."""
        return _claims.balanced(self, problem)


class Factored(AbstractSpectral):
    """softmax attention, any start: the spectral flow of the four factors, whose signs can change."""

    @classmethod
    def accept(cls, problem: Problem) -> None:
        """Anything; what is not decomposable is projected."""

    def population(self) -> "AbstractSpectral":
        """The same flow at finite L."""
        return self.exact()

    def project(self, weights: FullWeights) -> Factors:
        """The factors with the eigenvalues and the balances of the weights."""
        return _view.factors(weights, self.dimensions)

    def spectrum(self, state: Factors) -> Spectrum:
        """Products of the factors."""
        return state.spectrum(self.order.tasks)

    def balances(self, state: Factors) -> Observed:
        """o^2 - v^2 and k^2 - q^2."""
        return {"balances": jnp.stack(state.balances())}

    def vector_field(self, t: Float[Array, ""], state: Factors) -> Factors:
        """o', v', k', q'."""
        return _leading.factor_rates(state, self.order.pull(self.spectrum(state)), self.order.tasks)

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """The statements of the paper and ours."""
        return _claims.factored(self, problem)
