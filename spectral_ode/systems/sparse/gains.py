r"""How the construction is learned: gains of the first layer's heads and the step size of the second, under gradient flow.

Derived here, for the two-layer construction of arXiv:2408.04532 with head gains $g_j$ and one step of size $eta$:
$w_j = eta g_j^2 r_j^3$. With $kappa_j = eta g_j^2$ and the moments $A = E w*_j^2$, $B = E w*_j r_j^3$, $C = E r_j^6$ of `_moments` the
risk is exactly

    L = sum_j (A - 2 kappa_j B + kappa_j^2 C)

and its flow, $dW/dt = -(1/2) dL/dW$,

    dg_j/dt = 2 eta g_j (B - C kappa_j),      deta/dt = sum_j g_j^2 (B - C kappa_j)
    conserved: sum_j g_j^2 - 2 eta^2

Fixed points: $kappa_j = kappa* = B/C$ for all $j$ (the minimum); some heads at $g_j = 0$ and the others at $kappa*$ (saddles); the line
$g = 0$ with any $eta$, along which $eta > 0$ is unstable and $eta < 0$ a trap. From a small start all gains first grow by one common
factor, so larger ones reach $kappa*$ earlier: unequal heads are activated one after another.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.flow import AbstractReduction
from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import Observed
from spectral_ode.systems.sparse import _gains_claims, _moments
from spectral_ode.systems.sparse.data import Law
from spectral_ode.weights import GainWeights


class Gains(AbstractReduction):
    """how preprocessing is learned: head gains and a step size, activated one after another."""

    labels: ClassVar[dict[str, str]] = {"reduced": "training ODE of gains and step size", "population": "the same"}
    law: Law

    @classmethod
    def from_problem(cls, problem: Problem) -> "Gains":
        """The flow of a problem's gains."""
        law = Law.from_problem(problem)
        if problem.training.kind != "gains":
            raise BadInput(f"system sparse.gains is for training.kind gains, but it is {problem.training.kind}; use --system sparse.depth")
        return cls(law)

    @property
    def moments(self) -> _moments.Correlations:
        """A, B and C."""
        return _moments.correlations(self.law)

    def missing(self, problem: Problem) -> dict[str, str]:
        """There is nothing between this flow and training."""
        return {"population": "the ODE is the flow of all weights already"}

    def project(self, weights: GainWeights) -> GainWeights:
        """Nothing is projected away."""
        return weights

    def vector_field(self, t: Float[Array, ""], state: GainWeights) -> GainWeights:
        """Dg and deta."""
        return self.weights_field(state)

    def weights_field(self, weights: GainWeights) -> GainWeights:
        """The same."""
        pull = self.moments.B - self.moments.C * weights.eta * weights.g**2
        return GainWeights(2 * weights.eta * weights.g * pull, jnp.sum(weights.g**2 * pull))

    def observe(self, state: GainWeights) -> Observed:
        """Risk, kappa of every head over kappa*, gains and step size."""
        kappa = state.eta * state.g**2
        return {"loss": self.population_loss(state), "kappa": kappa / self.moments.best, "g": state.g, "eta": state.eta}

    def observe_weights(self, weights: GainWeights) -> Observed:
        """The same."""
        return self.observe(weights)

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """Each head is half activated."""
        return {f"half {j + 1}": observed["kappa"][j] - 0.5 for j in range(self.law.d)}

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """Risk of doing nothing and of the minimum; kappa*."""
        A, B, C = self.moments
        levels = {"nothing learned": jnp.asarray(self.law.d * A), "all heads": jnp.asarray(self.law.d * (A - B**2 / C))}
        return {"loss": levels, "kappa": {r"$\kappa^* = B/C$": jnp.ones(())}}

    def population_loss(self, weights: GainWeights) -> Float[Array, ""]:
        """L."""
        A, B, C = self.moments
        kappa = weights.eta * weights.g**2
        return jnp.sum(A - 2 * kappa * B + kappa**2 * C)

    def forecast(self, weights: GainWeights) -> dict[str, Array]:
        """No law is known without integrating."""
        return {}

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """What we say of this flow."""
        return _gains_claims.gains(self, problem)
