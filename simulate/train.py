"""Train the full-parameter model of a problem; what a step is depends on the kind of training."""

from collections.abc import Callable

import optax

from simulate import adam, gains
from simulate.attention import AbstractModel
from simulate.episode_training import train_episodes
from simulate.sequences import train_sequences
from simulate.unroll import unroll
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory

SPARSE = {"depth": unroll, "gains": gains.train, "adam": adam.train}  # on sparse regression, each with its own clock


def train(
    problem: Problem,
    *,
    model: type[AbstractModel] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    progress: Callable[[float, float, float], None] | None = None,
) -> Trajectory:
    """Train every run of a problem, each from its own start on its own data; plain gradient descent unless told otherwise.

    `model` is the problem's attention unless given (`simulate.networks` has the twins of linear attention). `progress(share, time, loss)`
    is called now and then. The result is a stack of runs.
    """
    if problem.training.kind in SPARSE:
        return SPARSE[problem.training.kind](problem, progress=progress)
    tell = (lambda done, loss: progress(done / len(problem.steps), float(problem.times[done - 1]), loss)) if progress else None
    if problem.training.kind == "episodes":
        return train_episodes(problem, optimizer=optimizer, tell=tell)
    return train_sequences(problem, model=model, optimizer=optimizer, tell=tell)
