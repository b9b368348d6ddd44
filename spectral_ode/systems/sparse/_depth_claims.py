"""What arXiv:2408.04532 and we claim about depth: layers that preprocess, then descend."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from spectral_ode.claims import Agrees, Claim, Exact
from spectral_ode.problem import Problem
from spectral_ode.systems.sparse import _two_groups


def depth(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `sparse.Depth`, with bounds for this problem."""
    law, tasks = system.law, problem.sparse_training.tasks
    double = problem.training.dtype == "float64"
    scatter = 3 * math.sqrt(2 / (tasks * law.d))  # of a mean over tasks x coordinates
    screened = law.coefficients == "signs" and law.n >= 4 * (law.W2 + law.sigma**2) * math.log(law.d + 1)
    late = "" if screened else "a statement about coefficients +-1 and contexts long enough to see the support"
    rungs = {"first": "reduced", "second": "population"}
    return (
        Exact(
            name="solve = closed form of the two groups",
            place="ours",
            exactness="exact",
            bound=1e2 * problem.solver.rtol,
            reason="accumulated local error; relative to a risk that is a thousandth of where it began",
            distance=lambda time, observed, start: _distance(system, time, observed["loss"]),
        ),
        Agrees(
            name="exact flow = closed form per eigen-direction, PTO and GD",
            place="ours",
            exactness="exact",
            bound=1e2 * problem.solver.rtol,
            reason="accumulated local error; relative to a risk that is a thousandth of where it began",
            metric="eigen-directions",
            **rungs,
        ),
        Agrees(
            name="the constructed transformer is the algorithm, at every depth",
            place="the statement; construction ours",
            exactness="exact",
            bound=1e-12 if double else 1e-5,
            reason=f"the same algebra in {problem.training.dtype}; largest difference of an estimate, over the largest estimate",
            first="training",
            second="population",
            metric="construction",
        ),
        Agrees(
            name="layers approach the flow at first order in the step size",
            place="ours",
            exactness="asymptotic in the step size",
            bound=0.1,
            reason="distance from 1 of the slope between step sizes eta/4 and eta/16",
            first="training",
            second="population",
            metric="order of the layers",
        ),
        Agrees(
            name="lowest risk, two groups vs exact flow",
            place="ours",
            exactness="asymptotic in d/s and n",
            bound=0.1,
            reason="coordinates off the support feel neither each other nor their own scatter: 2 to 7 % at n/d = 4 to 64",
            metric="lowest risk",
            beyond=late,
            **rungs,
        ),
        Agrees(
            name="best depth, two groups vs exact flow",
            place="ours",
            exactness="asymptotic in d/s and n",
            bound=0.2,
            reason="the minimum is flat: a depth off by 20 % costs a few percent of the risk",
            metric="best depth",
            beyond=late,
            **rungs,
        ),
        Agrees(
            name="the best depth lies between 1/beta^2 and n/(W2 + sigma^2)",
            place="ours",
            exactness="heuristic",
            bound=1.0,
            reason="how far outside of the window, as a ratio",
            first="forecast",
            second="population",
            metric="window",
            beyond=late,
        ),
        Agrees(
            name="gradient descent vs the Marchenko-Pastur law, whole course",
            place="ours",
            exactness="asymptotic in d and n",
            bound=max(0.05, scatter),
            reason="5 %, or three standard errors of a mean over so few tasks and coordinates",
            metric="plain",
            **rungs,
        ),
        Agrees(
            name="lowest risk of PTO over lowest risk of GD",
            place="the statement; rate s/d ours",
            exactness="asymptotic in n",
            bound=min(1.0, 3 * law.s / law.d),
            reason="s sigma^2/n against d sigma^2/n; three times s/d leaves room for what the others add",
            first="population",
            second="population",
            metric="advantage",
            beyond=late,
        ),
    )


def _distance(system, time: Float[Array, " time"], loss: Float[Array, " time"]) -> Float[Array, " time"]:
    on, off = jax.vmap(lambda block: _two_groups.risks(block, time, system.law.d))(system.blocks)
    exact = jnp.mean(on + off, axis=0)
    return jnp.abs(loss / exact - 1)
