"""The exact gradient flow of the full weights on the population loss: the rung between a reduction and training."""

import abc

from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem, Observed, Weights


class AbstractReduction(AbstractSystem):
    """A system whose population loss is known for all weights of the model, so that their exact flow can be integrated."""

    @abc.abstractmethod
    def population_loss(self, weights: Weights) -> Float[Array, ""]:
        """The loss on infinitely many sequences, as a function of full weights."""

    @abc.abstractmethod
    def weights_field(self, weights: Weights) -> Weights:
        """The exact gradient flow of the full weights on the population loss."""

    def population(self) -> "PopulationFlow":
        """The flow of the weights."""
        return PopulationFlow(self)


class PopulationFlow(AbstractSystem):
    """State = full weights, field = the gradient flow of `reduction.population_loss`; everything is asked of the reduction."""

    reduction: AbstractReduction

    @classmethod
    def from_problem(cls, problem: Problem) -> "PopulationFlow":
        """The population flow of the problem's own reduction."""
        from spectral_ode import systems

        return systems.load(problem.system).from_problem(problem).population()

    def missing(self, problem: Problem) -> dict[str, str]:
        """What the reduction says of itself."""
        return self.reduction.missing(problem)

    def project(self, weights: Weights) -> Weights:
        """Nothing is projected away."""
        return weights

    def vector_field(self, t: Float[Array, ""], state: Weights) -> Weights:
        """Minus half the gradient of the population loss."""
        return self.reduction.weights_field(state)

    def observe(self, state: Weights) -> Observed:
        """The reduction's observables of full weights."""
        return self.reduction.observe_weights(state)

    def observe_weights(self, weights: Weights) -> Observed:
        """The same as `observe`."""
        return self.reduction.observe_weights(weights)

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """The reduction's phases, which are functions of the observables."""
        return self.reduction.phases(observed)

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """The reduction's landmarks."""
        return self.reduction.landmarks()

    def population(self) -> "PopulationFlow":
        """Itself."""
        return self

    def forecast(self, weights: Weights) -> dict[str, Array]:
        """Forecasts belong to the reduction."""
        return {}

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """Claims belong to the reduction."""
        return ()
