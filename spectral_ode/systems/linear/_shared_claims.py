"""Claims that both parametrizations of linear attention make in the same words."""

import math
from collections.abc import Callable
from typing import Any

import jax

from spectral_ode.claims import Agrees, Claim, Conserved, Drops, Identity
from spectral_ode.problem import Problem

DROPS = {"metric": "half-drop times"}
SMALL = 0.3  # start scale above which the ansatz of the reductions is not claimed


def sampled(problem: Problem) -> float:
    """How much rougher than 80,000 evenly sampled sequences the data is."""
    return math.sqrt(80_000 / problem.sequence_training.sequences) * (1.0 if problem.sequence_training.sampling == "even" else 3.0)


def beyond(problem: Problem) -> str:
    """Why statements about small starts are not made for this problem."""
    return "" if problem.scale <= SMALL else f"a statement about starts up to {SMALL:g}, not {problem.scale:g}"


def gradient_flow(system, place: str) -> Claim:
    """The hand-written field is the gradient of the loss."""
    return Identity(
        name="field of the weights = minus half the gradient of the loss",
        place=place,
        exactness="exact",
        bound=1e-12,
        reason="the same algebra in float64",
        left=system.weights_field,
        right=lambda weights: jax.tree.map(lambda leaf: -0.5 * leaf, jax.grad(system.population_loss)(weights)),
    )


def conserved(name: str, problem: Problem, quantity: Callable[[Any], Any], scale: Callable[[Any], Any]) -> Claim:
    """A quantity that the population flow keeps."""
    return Conserved(
        name=name,
        place="ours",
        exactness="exact",
        bound=10 * problem.solver.rtol,
        reason="accumulated local error, 10 x rtol x largest squared weight",
        rung="population",
        quantity=quantity,
        scale=scale,
    )


def trained(problem: Problem, place: str) -> Claim:
    """Training drops when the population flow does."""
    return Agrees(
        name="time shift of drops, training vs population flow",
        place=place,
        exactness="asymptotic in the number of sequences and the learning rate",
        bound=min(0.03 * max(1.0, sampled(problem)), 0.1),
        reason="3 % for 80,000 evenly sampled sequences, like 1/sqrt(sequences), three times that for iid ones, never above 10 %",
        first="training",
        second="population",
        **DROPS,
    )


def outside(problem: Problem) -> Claim:
    """How much weight ends outside the reduced coordinates."""
    return Agrees(
        name="weight outside the reduced coordinates at the end of training",
        place="ours",
        exactness="heuristic",
        bound=min(0.05 * max(1.0, sampled(problem) ** 2), 0.2),
        reason="idle heads, and what an uneven sample turns the heads by; median 2 % over six runs of 80,000",
        first="training",
        second="reduced",
        metric="outside",
        beyond=beyond(problem),
    )


def same_training() -> Claim:
    """The roads to the training loss are one."""
    return Agrees(
        name="training through moments = through Gram matrices = through the attention layer",
        place="ours",
        exactness="exact",
        bound=1e-11,
        reason="the same algebra in float64, over 200 steps of descent from a start of order one",
        first="moments",
        second="attention",
        metric="same training",
        tier="validate",
    )


def twin(name: str, place: str) -> Claim:
    """Attention and a network on the cubic feature are the same network."""
    return Agrees(
        name=name,
        place=place,
        exactness="exact",
        bound=1e-11,
        reason="the same algebra in float64, over 200 steps from a start of order one, on sequences with mirror images -(x, w)",
        first="network",
        second="attention",
        metric="twin",
        tier="validate",
    )


def drops(name: str, place: str, exactness: str, *, least: int, most: int) -> Claim:
    """How many abrupt drops the training loss has."""
    return Drops(
        name=name,
        place=place,
        exactness=exactness,
        bound=0.0,
        reason="counted: bursts of descent separated by stretches at less than a quarter of their speed",
        rung="training",
        least=least,
        most=most,
    )
