"""Claims as data and as verdicts: every system on every rung, and each check seen to fail when its object is broken."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from judged import verdict
from small import SMALL, of_system

from spectral_ode import systems
from spectral_ode.claims import Claim
from spectral_ode.problem import SeparateHeads, Solver
from spectral_ode.systems.linear import Separate, _escape
from validate import check, perform
from validate.experiment import TIGHTER, Experiment
from validate.metrics import drop_shift
from validate.report import summarize, table


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return perform(SMALL)


def _verdict(verdicts, words: str):
    (found,) = [verdict for verdict in verdicts if words in verdict.claim]
    return found


@pytest.mark.parametrize("name", systems.names())
def test_every_claim_says_where_it_stands_how_exact_it_is_and_why_its_bound(name):
    problem = of_system(name)
    claims = systems.load(name).from_problem(problem).claims(problem)
    assert claims
    assert len({claim.name for claim in claims}) == len(claims)
    for claim in claims:
        assert isinstance(claim, Claim)
        assert claim.place
        assert claim.reason
        assert claim.exactness.startswith(("exact", "asymptotic", "heuristic"))
        assert claim.bound >= 0


@pytest.mark.parametrize("entry", systems.entries(), ids=lambda entry: entry.name)
def test_every_system_has_a_line_and_a_paper(entry):
    assert entry.title
    assert entry.paper.startswith("arXiv:")


def test_every_claim_holds_on_the_small_problem(experiment):
    verdicts = check(experiment)  # the slower claims are measured by `python -m validate`, which CI runs, too
    assert [verdict.claim for verdict in verdicts if verdict.ok is not True] == []


def test_both_rungs_start_from_the_same_weights(experiment):
    first = {name: np.asarray(experiment.rungs[name]["value"])[0, 0] for name in ("population", "training")}
    np.testing.assert_array_equal(first["population"], first["training"])


def test_the_report_is_plain_and_the_table_has_every_claim(experiment):
    verdicts = check(experiment)
    report = summarize("small", experiment, verdicts) | {"folder": "nowhere"}
    text = table(report)
    assert f"{len(verdicts)} of {len(verdicts)} hold, 0 fail, 0 skipped" in text
    assert report["provenance"]["hash"]
    assert "\x1b" not in text
    assert "\x1b[32m" in table(report, color=True)


def _with(experiment: Experiment, **changes) -> Experiment:
    return replace(experiment, **changes)


def _shifted(trajectory, factor: float):
    """The same course, later by a factor."""
    return eqx.tree_at(lambda t: t.phases, trajectory, jax.tree.map(lambda time: time * factor, trajectory.phases))


@pytest.mark.parametrize(
    ("rung", "words"),
    [("reduced", "reduced ODE vs population"), ("training", "training vs population"), (TIGHTER, "the solver's own error")],
)
def test_a_late_rung_fails(experiment, rung, words):
    late = _with(experiment, rungs=experiment.rungs | {rung: _shifted(experiment.rungs[rung], 1.2)})
    assert verdict(late, words).ok is False


def test_a_wrong_head_fails(experiment):
    swapped = {"head": experiment.forecast["head"][:, ::-1], "half": experiment.forecast["half"]}
    strict = _with(experiment, forecast=swapped, problem=replace(experiment.problem, start=replace(experiment.problem.start, scale=0.01)))
    assert verdict(strict, "which head").ok is False


def test_a_wrong_coefficient_fails_closed_form_identity_plateau_and_limit(experiment):
    right = experiment.system
    wrong = eqx.tree_at(lambda system: system.data.reach, right, right.data.reach * jnp.asarray([1.0, 1.0, 1.01]))
    verdicts = check(_with(experiment, system=wrong))
    for words in ("closed form", "plateau losses", "last loss"):
        assert _verdict(verdicts, words).ok is False


def test_a_wrong_field_fails_the_identities(experiment):
    class Wrong(Separate):
        def weights_field(self, weights):
            right = Separate.weights_field(self, weights)
            return eqx.tree_at(lambda w: w.key, right, 1.0001 * right.key)

        def scalar_field(self, v):
            return self.data.g * v**2 - self.data.lam * self.data.C * v**4.999

    right = experiment.system
    verdicts = check(_with(experiment, system=Wrong(right.data)))
    assert _verdict(verdicts, "field of the weights").ok is False
    assert _verdict(verdicts, "scalar ODE =").ok is False


def test_drift_of_a_conserved_quantity_fails(experiment):
    population = experiment.rungs["population"]
    value = population["value"].at[:, -1].multiply(1.001)
    drifted = eqx.tree_at(lambda t: t.observables["value"], population, value)
    assert verdict(_with(experiment, rungs=experiment.rungs | {"population": drifted}), "v^2 - |k|^2").ok is False


def test_weight_outside_the_ansatz_fails(experiment):
    training = experiment.rungs["training"]
    outside = eqx.tree_at(lambda t: t.observables["outside"], training, jnp.full_like(training["outside"], 0.5))
    assert verdict(_with(experiment, rungs=experiment.rungs | {"training": outside}), "weight outside").ok is False


def test_a_number_that_is_not_a_number_does_not_pass(experiment):
    training = experiment.rungs["training"]
    broken = eqx.tree_at(lambda t: t.observables["outside"], training, jnp.full_like(training["outside"], jnp.nan))
    assert verdict(_with(experiment, rungs=experiment.rungs | {"training": broken}), "weight outside").ok is False


def test_a_solve_that_stopped_early_fails_with_its_sentence():
    stopped = perform(replace(SMALL, horizon=500.0, points=50, solver=Solver(max_steps=30)))
    found = _verdict(check(stopped), "population: ran to its end")
    assert found.ok is False
    assert "after 30 steps" in found.note


def test_a_trajectory_that_never_left_its_start_is_not_asked_where_it_ended(experiment):
    population = experiment.rungs["population"]
    cut = eqx.tree_at(
        lambda t: (t.time, t.observables), population, jax.tree.map(lambda leaf: leaf[:, :1], (population.time, population.observables))
    )
    found = verdict(_with(experiment, rungs=experiment.rungs | {"population": cut}), "last loss")
    assert found.ok is None
    assert "ended at its start" in found.note


def test_higher_rank_skips_the_reduced_rung_and_says_why():
    ranked = perform(replace(SMALL, horizon=300.0, points=50, attention=SeparateHeads(heads=2, rank=2)))
    assert "reduced" not in ranked.rungs
    skipped = [verdict for verdict in check(ranked) if verdict.ok is None]
    assert any("rank 1" in verdict.note for verdict in skipped)
    assert all(verdict.note for verdict in skipped)


def test_equal_eigenvalues_skip_the_reduced_rung_and_a_short_horizon_skips_what_it_cannot_show():
    short = perform(replace(SMALL, horizon=30.0, points=20, task=replace(SMALL.task, spectrum=(0.4, 0.4))))
    skipped = {verdict.note for verdict in check(short) if verdict.ok is None}
    assert {"the scalar ODEs are for distinct eigenvalues", "no drop within the horizon"} <= skipped
    assert not [verdict for verdict in check(short) if verdict.ok is False]


def test_drop_shift_counts_a_drop_that_only_one_side_reached(experiment):
    training = experiment.rungs["training"]
    missing = eqx.tree_at(lambda t: t.phases["half 2"], training, jnp.full_like(training.phases["half 2"], jnp.nan))
    shift = drop_shift(missing, experiment.rungs["population"])
    assert shift[0, 1] == pytest.approx(SMALL.horizon / float(experiment.rungs["population"].phases["half 2"][0]) - 1)


def test_forecast_constants_are_not_at_the_edge_of_their_quadrature(monkeypatch):
    system = Separate.from_problem(SMALL)
    coarse = _escape.kick_integrals(system.data)
    monkeypatch.setattr(_escape, "KICK_STEPS", 4000)
    fine = _escape.kick_integrals(system.data)
    np.testing.assert_allclose(coarse, fine, rtol=1e-6)


def test_a_claim_that_breaks_fails_with_its_trouble_and_the_others_are_told(experiment, monkeypatch):
    def broken(self, weights):
        raise ValueError("there is no such law\nand more")

    monkeypatch.setattr(Separate, "scalar_field", broken)
    verdicts = check(experiment)
    (found,) = [verdict for verdict in verdicts if verdict.note.startswith("it could not be measured")]
    assert found.ok is False
    assert found.measured is None
    assert found.note == "it could not be measured: ValueError: there is no such law"
    assert sum(verdict.ok is True for verdict in verdicts) > 8
