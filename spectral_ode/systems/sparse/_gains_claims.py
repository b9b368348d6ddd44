"""What we claim about the training of the two-layer construction (arXiv:2408.04532 has the construction, not its training)."""

import math

import jax.numpy as jnp

from spectral_ode.claims import Agrees, Claim, Conserved, Limit
from spectral_ode.problem import Problem
from spectral_ode.systems.linear._shared_claims import DROPS, gradient_flow


def gains(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `sparse.Gains`, with bounds for this problem."""
    rough = max(1.0, math.sqrt(256 / problem.sparse_training.tasks))  # how much noisier than 256 tasks a step
    balance = lambda observed: jnp.sum(observed["g"] ** 2, axis=-1) - 2 * observed["eta"] ** 2
    size = lambda observed: jnp.max(jnp.sum(observed["g"] ** 2, axis=-1) + 2 * observed["eta"] ** 2)
    kept = {"quantity": balance, "scale": size, "place": "ours"}
    drift = min(0.05, problem.eta * rough)
    return (
        gradient_flow(system, "ours"),
        Conserved(
            name="sum g^2 - 2 eta^2 along the ODE",
            exactness="exact",
            bound=10 * problem.solver.rtol,
            reason="accumulated local error, 10 x rtol x largest squared weights",
            rung="reduced",
            **kept,
        ),
        Conserved(
            name="sum g^2 - 2 eta^2 along training",
            exactness="asymptotic in the learning rate",
            bound=drift,
            reason="every step adds learning rate^2 x squared gradient: as large as the learning rate over the whole course",
            rung="training",
            **kept,
        ),
        Limit(
            name="last risk of the ODE = risk of kappa* = B/C",
            place="ours",
            exactness="exact in the limit of time",
            bound=1e-5,
            reason="the horizon lies many relaxation times behind the last head",
            rung="reduced",
            after=f"half {system.law.d}",
            observable="loss",
            value=system.landmarks()["loss"]["all heads"],
        ),
        Agrees(
            name="mean kappa through plateau, rise and saturation, ODE vs training",
            place="ours",
            exactness="asymptotic in the learning rate and the number of tasks",
            bound=min(0.05 * rough, 0.2),
            reason="5 % of kappa* at 256 tasks a step: gradient noise on the steep part and at the end",
            first="reduced",
            second="training",
            metric="mean kappa",
        ),
        Agrees(
            name="activation times of the heads, training vs ODE",
            place="ours",
            exactness="asymptotic in the learning rate and the number of tasks",
            bound=min(0.05 * rough, 0.2),
            reason="5 % at 256 tasks a step, the worst head, median over runs",
            first="training",
            second="reduced",
            **DROPS,
        ),
    )
