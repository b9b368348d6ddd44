r"""The equations of the three phases (arXiv:2402.19442), each as a flow of its own, held against the full flow to leading order.

- Warmup, in $ln mu$ and $ln omega$: all heads, while $omega$ and $mu omega$ are small: the losses stay at their signal.
- Emergence, in $ln mu_i$ and $ln omega_i$: each task's own head alone.
- Slaved, in $ln omega_i$: $mu_i$ at its best value for $omega_i$: one equation, closed in $omega$.

The equations are those of `_leading`, where the rates of the third phase, convergence, stand too.
"""

import abc
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.problem import BadInput, MultiTask, Problem
from spectral_ode.system import Observed, State
from spectral_ode.systems.softmax import _claims, _leading, _view
from spectral_ode.systems.softmax._leading import Head, Spectrum
from spectral_ode.systems.softmax.spectral import AbstractSpectral, Balanced, finite, require_balanced
from spectral_ode.weights import FullWeights


class AbstractPhase(AbstractSpectral):
    """What the equations of a phase share: they approximate the full flow to leading order."""

    name: ClassVar[str]

    def population(self) -> Balanced:
        """The full flow to leading order."""
        return Balanced(self.order, self.tests, self.dimensions, self.heads)

    def balances(self, state: State) -> Observed:
        """Zero, by construction."""
        return {}

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """How close it is to the full flow."""
        return _claims.phase(self, problem)


class Warmup(AbstractPhase):
    """softmax attention, warm-up equations: the heads of a task race, the loss stands still."""

    name: ClassVar[str] = "warm-up"
    labels: ClassVar[dict[str, str]] = {"reduced": "warm-up equations", "population": "full flow, leading order"}

    @classmethod
    def accept(cls, problem: Problem) -> None:
        """Positive and balanced."""
        require_balanced(problem, "warmup")

    def project(self, weights: FullWeights) -> Spectrum:
        """Logarithms of the eigenvalues."""
        return self.population().project(weights)

    def spectrum(self, state: Spectrum) -> Spectrum:
        """Their exponentials."""
        return Spectrum(jnp.exp(state.mu), jnp.exp(state.omega))

    def vector_field(self, t: Float[Array, ""], state: Spectrum) -> Spectrum:
        """(ln mu)' and (ln omega)'; the equations blow up behind the warm-up, so a task stands still once mu omega = 1."""
        small = jnp.max(state.mu + state.omega, axis=0, keepdims=True) < 0
        return Spectrum(*(jnp.where(small, rate, 0.0) for rate in _leading.warm_up_field(state, self.order.tasks)))


class AbstractAlone(AbstractPhase):
    """Equations of each task's own head alone; task i is written to head i, the other heads are silent."""

    @classmethod
    def accept(cls, problem: Problem) -> None:
        """Positive and balanced, with a head for every task."""
        require_balanced(problem, cls.__name__.lower())
        assert isinstance(problem.task, MultiTask)
        tasks, heads = len(problem.task.dimensions), problem.attention.heads
        if heads < tasks:
            own = f"system softmax.{cls.__name__.lower()} gives every task a head"
            raise BadInput(f"{own}, but there are {heads} for {tasks} tasks; use --system softmax.balanced")

    def own(self, weights: FullWeights) -> Head:
        """Logarithms of the eigenvalues of the head that takes each task."""
        head = self.forecast(weights)["head"][None]
        return Head(*(jnp.log(jnp.take_along_axis(part, head, axis=0)[0]) for part in _view.spectrum(weights, self.dimensions)))

    @abc.abstractmethod
    def pair(self, state: State) -> Head:
        """(mu, omega) of each task."""

    def spectrum(self, state: State) -> Spectrum:
        """Eigenvalues of a state."""
        place, own = jnp.eye(self.heads, len(self.dimensions)), self.pair(state)
        return Spectrum(place * own.mu[None], place * own.omega[None])


class Emergence(AbstractAlone):
    """softmax attention, emergence equations: (mu, omega) of each task's own head, alone."""

    name: ClassVar[str] = "emergence"
    labels: ClassVar[dict[str, str]] = {"reduced": "emergence equations in mu and omega", "population": "full flow, leading order"}

    def project(self, weights: FullWeights) -> Head:
        """Logarithms of mu and omega."""
        return self.own(weights)

    def pair(self, state: Head) -> Head:
        """Their exponentials."""
        return Head(jnp.exp(state.mu), jnp.exp(state.omega))

    def vector_field(self, t: Float[Array, ""], state: Head) -> Head:
        """(ln mu)' and (ln omega)'."""
        return finite(_leading.emergence_field(state, self.order.tasks))


class Slaved(AbstractAlone):
    """softmax attention, emergence equation: omega alone, with mu slaved to it."""

    name: ClassVar[str] = "slaved"
    labels: ClassVar[dict[str, str]] = {"reduced": "emergence equation in omega alone", "population": "full flow, leading order"}

    def project(self, weights: FullWeights) -> Float[Array, " tasks"]:
        """Logarithm of omega."""
        return self.own(weights).omega

    def pair(self, state: Float[Array, " tasks"]) -> Head:
        """Omega with the best mu for it."""
        return Head(_leading.slaved(jnp.exp(state), self.order.tasks), jnp.exp(state))

    def vector_field(self, t: Float[Array, ""], state: Float[Array, " tasks"]) -> Float[Array, " tasks"]:
        """(ln omega)'."""
        return finite(_leading.slaved_field(jnp.exp(state), self.order.tasks) / jnp.exp(state))
