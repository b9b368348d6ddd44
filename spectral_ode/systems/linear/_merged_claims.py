"""What arXiv:2501.16265, Section 3, and we claim about linear attention with merged key and query."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Agrees, Claim, Exact, Identity, Limit, solver_error
from spectral_ode.problem import Problem
from spectral_ode.systems.linear import _shared_claims as shared
from spectral_ode.weights import MergedWeights


def merged(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `linear.Merged`, with bounds for this problem."""
    if problem.attention.activation == "softmax":
        return (shared.drops("softmax attention with merged key and query drops once", "Figure 5a", "heuristic", least=1, most=1),)
    small = problem.scale / 0.01
    theory = max(1e-4 * small**1.2, 1e-6)
    white = (
        Exact(
            name="solve = closed form of the white case",
            place="eq. 10",
            exactness="exact",
            bound=10 * problem.solver.rtol,
            reason="accumulated local error, 10 x rtol; horizontal on the drop, vertical elsewhere",
            distance=lambda time, observed, start: _distance(system, time, observed["A"], start),
        ),
        Agrees(
            name="closed form with the effective start vs population flow, whole course",
            place="eq. 10; effective start ours",
            exactness="asymptotic in the start scale",
            bound=max(0.5 * problem.scale**2, 1e-7),
            reason="quadratic in the start scale, with 0.21 to 0.36 in front for 2 and 4 directions, 3 and 8 heads; largest gap of sigma",
            first="reduced",
            second="population",
            metric="course",
            beyond=shared.beyond(problem),
        ),
    )
    return (
        shared.gradient_flow(system, "Section 3"),
        Identity(
            name="D + 1 scalar equations = the flow of the weights on their manifold",
            place="ours",
            exactness="exact",
            bound=1e-12,
            reason="the same algebra in float64",
            left=lambda weights: _scalars(system, weights)[0],
            right=lambda weights: _scalars(system, weights)[1],
        ),
        *(white if system.white else ()),
        shared.conserved("W1 W1^T - w2 w2^T", problem, _balances, lambda observed: jnp.max(observed["value"] ** 2)),
        Limit(
            name="last loss of the population flow = loss of M_*",
            place="Section 3",
            exactness="exact in the limit of time",
            bound=1e-6,
            reason="the horizon lies many relaxation times behind the drop",
            rung="population",
            after="settled 1",
            observable="loss",
            value=system.data.plateau_loss(system.data.lam.size),
        ),
        Agrees(
            name="time shift of the drop, D + 1 scalar ODEs vs population flow",
            place="ours",
            exactness="asymptotic in the start scale",
            bound=theory,
            reason="1e-4 at start scale 0.01, no fit; falls with the start scale",
            first="reduced",
            second="population",
            **shared.DROPS,
            beyond=shared.beyond(problem),
        ),
        Agrees(
            name="time of the drop by the escape law vs population flow",
            place="Section 3; its constant ours",
            exactness="asymptotic in the start scale",
            bound=theory,
            reason="the same as that of the scalar ODEs, which the law solves for a vanishing start",
            first="forecast",
            second="population",
            metric="forecast times",
            beyond=shared.beyond(problem),
        ),
        solver_error(theory),
        shared.trained(problem, "Section 3"),
        shared.drops("the training loss drops once", "Section 3, Figure 1", "asymptotic in the start scale", least=1, most=1),
        shared.outside(problem),
        shared.twin("attention = two-layer linear network on the cubic feature", "Section 3"),
        shared.same_training(),
    )


def _scalars(system, weights: MergedWeights) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The reduced field, and the field of the weights read in the reduced coordinates, at weights made from random ones."""
    from spectral_ode.systems.linear.merged import State

    r = weights.value / jnp.linalg.norm(weights.value)
    state = State(1.0 + jnp.tanh(weights.value[0]), system.data.best * (1 + jnp.tanh(weights.key_query[0, 0])))
    at = MergedWeights(state.s * r, r[:, None, None] * system.data.matrix(state.a)[None])
    field, rate = system.vector_field(jnp.zeros(()), state), system.weights_field(at)
    turned = system.data.basis.T @ jnp.einsum("h,hab->ab", r, rate.key_query) @ system.data.basis
    off = turned - jnp.diag(jnp.diag(turned))
    left = jnp.concatenate([field.s[None], field.a, jnp.zeros(off.size)])
    return left, jnp.concatenate([jnp.dot(r, rate.value)[None], jnp.diag(turned), off.reshape(-1)])


def _distance(system, time: Float[Array, " time"], A: Float[Array, "time d"], start) -> Float[Array, "time d"]:
    """Distance of solved points from the closed form: in A / A* or in time over the time of the drop, whichever is smaller."""
    unit = -jnp.log(start.s) / system.rate

    def one(t: Float[Array, ""], A: Float[Array, " d"]) -> Float[Array, " d"]:
        gap = jnp.abs(A - system.closed_form(t, start))
        slope = jnp.abs(jax.jacfwd(lambda t: system.closed_form(t, start))(t))
        return jnp.minimum(gap / system.data.best, gap / jnp.maximum(slope, 1e-300) / jnp.maximum(unit, t))

    return jax.vmap(one)(time, A)


def _balances(observed: dict[str, Array]) -> Float[Array, "..."]:
    v, U = observed["value"], observed["key_query"]
    flat = U.reshape(*U.shape[:-2], -1)
    balance = flat @ jnp.swapaxes(flat, -1, -2) - v[..., :, None] * v[..., None, :]
    return balance.reshape(*v.shape[:-1], -1)
