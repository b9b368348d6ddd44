r"""Merged key and query: a two-layer linear network in disguise, and one abrupt drop.

Paper: arXiv:2501.16265, Section 3. Symbols: $v_i$, $U_i$ are value weight and key-query matrix of head $i$; $g_d$, $C_d$, $lam_d$, $c_d$,
$beta$ as in `data` (the paper has $g_d = lam_d^2$). Prediction $yhat = beta^T A x_q$ with $A = sum_i v_i U_i$; with
$z = vec(beta x_q^T)$, $w2 = (v_i)$ and $W1 = (vec U_i)$ it is the two-layer network $w2^T W1 z$. Gradient flow,
$G = diag(g) - C A Lambda$ in the eigenbasis:

    dv_i/dt = <U_i, G>,    dU_i/dt = v_i G
    conserved: W1 W1^T - w2 w2^T  (an H by H matrix)

Fixed points: $M_0 = {v = 0, <U_i, diag g> = 0}$ with loss $tr(Lambda Sigma)$, a strict saddle with $H$ directions of negative curvature
$-2|g|$; and $M_* = {A = A*}$ with loss $tr(Lambda Sigma) - sum_d gain_d$, the global minimum. There is nothing between them.

Reduction to $D + 1$ scalars (ours for a general covariance). Near $M_0$ only $r = (w2 + W1 m)/2$ grows, $m = vec(diag g)/|g|$. From the
start $w2 = s r/|r|$, $W1 = (r/|r|) vec(diag a)^T$ with $s = |r|$ and $a = |r| g/|g|$, $A$ stays diagonal, $A_d = s a_d$, and

    ds/dt = sum_d a_d (g_d - lam_d C_d s a_d),      da_d/dt = s (g_d - lam_d C_d s a_d)

White case (all $lam_d$ equal, all $sig_d$ equal; eq. 10): with $u = s^2$, $w_init^2 = u(0) = |r|^2$ and $e = exp(-2 sqrt(D) g t)$,

    A_d(t) = 1 / (lam c (1 - e) + e sqrt(D) / u(0)),  the paper's sigma(t).

Escape law: $s = |r| e^{|g| t}$ until it is of order one, hence $t_half = (K - ln |r|) / |g|$ (the paper: $ln(1/w_init)/|g|$; the constant
$K$, a number of the covariance alone, is ours).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Claim
from spectral_ode.flow import AbstractReduction
from spectral_ode.problem import Problem
from spectral_ode.system import Observed
from spectral_ode.systems.linear import _merged_claims
from spectral_ode.systems.linear._saddles import FixedPoint
from spectral_ode.systems.linear.data import Statistics, gaps, require
from spectral_ode.weights import MergedWeights

LEVELS = {"left 1": 0.01, "half 1": 0.5, "settled 1": 0.95}  # share of the drop in loss
FAINT = 1e-4  # size of s, in units of its limit, from which K is integrated: its error is the square of this
LAW_STEP = 0.01  # Runge-Kutta step of that integration, in units of 1/|g|


class State(eqx.Module):
    """One scalar for the value weights, one per direction for the key-query matrices."""

    s: Float[Array, ""]
    a: Float[Array, " d"]


class Merged(AbstractReduction):
    """merged key and query: one abrupt drop, D + 1 scalar ODEs, closed form for a white covariance."""

    data: Statistics

    @classmethod
    def from_problem(cls, problem: Problem) -> "Merged":
        """The reduction of a linear-regression task seen by heads with merged key and query."""
        require(problem, "merged")
        return cls(Statistics.from_problem(problem))

    @property
    def rate(self) -> Float[Array, ""]:
        """|g|, at which the saddle is left."""
        return jnp.linalg.norm(self.data.g)

    def missing(self, problem: Problem) -> dict[str, str]:
        """The reduction is for every covariance; a softmax has no theory here."""
        return gaps(problem)

    def project(self, weights: MergedWeights) -> State:
        """The growing mode of the start: s = |r|, a = |r| g/|g|."""
        m = self.data.matrix(self.data.g / self.rate)
        r = 0.5 * jnp.linalg.norm(weights.value + jnp.sum(weights.key_query * m[None], axis=(1, 2)))
        return State(r, r * self.data.g / self.rate)

    def vector_field(self, t: Float[Array, ""], state: State) -> State:
        """The D + 1 scalar equations."""
        pull = self.data.g - self.data.lam * self.data.C * state.s * state.a
        return State(jnp.sum(state.a * pull), state.s * pull)

    def observe(self, state: State) -> Observed:
        """Loss, A in the eigenbasis, its part sigma along g (1 at A*), and the share of the drop that is done."""
        return self._observe(jnp.diag(state.s * state.a))

    def _observe(self, A: Float[Array, "d d"]) -> Observed:
        loss = self.data.loss(A)
        sigma = jnp.dot(self.data.g, jnp.diag(A)) / jnp.dot(self.data.g, self.data.best)
        return {"loss": loss, "A": jnp.diag(A), "sigma": sigma, "learned": (self.data.power - loss) / jnp.sum(self.data.gain)}

    def observe_weights(self, weights: MergedWeights) -> Observed:
        """The same from full weights, with the weights themselves and what lies outside the reduction."""
        seen = self._observe(self.data.basis.T @ weights.A @ self.data.basis)
        return seen | {"value": weights.value, "key_query": weights.key_query, "outside": self.outside(weights)}

    def outside(self, weights: MergedWeights) -> Float[Array, ""]:
        """Share of the squared weights that is not of the form w2 = s r, W1 = r a^T with a diagonal in the eigenbasis."""
        U = self.data.basis.T[None] @ weights.key_query @ self.data.basis[None]
        layers = jnp.concatenate([weights.value[:, None], U.reshape(weights.value.size, -1)], axis=1)
        r = jnp.linalg.eigh(layers @ layers.T)[1][:, -1]
        aligned = jnp.dot(r, weights.value) ** 2 + jnp.sum((r @ jnp.diagonal(U, axis1=1, axis2=2)) ** 2)
        return 1 - aligned / jnp.sum(layers**2)

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """The plateau is left, half of the drop is done, it is settled."""
        return {name: observed["learned"] - level for name, level in LEVELS.items()}

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """The losses of M_0 and M_*, and A*."""
        levels = {r"$\mathcal{M}_0$": self.data.power, r"$\mathcal{M}_*$": self.data.plateau_loss(self.data.lam.size)}
        limits = {rf"$\lambda_{d + 1} = {float(self.data.lam[d]):.3g}$": self.data.best[d] for d in range(self.data.lam.size)}
        return {"loss": levels, "A": limits}

    def population_loss(self, weights: MergedWeights) -> Float[Array, ""]:
        """L(A)."""
        return self.data.loss(self.data.basis.T @ weights.A @ self.data.basis)

    def weights_field(self, weights: MergedWeights) -> MergedWeights:
        """dv_i = <U_i, G>, dU_i = v_i G."""
        G = self.data.pull(jnp.sum(weights.value[:, None, None] * weights.key_query, axis=0))[None]
        return MergedWeights(jnp.sum(weights.key_query * G, axis=(1, 2)), weights.value[:, None, None] * G)

    def forecast(self, weights: MergedWeights) -> dict[str, Array]:
        """When half of the drop is done, by the escape law."""
        return {"half": jnp.atleast_1d((self.escape_constant() - jnp.log(self.project(weights).s)) / self.rate)}

    def escape_constant(self) -> Float[Array, ""]:
        """K of the escape law, from the one orbit that leaves the saddle."""
        limit = jnp.sqrt(jnp.linalg.norm(self.data.best))  # of s, from s^2 = |a|^2 and s a = A*
        first = FAINT * limit
        step = LAW_STEP / self.rate
        steps = math.ceil((math.log(1 / FAINT) + 6) / LAW_STEP)

        def advance(state: State, h: Float[Array, ""]) -> State:
            move = lambda slope, by: jax.tree.map(lambda x, dx: x + by * dx, state, slope)
            k1 = self.vector_field(h, state)
            k2 = self.vector_field(h, move(k1, h / 2))
            k3 = self.vector_field(h, move(k2, h / 2))
            k4 = self.vector_field(h, move(k3, h))
            return move(jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4), h)

        def walk(carry, _):
            state, time = carry
            onward = advance(state, step)
            early = self.observe(onward)["learned"] < LEVELS["half 1"]
            return jax.tree.map(lambda new, old: jnp.where(early, new, old), (onward, time + step), carry), None

        (state, time), _ = jax.lax.scan(walk, (State(first, first * self.data.g / self.rate), jnp.zeros_like(step)), None, length=steps)

        def halve(_, bounds):  # the crossing inside the last step
            low, high = bounds
            middle = 0.5 * (low + high)
            early = self.observe(advance(state, middle))["learned"] < LEVELS["half 1"]
            return jnp.where(early, middle, low), jnp.where(early, high, middle)

        low, _ = jax.lax.fori_loop(0, 50, halve, (jnp.zeros_like(step), step))
        return self.rate * (time + low) + jnp.log(first)

    @property
    def white(self) -> bool:
        """Whether all directions are alike, so that eq. 10 applies."""
        alike = lambda values: bool(jnp.ptp(values) < 1e-12 * jnp.max(values))
        return alike(self.data.lam) and alike(self.data.sig)

    def closed_form(self, t: Float[Array, ""], start: State) -> Float[Array, " d"]:
        """Eq. 10: A_d(t) for a white covariance."""
        e = jnp.exp(-2 * self.rate * t)
        return 1 / ((1 - e) / self.data.best + e * math.sqrt(self.data.lam.size) / start.s**2)

    def fixed_points(self, heads: int) -> list[FixedPoint]:
        """The two sets of fixed points with loss and stability, best first."""
        everything = tuple(range(self.data.lam.size))
        return [
            FixedPoint(everything, float(self.data.plateau_loss(len(everything))), 0, "minimum"),
            FixedPoint((), float(self.data.power), heads, "strict saddle"),
        ]

    def at_minimum(self, heads: int) -> MergedWeights:
        """Balanced weights at M_*, all on the first head."""
        size = jnp.sqrt(jnp.linalg.norm(self.data.best))
        key_query = jnp.zeros((heads, *self.data.basis.shape)).at[0].set(self.data.matrix(self.data.best) / size)
        return MergedWeights(jnp.zeros(heads).at[0].set(size), key_query)

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """The statements of Section 3 and ours, with bounds for this problem."""
        return _merged_claims.merged(self, problem)
