"""Claims about softmax attention: they hold on a small problem, and each is seen to fail when its object is broken."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from judged import verdict
from small import SPECTRAL

import simulate
from spectral_ode import systems
from spectral_ode.problem import DecomposableStart
from spectral_ode.systems.softmax import _leading, _optimal
from validate import check, perform, spectral_trials
from validate.experiment import TIGHTER, Experiment


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return perform(replace(SPECTRAL, task=replace(SPECTRAL.task, tested=(10, 40))))


@pytest.fixture(scope="module")
def escaped() -> Experiment:
    start = DecomposableStart(scale=2.5, imbalance=0.05)
    training = replace(SPECTRAL.training, contexts=32, learning_rate=0.04, test_contexts=400)
    return perform(replace(SPECTRAL, system="softmax.factored", horizon=80.0, start=start, training=training))


def _changed(experiment, rung, **observables):
    """The experiment with observables of one rung put through functions."""
    now = experiment.rungs[rung]
    names = [name.replace("_", " ") for name in observables]
    new = [change(now[name]) for name, change in zip(names, observables.values(), strict=True)]
    rungs = experiment.rungs | {rung: eqx.tree_at(lambda t: [t.observables[name] for name in names], now, new)}
    return replace(experiment, rungs=rungs)


def test_every_claim_of_a_run_holds_on_the_small_problem(experiment):
    verdicts = check(experiment)
    assert [(verdict.claim, verdict.measured, verdict.note) for verdict in verdicts if verdict.ok is not True] == []


def test_every_claim_holds_on_the_way_out_of_one_head_per_task(escaped):
    verdicts = check(escaped)
    assert [(verdict.claim, verdict.measured, verdict.note) for verdict in verdicts if verdict.ok is False] == []
    assert [verdict.claim for verdict in verdicts if verdict.ok is None] == []


def test_the_time_of_escape_is_the_logarithm_of_the_imbalance_over_the_rate():
    problem = replace(SPECTRAL, system="softmax.factored", task=replace(SPECTRAL.task, dimensions=(5, 5), signal=(1.0,)))
    system = systems.load(problem.system).from_problem(problem)
    early, late = spectral_trials.escape_times(system, (1e-5, 1e-7))
    rate = float(_optimal.escape_rate(system.order.tasks)[0])
    np.testing.assert_allclose(late - early, np.log(100) / rate, rtol=0.02)  # the idle weights fade in the meantime


BROKEN = {
    "loss after emergence, training vs finite": ("training", {"loss": lambda loss: 1.2 * loss}),
    "loss after emergence, training vs leading": ("training", {"loss": lambda loss: 4 * loss}),
    "largest gap of the loss": ("training", {"loss": lambda loss: loss.at[:, 30].add(0.2)}),
    "outside the spectrum": ("training", {"outside": lambda share: share + 0.1}),
    "never below the Bayes risk": ("population", {"task_losses": lambda losses: losses - 0.5}),
    "within the tables": ("population", {"reach": lambda reach: reach.at[:, 3].set(1.01)}),
    "which head takes which task": ("reduced", {"head": lambda head: head[..., ::-1]}),
    "other context lengths, training vs finite": ("training", {"tests": lambda tests: 1.3 * tests}),
    "other context lengths, training vs leading": ("training", {"tests": lambda tests: 2 * tests}),
}


@pytest.mark.parametrize(("words", "change"), BROKEN.items(), ids=BROKEN)
def test_a_broken_rung_fails_its_claim(experiment, words, change):
    rung, observables = change
    assert verdict(experiment, words).ok is True
    assert verdict(_changed(experiment, rung, **observables), words).ok is False


@pytest.mark.parametrize(
    ("rung", "words"),
    [("training", "times, training vs finite"), ("reduced", "times, training vs leading"), (TIGHTER, "solver's own error")],
)
def test_a_late_rung_fails(experiment, rung, words):
    late = jax.tree.map(lambda time: 1.6 * time, experiment.rungs[rung].phases)
    rungs = experiment.rungs | {rung: eqx.tree_at(lambda t: t.phases, experiment.rungs[rung], late)}
    assert verdict(replace(experiment, rungs=rungs), words).ok is False


def test_wrong_equations_fail_the_identity_the_limit_and_the_phases(experiment, monkeypatch):
    right, slower = _leading.pull, lambda rates: jax.tree.map(lambda rate: 0.5 * rate, rates)
    warm, emergence = _leading.warm_up_field, _leading.emergence_field
    monkeypatch.setattr(_leading, "pull", lambda spectrum, tasks: right(spectrum, tasks)._replace(mu=0.9 * right(spectrum, tasks).mu))
    monkeypatch.setattr(_leading, "warm_up_field", lambda logs, tasks: slower(warm(logs, tasks)))
    monkeypatch.setattr(_leading, "emergence_field", lambda logs, tasks: slower(emergence(logs, tasks)))
    monkeypatch.setattr(_optimal, "one_head", lambda tasks, member: _optimal.Limit(*(1.001 * part for part in _optimal.limit(tasks))))
    jax.clear_caches()
    for words in ("pull on mu", "warm-up equations", "emergence equations in mu and omega", "limit: omega", "linear rate"):
        assert verdict(experiment, words).ok is False, words
    monkeypatch.undo()
    jax.clear_caches()


def test_descent_lags_behind_the_flow_by_a_first_order_in_the_learning_rate(experiment):
    shifts = []
    for rate in (0.16, 0.08):
        training = replace(SPECTRAL.training, contexts=512, learning_rate=rate, test_contexts=10)
        found = simulate.train(replace(SPECTRAL, horizon=6.4, points=5, training=training))
        shifts.append(float(found.phases["half 2"][0] / experiment.rungs["population"].phases["half 2"][0] - 1))
    assert shifts[0] > 0.01
    assert 0.3 < shifts[1] / shifts[0] < 0.7  # 1/2, and gradient noise


def test_raw_data_disagree_with_a_wrong_limit(experiment, monkeypatch):
    off = lambda problem, limit: spectral_trials.FullAttention.from_weights(_scaled(problem, limit), "float64")
    monkeypatch.setattr(spectral_trials, "clean_model", off)
    assert verdict(experiment, "clean model").ok is False


def _scaled(problem, limit):
    from spectral_ode import weights

    v, k = jnp.diag(jnp.sqrt(1.3 * limit.mu)), jnp.diag(jnp.sqrt(limit.omega * jnp.sqrt(11.0)))
    return weights.decomposable((v, v, k, k), problem.task.dimensions, 11)


def test_a_flow_that_does_not_escape_or_does_not_conserve_fails(escaped):
    assert verdict(_changed(escaped, "training", loss=lambda loss: loss + 0.5), "one head per task is left").ok is False
    drifted = _changed(escaped, "population", balances=lambda balances: balances.at[:, -1].multiply(1.001))
    assert verdict(drifted, "o^2 - v^2").ok is False


def test_the_hessian_at_the_limit_has_the_rate_of_escape_as_its_negative_direction():
    problem = SPECTRAL
    tasks = systems.load(problem.system).from_problem(problem).order.tasks
    limit = _optimal.limit(tasks)
    place = jnp.eye(2)
    spectrum = _leading.Spectrum(place * limit.mu[None], place * limit.omega[None])
    factors = _leading.balanced(spectrum, tasks)
    flat, unravel = jax.flatten_util.ravel_pytree(factors)
    values = np.linalg.eigvalsh(jax.hessian(lambda x: _leading.loss(unravel(x).spectrum(tasks), tasks))(flat))
    negative = np.sort(values[values < -1e-9])
    # o v of head 2 for task 1 and of head 1 for task 2: each a saddle with eigenvalues +-rate.
    np.testing.assert_allclose(negative, np.sort(-np.asarray(_optimal.escape_rate(tasks))), rtol=1e-9)


def test_a_short_horizon_skips_what_it_cannot_show():
    short = perform(replace(SPECTRAL, horizon=0.7))
    verdicts = check(short)
    skipped = {verdict.note for verdict in verdicts if verdict.ok is None}
    assert {"nothing was learned within the horizon", "no drop within the horizon"} <= skipped
    assert not [verdict.claim for verdict in verdicts if verdict.ok is False]
