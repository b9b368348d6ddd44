"""Sparse regression as problems: depth, gains, trained transformers; each claim is seen to fail when its object is broken."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from judged import verdict
from small import SPARSE

import simulate
from figures import lasso, overlay, style
from simulate import adam
from simulate import gains as gains_training
from simulate.construction import construct
from simulate.linear_transformer import prompt
from simulate.referees import study
from spectral_ode import BadInput, Problem, cli, systems
from spectral_ode.problem import Start
from spectral_ode.sections.sparse import AdamTraining, LinearLayers, SoftmaxLayers, SparseRegression
from spectral_ode.systems.sparse import Law, _algorithms
from spectral_ode.weights import GainWeights
from validate import check, perform
from validate.sparse import pruned

DEPTH, GAINS = SPARSE["sparse.depth"], SPARSE["sparse.gains"]
LINEAR = Problem(
    system="sparse.depth",
    horizon=60.0,
    points=3,
    runs=2,
    task=SparseRegression(dimension=3, sparsity=1, context=8, noise=0.3),
    attention=LinearLayers(layers=2, heads=3),
    start=Start(scale=0.3),
    training=AdamTraining(tasks=32, queries=4, test_tasks=200),
)
SOFTMAX = replace(LINEAR, attention=SoftmaxLayers(layers=2, heads=2, width=8), training=replace(LINEAR.training, test_tasks=900), runs=1)


@pytest.fixture(scope="module")
def depth():
    return perform(DEPTH)


@pytest.fixture(scope="module")
def gains():
    return perform(GAINS)


@pytest.mark.parametrize("name", ["depth", "gains"])
def test_every_claim_holds_on_the_small_problem(name, request):
    verdicts = check(request.getfixturevalue(name))
    assert [verdict.claim for verdict in verdicts if verdict.ok is not True] == []


def _with(experiment, rung: str, **changes):
    """The experiment with some observables of a rung replaced by a function of themselves."""
    trajectory = experiment.rungs[rung]
    observables = trajectory.observables | {name: change(trajectory[name]) for name, change in changes.items()}
    return replace(experiment, rungs=experiment.rungs | {rung: eqx.tree_at(lambda t: t.observables, trajectory, observables)})


BROKEN = {
    "two groups": ("reduced", "loss", lambda x: x * (1 + 1e-5), "solve = closed form"),
    "flow": ("population", "plain", lambda x: x * (1 + 1e-5), "exact flow = closed form"),
    "construction": ("training", "estimate", lambda x: x + 1e-10, "is the algorithm"),
    "lowest risk": ("reduced", "loss", lambda x: x * 1.3, "lowest risk, two groups"),
    "law": ("reduced", "plain", lambda x: x * 1.5, "Marchenko-Pastur"),
    "advantage": ("population", "loss", lambda x: x * 10, "lowest risk of PTO"),
}


@pytest.mark.parametrize(("rung", "name", "change", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rung_of_depth_fails(depth, rung, name, change, words):
    assert verdict(_with(depth, rung, **{name: change}), words).ok is False


@pytest.mark.parametrize(("rung", "words"), [("reduced", "best depth, two groups"), ("population", "lies between")])
def test_a_late_optimum_fails(depth, rung, words):
    trajectory = depth.rungs[rung]
    late = eqx.tree_at(lambda t: t.phases["best"], trajectory, trajectory.phases["best"] * 10)
    assert verdict(replace(depth, rungs=depth.rungs | {rung: late}), words).ok is False


def test_broken_gains_fail(gains):
    assert verdict(_with(gains, "training", kappa=lambda x: x * 0.9), "mean kappa").ok is False
    drifting = lambda eta: eta * (1 + 0.1 * jnp.linspace(0.0, 1.0, eta.shape[-1])[None])
    for rung, words in (("reduced", "along the ODE"), ("training", "along training")):
        assert verdict(_with(gains, rung, eta=drifting), words).ok is False
    wrong = _with(gains, "reduced", loss=lambda x: x * 1.001)
    assert verdict(wrong, "last risk").ok is False


def test_heads_with_larger_gains_wake_first(gains):
    for rung in ("reduced", "training"):
        times = np.asarray([gains.rungs[rung].phases[f"half {j + 1}"][0] for j in range(6)])
        assert (np.diff(times) > 0).all()


@pytest.mark.parametrize(("g", "eta"), [(0.0, 0.3), (0.0, -0.3)])
def test_without_gains_nothing_moves(g, eta):
    system = systems.load("sparse.gains").from_problem(GAINS)
    field = system.weights_field(GainWeights(jnp.full(6, g), jnp.asarray(eta)))
    assert all(float(jnp.max(jnp.abs(leaf))) == 0 for leaf in jax.tree.leaves(field))


def test_the_loss_of_gains_is_that_of_the_transformer_and_its_mean_the_exact_risk():
    law = Law.from_problem(GAINS)
    model = GainWeights(jnp.linspace(0.4, 0.9, law.d), jnp.asarray(0.7))
    key = jax.random.key(3)
    transformer = construct(model.g, model.eta, 1)

    def one(key):
        sample = law.sample(key)
        return jnp.sum((transformer.predict(prompt(sample.x, sample.y, jnp.eye(law.d)), law.n) - sample.w) ** 2)

    assert_close(gains_training.loss(model, law, key, 50), 0.5 * jnp.mean(jax.vmap(one)(jax.random.split(key, 50))))
    exact = systems.load("sparse.gains").from_problem(GAINS).population_loss(model)
    assert_close(2 * gains_training.loss(model, law, key, 40_000), exact, rtol=0.03)  # Monte Carlo


def test_unroll_is_a_trajectory_over_depth(depth):
    found = simulate.unroll(DEPTH)
    assert found.clock == "depth"
    assert found.time.shape == (1, 81)
    assert_close(found["loss"][0, 0], DEPTH.task.sparsity)
    # Layers lag the flow by their step size: the best layer is near the flow's best time.
    assert float(found.phases["best"][0]) == pytest.approx(float(depth.rungs["population"].phases["best"][0]), rel=0.1)


def test_unroll_in_float32_is_the_algorithm_to_its_precision():
    problem = replace(DEPTH, training=replace(DEPTH.training, dtype="float32"))
    found = verdict(perform(problem), "is the algorithm")
    assert found.bound == 1e-5
    assert found.ok is True
    assert found.measured > 1e-12


@pytest.mark.parametrize("problem", [LINEAR, SOFTMAX], ids=["linear", "softmax"])
def test_a_trained_transformer_is_recorded_restored_and_drawn(problem, tmp_path):
    experiment = perform(problem)
    training = experiment.rungs["training"]
    assert training.clock == "training step"
    assert set(experiment.missing) >= {"reduced", "population"}
    model = adam.model_of(problem, training, problem.runs - 1)
    risk = jax.jit(lambda episodes: episodes.risk(model))(adam.held_out(problem))
    assert_close(risk, training["loss"][problem.runs - 1, -1], rtol=1e-4)  # float32
    assert training["loss"][0, -1] < training["loss"][0, 0]
    at_once, refitted = pruned(problem, training, (1,))
    assert at_once != refitted
    style.save(overlay.draw(experiment), tmp_path / "overlay.png")
    assert (tmp_path / "overlay.png").stat().st_size > 10_000
    verdicts = {verdict.claim: verdict for verdict in check(experiment)}
    assert all(verdict.measured is not None for verdict in verdicts.values())


@pytest.mark.parametrize("name", ["depth", "gains"])
def test_runs_are_drawn(name, request, tmp_path):
    style.save(overlay.draw(request.getfixturevalue(name)), tmp_path / "overlay.png")
    assert (tmp_path / "overlay.png").stat().st_size > 20_000


def test_preprocessing_beats_plain_descent_thirty_times_and_stops_early():
    found = study(Law(256, 4, 1024, 0.5), jax.random.key(0), tasks=5, steps=30)
    assert found.ratio < 1 / 30
    assert 5 <= found.pto.argmin() <= 10
    assert found.oracle < found.pto.min() < found.ridge <= 1.02 * found.gd.min()


def test_preprocessing_loses_with_small_coefficients_and_low_noise():
    assert study(Law(16, 4, 64, 0.1, "normal"), jax.random.key(0), tasks=60, steps=300).ratio > 2


def test_lasso_wins_on_short_contexts_and_loses_on_long_ones():
    pytest.importorskip("sklearn", reason=lasso.ABSENT)
    for n, wins in ((32, True), (512, False)):
        law, key = Law(64, 4, n, 0.5), jax.random.key(1)
        assert bool(lasso.risk(law, key, tasks=12) < study(law, key, tasks=12, steps=120).pto.min()) is wins


def test_one_step_sizes_are_refused_past_stability_and_the_largest_is_named():
    largest = float(systems.load("sparse.depth").from_problem(DEPTH).largest_step())
    with pytest.raises(BadInput, match="diverges from") as refusal:
        systems.load("sparse.depth").from_problem(replace(DEPTH, training=replace(DEPTH.training, learning_rate=1.01 * largest)))
    assert f"{largest:.4g}" in str(refusal.value)
    just = replace(DEPTH, training=replace(DEPTH.training, learning_rate=0.99 * largest))
    assert np.isfinite(np.asarray(simulate.unroll(just)["loss"])).all()
    sample = systems.load("sparse.depth").from_problem(DEPTH).sample
    members = [jax.tree.map(lambda leaf, i=i: leaf[i], sample).moments() for i in range(24)]
    steps = [float(_algorithms.diagonalize(one, name).largest_step) for one in members for name in _algorithms.ALGORITHMS]
    assert_close(largest, min(steps))


PRESET = "preprocess-then-optimize"
BAD = {
    "support too large": (["--task.sparsity", "33"], "task.sparsity is 33, but it must lie between 1 and the dimension 32"),
    "no tokens": (["--task.context", "0"], "task.context is 0"),
    "fewer tokens than support": (["--task.context", "3"], "needs at least as many tokens"),
    "negative noise": (["--task.noise=-0.1"], "task.noise is -0.1"),
    "no layer": (["--horizon", "0.1"], "is 0.4 layers of descent, but 1 to 100000 are allowed"),
    "unstable": (["--training.learning-rate", "5"], "diverges from"),
    "several runs": (["--runs", "3"], "use --runs 1"),
    "other system": (["--system", "sparse.gains"], "is for training.kind gains"),
    "other task": (["--system", "linear.separate"], "is for task.kind linear-regression"),
    "script": (["--units", "script"], "use --units paper"),
    "other start": (["--start.kind", "gains"], "use --start.kind zero"),
    "trained construction": (["--training.kind", "adam"], "use --training.kind depth"),
}
TRAINED = {
    "no layers": (["--attention.layers", "0"], "attention.layers is 0"),
    "no heads": (["--attention.heads", "0"], "attention.heads is 0"),
    "no tasks": (["--training.tasks", "0"], "training.tasks is 0"),
    "not trained": (["--training.kind", "depth"], "use --training.kind adam"),
    "gains": (["--system", "sparse.gains"], "is for training.kind gains"),
}
SLEEPING = {
    "negative step": (["--start.step=-0.1"], "start.step is -0.1"),
    "sleeping head": (["--start.ratio", "0"], "a head at zero never wakes"),
    "depth": (["--system", "sparse.depth"], "use --system sparse.gains"),
}
MISTAKES = [(PRESET, *each) for each in BAD.values()] + [("head-sweep", *each) for each in TRAINED.values()]
MISTAKES += [("head-activation", *each) for each in SLEEPING.values()] + [
    ("head-importance", ["--attention.width", "30"], "multiple of the number of heads")
]


@pytest.mark.parametrize(("preset", "words", "part"), MISTAKES, ids=[*BAD, *TRAINED, *SLEEPING, "width"])
def test_a_mistake_is_one_sentence_and_exit_2(capsys, tmp_path, preset, words, part):
    assert cli.main(["run", preset, *words, "--out", str(tmp_path / "results")]) == 2
    shown = capsys.readouterr()
    assert part in shown.err
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "results").exists()
