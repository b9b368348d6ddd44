"""The numbers that bounds are held against, each on an experiment made by hand in which the right number is known."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from small import SMALL, of_system

from spectral_ode import Problem, Trajectory, systems
from spectral_ode.claims import Agrees, Drops
from spectral_ode.problem import MergedHeads, Regression, SeparateHeads
from spectral_ode.systems.linear import Merged, Separate
from validate import metrics
from validate.check import _drops
from validate.experiment import Experiment
from validate.metrics import Unmet, count_drops
from validate.sparse import SPARSE
from validate.spectral import SPECTRAL
from validate.spectral_trials import SPECTRAL_TRIALS
from validate.trials import TRIALS

TIME = np.linspace(0, 100, 1001)


def _staircase(heights, at, *, time=TIME, width=0.5) -> np.ndarray:
    """A loss that falls by each height around each time."""
    return sum(heights) - sum(height / (1 + np.exp(-(time - when) / width)) for height, when in zip(heights, at, strict=True))


@pytest.mark.parametrize(
    ("heights", "at"),
    [([1.0], [50]), ([0.5, 0.5], [20, 60]), ([0.7, 0.3], [20, 26]), ([0.4, 0.3, 0.2, 0.1], [10, 25, 45, 80])],
    ids=["one", "two", "two close by", "four"],
)
def test_drops_of_a_staircase_are_counted(heights, at):
    assert count_drops(TIME, 0.1 + _staircase(heights, at)) == len(heights)


def test_drops_are_counted_the_same_whatever_the_units_of_loss_and_time():
    loss = _staircase([0.4, 0.6], [30, 60])
    assert count_drops(1e4 * TIME, 1e-3 * loss + 7) == 2


def test_rounding_is_not_a_drop():
    noise = 1e-5 * np.random.default_rng(0).normal(size=TIME.size)
    assert count_drops(TIME, _staircase([0.5, 0.3], [30, 70]) + noise) == 2


def test_a_slow_tail_and_a_slow_foot_are_no_drops():
    tail = 0.2 * np.exp(-np.maximum(TIME - 30, 0) / 30)
    assert count_drops(TIME, _staircase([0.8], [30]) + tail) == 1
    assert count_drops(TIME, 1 + 0.1 * (1 - TIME / 100) + _staircase([0.8], [70])) == 1


@pytest.mark.parametrize(("apart", "drops"), [(1.5, 1), (2.2, 1), (3.8, 2)])
def test_two_drops_that_do_not_pause_between_them_are_one(apart, drops):
    # Half-way between them the loss falls at 0.98, 0.69 and 0.17 of the speed in their middles.
    assert count_drops(TIME, _staircase([0.5, 0.5], [50, 50 + apart])) == drops


def test_a_burst_worth_less_than_three_per_cent_is_no_drop():
    assert count_drops(TIME, _staircase([0.98, 0.02], [30, 70])) == 1
    assert count_drops(TIME, _staircase([0.95, 0.05], [30, 70])) == 2


def test_a_flat_and_a_rising_loss_have_no_drop():
    assert count_drops(TIME, np.ones(TIME.size)) == 0
    assert count_drops(TIME, 1 + TIME) == 0


def test_a_plateau_between_uneven_records_is_seen():
    time = np.concatenate([[0.0], np.geomspace(0.01, 1000, 800)])
    assert count_drops(time, _staircase([0.5, 0.5], [5, 300], time=time, width=1.0)) == 2


PROBLEM = Problem(task=Regression(spectrum=(0.6, 0.3, 0.2, 0.1), context=15), attention=SeparateHeads(heads=4))


def _rung(observables: dict | None = None, phases: dict | None = None, *, runs: int = 1, points: int = 11) -> Trajectory:
    """Runs x points with these observables; phases are lists over runs."""
    time = np.broadcast_to(np.linspace(0, 100, points), (runs, points))
    arrays = lambda table: {name: jnp.asarray(value, float) for name, value in (table or {}).items()}
    return Trajectory(jnp.asarray(time), arrays(observables), arrays(phases))


def _experiment(problem=PROBLEM, *, forecast=None, system=None, **rungs) -> Experiment:
    system = system or Separate.from_problem(problem)
    return Experiment(problem, system, rungs, {name: np.asarray(value) for name, value in (forecast or {}).items()})


def _halves(*times) -> dict:
    return {f"half {d + 1}": when for d, when in enumerate(times)}


def test_drop_counts_beyond_the_claim_are_the_distance_from_it():
    runs = [_staircase(heights, at) for heights, at in (([1.0], [50]), ([0.5, 0.5], [20, 60]), ([0.4, 0.3, 0.3], [20, 50, 80]))]
    experiment = _experiment(training=_rung({"loss": runs}, runs=3, points=TIME.size))

    def claim(least, most):
        return Drops(name="", place="", exactness="", bound=0.0, reason="", rung="training", least=least, most=most)

    assert _drops(claim(2, 4), experiment) == (0.0, "1, 2, 3 drops in the runs, 2 to 4 wanted")  # the median run has two
    assert _drops(claim(1, 1), experiment)[0] == 1.0
    assert _drops(claim(4, 4), experiment) == (2.0, "1, 2, 3 drops in the runs, 4 wanted")
    with pytest.raises(Unmet, match="no drop"):
        _drops(claim(1, 1), _experiment(training=_rung({"loss": np.ones((1, 11))})))


def test_half_drop_times_are_the_median_shift_of_the_worst_drop():
    one = _rung(phases=_halves([10.1, 10.2, 10.9], [40, 40, 42]), runs=3)
    two = _rung(phases=_halves([10, 10, 10], [40, 40, 40]), runs=3)
    measured, note = metrics.half_drop_times(_experiment(training=one, population=two), "training", "population")
    assert measured == pytest.approx(0.02)
    assert note == "training late by +2 %, +0 % at drop 1, 2"
    never = _rung(phases=_halves([np.nan], [np.nan]))
    with pytest.raises(Unmet, match="no drop within the horizon"):
        metrics.half_drop_times(_experiment(training=never, population=never), "training", "population")


def test_forecast_times_are_compared_with_the_half_drops_of_the_rung():
    rung = _rung(phases=_halves([20, 40, 80], [50, 50, 50]), runs=3)
    exact = {"half": [[20, 50], [40, 50], [80, 50]]}
    assert metrics.forecast_times(_experiment(forecast=exact, population=rung), "forecast", "population")[0] == 0
    late = {"half": [[21, 55], [44, 50.5], [80, 52]]}  # 5, 10, 0 %; then 10, 1, 4 %
    assert metrics.forecast_times(_experiment(forecast=late, population=rung), "forecast", "population")[0] == pytest.approx(0.05)
    never = _rung(phases=_halves([np.nan] * 3, [np.nan] * 3), runs=3)
    with pytest.raises(Unmet, match="no drop"):
        metrics.forecast_times(_experiment(forecast=exact, population=never), "forecast", "population")


def test_dwell_is_the_time_between_multiples_of_the_rank_over_its_even_share():
    ranked = replace(PROBLEM, attention=SeparateHeads(heads=2, rank=2))
    # Stays at plateaus 1, 2, 3: only the second is a multiple of two.
    alike = _rung(phases=_halves([10], [20], [30], [40]))
    assert metrics.dwell(_experiment(ranked, population=alike), "population", "population")[0] == pytest.approx(1)
    pairs = _rung(phases=_halves([10, 10], [11, 12], [49, 48], [50, 50]), runs=2)
    measured, note = metrics.dwell(_experiment(ranked, population=pairs), "population", "population")
    assert measured == pytest.approx(np.median([2 / 40, 4 / 40]) / (2 / 3))
    assert note == "7.5 % of the time between multiples, 2 runs"
    # Drops need not come in order, and a run that shows one plateau only is left out.
    shuffled = _rung(phases=_halves([11, 10], [10, np.nan], [50, np.nan], [49, np.nan]), runs=2)
    measured, note = metrics.dwell(_experiment(ranked, population=shuffled), "population", "population")
    assert measured == pytest.approx(2 / 40 / (2 / 3))
    assert note.endswith("1 runs")
    with pytest.raises(Unmet, match="no two plateaus"):
        metrics.dwell(_experiment(population=alike), "population", "population")  # rank one: every plateau is a multiple


def _heads(value, head, *, learned=1.0) -> Trajectory:
    """Four heads of rank one whose keys and queries are as large as their values, at the end of a run."""
    value = np.asarray(value, float)
    runs, count = value.shape
    over = lambda part: np.repeat(np.asarray(part, float)[:, None], 11, axis=1)
    key = np.zeros((runs, count, 1, 2))
    key[..., 0, 0] = value
    shares = np.full((runs, 2), learned)
    return _rung({"value": over(value), "key": over(key), "query": over(key), "head": over(head), "learned": over(shares)}, runs=runs)


def test_surplus_is_the_share_of_squared_weights_in_heads_without_a_direction():
    two = replace(PROBLEM, task=Regression(spectrum=(0.6, 0.3), context=15))
    rung = _heads([[1, 0, 1, 0], [1, 1, 2, 0], [1, 1, 0, 1]], [[0, 2], [0, 2], [1, 0]])
    measured, note = metrics.surplus(_experiment(two, population=rung), "population", "population")
    assert measured == pytest.approx(1 / 6)  # 0, 1/6 and 1/3 in the three runs
    assert note == "2 surplus heads"
    with pytest.raises(Unmet, match="not every direction"):
        metrics.surplus(_experiment(two, population=_heads([[1, 0, 1, 0]], [[0, 2]], learned=0.4)), "population", "population")


def test_tests_are_compared_by_the_median_gap_over_their_course_in_units_of_their_start():
    flow = np.ones((1, 11, 2)) * np.array([2.0, 4.0])
    training = flow + np.array([0.02, 0.2])  # 1 % in-weight, 5 % in-context
    training[0, 3] += 100.0  # one wild moment does not count
    measured, note = metrics.tests(_experiment(training=_rung({"tests": training}), reduced=_rung({"tests": flow})), "training", "reduced")
    assert measured == pytest.approx(0.05)
    assert note == "in-weight 0.01, in-context 0.05"
    longer = _rung({"tests": np.concatenate([flow, flow[:, :4]], axis=1)}, points=15)
    assert metrics.tests(_experiment(training=_rung({"tests": flow}), reduced=longer), "training", "reduced")[0] == 0


def test_transience_is_how_far_the_in_weight_test_dips_below_its_end_in_the_worse_rung():
    course = lambda low, end: np.stack([np.interp(np.arange(11), [0, 5, 10], [1.0, low, end]), np.linspace(1, 0, 11)], axis=1)[None]
    rungs = {"training": _rung({"tests": course(0.2, 0.8)}), "reduced": _rung({"tests": course(0.3, 0.9)})}
    measured, note = metrics.transience(_experiment(**rungs), "training", "reduced")
    assert measured == pytest.approx(1 / 3)
    assert note == "0.25 in training, 0.33 in the flow"
    lasting = _rung({"tests": course(0.5, 0.2)})
    assert metrics.transience(_experiment(training=lasting, reduced=rungs["reduced"]), "training", "reduced")[0] == 1


def test_course_is_the_median_over_runs_of_the_largest_gap_of_sigma():
    merged = replace(PROBLEM, system="linear.merged", attention=MergedHeads(heads=2))
    exact = np.linspace(0, 1, 11) * np.ones((3, 1))
    apart = exact.copy()
    apart[:, 5] += [0.01, 0.02, 0.5]
    experiment = _experiment(
        merged, system=Merged.from_problem(merged), reduced=_rung({"sigma": apart}, runs=3), population=_rung({"sigma": exact}, runs=3)
    )
    measured, note = metrics.course(experiment, "reduced", "population")
    assert measured == pytest.approx(0.02)
    assert note == "worst run 5.0e-01"


def test_plateau_losses_are_read_at_the_flattest_point_between_settled_and_half():
    system = Separate.from_problem(PROBLEM)
    levels = [float(system.data.plateau_loss(m)) for m in range(5)]
    at = [10, 25, 50, 90]
    loss = levels[-1] + _staircase(-np.diff(levels), at)
    phases = _halves(*([when] for when in at)) | {f"settled {d + 1}": [when + 3] for d, when in enumerate(at)}
    measure = lambda loss: metrics.plateau_losses(
        _experiment(population=_rung({"loss": loss[None]}, phases, points=TIME.size)), "closed form", "population"
    )
    measured, note = measure(loss)
    assert measured < 1e-6
    assert note.startswith("at plateau 1, 2, 3: ")
    assert measure(1.01 * loss)[0] == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(Unmet, match="no plateau between two drops lasted"):
        metrics.plateau_losses(
            _experiment(population=_rung({"loss": loss[None]}, phases | {"settled 1": [99.9]}, points=TIME.size)),
            "closed form",
            "population",
        )


def test_a_plateau_that_two_drops_hardly_leave_room_for_is_not_asked():
    phases = _halves([10], [20], [26], [60]) | {f"settled {d + 1}": [when] for d, when in enumerate((12, 22, 28, 62))}
    rung = _rung({"loss": np.linspace(1, 0.1, TIME.size)[None]}, phases, points=TIME.size)
    assert metrics.plateau_losses(_experiment(population=rung), "closed form", "population")[1].startswith("at plateau 1, 3: ")


def test_outside_adds_what_lies_in_idle_blocks():
    rung = lambda learned: _rung({"learned": np.full((1, 11, 4), learned), "outside": np.full((1, 11), 0.1), "idle": np.full((1, 11), 0.2)})
    measured, note = metrics.outside(_experiment(training=rung(1.0)), "training", "reduced")
    assert measured == pytest.approx(0.2 + 0.8 * 0.1)
    assert "2.0e-01 in blocks" in note
    with pytest.raises(Unmet, match="nothing was learned"):
        metrics.outside(_experiment(training=rung(0.1)), "training", "reduced")


def test_heads_count_the_wrong_ones_among_the_learned():
    learned = np.repeat(np.array([[[1.0, 1.0, 1.0, 0.1]]]), 11, axis=1)
    rung = _rung({"learned": learned, "head": np.repeat(np.array([[[0, 1, 2, 3]]]), 11, axis=1)})
    measured, note = metrics.heads(_experiment(forecast={"head": [[0, 2, 2, 0]]}, population=rung), "forecast", "population")
    assert measured == pytest.approx(1 / 3)
    assert note == "2 of 3 right"


@pytest.mark.parametrize("name", systems.names())
def test_every_metric_that_a_claim_names_is_there(name):
    problem = of_system(name)
    if name == "linear.blocks":  # which claims more of sequences that share a task and of their tests
        problem = replace(problem, task=replace(SMALL.task, in_context=0.5), training=replace(SMALL.training, test_sequences=10))
    named = {claim.metric for claim in systems.load(name).from_problem(problem).claims(problem) if isinstance(claim, Agrees)}
    assert named
    assert named <= set(metrics.METRICS) | set(TRIALS) | set(SPARSE) | set(SPECTRAL) | set(SPECTRAL_TRIALS)
