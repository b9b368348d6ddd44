"""How the claims of sparse regression are measured: depth against its closed forms, gains against their ODE, trained transformers."""

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import simulate
from simulate import adam, heads, importance
from simulate.in_context import Episodes
from simulate.linear_transformer import LinearTransformer
from spectral_ode.problem import Problem
from spectral_ode.systems.sparse import Depth, _algorithms, _risk
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment
from validate.metrics import Measured, Unmet


def _depth(experiment: Experiment) -> Depth:
    assert isinstance(experiment.system, Depth)
    return experiment.system


def eigen_directions(experiment: Experiment) -> Measured:
    """Largest relative difference of the exact flow's risks from their closed form per eigen-direction."""
    system, flow = _depth(experiment), experiment.rungs["population"].run(0)
    worst = []
    for algorithm, name in (("pto", "loss"), ("gd", "plain")):
        curve = jax.lax.map(lambda one, algorithm=algorithm: _algorithms.flow_curve(one, algorithm, flow.time), system.sample)
        worst.append(float(jnp.max(jnp.abs(flow[name] / jnp.mean(curve, axis=0) - 1))))
    return max(worst), f"PTO {worst[0]:.1e}, GD {worst[1]:.1e}"


def construction(experiment: Experiment) -> Measured:
    """Largest difference between the transformer's estimates and the algorithm's, at every recorded depth, over the largest estimate."""
    system, training, problem = _depth(experiment), experiment.rungs["training"].run(0), experiment.problem
    last = int(problem.steps[-1])
    exact = jax.vmap(lambda one: _algorithms.iterate(one, "pto", jnp.asarray(problem.eta), last))(system.moments)
    exact = jnp.swapaxes(exact, 0, 1)[problem.steps]
    return float(jnp.max(jnp.abs(training["estimate"] - exact)) / jnp.max(jnp.abs(exact))), f"{last} layers, {exact.shape[1]} tasks"


def order_of_layers(experiment: Experiment) -> Measured:
    """Distance from one of the log-log slope of the gap between layers and flow over the step size, at the best depth."""
    system, eta = _depth(experiment), experiment.problem.eta
    tau = _risk.window(system.law)[0] * 4
    spectral = jax.vmap(lambda one: _algorithms.diagonalize(one, "pto"))(system.moments)
    exact = jax.vmap(lambda one: _algorithms.after_flow(one, jnp.asarray(tau)))(spectral)
    gaps = []
    for parts in (4, 16):
        layers = round(parts * tau / eta)
        step, count = jnp.asarray(tau / layers), jnp.asarray(layers)
        found = jax.vmap(lambda one, step=step, count=count: _algorithms.after_steps(one, step, count))(spectral)
        gaps.append((tau / layers, float(jnp.linalg.norm(found - exact))))
    slope = np.log(gaps[0][1] / gaps[1][1]) / np.log(gaps[0][0] / gaps[1][0])
    return abs(slope - 1), f"slope {slope:.3f}"


def lowest(trajectory: Trajectory, name: str = "loss") -> tuple[float, float]:
    """When a risk is least, and how low it is then."""
    at, low = _risk.best(trajectory.time[0], trajectory[name][0])
    return float(at), float(low)


def lowest_risk(experiment: Experiment) -> Measured:
    """Relative difference of the lowest risks of the two-group theory and of the exact flow."""
    (_, theory), (_, exact) = (lowest(experiment.rungs[rung]) for rung in ("reduced", "population"))
    return abs(theory / exact - 1), f"{theory:.3g} against {exact:.3g}"


def best_depth(experiment: Experiment) -> Measured:
    """Relative difference of the times of the lowest risk."""
    theory, exact = (float(experiment.rungs[rung].phases["best"][0]) for rung in ("reduced", "population"))
    if not np.isfinite(theory + exact):
        raise Unmet("the risk is still falling at the horizon")
    layers = exact / experiment.problem.eta
    return abs(theory / exact - 1), f"tau {theory:.3g} against {exact:.3g}, that is {layers:.0f} layers"


def window(experiment: Experiment) -> Measured:
    """How far the best time of the exact flow lies outside of the window, as a ratio; below one inside."""
    at = float(experiment.rungs["population"].phases["best"][0])
    if not np.isfinite(at):
        raise Unmet("the risk is still falling at the horizon")
    low, high = experiment.forecast["window"][0]
    return max(low / at, at / high), f"best at {at:.3g}, window {low:.3g} to {high:.3g}"


def plain(experiment: Experiment) -> Measured:
    """Largest relative difference of the risk of gradient flow from the Marchenko-Pastur law."""
    theory, exact = (np.asarray(experiment.rungs[rung]["plain"][0]) for rung in ("reduced", "population"))
    return float(np.max(np.abs(exact / theory - 1))), f"{exact[-1]:.3g} against {theory[-1]:.3g} at the end"


def advantage(experiment: Experiment) -> Measured:
    """Lowest risk of PTO over lowest risk of GD, both over the whole depth."""
    pto, gd = (lowest(experiment.rungs["population"], name)[1] for name in ("loss", "plain"))
    return pto / gd, f"{pto:.3g} against {gd:.3g}: {gd / pto:.3g} times lower"


