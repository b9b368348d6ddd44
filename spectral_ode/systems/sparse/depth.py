r"""Depth as time: layers of a transformer descend on preprocessed features, and this is their flow.

Paper: arXiv:2408.04532; formulas derived here. The exact flow of given tasks (rung "population") runs in the coefficients $theta$ of the
features $R x$, $R = diag(r)$, and beside it in those of the plain features $x$; per task, with $S = X^T X/n$, $r = X^T y/n$, $A = R S R$,

    dtheta/dtau = -(A theta - R r),   w = R theta   (PTO)
    dw/dtau = -(S w - r)   (GD)

which is minus half the gradient of the in-context loss $(1/n) sum_i (y_i - <theta, R x_i>)^2$. The reduced rung knows each task's support
block only, and all other coordinates as one law (`_two_groups`: modes $e^{-lam_k tau}$ and responses $phi_k$); GD it knows through the
Marchenko-Pastur law ($e^{-lam tau}$ at the nodes of its spectrum). "Training" is the constructed transformer, layer by layer, at
$tau = eta$ times the layer.

Two time scales: the support is learned at $tau ~ 1/beta^2$, the others begin to move at $tau ~ n/(W2 + sigma^2)$; the risk is least
between.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from spectral_ode import marchenko_pastur
from spectral_ode.claims import Claim
from spectral_ode.flow import AbstractReduction
from spectral_ode.problem import BadInput, Problem
from spectral_ode.system import Observed
from spectral_ode.systems.sparse import _algorithms, _depth_claims, _risk, _trained_claims, _two_groups
from spectral_ode.systems.sparse.data import Law, Moments, Sample
from spectral_ode.weights import DepthWeights, stream

NODES = 120  # of the Marchenko-Pastur spectrum along the flow


class State(eqx.Module):
    """Decays of the support's modes, responses off the support, decays over the spectrum of S."""

    decay: Float[Array, "tasks modes"]
    phi: Float[Array, "tasks nodes modes"]
    kept: Float[Array, " spectrum"]


