"""Claims that need an experiment of their own: small trainings that must coincide, and predictions at a plateau as the context grows."""

import functools
from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import simulate
from simulate import networks
from simulate.attention import Prompt
from simulate.regression import leading_error, principal_components
from simulate.tasks import Sampler
from spectral_ode import weights
from spectral_ode.flow import PopulationFlow
from spectral_ode.integrate import solve_problem
from spectral_ode.problem import Problem, Start
from spectral_ode.systems.linear import Separate
from spectral_ode.trajectory import Trajectory
from spectral_ode.weights import SeparateWeights
from validate.experiment import Experiment
from validate.metrics import Measured, Unmet

CONTEXTS = (64, 128, 256, 512, 1024)
PROMPTS = 4000


def same_training(experiment: Experiment) -> Measured:
    """Largest difference of the loss curves of all three methods, on a small copy of the problem from a large start."""
    curves = [np.asarray(simulate.train(_small(experiment.problem, method))["loss"]) for method in ("moments", "gram", "attention")]
    worst = max(float(np.max(np.abs(curve - curves[-1]))) for curve in curves[:2])
    return worst, f"loss falls from {curves[-1][0, 0]:.3g} to {curves[-1][0, -1]:.3g}"


def twin(experiment: Experiment) -> Measured:
    """Largest difference of the loss curves of attention and of its network, on mirrored data from the same large start."""
    problem = _small(experiment.problem, "attention")
    problem = replace(problem, training=replace(problem.training, sampling="mirrored"))
    attention = simulate.train(problem)["loss"]
    network = simulate.train(problem, model=networks.twin_of(problem.attention.kind))["loss"]
    return float(jnp.max(jnp.abs(attention - network))), f"loss falls from {float(attention[0, 0]):.3g} to {float(attention[0, -1]):.3g}"


def _small(problem: Problem, method: str) -> Problem:
    """Full batch in float64, one run, 200 steps at a stable learning rate, from a start of order one."""
    eta = 0.05 / max(1.0, sum(problem.regression.spectrum)) ** 2
    training = replace(problem.training, method=method, sequences=200, data="fixed", dtype="float64", sampling="iid", learning_rate=eta)
    start = Start(scale=3.0 if problem.attention.kind == "separate" else 0.3)
    return replace(problem, units="paper", runs=1, horizon=200 * eta, points=21, spacing="linear", start=start, training=training)


def principal_component_slope(experiment: Experiment) -> Measured:
    """Distance from -1 of the log-log slope, over N, of E(yhat - principal component regression)^2 at the middle plateau."""
    found, learned = _middle_plateau(experiment)
    slope = float(np.polyfit(np.log(list(found)), np.log(list(found.values())), 1)[0])
    errors = ", ".join(f"{error:.1e}" for error in found.values())
    return abs(slope + 1), f"slope {slope:.3f}; errors {errors} at N = {', '.join(map(str, found))}, plateau {learned}"


def principal_component_size(experiment: Experiment) -> Measured:
    """Relative distance of that error at the longest context from its leading term."""
    found, learned = _middle_plateau(experiment)
    longest = max(found)
    leading = leading_error(experiment.problem.regression.spectrum, learned, longest)
    return abs(found[longest] / leading - 1), f"{found[longest]:.2e} against {leading:.2e} at N = {longest}, plateau {learned}"


def _middle_plateau(experiment: Experiment) -> tuple[dict[int, float], int]:
    learned = len(experiment.problem.regression.spectrum) // 2
    if not isinstance(experiment.system, Separate) or learned == 0:
        raise Unmet("a plateau between two drops needs separate key and query and at least two directions")
    if experiment.problem.regression.prior not in ((1.0,), (1.0,) * len(experiment.problem.regression.spectrum)):
        raise Unmet("principal component regression is the paper's statement for a task covariance I")
    return component_errors(experiment.problem, learned), learned


@functools.cache  # two claims ask for the same
def component_errors(problem: Problem, learned: int, contexts: tuple[int, ...] = CONTEXTS) -> dict[int, float]:
    """E(yhat - principal component regression)^2 on held-out prompts, the weights being those of the population flow at a plateau."""
    errors = {}
    for context in contexts:
        longer = replace(problem, runs=1, task=replace(problem.task, context=context, noise=0.0, lengths="full"))
        flow = solve_problem(PopulationFlow(Separate.from_problem(longer)), longer, weights.draw(longer))
        model = simulate.SeparateAttention.from_weights(plateau_weights(flow, learned), "float64")
        gap = lambda prompt, model=model: model.predict(prompt) - principal_components(prompt, learned)
        errors[context] = float(jnp.mean(jax.jit(jax.vmap(gap))(held_out(longer)) ** 2))
    return errors


def plateau_weights(flow: Trajectory, learned: int) -> SeparateWeights:
    """Weights of a population flow half-way between the drops `learned` and `learned` + 1."""
    begin, end = float(flow.phases[f"settled {learned}"]), float(flow.phases[f"left {learned + 1}"])
    if not begin < end:
        raise Unmet(f"plateau {learned} does not form within the horizon")
    index = int(np.searchsorted(np.asarray(flow.time), 0.5 * (begin + end)))
    return SeparateWeights(*(flow[name][index] for name in ("value", "key", "query")))


def held_out(problem: Problem) -> Prompt:
    """Prompts that no training has seen, each with its own task, in float64."""
    asked = replace(problem, training=replace(problem.training, dtype="float64", test_sequences=PROMPTS))
    return eqx.filter_jit(Sampler.from_problem(asked, test="in-context"))(0, PROMPTS).each()


TRIALS: dict[str, Callable[[Experiment], Measured]] = {
    "same training": same_training,
    "twin": twin,
    "principal components": principal_component_slope,
    "principal components, size": principal_component_size,
}
