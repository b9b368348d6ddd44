"""Claims of every system: well formed for each, and each seen to fail when what it checks is broken. `python -m validate` asks all."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from judged import verdict
from small import SMALL, of_system

from spectral_ode import systems
from spectral_ode.flow import PopulationFlow
from spectral_ode.problem import MergedHeads
from spectral_ode.systems.linear import Blocks, Merged, Separate
from spectral_ode.systems.linear.data import Statistics
from spectral_ode.systems.sparse import Gains
from spectral_ode.weights import GainWeights
from validate import perform, sampled, slopes, universal
from validate.courses import Course, Flow, apart
from validate.experiment import Experiment

GAINS = of_system("sparse.gains")
MERGED = of_system("linear.merged")


@pytest.fixture(autouse=True)
def _compiled_anew():
    """A program compiled before a method was replaced would not know of it."""
    jax.clear_caches()


@pytest.mark.parametrize("name", systems.names())
def test_claims_of_every_system_are_well_formed(name):
    problem = of_system(name)
    claims = universal.claims(Experiment(problem, systems.load(name).from_problem(problem), {}, {}))
    assert len({claim.name for claim in claims}) == len(claims)
    assert {claim.tier for claim in claims} == {"validate", "full"}
    for claim in claims:
        assert claim.place
        assert claim.reason
        assert claim.exactness.startswith(("exact", "asymptotic", "heuristic"))
        assert claim.bound > 0


@pytest.fixture(scope="module")
def gains() -> Experiment:
    return perform(GAINS, train=False)


def test_a_solver_deaf_to_its_tolerance_is_caught(gains, monkeypatch):
    usual = Flow.course
    monkeypatch.setattr(Flow, "course", lambda self, *, rtol=None, **rest: usual(self, rtol=1e-13 if rtol == 1e-13 else 1e-3, **rest))
    assert verdict(gains, "global error over rtol").ok is False


def test_a_first_record_that_is_not_the_start_is_caught(gains):
    rung = gains.rungs["reduced"]
    moved = eqx.tree_at(lambda rung: rung.observables["eta"], rung, rung["eta"].at[:, 0].add(1e-9))
    assert verdict(gains, "at time zero").ok is True
    assert verdict(replace(gains, rungs={"reduced": moved}), "at time zero").ok is False


def test_a_reduction_with_another_loss_is_caught(monkeypatch):
    usual = Merged.observe
    monkeypatch.setattr(Merged, "observe", lambda self, state: usual(self, state) | {"loss": 1.1 * usual(self, state)["loss"]})
    assert verdict(perform(MERGED, train=False), "starts at the loss").ok is False


@pytest.mark.parametrize("words", ["in two parts", "to one time"])
def test_a_solve_that_forgets_its_state_is_caught(gains, monkeypatch, words):
    usual = Flow.course

    def forgetful(self, **given):
        found = usual(self, **given)
        return found if "rtol" in given or not given else found._replace(state=found.state + 1e-6)

    monkeypatch.setattr(Flow, "course", forgetful)
    assert verdict(gains, words).ok is False


def test_a_flow_that_leaves_its_rest_is_caught(gains, monkeypatch):
    usual = Flow.course

    def restless(self, *, state=None, **rest) -> Course:
        found = usual(self, state=state, **rest)
        return found if state is None else found._replace(loss=found.loss + 0.1 * (found.time > 6 * self.time[-1]))

    assert verdict(gains, "at rest").ok is True
    monkeypatch.setattr(Flow, "course", restless)
    assert verdict(gains, "at rest").ok is False


def test_a_point_off_the_course_is_at_its_vertical_or_horizontal_distance():
    time = np.linspace(0.0, 4.0, 41)
    steep = Course(time, np.tanh(50 * (time - 2))[:, None], (50 / np.cosh(50 * (time - 2)) ** 2)[:, None], time)
    fine = np.linspace(0.0, 4.0, 4001)
    steep = Course(fine, np.tanh(50 * (fine - 2))[:, None], (50 / np.cosh(50 * (fine - 2)) ** 2)[:, None], fine)
    unit = np.ones(1)
    late = apart(steep, unit, np.asarray([2.0]), np.tanh(50 * np.asarray([[-2e-4]])))  # a shift of 1e-4 of the time, a gap of 1e-2
    assert 0.5e-4 < late < 1.1e-4
    assert apart(steep, unit, np.asarray([3.0]), np.asarray([[1.001]])) == pytest.approx(1e-3, rel=1e-6)
    assert apart(steep, unit, np.asarray([9.0]), np.asarray([[1.0]])) == np.inf


def test_heads_that_are_not_alike_are_caught(monkeypatch):
    usual = Gains.weights_field

    def partial(self, weights):
        rate = usual(self, weights)
        return GainWeights(rate.g.at[0].multiply(1.001), rate.eta)

    monkeypatch.setattr(Gains, "weights_field", partial)
    assert verdict(perform(GAINS, train=False), "renamed heads").ok is False


def test_a_direction_that_is_not_like_others_is_caught(monkeypatch):
    usual = Statistics.matrix
    monkeypatch.setattr(Statistics, "matrix", lambda self, values: usual(self, values) + 1e-5 * jnp.eye(values.size)[:, ::-1])
    assert verdict(perform(MERGED, train=False), "turned coordinates").ok is False


def test_a_number_with_a_unit_of_its_own_is_caught(monkeypatch):
    usual = Merged.weights_field
    monkeypatch.setattr(
        Merged, "weights_field", lambda self, weights: jax.tree.map(lambda rate, w: rate - 1e-5 * w, usual(self, weights), weights)
    )
    assert verdict(perform(MERGED, train=False), "another unit of time").ok is False


@pytest.mark.parametrize("heads", [MergedHeads(heads=2), SMALL.attention])
def test_a_flow_of_all_blocks_that_is_no_gradient_is_caught(heads, monkeypatch):
    problem = replace(of_system("linear.blocks"), attention=heads, task=replace(SMALL.task, in_context=0.5), horizon=200.0)
    assert verdict(perform(problem, train=False), "balances of all blocks").ok is True
    usual = Blocks.vector_field
    monkeypatch.setattr(
        Blocks, "vector_field", lambda self, t, state: eqx.tree_at(lambda r: r.row, usual(self, t, state), replace_fn=lambda r: 1.01 * r)
    )
    jax.clear_caches()
    assert verdict(perform(problem, train=False), "balances of all blocks").ok is False


def test_descent_that_does_not_approach_its_flow_is_caught(gains, monkeypatch):
    usual = slopes.solve_ivp

    def off(*given, **named):
        found = usual(*given, **named)
        if named["method"] == "DOP853":
            found.y[:, -1] += 1e-3
        return found

    assert verdict(gains, "first order in the learning rate").ok is True
    monkeypatch.setattr(slopes, "solve_ivp", off)
    assert verdict(gains, "first order in the learning rate").ok is False


def test_a_reduction_that_is_wrong_at_every_start_is_caught(monkeypatch):
    usual = Merged.project
    monkeypatch.setattr(Merged, "project", lambda self, weights: jax.tree.map(lambda leaf: 1.05 * leaf, usual(self, weights)))
    experiment = Experiment(MERGED, Merged.from_problem(MERGED), {}, {})
    assert verdict(experiment, "as the start vanishes").ok is False


@pytest.mark.parametrize("name", ["linear.merged", "linear.blocks", "sparse.gains"])
def test_a_loss_that_is_off_by_some_percent_is_caught_by_monte_carlo(name, monkeypatch):
    problem = of_system(name)
    experiment = Experiment(problem, systems.load(name).from_problem(problem), {}, {})
    assert verdict(experiment, "Monte Carlo").ok is True
    errors = sampled._errors
    monkeypatch.setattr(sampled, "_errors", lambda exact, draws: errors(1.3 * np.asarray(exact), draws))
    assert verdict(experiment, "Monte Carlo").ok is False


def test_a_flow_of_another_speed_than_training_is_caught(monkeypatch):
    usual = PopulationFlow.vector_field
    monkeypatch.setattr(PopulationFlow, "vector_field", lambda self, t, state: jax.tree.map(lambda rate: 1.3 * rate, usual(self, t, state)))
    experiment = Experiment(MERGED, Merged.from_problem(MERGED), {}, {})
    assert verdict(experiment, "real training steps").ok is False


def test_a_replay_that_differs_in_the_fifth_digit_is_caught(monkeypatch):
    experiment = Experiment(SMALL, Separate.from_problem(SMALL), {}, {})
    assert verdict(experiment, "recorded run").ok is True
    usual = sampled.replay
    monkeypatch.setattr(sampled, "replay", lambda run: {name: curve + 1e-5 for name, curve in usual(run).items()})
    assert verdict(experiment, "recorded run").ok is False
