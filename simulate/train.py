"""Train the full-parameter model of a problem; what a step is depends on the kind of training."""

from collections.abc import Callable
from typing import Any

import optax

from simulate import adam, gains
from simulate.attention import AbstractModel
from simulate.checkpoint import Keeper
from simulate.cost import fit
from simulate.episode_training import train_episodes
from simulate.mesh import Deal
from simulate.sequences import train_sequences
from simulate.unroll import unroll
from spectral_ode.problem import Problem
from spectral_ode.trajectory import Trajectory

SPARSE = {"gains": gains.train, "adam": adam.train}  # on sparse regression, each with its own clock


def train(
    problem: Problem,
    *,
    model: type[AbstractModel] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    progress: Callable[[float, float, float], None] | None = None,
    devices: list[Any] | None = None,
    microbatch: int | None = None,
    memory: int | None = None,
    keep: Keeper | None = None,
) -> Trajectory:
    """Train every run of a problem, each from its own start on its own data; plain gradient descent unless told otherwise.

    `model` is the problem's attention unless given (`simulate.networks` has the twins of linear attention). `progress(share, time, loss)`
    is called now and then. The result is a stack of runs.

    Work is dealt out to `devices` (unless given, to all there are, on all hosts), whose number does not change the result. A batch goes in
    pieces of `microbatch` members, which changes nothing but rounding; with a bound on the `memory` of a device (bytes), in the largest
    that stay below it. `keep` keeps checkpoints, and goes on from them.
    """
    if keep is not None and optimizer is not None:
        raise ValueError("a checkpoint cannot know which optimizer it is of: give no `keep` with an optimizer of your own")
    if memory is not None:
        microbatch = fit(problem, memory)
    deal = Deal.over(devices, microbatch)
    trained = _train(problem, model, optimizer, progress, deal, keep)
    return trained if microbatch is None else trained.with_provenance(microbatch=microbatch)


def _train(
    problem: Problem,
    model: type[AbstractModel] | None,
    optimizer: optax.GradientTransformation | None,
    progress: Callable[[float, float, float], None] | None,
    deal: Deal,
    keep: Keeper | None,
) -> Trajectory:
    if problem.training.kind == "depth":
        return unroll(problem, progress=progress)
    if problem.training.kind in SPARSE:
        return SPARSE[problem.training.kind](problem, progress=progress, deal=deal, keep=keep)
    tell = (lambda done, loss: progress(done / len(problem.steps), float(problem.times[done - 1]), loss)) if progress else None
    if problem.training.kind == "episodes":
        return train_episodes(problem, optimizer=optimizer, tell=tell, deal=deal, keep=keep)
    return train_sequences(problem, model=model, optimizer=optimizer, tell=tell, deal=deal, keep=keep)