def mean_kappa(experiment: Experiment) -> Measured:
    """Median over runs of the largest gap of the mean kappa, in units of kappa*."""
    one, two = (np.mean(np.asarray(experiment.rungs[rung]["kappa"]), axis=-1) for rung in ("reduced", "training"))
    gap = np.max(np.abs(one - two), axis=1)
    return float(np.median(gap)), f"worst run {np.max(gap):.2g}"


def _risks(experiment: Experiment) -> np.ndarray:
    return np.asarray(experiment.rungs["training"]["loss"])[:, -1]


@functools.cache  # two claims ask for the same
def _alone(problem: Problem) -> np.ndarray:
    return np.asarray(simulate.train(replace(problem, attention=replace(problem.attention, heads=1)))["loss"])[:, -1]


def _ridge(experiment: Experiment) -> float:
    return float(_depth(experiment).landmarks()["loss"]["best ridge"])


def one_head(experiment: Experiment) -> Measured:
    """Median risk over median risk of the same model with one head."""
    many, alone = np.median(_risks(experiment)), np.median(_alone(experiment.problem))
    return float(many / alone), f"{many:.3g} against {alone:.3g}"


def one_head_at_ridge(experiment: Experiment) -> Measured:
    """How far below the best ridge regression one head comes, as a share."""
    alone, ridge = np.median(_alone(experiment.problem)), _ridge(experiment)
    return float(1 - alone / ridge), f"{alone:.3g} against {ridge:.3g}"


def below_ridge(experiment: Experiment) -> Measured:
    """Median risk over that of the best ridge regression."""
    risk, ridge = np.median(_risks(experiment)), _ridge(experiment)
    return float(risk / ridge), f"{risk:.3g} against {ridge:.3g}"


def heads_by_layer(experiment: Experiment) -> Measured:
    """Median over runs of the last layer's effective heads over the first layer's."""
    counts = np.asarray(experiment.rungs["training"]["heads"])[:, -1]
    each = ", ".join(f"{count:.2g}" for count in np.median(counts, axis=0))
    return float(np.median(counts[:, -1] / counts[:, 0])), f"heads by layer {each}"


def heads_by_mask(experiment: Experiment) -> Measured:
    """Median over runs of the later layers' effective heads over the first layer's."""
    counts = np.asarray(experiment.rungs["training"]["heads"])[:, -1]
    return float(np.median(np.mean(counts[:, 1:], axis=1) / counts[:, 0])), heads_by_layer(experiment)[1]


def probes(experiment: Experiment) -> Measured:
    """Median over runs of the largest ratio of a probe's risk to that of the layer before."""
    risks = np.asarray(experiment.rungs["training"]["probes"])[:, -1]
    each = ", ".join(f"{risk:.2g}" for risk in np.median(risks, axis=0))
    return float(np.median(np.max(risks[:, 1:] / risks[:, :-1], axis=1))), f"probes {each}"


def pruned(problem: Problem, trajectory: Trajectory, layers: tuple[int, ...], *, run: int = 0) -> tuple[float, float]:
    """Risk with these layers (from 0) cut to their best head: at once, and after a tenth of the training again."""
    model, tests = adam.model_of(problem, trajectory, run), adam.held_out(problem)
    if isinstance(model, LinearTransformer):
        cut = heads.prune(model, tuple(1 if layer in layers else each.value.shape[0] for layer, each in enumerate(model.layers)))
    else:
        cut = model.masked(importance.pruned(jnp.asarray(trajectory["importance"][run, -1], "float32"), layers))
    again = adam.refit(cut, problem, max(1, int(problem.steps[-1]) // 10), run=run)
    return _risk_of(cut, tests), _risk_of(again, tests)


def _risk_of(model, tests: Episodes) -> float:
    return float(jax.jit(lambda tests: tests.risk(model))(tests))


def _pruned(experiment: Experiment, *layers: int) -> float:
    training = experiment.rungs["training"]
    return float(np.median([pruned(experiment.problem, training, layers, run=run)[1] for run in range(training.runs)]))


def last_pruned(experiment: Experiment) -> Measured:
    """Median risk with the last layer pruned over median risk with the first pruned, refitted."""
    last, first = _pruned(experiment, experiment.problem.transformer.layers - 1), _pruned(experiment, 0)
    return last / first, f"{last:.3g} against {first:.3g}; full {np.median(_risks(experiment)):.3g}"


def later_pruned(experiment: Experiment) -> Measured:
    """Median risk with all later layers pruned over median full risk, refitted."""
    later, full = _pruned(experiment, *range(1, experiment.problem.transformer.layers)), float(np.median(_risks(experiment)))
    return later / full, f"{later:.3g} against {full:.3g}"


SPARSE: dict[str, Callable[[Experiment], Measured]] = {
    "eigen-directions": eigen_directions,
    "construction": construction,
    "order of the layers": order_of_layers,
    "lowest risk": lowest_risk,
    "best depth": best_depth,
    "window": window,
    "plain": plain,
    "advantage": advantage,
    "mean kappa": mean_kappa,
    "one head": one_head,
    "one head at ridge": one_head_at_ridge,
    "ridge": below_ridge,
    "heads by layer": heads_by_layer,
    "heads by mask": heads_by_mask,
    "probes": probes,
    "last layer pruned": last_pruned,
    "later layers pruned": later_pruned,
}
