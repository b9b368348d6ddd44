"""What arXiv:2501.16265, Section 4, and we claim about linear attention with separate key and query."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Agrees, Claim, Conserved, Exact, Identity, Limit
from spectral_ode.problem import Problem
from spectral_ode.weights import SeparateWeights


def separate(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `linear.Separate`, with bounds for this problem."""
    rtol, scale, training = problem.solver.rtol, problem.start.scale, problem.training
    learned = min(system.lam.size, problem.attention.heads * problem.attention.rank)
    # Bounds grow with the start scale; medians over six seeds stay below them from 0.003 to 0.1 (docs/saddle-to-saddle.md).
    small = scale / 0.01
    sampled = math.sqrt(80_000 / training.sequences) * (1.0 if training.sampling == "even" else 3.0)
    half = {"metric": "half-drop times", "place": "Section 4; times and heads ours"}
    return (
        Identity(
            name="field of the weights = minus half the gradient of the loss",
            place="eq. 14",
            exactness="exact",
            bound=1e-12,
            reason="the same algebra in float64",
            left=system.weights_field,
            right=lambda weights: jax.tree.map(lambda leaf: -0.5 * leaf, jax.grad(system.population_loss)(weights)),
        ),
        Identity(
            name="scalar ODE = the flow of the weights on k = q = v e_d",
            place="eq. 21",
            exactness="exact",
            bound=1e-12,
            reason="the same algebra in float64",
            left=lambda weights: system.scalar_field(_diagonal(system, weights)),
            right=lambda weights: system.weights_field(_aligned(system, _diagonal(system, weights))).value,
        ),
        Exact(
            name="solve = implicit closed form",
            place="eq. 21, solution ours",
            exactness="exact",
            bound=10 * rtol,
            reason="accumulated local error, 10 x rtol; horizontal on drops, vertical on plateaus",
            distance=lambda time, observed, start: _distance(system, time, observed["v"], start.v),
        ),
        Conserved(
            name="v^2 - |k|^2 and K K^T - Q Q^T of every head",
            place="ours",
            exactness="exact",
            bound=10 * rtol,
            reason="accumulated local error, 10 x rtol x largest squared weight",
            rung="population",
            quantity=_balances,
            scale=lambda observed: jnp.max(observed["value"] ** 2),
        ),
        Agrees(
            name="plateau losses",
            place="eq. 19",
            exactness="asymptotic in the start scale",
            bound=1e-6 * max(1.0, small**3),
            reason="1e-6 at start scale 0.01; idle heads change the loss at third order in their size",
            first="closed form",
            second="population",
            metric="plateau losses",
        ),
        Limit(
            name=f"last loss of the population flow = plateau {learned}",
            place="eq. 19",
            exactness="exact in the limit of time",
            bound=1e-6,
            reason="the horizon lies many relaxation times behind the last drop",
            rung="population",
            after=f"settled {learned}",
            observable="loss",
            value=system.plateau_loss(learned),
        ),
        Agrees(
            name="which head learns which eigenvector",
            exactness="asymptotic in the start scale",
            bound=0.0 if small <= 1 else 0.25,
            reason="share of wrong heads; none in six runs at start scale 0.01, but two drops at nearly the same time may exchange heads",
            first="forecast",
            second="population",
            metric="heads",
            place="ours",
        ),
        Agrees(
            name="time shift of drops, reduced ODE vs population flow",
            exactness="asymptotic in the start scale",
            bound=0.005 * max(1.0, small**0.8),
            reason="0.5 % at start scale 0.01, no fit; falls with the start scale",
            first="reduced",
            second="population",
            **half,
        ),
        Agrees(
            name="the solver's own error in the drop times",
            place="ours",
            exactness="exact",
            bound=1e-3 * 0.005,
            reason="a thousandth of what is asked of the theory, so that a gap is the theory's",
            first="population",
            second="population, rtol/100",
            metric="half-drop times",
        ),
        Agrees(
            name="time shift of drops, training vs population flow",
            exactness="asymptotic in the number of sequences and the learning rate",
            bound=min(0.03 * max(1.0, sampled), 0.1),
            reason="3 % for 80,000 evenly sampled sequences, like 1/sqrt(sequences), three times that for iid ones, never above 10 %",
            first="training",
            second="population",
            **half,
        ),
        Agrees(
            name="weight outside the reduced coordinates at the end of training",
            place="ours",
            exactness="heuristic",
            bound=min(0.05 * max(1.0, sampled**2), 0.2),
            reason="idle heads, and what an uneven sample turns the heads by; median 2 % over six runs of 80,000",
            first="training",
            second="reduced",
            metric="outside",
        ),
        Agrees(
            name="training through moments = through Gram matrices = through the attention layer",
            place="ours",
            exactness="exact",
            bound=1e-11,
            reason="the same algebra in float64, over 200 steps of descent from a start of scale 3",
            first="moments",
            second="attention",
            metric="same training",
            tier="validate",
        ),
    )


def _diagonal(system, weights: SeparateWeights) -> Float[Array, " d"]:
    """Some v between zero and twice the limit, taken from random weights."""
    return system.limit * (1 + jnp.tanh(weights.key[0, 0]))


def _aligned(system, v: Float[Array, " d"]) -> SeparateWeights:
    """One head per direction with k = q = v e_d."""
    key = (v[None] * system.basis).T[:, None]
    return SeparateWeights(v, key, key)


def _distance(system, time: Float[Array, " time"], v: Float[Array, "time d"], start: Float[Array, " d"]) -> Float[Array, "time d"]:
    """Distance of solved points from the closed form: in v / v* or in time, relative, whichever is smaller.

    A plateau turns a tiny error of v into a shift in time, a drop turns a tiny shift in time into an error of v; only one of the
    two measures the solver at each point.
    """

    def one(t: Float[Array, ""], v: Float[Array, " d"]) -> Float[Array, " d"]:
        vertical = jnp.abs(v - system.closed_form(t, start)) / system.limit
        inside = jnp.clip(v, start * (1 - 1e-9), system.limit * (1 - 1e-14))
        horizontal = jnp.abs(system.time_to(inside, start) / t - 1)
        # A direction that no head is left for stays at zero.
        return jnp.where(start > 0, jnp.minimum(vertical, horizontal), jnp.abs(v))

    return jax.vmap(one)(time, v)


def _balances(observed: dict[str, Array]) -> Float[Array, "..."]:
    v, K, Q = observed["value"], observed["key"], observed["query"]
    first = v**2 - jnp.sum(K**2, axis=(-2, -1))
    second = K @ jnp.swapaxes(K, -1, -2) - Q @ jnp.swapaxes(Q, -1, -2)
    return jnp.concatenate([first, second.reshape(*first.shape[:-1], -1)], axis=-1)
