r"""Separate key and query: saddle to saddle, one eigenvector at a time.

Paper: arXiv:2501.16265, Section 4. Symbols: $v_i$, $k_ir$, $q_ir$ are value, key and query weights of head $i$, $r = 1..R$; $lam_d$,
$g_d$, $C_d$, $c_d$, $beta$ as in `data` (the paper has $g_d = lam_d^2$). Prediction $yhat = beta^T A x_q$ with
$A = sum_i v_i sum_r k_ir q_ir^T$.

Gradient flow $tau dW/dt = -(1/2) dL/dW$ with $tau = 1$ (eq. 14), $G = sum_d g_d e_d e_d^T - C A Lambda$:

    dv_i/dt = sum_r k_ir^T G q_ir,     dk_ir/dt = v_i G q_ir,     dq_ir/dt = v_i G^T k_ir
    conserved: v_i^2 - sum_r |k_ir|^2  and  K_i K_i^T - Q_i Q_i^T

Fixed points: one per subset $S$ of the eigenvectors, $A = sum_{d in S} A*_d e_d e_d^T$, with loss (eq. 19)

    L(S) = tr(Lambda Sigma) - sum_{d in S} gain_d

Small starts visit $S = {}, {1}, {1, 2}, ...$ in order of falling rate $g_d$.

Heads of rank $R$ learn $R$ directions in quick succession: the shared $v_i$ has grown with the first, so that the others escape
exponentially. Conspicuous plateaus are those at multiples of $R$; with $R H < D$ the flow ends at plateau $R H$.

Reduction for rank one (eq. 21): $k_i = q_i = v e_d$, one scalar per direction,

    dv/dt = g v^2 - lam C v^5,     v* = (lam c)^(-1/3)

which in $s = v / v*$ and time $g v* t$ is the universal curve $s' = s^2 - s^5$ of `_scalar`, with its implicit solution.

The start of each scalar follows from the full start by the escape law of `_escape` (ours): $v_d(0) = 1 / (g_d T_d)$.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.flow import AbstractReduction
from spectral_ode.problem import BadInput, Problem, SeparateHeads
from spectral_ode.system import Observed
from spectral_ode.systems.linear import _escape, _saddles, _scalar, _separate_claims
from spectral_ode.systems.linear.data import Statistics, gaps, require
from spectral_ode.weights import SeparateWeights

HALF = 1 - 1 / math.sqrt(2)  # (v/v*)^3 at which half of a drop in loss is done
LEFT, SETTLED = 0.01, 0.95  # (v/v*)^3 at which a plateau counts as left, a direction as settled (a sample may end at 0.99)


class State(eqx.Module):
    """One scalar per eigen-direction."""

    v: Float[Array, " d"]


class Separate(AbstractReduction):
    """separate key and query: saddle to saddle, one scalar ODE per eigenvector."""

    data: Statistics

    @classmethod
    def from_problem(cls, problem: Problem) -> "Separate":
        """The reduction of a linear-regression task seen by heads with separate key and query."""
        require(problem, "separate")
        return cls(Statistics.from_problem(problem))

    @property
    def limit(self) -> Float[Array, " d"]:
        """v* of each direction."""
        return jnp.cbrt(self.data.best)

    def missing(self, problem: Problem) -> dict[str, str]:
        """The scalar reduction is for rank one and distinct rates; a softmax has no theory here."""
        assert isinstance(problem.attention, SeparateHeads)
        rates = {round(float(rate), 12) for rate in self.data.g}
        if problem.attention.rank != 1:
            return {"reduced": f"the scalar ODEs are for rank 1, not {problem.attention.rank}"} | gaps(problem)
        if len(rates) < self.data.lam.size:
            return {"reduced": "the scalar ODEs are for distinct eigenvalues"} | gaps(problem)
        return gaps(problem)

    def project(self, weights: SeparateWeights) -> State:
        """v_d(0) = 1 / (g_d T_d): the scalar ODE blows up where the forecast says that direction d is learned."""
        return State(v=1.0 / (self.data.g * self._forecast(weights).blow_up))

    def vector_field(self, t: Float[Array, ""], state: State) -> State:
        """Eq. 21 for every direction."""
        return State(v=self.scalar_field(state.v))

    def scalar_field(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        """The right side of eq. 21, g v^2 - lam C v^5."""
        return self.data.g * v**2 - self.data.lam * self.data.C * v**5

    def observe(self, state: State) -> Observed:
        """Loss, v, and how far each direction is learned."""
        learned = state.v**3
        loss = self.data.power - jnp.sum(2 * self.data.g * learned - self.data.C * self.data.lam * learned**2)
        return {"loss": loss, "v": state.v, "learned": learned / self.data.best}

    def observe_weights(self, weights: SeparateWeights) -> Observed:
        """The same from full weights, with each head's value and key, the head behind each direction, and what lies outside."""
        modes = weights.value[:, None] * jnp.sum(self._along(weights.key) * self._along(weights.query), axis=1)  # heads x d
        learned = jnp.sum(modes, axis=0)
        return {
            "loss": self.population_loss(weights),
            "v": jnp.cbrt(learned),
            "learned": learned / self.data.best,
            "value": weights.value,
            "key": weights.key,
            "query": weights.query,
            "head": jnp.argmax(jnp.abs(modes), axis=0),
            "outside": self.outside(weights),
        }

    def outside(self, weights: SeparateWeights) -> Float[Array, ""]:
        """Share of the squared weights that is not on one eigenvector per head with key = +-query = +-value: outside the ansatz."""
        key, query = self._along(weights.key), self._along(weights.query)
        own = jnp.argmax(jnp.sum(jnp.abs(key * query), axis=1), axis=1)[:, None, None]
        pair = [jnp.abs(jnp.take_along_axis(part, own, axis=2)[:, 0, 0]) for part in (key, query)]
        aligned = jnp.mean(jnp.stack([jnp.abs(weights.value), *pair]), axis=0)
        total = jnp.sum(weights.value**2) + jnp.sum(key**2) + jnp.sum(query**2)
        return 1 - jnp.sum(3 * aligned**2) / total

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """For each direction: its plateau is left, half of its drop is done, it is settled."""
        levels = {"left": LEFT, "half": HALF, "settled": SETTLED}
        return {f"{name} {d + 1}": observed["learned"][d] - level for d in range(self.data.lam.size) for name, level in levels.items()}

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """Plateau losses (eq. 19) and the limits v*."""
        plateaus = {rf"$\mathcal{{M}}_{m}$": self.data.plateau_loss(m) for m in range(self.data.lam.size + 1)}
        limits = {rf"$\lambda_{d + 1} = {float(self.data.lam[d]):.3g}$": self.limit[d] for d in range(self.data.lam.size)}
        return {"loss": plateaus, "v": limits}

    def population_loss(self, weights: SeparateWeights) -> Float[Array, ""]:
        """L(A) for any rank, number of heads and covariance."""
        return self.data.loss(jnp.einsum("h,hra,hrb->ab", weights.value, self._along(weights.key), self._along(weights.query)))

    def weights_field(self, weights: SeparateWeights) -> SeparateWeights:
        """Eq. 14, for any rank."""
        # Products and sums instead of small matrix products: XLA fuses them into one loop, five times faster on a CPU.
        v, k, q = weights.value[:, None, None], weights.key, weights.query
        G = self.data.pull(jnp.sum((v * k)[..., :, None] * q[..., None, :], axis=(0, 1)))[None, None]
        Gq = jnp.sum(G * q[..., None, :], axis=-1)
        return SeparateWeights(jnp.sum(k * Gq, axis=(1, 2)), v * Gq, v * jnp.sum(G * k[..., :, None], axis=-2))

    def _along(self, vectors: Float[Array, "heads rank d"]) -> Float[Array, "heads rank d"]:
        return vectors @ self.data.basis

    def _forecast(self, weights: SeparateWeights) -> _escape.Forecast:
        if weights.key.shape[1] != 1:
            raise BadInput(f"the scalar reduction of linear.separate is for attention.rank 1, not {weights.key.shape[1]}")
        key, query = self._along(weights.key)[:, 0], self._along(weights.query)[:, 0]
        return _escape.forecast(_escape.Head(weights.value, key + query, key - query), self.data)

    def forecast(self, weights: SeparateWeights) -> dict[str, Array]:
        """Which head learns each direction, and when half of that drop is done (inf: never; 0: the start is past it)."""
        found = self._forecast(weights)
        v0, middle = 1.0 / (self.data.g * found.blow_up), HALF ** (1 / 3) * self.limit
        return {"head": found.head, "half": jnp.where(v0 < middle, self.time_to(middle, v0), 0.0)}

    def time_to(self, v: Float[Array, " d"], v0: Float[Array, " d"]) -> Float[Array, " d"]:
        """The implicit solution: time at which the scalar ODE started at v0 reaches v, both below v* or both above it."""
        return (_scalar.g(v / self.limit) - _scalar.g(v0 / self.limit)) / (self.data.g * self.limit)

    def closed_form(self, t: Float[Array, ""], v0: Float[Array, " d"]) -> Float[Array, " d"]:
        """The implicit solution inverted to machine precision: v(t) of every direction."""
        return self.limit * _scalar.after(v0 / self.limit, self.data.g * self.limit * t)

    def fixed_points(self) -> list[_saddles.FixedPoint]:
        """All 2^D fixed points with loss and stability, best first."""
        return _saddles.fixed_points(self.data)

    def at_fixed_point(self, subset: tuple[int, ...], heads: int) -> SeparateWeights:
        """Weights at the fixed point of a subset: one head per direction, the other heads at zero."""
        return _saddles.weights_at(subset, heads, self.limit, self.data.basis)

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """The statements of Section 4 and ours, with bounds for this problem."""
        return _separate_claims.separate(self, problem)
