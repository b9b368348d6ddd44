"""A transformer trained on fresh sparse regression tasks, recorded along the way: risk, heads, probes, and the weights themselves.

Linear attention is watched through its Schmidt spectra, softmax attention through masks and probes (`simulate.heads`, `.importance`). The
weights are recorded too, flat, so that whatever is asked of a trained model later can be asked (`model_of`).
"""

import json
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from simulate import heads, importance, linear_transformer, softmax_transformer
from simulate.checkpoint import Keeper, Session
from simulate.in_context import Episodes, adam, advance
from simulate.linear_transformer import LinearTransformer
from simulate.mesh import ALONE, Deal
from simulate.softmax_transformer import SoftmaxTransformer
from spectral_ode.problem import Problem
from spectral_ode.sections.sparse import AdamTraining, LinearLayers, SoftmaxLayers
from spectral_ode.systems.sparse.data import Law
from spectral_ode.trajectory import Trajectory
from spectral_ode.weights import stream

STEPS = 1000  # at most so many between two looks at the clock of the checkpoints
PROBED = 400  # tasks of each of the probes' two sets, and of the masks' one, if there are twice as many
Learner = LinearTransformer | SoftmaxTransformer


def train(
    problem: Problem, *, progress: Callable[[float, float, float], None] | None = None, deal: Deal = ALONE, keep: Keeper | None = None
) -> Trajectory:
    """Every run of a problem, as a stack over training steps."""
    members = []
    for run in range(problem.runs):
        tell = (lambda share, time, risk, run=run: progress((run + share) / problem.runs, time, risk)) if progress else None
        members.append(_one(problem, run, tell, deal, keep.session(problem, deal, run=run) if keep else Session()))
    return Trajectory.stack(members)


def _one(problem: Problem, run: int, tell: Callable[[float, float, float], None] | None, deal: Deal, session: Session) -> Trajectory:
    settings, law, key = problem.training, Law.from_problem(problem), stream(problem, "data", run)
    assert isinstance(settings, AdamTraining)
    model, state, optimizer = build(problem, run)
    (model, state, step), _ = session.begin((model, state, jnp.zeros((), int)), len(problem.steps))
    step = int(step)
    while True:
        if session.done < len(problem.steps) and step == problem.steps[session.done]:
            seen = {name: np.asarray(array)[None, None] for name, array in observe(model, held_out(problem)).items()}
            session.add(seen)
            if tell:
                tell((session.done - 1) / len(problem.steps), float(step), float(seen["loss"][0, 0]))
        end = session.done == len(problem.steps)
        session.save(step, (model, state, jnp.asarray(step, int)), end=end)
        if end:
            break
        until = min(step + STEPS, int(problem.steps[session.done]))
        model, state = advance(model, state, optimizer, law, key, jnp.arange(step, until), settings.tasks, settings.queries, deal=deal)
        step = until
    observed = {name: jnp.asarray(array[0]) for name, array in session.all().items()}
    finite = bool(np.isfinite(np.asarray(observed["loss"])).all())
    stopped = f"reached step {problem.steps[-1]}" if finite else "the risk is no longer a number; try a smaller --training.learning-rate"
    origin = {"source": "training", "dtype": "float32", "ok": finite, "stopped": stopped}
    return Trajectory(jnp.asarray(problem.times), observed, {}, clock="training step", origin=json.dumps(origin))


def build(problem: Problem, run: int = 0) -> tuple[Learner, Any, optax.GradientTransformation]:
    """The model of a run before its first step, with the optimizer and its state."""
    optimizer, model = adam(problem.training.learning_rate, int(problem.steps[-1])), start(problem, run)
    return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)), optimizer


def start(problem: Problem, run: int = 0) -> Learner:
    """The random start of a run."""
    attention, law, key = problem.attention, Law.from_problem(problem), stream(problem, "start", run)
    if isinstance(attention, SoftmaxLayers):
        shape: dict[str, int] = {"layers": attention.layers, "heads": attention.heads, "width": attention.width, "expand": attention.expand}
        return softmax_transformer.random(key, d=law.d, **shape)
    assert isinstance(attention, LinearLayers)
    return linear_transformer.random(key, d=law.d, layers=attention.layers, heads=attention.heads, scale=problem.scale)


def held_out(problem: Problem, *, number: int = 0) -> Episodes:
    """Test episodes that no training has seen, the same for all runs; `number` makes other sets."""
    assert isinstance(problem.training, AdamTraining)
    key = jax.random.fold_in(stream(problem, "task"), 1000 + number)
    return Episodes.draw(Law.from_problem(problem), key, tasks=problem.training.test_tasks, queries=problem.training.queries)


@eqx.filter_jit
def observe(model: Learner, episodes: Episodes) -> dict[str, Array]:
    """What is recorded of a model."""
    flat = ravel_pytree(eqx.filter(model, eqx.is_inexact_array))[0]
    seen: dict[str, Array] = {"loss": episodes.risk(model).astype(float), "weights": flat}
    if isinstance(model, LinearTransformer):
        spectra = jnp.stack([heads.schmidt(layer) for layer in model.layers]).astype(float)
        return seen | {"schmidt": spectra, "heads": heads.effective(spectra)}
    size = min(PROBED, episodes.targets.shape[0] // 2)
    some, others = (jax.tree.map(lambda leaf, first=first: leaf[first : first + size], episodes) for first in (0, size))
    worth = importance.importance(model, some).astype(float)
    share = importance.shares(worth)
    return seen | {"importance": worth, "shares": share, "heads": importance.used(share), "probes": importance.probes(model, some, others)}


def model_of(problem: Problem, trajectory: Trajectory, run: int = 0) -> Learner:
    """The trained model of a run, from its recorded weights."""
    model = start(problem, run)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(ravel_pytree(arrays)[1](jnp.asarray(trajectory["weights"][run, -1], "float32")), rest)


def refit(model: Any, problem: Problem, steps: int, *, run: int = 0) -> Any:
    """Some more training at a fifth of the learning rate, with whatever mask or heads the model has now."""
    settings = problem.training
    assert isinstance(settings, AdamTraining)
    optimizer = adam(settings.learning_rate / 5, steps)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    key = jax.random.fold_in(stream(problem, "data", run), 10**6)
    return advance(model, state, optimizer, Law.from_problem(problem), key, jnp.arange(steps), settings.tasks, settings.queries)[0]
