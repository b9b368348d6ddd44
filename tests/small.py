"""A problem that is answered on every rung in seconds: two eigenvectors, two heads."""

from dataclasses import replace

from spectral_ode import Problem
from spectral_ode.problem import (
    DecomposableStart,
    EpisodeTraining,
    FullHeads,
    MergedHeads,
    MultiTask,
    Regression,
    SeparateHeads,
    Start,
    Training,
)
from spectral_ode.sections.sparse import Constructed, DepthTraining, GainsStart, GainsTraining, SparseRegression, ZeroStart

SMALL = Problem(
    horizon=2500.0,
    points=500,
    task=Regression(spectrum=(0.6, 0.3), context=15),
    attention=SeparateHeads(heads=2),
    start=Start(scale=0.05),
    training=Training(sequences=80_000, sampling="even", dtype="float64", learning_rate=0.2),
)


# Two unequal, noisy tasks on two softmax heads; finite L and small d matter here.
SPECTRAL = Problem(
    system="softmax.balanced",
    horizon=14.0,
    points=71,
    task=MultiTask(dimensions=(4, 5), signal=(1.0, 1.2), noise=0.3, context=20),
    attention=FullHeads(heads=2),
    start=DecomposableStart(scale=2.5),
    training=EpisodeTraining(contexts=64, queries=8, learning_rate=0.01, dtype="float64", test_contexts=1000),
)


def with_training(**changes) -> Problem:
    return replace(SMALL, training=replace(SMALL.training, **changes))


SPARSE = {
    "sparse.depth": Problem(
        system="sparse.depth",
        horizon=20.0,
        points=81,
        task=SparseRegression(dimension=16, sparsity=2, context=128),
        attention=Constructed(),
        start=ZeroStart(),
        training=DepthTraining(tasks=24, learning_rate=0.25),
    ),
    "sparse.gains": Problem(
        system="sparse.gains",
        horizon=8.0,
        points=81,
        task=SparseRegression(dimension=6, sparsity=2, context=32),
        attention=Constructed(),
        start=GainsStart(scale=0.4, ratio=0.4, step=0.2),
        training=GainsTraining(tasks=256, learning_rate=0.01),
    ),
}


def of_system(problem: Problem, name: str) -> Problem:
    """The problem, or a small one, with the kind of attention that a system speaks of."""
    if name.startswith("softmax."):
        return replace(SPECTRAL, system=name)
    if name in SPARSE:
        return SPARSE[name]
    heads = {"linear.merged": MergedHeads(heads=3)}.get(name, SeparateHeads(heads=problem.attention.heads))
    return replace(problem, system=name, attention=heads)
