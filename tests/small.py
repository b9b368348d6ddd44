"""A problem that is answered on every rung in seconds: two eigenvectors, two heads."""

from dataclasses import replace

from spectral_ode import Problem
from spectral_ode.problem import MergedHeads, Regression, SeparateHeads, Start, Training

SMALL = Problem(
    horizon=2500.0,
    points=500,
    task=Regression(spectrum=(0.6, 0.3), context=15),
    attention=SeparateHeads(heads=2),
    start=Start(scale=0.05),
    training=Training(sequences=80_000, sampling="even", dtype="float64", learning_rate=0.2),
)


def with_training(**changes) -> Problem:
    return replace(SMALL, training=replace(SMALL.training, **changes))


def of_system(problem: Problem, name: str) -> Problem:
    """The problem with the kind of attention that a system speaks of."""
    heads = {"linear.merged": MergedHeads(heads=3)}.get(name, SeparateHeads(heads=problem.attention.heads))
    return replace(problem, system=name, attention=heads)
