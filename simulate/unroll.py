"""The constructed transformer of a problem, layer by layer: a trajectory whose clock is depth.

The estimate of every task is read off the label row of unit queries after each recorded layer, in the problem's float type, and observed as
the theory observes its own flow. Beside it runs plain descent, on slots that hold x itself. Nothing is trained.
"""

import json
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from simulate import construction
from spectral_ode import systems
from spectral_ode.problem import Problem
from spectral_ode.systems.sparse import Depth
from spectral_ode.systems.sparse.data import Sample
from spectral_ode.trajectory import Trajectory
from spectral_ode.weights import DepthWeights


def unroll(problem: Problem, *, progress: Callable[[float, float, float], None] | None = None) -> Trajectory:
    """Every recorded depth of the construction, over the problem's own tasks."""
    system = systems.load(problem.system).from_problem(problem)
    assert isinstance(system, Depth)
    sample = jax.tree.map(lambda leaf: leaf.astype(problem.training.dtype), system.sample)
    w, plain = (_estimates(sample, problem.eta, int(problem.steps[-1]), preprocess)[problem.steps] for preprocess in (True, False))
    if progress:
        progress(1.0, float(problem.times[-1]), float("nan"))
    w, plain = (jnp.asarray(part, float) for part in (w, plain))
    observed = _observe(system, w / system.moments.r[None], plain)
    values = jax.vmap(system.phases)(observed)
    phases = {name: _crossing(problem.times, np.asarray(value)) for name, value in values.items()}
    finite = bool(np.isfinite(np.asarray(observed["loss"])).all())
    stopped = f"reached layer {problem.steps[-1]} at flow time {problem.times[-1]:g}"
    origin = {"source": "constructed transformer", "dtype": problem.training.dtype, "ok": finite, "stopped": stopped}
    observed = observed | {"estimate": w}
    one = Trajectory(jnp.asarray(problem.times), observed, phases, clock="depth", origin=json.dumps(origin))
    return Trajectory.stack([one])


@eqx.filter_jit
def _estimates(sample: Sample, eta: float, layers: int, preprocess: bool) -> Float[Array, "depth tasks d"]:
    """What the label rows say after each layer of descent."""
    d = sample.w.shape[1]
    gains, step = jnp.ones(d, sample.x.dtype), jnp.asarray(eta, sample.x.dtype)
    read = lambda one: construction.read_out(gains, step, one, layers, preprocess=preprocess)
    return jnp.swapaxes(jax.lax.map(read, sample), 0, 1)


@eqx.filter_jit
def _observe(system: Depth, theta: Float[Array, "depth tasks d"], plain: Float[Array, "depth tasks d"]) -> dict[str, Array]:
    return jax.lax.map(lambda both: system.observe_weights(DepthWeights(*both)), (theta, plain))


def _crossing(times: np.ndarray, values: np.ndarray) -> Float[Array, ""]:
    """The first upward crossing of zero, on straight lines between records; nan if there is none."""
    here = np.flatnonzero((values[:-1] < 0) & (values[1:] >= 0))
    if not here.size:
        return jnp.asarray(np.nan)
    i = here[0]
    return jnp.asarray(times[i] + (times[i + 1] - times[i]) * values[i] / (values[i] - values[i + 1]))
