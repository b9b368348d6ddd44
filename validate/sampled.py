"""Theory against draws: averages against Monte Carlo with its standard error, and some steps of the real trainer against the flow."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicHermiteSpline

import simulate
from simulate import estimators, gains, recording
from simulate.attention import MergedAttention, SeparateAttention
from simulate.episode_training import sampler
from simulate.full_attention import FullAttention
from simulate.replay import replay
from simulate.tasks import Sampler
from spectral_ode import systems, weights
from spectral_ode.claims import Claim, Trial
from spectral_ode.problem import DecomposableStart, FullHeads, MultiTask, Problem, Start
from spectral_ode.sections.sparse import GainsStart
from spectral_ode.system import AbstractSystem
from spectral_ode.systems.linear import Blocks, Merged, Separate
from spectral_ode.systems.linear.blocks import MergedBlocks
from spectral_ode.systems.softmax import Balanced, Factored
from spectral_ode.systems.softmax._leading import Spectrum
from spectral_ode.systems.softmax.spectral import AbstractSpectral
from spectral_ode.systems.sparse import Gains
from spectral_ode.weights import GainWeights
from validate.courses import Flow, Flows
from validate.metrics import Measured, Unmet

DRAWS = 20_000  # sequences, contexts or tasks of a Monte Carlo average
SEED = 20_001  # of all of them
STEPS = 20  # of a short training
RECORDED = {"separate": "separate_rank3.npz", "merged": "merged_vary.npz", "full": "single_head.npz"}


def claims(flows: Flows) -> tuple[Claim, ...]:
    """Claims that need draws."""
    problem = flows.experiment.problem
    short = {
        "place": "ours",
        "exactness": "asymptotic in the learning rate and the number of draws",
        "bound": 0.05,
        "reason": "gap over the change of the flow: half a step in 20 is 2.5 %, and as much again for bends and the scatter of the draws",
    }
    return (
        Trial(
            name="loss in closed form = its Monte Carlo average, in standard errors",
            place="ours",
            exactness="exact",
            bound=4.0,
            reason="four standard errors of 20,000 draws of the real sampler with a fixed seed, at random weights of order one",
            tier="validate",
            trial=lambda _: monte_carlo(flows),
        ),
        Trial(
            name=f"{STEPS} real training steps = the flow to that time",
            tier="full"
            if problem.task.kind == "multi-task"
            else "validate",  # contexts are fresh in every step, which takes long to compile
            trial=lambda _: trained([problem]),
            **short,
        ),
        Trial(
            name=f"{STEPS} real training steps = the flow to that time, other settings",
            tier="full",
            trial=lambda _: trained(settings(problem)),
            **short,
        ),
        Trial(
            name="a recorded run of a script, trained again",
            place="ours",
            exactness="exact",
            bound=5e-6,
            reason="largest difference of the loss curves; the script rounds in float32",
            tier="validate",
            trial=lambda _: recorded(problem),
        ),
    )


def monte_carlo(flows: Flows) -> Measured:
    """Largest distance of a loss from its average over draws, in standard errors."""
    problem, system = flows.experiment.problem, flows.experiment.system
    if isinstance(system, Separate | Merged | Blocks):
        return _sequences(problem, system)
    if isinstance(system, Balanced | Factored):
        return _contexts(problem, system.exact())
    if isinstance(system, Gains):
        return _tasks(system)
    raise Unmet("its loss is no average that a sampler could estimate: it is that of given tasks, or to leading order")


def _errors(exact: Any, draws: Any) -> Measured:
    """Standard errors between exact numbers and the means over the first axis of draws."""
    exact, draws = np.atleast_1d(np.asarray(exact)), np.asarray(draws).reshape(len(draws), -1)
    mean, error = draws.mean(axis=0), draws.std(axis=0) / np.sqrt(len(draws))
    shown = ", ".join(f"{m:.4g} +- {s:.1g} against {x:.4g}" for m, s, x in zip(mean, error, exact, strict=True))
    return float(np.max(np.abs(mean - exact) / error)), shown


def _sequences(problem: Problem, system: Separate | Merged | Blocks) -> Measured:
    """Squared errors of attention, token by token; for every block all of them are random."""
    training = replace(problem.training, dtype="float64", sampling="iid", sequences=DRAWS)
    problem = replace(problem, training=training, seed=replace(problem.seed, task=SEED, data=SEED, noise=SEED))
    system = type(system).from_problem(problem)  # a task that sequences share belongs to the seeds
    start = weights.draw(replace(problem, start=replace(problem.start, scale=2.0)))
    model = (MergedAttention if problem.attention.kind == "merged" else SeparateAttention).from_weights(start, "float64")  # pyright: ignore[reportArgumentType]
    if isinstance(system, Blocks):
        noise = iter(jax.random.split(jax.random.key(SEED), 3))
        model = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(next(noise), leaf.shape), model)

    @eqx.filter_jit
    def both(model):
        prompts = Sampler.from_problem(problem)(0, DRAWS)
        squares = (prompts.target - jax.vmap(model.predict)(prompts.each())) ** 2
        exact = (
            system.train.loss(MergedBlocks(*model.bilinear()).t) if isinstance(system, Blocks) else cast(Any, system).population_loss(start)
        )
        return exact, jnp.mean(squares.reshape(DRAWS, -1), axis=1)

    return _errors(*both(model))


def _contexts(problem: Problem, exact: AbstractSystem) -> Measured:
    """Losses at finite L of heads that share the tasks, on raw contexts."""
    task, attention = problem.task, problem.attention
    assert isinstance(exact, AbstractSpectral)
    assert isinstance(task, MultiTask)
    assert isinstance(attention, FullHeads)
    H, I, d_e = attention.heads, len(task.dimensions), attention.width(task)
    uniform = np.random.default_rng(SEED).uniform
    own = np.arange(H)[:, None] % I == np.arange(I)[None]
    mu = jnp.asarray(np.where(own, uniform(0.8, 1.2, (H, I)), uniform(-0.6, 0.6, (H, I))))
    omega = jnp.asarray(np.where(own, uniform(0.25, 0.4, (H, I)), uniform(-0.2, 0.2, (H, I))))
    k = jnp.sqrt(jnp.abs(omega) * d_e**0.5)
    drawn = weights.decomposable((mu, jnp.ones_like(mu), k, k * jnp.sign(omega)), task.dimensions, d_e)
    wide = replace(problem, training=replace(problem.training, dtype="float64"), seed=replace(problem.seed, data=SEED))

    @eqx.filter_jit
    def both(drawn):
        U, W = estimators.products(FullAttention.from_weights(drawn, "float64"))
        return exact.order.losses(Spectrum(mu, omega)), estimators.integrated(U, W, sampler(wide)(0, 0, DRAWS, 4))

    return _errors(*both(drawn))


def _tasks(system: Gains) -> Measured:
    """Risks of random gains on fresh tasks."""
    model = GainWeights(jnp.linspace(0.4, 0.9, system.law.d), jnp.asarray(0.7))
    one = lambda key: 2 * gains.loss(model, system.law, key, 1)
    draws = eqx.filter_jit(lambda keys: jax.vmap(one)(keys))(jax.random.split(jax.random.key(SEED), DRAWS))
    return _errors(system.population_loss(model), draws)


def trained(problems: list[Problem]) -> Measured:
    """Largest gap between a short training and its flow, over the change of the flow, over some problems."""
    found = [_short(problem) for problem in problems]
    return max(found), ", ".join(f"{gap:.3f}" for gap in found)


def _short(problem: Problem) -> float:
    """The gap for one problem; the flow is solved at as many times as ever, which compiles nothing anew, and interpolated."""
    quick, names = _moving(problem)
    system = systems.load(quick.system).from_problem(quick)
    flow = system if "population" in system.missing(quick) else system.population()
    training = simulate.train(quick).run(0)
    solver = Flow(flow, eqx.filter_jit(flow.project)(weights.draw(quick)), problem)
    course = solver.course(time=np.linspace(0.0, quick.end, solver.time.size))
    states = CubicHermiteSpline(course.time, course.state, course.rate)(quick.times)
    theory = eqx.filter_jit(jax.vmap(lambda flat: flow.observe(solver.unflatten(flat))))(jnp.asarray(states))
    gaps = []
    for mine, theirs in names.items():
        one, two = np.asarray(training[mine]), np.asarray(theory[theirs])
        gaps.append(np.max(np.abs(one - two)) / np.max(np.abs(two - two[:1])))
    return float(max(gaps))


def _moving(problem: Problem) -> tuple[Problem, dict[str, str]]:
    """A copy of a problem that moves within a few steps, and what to compare, training first."""
    gaps = systems.load(problem.system).from_problem(problem).missing(problem)
    if {"reduced", "population"} <= gaps.keys():
        raise Unmet(gaps["population"])
    steps = {"runs": 1, "units": "paper", "points": STEPS + 1, "spacing": "linear"}
    if problem.task.kind == "linear-regression":
        start = Start(scale=4.0 if problem.attention.kind == "separate" else 2.0)
        eta = _gentle(replace(problem, start=start, units="paper"))
        training = replace(problem.training, sequences=20_000, sampling="even", data="fixed", dtype="float64", learning_rate=eta)
        return replace(problem, start=start, training=training, horizon=STEPS * eta, **steps), {"population loss": "loss"}
    if isinstance(problem.task, MultiTask):
        if problem.system not in ("softmax.balanced", "softmax.factored"):
            raise Unmet("the network that is trained is that of softmax.balanced")
        training = replace(problem.training, learning_rate=0.02, contexts=1024, test_contexts=2, dtype="float64", changes=(), rates=())
        quick = replace(problem, start=DecomposableStart(mu=1.0, omega=0.15), training=training, horizon=0.02 * STEPS, **steps)
        return quick, {name: name for name in ("mu of heads", "omega of heads")}
    if isinstance(problem.start, GainsStart):
        start = GainsStart(scale=0.8, ratio=0.6, step=0.4)
        eta = _gentle(replace(problem, start=start))
        tasks = 2000 if getattr(problem.task, "coefficients", "signs") == "signs" else 10_000  # powers of normal numbers scatter widely
        training = replace(problem.training, learning_rate=eta, tasks=tasks, dtype="float64")
        return replace(problem, start=start, training=training, horizon=eta * STEPS, **steps), {"loss": "loss"}
    if problem.training.kind == "depth":
        quick = replace(problem, training=replace(problem.training, learning_rate=0.05), horizon=0.05 * STEPS, **steps)
        return quick, {"loss": "loss", "plain": "plain"}
    raise Unmet("no flow of its training is known")


def _gentle(problem: Problem) -> float:
    """A learning rate at which the first step moves the weights by a fiftieth of the largest."""
    system, start = systems.load(problem.system).from_problem(problem), weights.draw(problem)
    rate = eqx.filter_jit(lambda start: weights.largest(system.weights_field(start)))(start)
    return 0.02 * float(weights.largest(start) / rate)


def settings(problem: Problem) -> list[Problem]:
    """The same with other noise, lengths, coordinates, numbers of heads."""
    task = problem.task
    if task.kind == "linear-regression":
        d, heads = len(problem.regression.spectrum), problem.attention.heads
        tasks = [
            replace(task, **change)
            for change in ({"noise": 0.4}, {"rotation": 5}, {"lengths": "all"}, {"prior": (0.5,) + (1.5,) * (d - 1)})
        ]
        return [replace(problem, task=other) for other in tasks] + [
            replace(problem, attention=replace(problem.attention, heads=other)) for other in (1, heads + 1)
        ]
    if isinstance(task, MultiTask):
        return [replace(problem, task=other) for other in (replace(task, noise=0.0), replace(task, noise=1.0), replace(task, context=40))]
    changes: tuple[dict[str, Any], ...] = ({"noise": 0.1}, {"sparsity": 1}, {"coefficients": "normal"}, {"context": 2 * task.context})
    return [replace(problem, task=replace(task, **change)) for change in changes]


def recorded(problem: Problem) -> Measured:
    """Largest difference of a recorded run's loss curves from those of its replay."""
    kind = problem.attention.kind
    if kind not in RECORDED:
        raise Unmet("no run of a script was recorded for this paper")
    path = Path(__file__).resolve().parent.parent / "tests" / "data" / RECORDED[kind]
    if not path.exists():
        raise Unmet("the recorded runs are part of the repository, not of the package")
    run = recording.load(path)
    curves = replay(run)
    worst = max(float(np.max(np.abs(run.curves[name] - curves[name]))) for name in run.curves)
    return worst, f"{path.name}, {run.epochs} epochs"
