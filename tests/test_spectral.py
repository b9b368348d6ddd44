"""The spectral systems of softmax attention: starts and views, both orders, phases, published numbers, bad input."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from small import SPECTRAL

from simulate import estimators
from simulate.episode_training import sampler
from simulate.full_attention import FullAttention
from spectral_ode import BadInput, document, draw, solve, systems
from spectral_ode.cli import main
from spectral_ode.problem import BalancedStart, DecomposableStart, FullHeads, MultiTask, Start
from spectral_ode.systems.softmax import Balanced, Emergence, Factored, Slaved, _leading, _orders, _view
from spectral_ode.systems.softmax._expectations import query_rule
from spectral_ode.systems.softmax._leading import Head, Spectrum

FIGURE_1, FIGURE_3 = document.load("three-phases"), document.load("emergence")


def _system(problem, name=None):
    return systems.load(name or problem.system).from_problem(problem)


def test_the_decomposable_start_is_that_of_the_authors_code():
    spectrum = _view.spectrum(draw(FIGURE_1), FIGURE_1.task.dimensions)
    s, L, e = 4.0, 100, 33
    assert_close(spectrum.omega, np.full((3, 3), s**2 * L**-1.5 / np.sqrt(e)))
    assert_close(spectrum.mu, s**2 * L**-1.5 * (1 + 3 * np.eye(3)))


def test_a_start_may_be_given_by_its_eigenvalues():
    start = _view.spectrum(draw(FIGURE_3), (10,))
    assert_close([start.omega[0, 0], start.mu[0, 0]], [0.01, 1.0])


def test_preferred_heads_spread_and_imbalance_do_what_they_say():
    start = DecomposableStart(scale=3.0, preferred=(2, 2), spread=0.3, imbalance=-0.02)
    problem = replace(SPECTRAL, system="softmax.factored", start=start)
    factors = _view.factors(draw(problem), (4, 5))
    assert_close(factors.balances()[0], np.full((2, 2), -0.02))
    assert_close(factors.balances()[1], np.zeros((2, 2)))
    even = _view.factors(draw(replace(problem, start=replace(start, imbalance=0.0))), (4, 5))
    assert_close(factors.o * factors.v, even.o * even.v)
    assert len(np.unique(np.round(factors.k, 9))) == 4
    plain = _view.spectrum(draw(replace(problem, start=DecomposableStart(scale=3.0, preferred=(2, 2)))), (4, 5))
    assert_close(plain.mu[1] / plain.mu[0], [4.0, 4.0])


def test_the_view_of_decomposable_weights_loses_nothing_and_of_random_ones_says_what_it_loses():
    weights = draw(replace(SPECTRAL, start=DecomposableStart(scale=3.0, spread=0.5, imbalance=0.1)))
    seen = _view.outside(weights, (4, 5))
    assert float(seen["outside"]) < 1e-14
    factors = _view.factors(weights, (4, 5))
    assert_close(factors.o, weights.output[:, [0, 1], [0, 1]])
    assert_close(factors.v, weights.value[:, [0, 1], [9, 10]])
    assert_close(factors.k, weights.key[:, [0, 4], [0, 4]])
    off = replace(SPECTRAL, system="softmax.factored", start=Start(scale=0.3), training=replace(SPECTRAL.training, estimator="sampled"))
    random = draw(off)
    lost = _view.outside(random, (4, 5))
    U, W = random.output_value, random.key_query
    assert_close(lost["zeros"][0] ** 2, jnp.sum(U[..., :9] ** 2))
    assert_close(lost["zeros"][2] ** 2, jnp.sum(W[:, 9:, :9] ** 2))
    total = jnp.sum(U**2) + jnp.sum(W[..., :9] ** 2)
    mu, omega = _view.spectrum(random, (4, 5))
    assert_close(lost["outside"], 1 - (jnp.sum(mu**2) + jnp.sum(omega**2 * jnp.asarray([[4.0, 5.0]]))) / total)
    assert 0.5 < float(lost["outside"]) < 1


def test_a_balanced_random_start_is_balanced_and_positive():
    weights = draw(replace(SPECTRAL, start=BalancedStart(scale=0.1)))
    assert_close(weights.key, weights.query)
    assert_close(weights.value[..., 9:], weights.output.mT)
    assert float(jnp.max(jnp.abs(weights.value[..., :9]))) == float(jnp.max(jnp.abs(weights.key[..., 9:]))) == 0.0
    factors = _view.factors(weights, (4, 5))
    assert_close(factors.balances()[0], np.zeros((2, 2)), atol=1e-15)
    assert all((np.asarray(part) > 0).all() for part in _view.spectrum(weights, (4, 5)))


def test_the_finite_flow_is_the_mean_gradient_of_the_full_network():
    problem = replace(SPECTRAL, system="softmax.factored", start=DecomposableStart(scale=4.0, spread=0.3, imbalance=0.1))
    flow, weights = _system(problem).population(), draw(problem)
    field = flow.vector_field(jnp.asarray(0.0), flow.project(weights))
    model = FullAttention.from_weights(weights, "float64")

    def gradient(step):
        _, slope = estimators.slope(model, sampler(problem), step, contexts=500, queries=8, estimator="integrated")
        block = jnp.asarray(np.repeat(np.eye(2), (4, 5), axis=0) / np.asarray([[4.0, 5.0]]))
        along = lambda part: jnp.diagonal(part[:, :9, :9], axis1=1, axis2=2) @ block
        return -slope.output[:, [0, 1], [0, 1]], -slope.value[:, [0, 1], [9, 10]], -along(slope.key), -along(slope.query)

    samples = jax.lax.map(gradient, jnp.arange(24))
    for theory, sample in zip(field, samples, strict=True):
        error = np.std(sample, axis=0) / np.sqrt(len(sample))
        assert np.max(np.abs(np.mean(sample, axis=0) - theory) / error) < 4.5  # sixteen numbers, 24 samples each
        assert np.max(error / np.max(np.abs(theory))) < 0.04


def test_balanced_and_factored_flows_are_one_flow_at_both_orders():
    times = np.linspace(0.0, 4.0, 9)
    for kind in (lambda system: system, lambda system: system.population()):
        logs, factors = (kind(_system(SPECTRAL, name)) for name in ("softmax.balanced", "softmax.factored"))
        one, two = (solve(system, system.project(draw(SPECTRAL)), times, rtol=1e-10, phases=False) for system in (logs, factors))
        for name in ("mu of heads", "omega of heads", "loss"):
            assert_close(one[name], two[name], rtol=1e-7)  # ten times the accumulated error of both solves


def test_leading_order_is_the_limit_of_the_finite_one():
    # At L = 10,000, d = 200 and the same weights, what is left is O(1/d) and O(1/L).
    order = _orders.finite(_leading.Tasks(d=[200, 200], S=[1, 1], sigma2=0.5, L=10_000, d_e=500), (200, 200))
    spectrum = Spectrum(jnp.asarray([[9.0, 0.3], [-0.2, 8.0]]), jnp.asarray([[0.05, 0.01], [0.02, 0.06]]))
    assert_close(order.losses(spectrum), _leading.losses(spectrum, order.tasks), rtol=0.02)


def test_the_finite_limit_is_where_its_flow_stands_still_and_below_every_neighbor():
    exact = _system(SPECTRAL).population()
    limit = exact.order.limit()
    state = Spectrum(*(jnp.log(jnp.where(jnp.eye(2) > 0, own[None], 1e-9)) for own in (limit.mu, limit.omega)))
    rate = exact.vector_field(jnp.asarray(0.0), state)
    assert np.max(np.abs(np.diagonal(np.stack(rate), axis1=1, axis2=2))) < 1e-6  # off-task omega at 1e-9 is felt
    at = lambda mu, omega: exact.order.losses(Spectrum(jnp.diag(limit.mu * mu), jnp.diag(limit.omega * omega)))
    for mu, omega in ((1.02, 1.0), (0.98, 1.0), (1.0, 1.02), (1.0, 0.98)):
        assert (np.asarray(at(mu, omega)) > np.asarray(limit.loss)).all()


@pytest.mark.parametrize(("exact", "half"), [(False, 18.03), (True, 18.26)])
def test_transition_of_figure_1_has_the_published_times(exact, half):
    system = _system(FIGURE_1).population() if exact else _system(FIGURE_1)
    found = solve(system, system.project(draw(FIGURE_1)), np.linspace(0, 19, 40), solver="tsit5", rtol=1e-7)
    assert_close([found.phases[f"half {i}"] for i in (1, 2, 3)], [half] * 3, rtol=0, atol=0.006)  # to the digits given


def test_emergence_of_figure_3_has_the_published_numbers_and_ends_at_its_limit():
    state, times = Head(jnp.log(jnp.ones(1)), jnp.log(jnp.asarray([0.01]))), np.linspace(0, 60, 6001)
    two, one = (_system(FIGURE_3, name) for name in ("softmax.emergence", "softmax.slaved"))
    found, alone = solve(two, state, times, rtol=1e-10), solve(one, state.omega, times, rtol=1e-10)
    assert_close(4 + found.phases["half 1"], 6.628, rtol=0, atol=6e-4)
    assert_close(4 + alone.phases["half 1"], 5.896, rtol=0, atol=6e-4)
    assert_close(np.max(found["mu"]), 4.217, rtol=0, atol=6e-4)
    assert_close([found["omega"][-1, 0], alone["omega"][-1, 0]], [10**-0.5] * 2, rtol=1e-8)


def test_a_head_alone_is_the_full_flow_of_one_task():
    problem = replace(FIGURE_3, system="softmax.emergence")
    full, own = _system(problem, "softmax.balanced"), _system(problem)
    weights, times = draw(problem), np.linspace(0, 5, 6)
    assert_close(
        solve(full, full.project(weights), times, phases=False)["omega"],
        solve(own, own.project(weights), times, phases=False)["omega"],
        rtol=1e-7,
    )


def test_many_tasks_have_a_rule_of_their_own_whose_moments_are_right():
    square, weight = query_rule((3, 5, 8, 10, 20, 4))
    assert square.shape[0] == weight.size <= 2048
    assert_close(weight @ square, [3, 5, 8, 10, 20, 4], rtol=2e-3)
    assert_close(weight @ square**2, [15, 35, 80, 120, 440, 24], rtol=1e-2)


def test_heads_may_be_fewer_or_more_than_tasks_and_tasks_may_prefer_one_head():
    fewer = replace(FIGURE_1, attention=FullHeads(heads=2), start=DecomposableStart(scale=4.0, preferred=(1, 2, 2)))
    surplus = replace(FIGURE_1, attention=FullHeads(heads=4))
    same = replace(FIGURE_1, start=DecomposableStart(scale=4.0, preferred=(1, 1, 2)))
    wanted = {"fewer": (fewer, 0.306, 20**-0.5), "surplus": (surplus, 0.2138, 10**-0.5), "same": (same, 0.306, 20**-0.5)}
    for problem, loss, omega in wanted.values():
        system = _system(problem)
        end = solve(system, system.project(draw(problem)), np.asarray([0.0, 2e4]), solver="kvaerno5", phases=False)
        assert_close(end["loss"][-1], loss, rtol=0, atol=1.5e-4)  # published to three or four digits
        assert_close(np.min(end["omega"][-1]), omega, rtol=1e-4)  # off-task omega fades like 1/t
        np.testing.assert_array_equal(end["head"][-1], system.forecast(draw(problem))["head"])


BAD = {
    "dimensions-do-not-add-up": (["--task.dimension", "31"], "task.dimension is 31, but task.dimensions add up to 30"),
    "no-task": (["--task.dimensions", ""], "task.dimensions is empty"),
    "no-head": (["--attention.heads", "0"], "attention.heads is 0"),
    "task-of-0": (["--task.dimensions", "10,0,20"], "task.dimensions is 0"),
    "negative-noise": (["--task.noise", "-1"], "task.noise is -1"),
    "one-token": (["--task.context", "1"], "task.context is 1"),
    "short-signal": (["--task.signal", "1,2"], "task.signal has 2 values"),
    "narrow-embedding": (["--attention.embedding", "8"], "attention.embedding is 8"),
    "no-such-head": (["--start.preferred", "1,2,9"], "start.preferred has head 9, but there are heads 1 to 3"),
    "odd-queries": (["--training.queries", "3"], "training.queries is 3"),
    "uneven-schedule": (["--training.rates", "0.1"], "training.changes and training.rates"),
    "labels-in-keys": (["--start.kind", "random", "--system", "softmax.factored"], "use --training.estimator controlled"),
    "random-to-balanced": (["--start.kind", "random", "--training.estimator", "sampled"], "use --system softmax.factored"),
    "imbalance": (["--start.imbalance", "0.1"], "start.imbalance is 0.1, but system softmax.balanced is for 0"),
    "linear-system": (["--system", "linear.separate"], "system linear.separate is for task.kind linear-regression"),
    "script-units": (["--units", "script"], "units is 'script'"),
    "too-few-heads": (["--system", "softmax.slaved", "--attention.heads", "2"], "there are 2 for 3 tasks"),
}


@pytest.mark.parametrize(("words", "part"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(words, part, capsys, tmp_path):
    assert main(["run", "three-phases", "--out", str(tmp_path), *words]) == 2
    told = capsys.readouterr().err
    assert part in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_systems_of_softmax_attention_refuse_sequences():
    with pytest.raises(BadInput, match=r"softmax.balanced is for task.kind multi-task"):
        Balanced.from_problem(document.override(document.load("one-drop"), {"system": "softmax.balanced"}))


def test_kinds_are_final_and_named():
    assert {f"softmax.{kind.__name__.lower()}" for kind in (Balanced, Factored, Emergence, Slaved)} <= set(systems.names())
    assert MultiTask().signals == (1.0, 1.0, 1.0)


def test_a_trial_step_that_overflows_is_rejected_and_does_not_stall_the_solver():
    system = _system(SPECTRAL)
    far = Spectrum(jnp.full((2, 2), 3.0), jnp.full((2, 2), 12.0))  # kappa ~ e^26
    assert all(np.isfinite(rate).all() for rate in system.vector_field(jnp.asarray(0.0), far))
    # From far above the limit omega must come down steeply, at a tolerance whose first steps are bold.
    bold = solve(
        system, Spectrum(jnp.full((2, 2), 1.0), jnp.full((2, 2), 0.5)), np.asarray([0.0, 50.0]), rtol=1e-4, max_steps=4000, phases=False
    )
    assert bold.ok
