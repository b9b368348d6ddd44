"""Training of all four matrices on fresh contexts: clock, schedule, ties, what stays zero, and the flow it follows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from close import assert_close
from small import SPECTRAL

import simulate
from simulate import estimators
from simulate.descent import scheduled
from simulate.episode_training import sampler, tie
from simulate.full_attention import FullAttention
from spectral_ode import draw, systems
from spectral_ode.problem import BalancedStart, Start

SHORT = replace(SPECTRAL, horizon=0.3, points=4, training=replace(SPECTRAL.training, contexts=16, test_contexts=50))


def _short(**training):
    return replace(SHORT, training=replace(SHORT.training, **training))


def test_training_starts_from_the_weights_of_the_theory_and_repeats_itself():
    one, two = simulate.train(SHORT), simulate.train(SHORT)
    system = systems.load(SHORT.system).from_problem(SHORT)
    seen = system.observe_weights(draw(SHORT))
    for name in ("mu of heads", "omega of heads", "outside"):
        assert_close(one[name][0, 0], seen[name])
        np.testing.assert_array_equal(one[name], two[name])
    assert_close(one["theory loss"][0, 0], seen["loss"])
    other = simulate.train(replace(SHORT, seed=replace(SHORT.seed, data=1)))
    assert not np.array_equal(one["mu of heads"][0, -1], other["mu of heads"][0, -1])


def test_runs_differ_in_their_data_and_each_is_the_run_of_its_seed():
    both = simulate.train(replace(SHORT, runs=2))
    second = simulate.train(replace(SHORT, seed=replace(SHORT.seed, start=1, task=1, data=1, noise=1)))
    assert_close(both["loss"][1], second["loss"][0], rtol=1e-12)
    assert not np.array_equal(both["loss"][0], both["loss"][1])


def test_a_learning_rate_schedule_is_kept_in_flow_time():
    problem = replace(_short(learning_rate=0.02, changes=(0.1, 0.2), rates=(0.01, 0.005)), points=40)
    assert problem.segments == ((0.02, 5), (0.01, 10), (0.005, 20))
    assert_close(problem.times[-1], 0.3)
    assert_close(problem.clock(np.asarray([5, 6, 15, 17])), [0.1, 0.11, 0.2, 0.21])
    optimizer = scheduled(problem.segments)
    state, rates = optimizer.init(jnp.zeros(1)), []
    for _ in range(35):
        update, state = optimizer.update(jnp.ones(1), state)
        rates.append(-float(update[0]))
    assert_close(rates, [0.02] * 5 + [0.01] * 10 + [0.005] * 20)
    found = simulate.train(problem)
    assert_close(found.time[0], problem.times)


def test_one_step_is_the_gradient_of_the_loss_summed_over_tasks():
    problem = replace(SHORT, horizon=0.01, points=2)
    model = FullAttention.from_weights(draw(problem), "float64")
    about = {"contexts": 16, "queries": 8, "estimator": "integrated"}
    _, gradient = estimators.slope(model, sampler(problem), 0, **about)
    stepped = jax.tree.map(lambda weight, slope: weight - 0.01 * slope, model, gradient)
    system = systems.load(problem.system).from_problem(problem)
    wanted = system.observe_weights(stepped.weights())
    found = simulate.train(problem)
    for name in ("mu of heads", "omega of heads", "spread", "zeros"):
        assert_close(found[name][0, 1], wanted[name], rtol=1e-9, atol=1e-14)


def test_what_the_theory_sets_to_zero_stays_exactly_zero_for_the_integrated_estimator_and_drifts_for_raw_data():
    integrated, sampled = (simulate.train(_short(estimator=name)) for name in ("integrated", "sampled"))
    zeros = np.asarray(integrated["zeros"])[0, -1]
    assert zeros[0] == zeros[2] == 0.0  # U_X and W_Y
    assert (np.asarray(sampled["zeros"])[0, -1] > 0).all()


def test_tied_partners_never_part_and_move_like_the_untied_ones_on_average():
    start = replace(SHORT, start=BalancedStart(scale=0.2), training=replace(SHORT.training, estimator="sampled"))
    model = FullAttention.from_weights(draw(start), "float64")
    _, gradient = estimators.slope(model, sampler(start), 0, contexts=16, queries=2, estimator="sampled")
    tied = tie(gradient)
    d = 9
    np.testing.assert_array_equal(tied.output, tied.value[..., d:].mT)
    np.testing.assert_array_equal(tied.key, tied.query)
    np.testing.assert_array_equal(tied.value[..., :d], gradient.value[..., :d])
    assert_close(tied.key, 0.5 * (gradient.key + gradient.query))
    assert not np.allclose(gradient.key, gradient.query)
    factored = replace(start, system="softmax.factored", attention=replace(start.attention, tied=True))
    assert float(jnp.max(jnp.abs(simulate.train(factored)["balances"]))) < 1e-15


def test_a_fully_random_start_trains_with_the_controlled_estimator():
    problem = replace(_short(estimator="controlled"), system="softmax.factored", start=Start(scale=0.2))
    found = simulate.train(problem)
    assert found.ok
    assert 0.5 < float(found["outside"][0, 0]) < 1


def test_a_float32_training_is_the_float64_one_up_to_rounding():
    wide, narrow = (simulate.train(_short(dtype=dtype)) for dtype in ("float64", "float32"))
    # The draws of the two types differ, the start and the law do not.
    assert_close(narrow["mu of heads"][0, 0], wide["mu of heads"][0, 0], rtol=1e-6)
    assert_close(narrow["mu of heads"][0, -1], wide["mu of heads"][0, -1], rtol=0.05)


def test_a_rate_that_diverges_ends_at_its_last_number_and_says_so():
    training = replace(SHORT.training, learning_rate=30.0)
    found = simulate.train(replace(SHORT, horizon=3000.0, points=50, training=training))
    assert not found.ok
    assert "try a smaller --training.learning-rate" in found.stopped
    assert all(np.isfinite(array).all() for array in found.observables.values())
