"""The judgement of a replay: the same run, not the same run, or no verdict because rounding decides; never a NaN in its report."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from close import assert_close

from simulate.recording import Recording
from validate.replay import distance, judge

EPOCHS = 100
SMOOTH = np.exp(-np.linspace(0, 3, EPOCHS))
LATE = np.where(np.arange(EPOCHS) >= 60, 1.0, 0.0)  # what happens from epoch 60 on


def _recording(training, **tests) -> Recording:
    return Recording("hand-made", "merged", False, False, 0.1, 1, 1, {"training": training} | tests, {}, {})


def _judge(recorded, replayed, nudged=None, bound=1e-4):
    """Nobody replays again unless `nudged` says what comes out."""
    again = (lambda: pytest.fail("replayed again without need")) if nudged is None else (lambda: {"training": nudged})
    judgement = judge(_recording(recorded), {"training": replayed}, bound, again)
    text = json.dumps(asdict(judgement), allow_nan=False)  # raises on NaN and Infinity
    assert json.loads(text)["sentence"]
    return judgement


def test_curves_within_the_bound_are_the_same_run_and_nobody_replays_again():
    found = _judge(SMOOTH, SMOOTH + 9e-5 * LATE)
    assert (found.ok, found.nudged, found.epoch) == (True, None, 60)
    assert_close(found.difference, 9e-5)
    assert "the same run" in found.sentence


def test_curves_apart_where_rounding_moves_nothing_are_not_the_same_run():
    found = _judge(SMOOTH, SMOOTH + 1.1e-4 * LATE, SMOOTH + 1.1e-4 * LATE + 1e-8)
    assert found.ok is False
    assert "not the same run" in found.sentence
    assert found.nudged == pytest.approx(1e-8)


def test_rounding_that_moves_the_run_as_much_as_the_difference_leaves_no_verdict():
    wild = SMOOTH + 0.3 * LATE
    found = _judge(SMOOTH, wild, SMOOTH - 0.2 * LATE)
    assert found.ok is None
    assert "edge of stability" in found.sentence
    assert "before epoch 60" in found.sentence


@pytest.mark.parametrize(("moved", "ok"), [(0.9e-2, False), (1.1e-2, None)])
def test_rounding_must_move_the_run_by_a_hundredth_of_the_difference(moved, ok):
    assert _judge(SMOOTH, SMOOTH + LATE, SMOOTH + LATE + moved * LATE).ok is ok


def test_a_difference_before_rounding_acts_is_not_excused_by_it():
    early = 0.01 * (np.arange(EPOCHS) >= 20)
    found = _judge(SMOOTH, SMOOTH + early + 0.3 * LATE, SMOOTH + early - 0.3 * LATE)
    assert found.ok is False
    assert "(before epoch 60: 1.0e-02)" in found.sentence


def test_the_worst_of_all_curves_counts():
    curves = {"training": SMOOTH, "in-weight": SMOOTH, "in-context": SMOOTH + LATE * np.linspace(0, 0.02, EPOCHS)}
    found = judge(_recording(SMOOTH, **{"in-weight": SMOOTH, "in-context": SMOOTH}), curves, 1e-4, lambda: curves)
    assert (found.ok, found.epoch, found.difference) == (False, 99, pytest.approx(0.02))


GONE = np.where(LATE > 0, np.nan, SMOOTH)
SOONER = np.where(np.arange(EPOCHS) >= 50, np.nan, SMOOTH)
BLOWN = np.where(LATE > 0, np.inf, SMOOTH)


def test_runs_that_cease_to_be_numbers_at_the_same_epoch_are_the_same_run():
    for one in (GONE, BLOWN):
        for two in (GONE, BLOWN):
            assert _judge(one, two).ok is True


def test_one_side_alone_ceasing_to_be_a_number_is_a_difference_without_a_number():
    for recorded, replayed in ((GONE, SMOOTH), (SMOOTH, GONE), (SOONER, BLOWN)):
        found = _judge(recorded, replayed, replayed)
        assert (found.ok, found.difference) == (False, None)
        assert "largest difference inf" in found.sentence


def test_divergence_moved_by_rounding_leaves_no_verdict():
    found = _judge(SOONER, GONE, SOONER)
    assert (found.ok, found.difference, found.nudged, found.epoch) == (None, None, None, 50)


def test_divergence_before_rounding_acts_is_not_excused():
    assert _judge(SOONER, SMOOTH, GONE).ok is False


def test_distance_is_zero_where_neither_is_a_number_and_infinite_where_one_is_not():
    one, two = np.array([1.0, np.nan, np.nan, np.inf, 2.0]), np.array([1.5, np.nan, 1.0, np.inf, np.inf])
    assert_close(distance({"training": one}, {"training": two}), [0.5, 0, np.inf, 0, np.inf])