class Depth(AbstractReduction):
    """preprocess, then optimize: risk over depth, support and others on two time scales."""

    labels: ClassVar[dict[str, str]] = {"reduced": "two groups and Marchenko-Pastur", "population": "exact flow of the same tasks"}
    law: Law
    sample: Sample  # with a leading axis of tasks
    moments: Moments
    blocks: _two_groups.Block

    @classmethod
    def from_problem(cls, problem: Problem) -> "Depth":
        """The tasks of a problem and their flow; a step size past stability is refused."""
        law = Law.from_problem(problem)
        if problem.training.kind == "gains":
            raise BadInput("system sparse.depth is for training.kind depth or adam, but it is gains; use --system sparse.gains")
        sample = draw(problem, law)
        system = cls(law, sample, jax.vmap(Sample.moments)(sample), jax.vmap(lambda one: _two_groups.block(one, law.s))(sample))
        if problem.training.kind == "depth" and not isinstance(sample.y, Tracer):  # a traced problem was checked when it was made
            most = float(system.largest_step())
            if problem.eta >= most:
                raise BadInput(
                    f"training.learning_rate is {problem.eta:g}, but descent on these tasks diverges from {most:.4g} on; "
                    f"use at most {0.99 * most:.3g}"
                )
        return system

    def largest_step(self) -> Float[Array, ""]:
        """The step size 2/lam_max of the worst task, preprocessed or not."""
        steps = [jax.vmap(lambda one, name=name: _algorithms.diagonalize(one, name).largest_step)(self.moments) for name in ("pto", "gd")]
        return jnp.min(jnp.stack(steps))

    def missing(self, problem: Problem) -> dict[str, str]:
        """A trained transformer has no theory here."""
        if problem.training.kind == "adam":
            return dict.fromkeys(("reduced", "population"), "no flow of a trained transformer is known")
        return {}

    @property
    def spectrum(self) -> tuple[Float[Array, " spectrum"], Float[Array, " spectrum"]]:
        """Nodes and weights of the Marchenko-Pastur law."""
        lam, weight = marchenko_pastur.spectrum(self.law.d / self.law.n, nodes=NODES)
        return jnp.asarray(lam), jnp.asarray(weight)

    def project(self, weights: DepthWeights) -> State:
        """Every descent begins at zero."""
        tasks, modes = self.blocks.V.shape
        phi = jnp.zeros((tasks, _two_groups.NODES, modes))
        return State(jnp.ones((tasks, modes)), phi, jnp.ones(NODES))

    def vector_field(self, t: Float[Array, ""], state: State) -> State:
        """Modes decay; responses follow them, dphi = q (e^{-lam tau} - phi)."""
        rates = jax.vmap(lambda block: block.rates)(self.blocks)
        q = jnp.asarray(_two_groups.nodes()[0])[None] * jnp.sum(self.blocks.V, axis=1)[:, None]
        return State(-rates * state.decay, q[:, :, None] * (state.decay[:, None] - state.phi), -self.spectrum[0] * state.kept)

    def observe(self, state: State) -> Observed:
        """Risks by the laws."""
        return self._observe(self._reduced, state, self.vector_field(jnp.zeros(()), state))

    def _reduced(self, state: State) -> Observed:
        w = jax.vmap(_two_groups.on_support)(self.blocks, state.decay)
        off = (self.law.d - self.law.s) * jnp.mean(jax.vmap(_two_groups.off_support)(self.blocks, state.phi))
        (lam, weight), gamma = self.spectrum, self.law.d / self.law.n
        power = jnp.mean(jnp.sum(self.sample.w**2, axis=1))
        plain = (
            power * (state.kept**2 @ weight + max(1 - 1 / gamma, 0.0)) + self.law.sigma**2 * gamma * ((1 - state.kept) ** 2 / lam) @ weight
        )
        return self._risks(w, self.blocks.w, off, plain)

    def observe_weights(self, weights: DepthWeights) -> Observed:
        """The same from the estimates of all coordinates."""
        return self._observe(self._exact, weights, self.weights_field(weights))

    def _exact(self, weights: DepthWeights) -> Observed:
        w, target = self.moments.r * weights.theta, self.sample.w
        order = jnp.argsort(-jnp.abs(target), axis=1)
        inside = lambda values: jnp.take_along_axis(values, order[:, : self.law.s], axis=1)
        off = jnp.mean(jnp.sum(jnp.where(target == 0, w**2, 0.0), axis=1))
        return self._risks(inside(w), inside(target), off, jnp.mean(jnp.sum((weights.plain - target) ** 2, axis=1)))

    def _risks(
        self, w: Float[Array, "tasks s"], target: Float[Array, "tasks s"], off: Float[Array, ""], plain: Float[Array, ""]
    ) -> Observed:
        on = jnp.mean(jnp.sum((w - target) ** 2, axis=1))
        return {"loss": on + off, "groups": jnp.stack([on, off]), "plain": plain, "learned": jnp.sum(w * target) / jnp.sum(target**2)}

    def _observe(self, look, at, rate) -> Observed:
        """With the slope of the risk along the flow."""
        seen, moving = jax.jvp(look, (at,), (rate,))
        return seen | {"slope": moving["loss"]}

    def phases(self, observed: Observed) -> dict[str, Float[Array, ""]]:
        """The support is half learned; the risk is least."""
        return {"half 1": observed["learned"] - 0.5, "best": observed["slope"]}

    def landmarks(self) -> dict[str, dict[str, Float[Array, ""]]]:
        """What the referees reach."""
        gamma, sigma2 = self.law.d / self.law.n, self.law.sigma**2
        known = jnp.mean(jnp.stack([_algorithms.risk(w, one) for w, one in self._oracles()]))
        levels = {"start": jnp.asarray(self.law.W2), "best ridge": marchenko_pastur.bayes_risk(gamma, S=self.law.W2, sigma2=sigma2)}
        groups = {"support": jnp.asarray(self.law.s * self.law.v), "others": jnp.asarray((self.law.d - self.law.s) * self.law.v)}
        return {"loss": levels | {"support known": known}, "groups": groups}

    def _oracles(self):
        for index in range(min(64, self.sample.y.shape[0])):
            one, moments = jax.tree.map(lambda leaf, index=index: leaf[index], (self.sample, self.moments))
            yield _algorithms.oracle(moments, one.w != 0), one

    def population_loss(self, weights: DepthWeights) -> Float[Array, ""]:
        """The in-context loss that depth descends, summed over tasks and both kinds of features, without its constant."""
        residual = lambda w: jnp.einsum("ti,tij,tj->", w, self.moments.S, w) - 2 * jnp.sum(w * self.moments.r)
        return residual(self.moments.r * weights.theta) + residual(weights.plain)

    def weights_field(self, weights: DepthWeights) -> DepthWeights:
        """-(A theta - R r), and -(S w - r)."""
        pull = lambda w: self.moments.r - jnp.einsum("tij,tj->ti", self.moments.S, w)
        return DepthWeights(self.moments.r * pull(self.moments.r * weights.theta), pull(weights.plain))

    def forecast(self, weights: DepthWeights) -> dict[str, Array]:
        """Between which times to stop."""
        return {"window": jnp.asarray(_risk.window(self.law))}

    def claims(self, problem: Problem) -> tuple[Claim, ...]:
        """What the paper and we say of depth, or of a trained transformer."""
        if problem.training.kind == "adam":
            return _trained_claims.trained(self, problem)
        return _depth_claims.depth(self, problem)


def draw(problem: Problem, law: Law) -> Sample:
    """The tasks that a problem's depth averages over: one key from all streams, so that every seed matters."""
    key = stream(problem, "task")
    for name in ("data", "noise"):
        key = jax.random.fold_in(key, getattr(problem.seed, name))
    return law.samples(key, problem.sparse_training.tasks)
