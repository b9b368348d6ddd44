"""The numbers behind the figures of softmax attention."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

import figures.__main__ as gallery
from figures import allocation, length_generalization, saddle_escape, softmax_regimes, superposition
from spectral_ode import document, systems
from spectral_ode.systems.softmax import _leading, _optimal
from spectral_ode.trajectory import Trajectory
from validate.experiment import Experiment

NAMES = ("chen2024_fig1", "chen2024_fig3", "chen2024_fig4", "chen2024_fig5", "softmax_accuracy", "saddle_escape", "superposition")


@pytest.mark.parametrize("name", [*NAMES, "allocation", "length_generalization", "softmax_regimes"])
def test_the_gallery_has_it(name):
    assert name in gallery.names()
    module = importlib.import_module(f"figures.{name}")
    assert len(module.CAPTION) > 100
    full, fast = module.SECONDS
    assert 0 < fast <= full
    assert list(module.problems(True)) == list(module.problems(False))


@pytest.fixture(scope="module")
def tasks():
    problem = document.load("superposition")
    return systems.load(problem.system).from_problem(problem).order.tasks


def test_the_hessian_at_the_limit_has_six_ways_out_and_the_rates_of_convergence(tasks):
    values = np.linalg.eigvalsh(saddle_escape.hessian(tasks))
    assert_close(values[:6], np.full(6, -float(_optimal.escape_rate(tasks)[0])), rtol=1e-9)
    assert (values[6:] > -1e-9).all()
    slow, fast = _leading.convergence_rates(tasks)
    for rate in (slow[0], fast[0]):
        assert np.sum(np.abs(values / float(rate) - 1) < 1e-9) == 3  # one for each task


def test_balance_keeps_the_limit_and_an_imbalance_leaves_it(tasks):
    problem = document.load("superposition")
    limit = float(jnp.sum(_optimal.limit(tasks).loss) / jnp.sum(tasks.S))
    assert float(saddle_escape.flow(problem, 0.0)["loss"][-1]) == pytest.approx(limit, rel=1e-3)  # off-task omega fades like 1/t
    assert float(saddle_escape.flow(problem, 1e-3)["loss"][-1]) < 0.7 * limit


def test_one_experiment_serves_both_figures_of_the_saddle():
    assert saddle_escape.problems(True) == superposition.problems(True)
    assert saddle_escape.problems(False) == superposition.problems(False)


def test_the_boundary_between_two_heads_is_where_they_would_emerge_together(tasks, monkeypatch):
    monkeypatch.setattr(allocation, "GRID", 9)
    _, found, ahead = allocation.plane(tasks, document.load("allocation").scale)
    assert_close(ahead, -ahead[::-1, ::-1], atol=1e-12)  # heads have no names
    sure = np.abs(ahead) > 0.1  # nearer to a tie the drag that the heads share matters
    assert sure.sum() > 60
    assert (found[sure] == (ahead[sure] > 0)).all()
    assert set(found.ravel()) == {0, 1}


def test_a_signed_pair_ends_in_a_step_of_gradient_descent_on_centered_data():
    """Exactly (d + 1)/(L + d) of the signal is missed, and d/(L + d) to leading order."""
    d, L = softmax_regimes.DIMENSION, 30
    assert_close(softmax_regimes.pair(jnp.asarray(1e-4), L), (d + 1) / (L + d), rtol=1e-4)  # and O(k)
    assert_close(_optimal.signed_pair(1e-4, softmax_regimes.task(d, L))[0], d / (L + d), rtol=1e-7)


def test_the_share_kept_by_monte_carlo(monkeypatch):
    monkeypatch.setattr(softmax_regimes, "CONTEXTS", 12)
    share, error = softmax_regimes.kept(10)
    head = _optimal.limit(softmax_regimes.task(10, softmax_regimes.TOKENS))
    expected = np.asarray([float(_optimal.hermite_transfer(k, head)[0]) for k in softmax_regimes.DEGREES])
    assert (np.abs(share - expected) < 4 * error).all()
    assert (error[:3] < 0.15 * expected[:3]).all()
    assert share[1] > 10 * error[1]


def test_losses_at_other_lengths_belong_to_their_lengths():
    """Lengths come in the order of the problem, with the training's first; the figure sorts them together with their losses."""
    problem = document.override(document.load("length-generalization"), {"task.tested": [100, 30], "task.context": 300})
    system = systems.load(problem.system).from_problem(problem)
    limit = _optimal.limit(system.order.tasks)
    seen = {"loss": jnp.asarray([[0.3]]), "tests": jnp.asarray([[[0.1, 0.03]]])}
    seen |= {"mu of heads": jnp.diag(limit.mu)[None, None], "omega of heads": jnp.diag(limit.omega)[None, None]}
    experiment = Experiment(problem, system, {"training": Trajectory(jnp.zeros((1, 1)), seen, {})}, {})
    lengths, losses, exact = length_generalization.measured(experiment)
    assert lengths.tolist() == [30, 100, 300]
    assert losses.tolist() == [0.03, 0.1, 0.3]
    leading = [float(_optimal.other_length(system.order.tasks, int(length))[0] / system.order.tasks.S[0]) for length in lengths]
    assert_close(exact, leading, rtol=0.25)  # what leading order neglects
    assert (np.diff(exact) < 0).all()
