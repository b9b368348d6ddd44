"""What arXiv:2402.19442 and we claim about the spectral dynamics of softmax attention, and how exact it is."""

import jax
import jax.numpy as jnp

from spectral_ode.claims import Agrees, Claim, Conserved, Identity, solver_error
from spectral_ode.problem import DecomposableStart, MultiTask, Problem
from spectral_ode.systems.softmax import _leading, _training_claims, _view


def balanced(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `softmax.Balanced`."""
    apart = distinct(problem)
    first = (
        pulled(system),
        projected(problem),
        limited("convergence theorem; shared heads ours", "validate"),
        Agrees(
            name="which head takes which task, from the start alone",
            place="Section on task allocation; times ours",
            exactness="exact where one head leads in mu and omega" if apart else "heuristic",
            bound=0.0 if apart else 0.34,
            reason="the warm-up keeps the order of heads" if apart else "19 tasks of 20 on random starts; a taken head is not foreseen",
            first="forecast",
            second="reduced",
            metric="heads",
        ),
    )
    return (
        first
        + exact(problem)
        + (_training_claims.trained(problem) + _training_claims.others(problem) if apart else _training_claims.loosely(problem))
    )


def limited(place: str, tier: str) -> Claim:
    """Where a flow to leading order ends."""
    return Agrees(
        name="limit: omega = d_i^-1/2 on a head of its own, mu, loss",
        place=place,
        exactness="exact in the limit of time, for the leading-order loss",
        bound=1e-8,
        reason="integrated until the algebraic decay of off-task omega is below it",
        first="reduced",
        second="closed form",
        metric="spectral limit",
        tier=tier,
    )


def projected(problem: Problem) -> Claim:
    """How far the start is from the manifold on which the spectral flow lives."""
    off = not isinstance(problem.start, DecomposableStart)
    return Agrees(
        name="distance of the start from the spectrum it is projected to",
        place="Lemma: decomposability is preserved",
        exactness="exact for decomposable starts",
        bound=1e-6,
        reason="share of squared entries that the projection leaves out; rounding of float32 only",
        first="training",
        second="projection",
        metric="start distance",
        beyond="the start is not decomposable: this share of its squared weights is left out by the projection" if off else "",
    )


def pulled(system) -> Claim:
    """The hand-written pull is the gradient of the loss."""
    at = lambda weights: _view.spectrum(weights, system.dimensions)
    tasks = system.order.tasks
    return Identity(
        name="pull on mu and omega = minus the gradient of the leading-order loss",
        place="loss: Lemma on the ICL loss; equations derived by us",
        exactness="exact",
        bound=1e-12,
        reason="the same algebra in float64",
        left=lambda weights: _leading.pull(at(weights), tasks),
        right=lambda weights: jax.tree.map(jnp.negative, jax.grad(_leading.loss)(at(weights), tasks)),
    )


def exact(problem: Problem) -> tuple[Claim, ...]:
    """What must hold of the finite-L flow."""
    return (
        Agrees(
            name="finite-L loss is never below the Bayes risk, nor below zero",
            place="ours",
            exactness="exact up to quadrature",
            bound=1e-6,
            reason="share of the Bayes risk that is undercut; tables are good to 1e-6 of a loss",
            first="population",
            second="closed form",
            metric="above Bayes",
        ),
        Agrees(
            name="score variances stay within the tables of the finite-L flow",
            place="ours",
            exactness="exact",
            bound=1.0,
            reason="largest variance over the largest of the tables; beyond it they extrapolate",
            first="population",
            second="tables",
            metric="reach",
        ),
        solver_error(_training_claims.EXACT),
    )


def factored(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of `softmax.Factored`."""
    return (
        pulled(system),
        projected(problem),
        Conserved(
            name="o^2 - v^2 and k^2 - q^2 of every head and task",
            place="ours",
            exactness="exact",
            bound=10 * problem.solver.rtol,
            reason="accumulated local error, 10 x rtol x largest squared weight",
            rung="population",
            quantity=lambda observed: observed["balances"],
            scale=lambda observed: jnp.max(jnp.abs(observed["mu of heads"])) + 1.0,
        ),
        Agrees(
            name="one head per task is left: loss at the end over its limit",
            place="ours",
            exactness="asymptotic in time",
            bound=0.95,
            reason="zero-sum superposition has a lower loss, by more than noise; how much lower depends on heads and tasks",
            first="population",
            second="training",
            metric="escape",
        ),
        Agrees(
            name="rate of escape from one head per task = 2 S (phi/L) mu*",
            place="ours",
            exactness="exact at the limit, to leading order",
            bound=0.02,
            reason="slope of the escape time over ln(1/imbalance), three imbalances",
            first="reduced",
            second="closed form",
            metric="escape rate",
            tier="validate",
        ),
        *exact(problem)[:2],
    )


def phase(system, problem: Problem) -> tuple[Claim, ...]:
    """Claims of the equations of one phase, held against the full flow to leading order."""
    bound = {"warm-up": 0.03, "emergence": 0.1, "slaved": 0.4}[system.name]
    end = () if system.name == "warm-up" else (limited("convergence theorem", "run"),)
    return (
        pulled(system),
        *end,
        Agrees(
            name=f"{system.name} equations: time shift of the transition against the full flow",
            place="three-phase analysis",
            exactness="heuristic" if system.name == "slaved" else "asymptotic in what the phase neglects",
            bound=bound,
            reason="what the phase neglects: see docs/softmax-dynamics.md",
            first="reduced",
            second="population",
            metric="half-drop times",
        ),
    )


def distinct(problem: Problem) -> bool:
    """Whether, by the start, each task has a head of its own that leads in everything."""
    task, start, heads = problem.task, problem.start, problem.attention.heads
    assert isinstance(task, MultiTask)
    if not isinstance(start, DecomposableStart) or start.spread > 0 or start.boost <= 1:
        return False
    wanted = start.preferred or tuple(1 + i % heads for i in range(len(task.dimensions)))
    return len(set(wanted)) == len(wanted)
