"""A problem that exists is valid, and its clock starts at zero and ends at the horizon."""

import math
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from spectral_ode.problem import BadInput, Problem, Regression, Seed, SeparateHeads, Solver, Start, Training

NAN, INF = math.nan, math.inf


def changed(section=Problem, **values):
    """A maker of one section, so that what it raises is raised inside the test."""
    return lambda: section(**values)


NOT_POSITIVE = {"zero": 0.0, "negative": -0.5, "nan": NAN, "inf": INF, "minus-inf": -INF}
BAD = {
    **{f"eigenvalue-{word}": ("task.spectrum", changed(Regression, spectrum=(0.4, bad, 0.1))) for word, bad in NOT_POSITIVE.items()},
    **{f"start-scale-{word}": ("start.scale", changed(Start, scale=bad)) for word, bad in NOT_POSITIVE.items()},
    **{f"learning-rate-{word}": ("training.learning_rate", changed(Training, learning_rate=bad)) for word, bad in NOT_POSITIVE.items()},
    **{f"horizon-{word}": ("horizon", changed(horizon=bad)) for word, bad in NOT_POSITIVE.items()},
    **{f"atol-{word}": ("solver.atol", changed(Solver, atol=bad)) for word, bad in NOT_POSITIVE.items()},
    **{f"noise-{bad}": ("task.noise", changed(Regression, noise=bad)) for bad in (-0.1, NAN, INF)},
    **{f"rtol-{bad}": ("solver.rtol", changed(Solver, rtol=bad)) for bad in (0.0, -1e-8, 9e-14, 0.02, NAN, INF)},
    **{
        f"seed-{name}-{bad}": (f"seed.{name}", changed(Seed, **{name: bad}))
        for name in ("start", "task", "data", "noise")
        for bad in (-1, 2**31)
    },
    "eigenvalue-huge": ("task.spectrum", changed(Regression, spectrum=(1e300, 1.0))),
    "eigenvalue-tiny": ("task.spectrum", changed(Regression, spectrum=(1e-300,))),
    "variance-huge": ("task.prior", changed(Regression, prior=(1e7,))),
    "start-scale-huge": ("start.scale", changed(Start, scale=1e4)),
    "start-scale-tiny": ("start.scale", changed(Start, scale=1e-13)),
    "spectrum-empty": ("task.spectrum", changed(Regression, spectrum=())),
    "context-0": ("task.context", changed(Regression, context=0)),
    "rotation-negative": ("task.rotation", changed(Regression, rotation=-1)),
    "heads-0": ("attention.heads", changed(SeparateHeads, heads=0)),
    "heads-negative": ("attention.heads", changed(SeparateHeads, heads=-4)),
    "rank-0": ("attention.rank", changed(SeparateHeads, rank=0)),
    "rank-above-dimension": ("attention.rank", changed(attention=SeparateHeads(rank=5))),
    "rank-above-short-spectrum": ("attention.rank", changed(task=Regression(spectrum=(1.0,)), attention=SeparateHeads(rank=2))),
    "sequences-0": ("training.sequences", changed(Training, sequences=0)),
    "max-steps-0": ("solver.max_steps", changed(Solver, max_steps=0)),
    "points-1": ("points", changed(points=1)),
    "runs-0": ("runs", changed(runs=0)),
    "atol-too-coarse": ("solver.atol", changed(solver=Solver(atol=1.01e-4), start=Start(scale=0.01))),
    "start-too-small-for-atol": ("start.scale", changed(solver=Solver(atol=1e-8), start=Start(scale=1e-7))),
    "horizon-below-one-step": ("horizon", changed(horizon=0.19, training=Training(learning_rate=0.2))),
    "too-many-steps": ("horizon", changed(horizon=1e9, training=Training(learning_rate=0.5))),
    "fresh-moments": ("training.method", changed(Training, data="fresh", method="moments")),
    "fresh-even": ("training.sampling", changed(Training, data="fresh", sampling="even")),
}
GOOD = {
    "one-eigenvalue": changed(task=Regression(spectrum=(1e-3,)), attention=SeparateHeads(heads=1, rank=1)),
    "rank-full": changed(attention=SeparateHeads(rank=4)),
    "context-1": changed(task=Regression(context=1, noise=0.0)),
    "one-step": changed(horizon=0.2, points=2, training=Training(learning_rate=0.2)),
    "most-steps": changed(horizon=5e8, training=Training(learning_rate=0.5)),
    "coarsest-atol": changed(solver=Solver(atol=1e-4), start=Start(scale=0.01)),
    "coarsest-rtol": changed(solver=Solver(rtol=1e-2)),
    "finest-rtol": changed(solver=Solver(rtol=1e-13)),
    "largest-seed": changed(seed=Seed(start=2**31 - 1)),
    "fresh-gram": changed(training=Training(data="fresh", method="gram")),
    "fresh-iid": changed(training=Training(data="fresh", sampling="iid")),
    "fixed-moments-even": changed(training=Training(method="moments", sampling="even")),
}


@pytest.mark.parametrize(("name", "make"), BAD.values(), ids=BAD)
def test_a_bad_value_is_refused_in_one_sentence_that_names_the_field(name, make):
    with pytest.raises(BadInput) as caught:
        make()
    text = str(caught.value)
    assert name in text
    assert "\n" not in text
    assert "Traceback" not in text
    assert len(text) < 200
    assert not text.endswith((" ", ":", ","))


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD)
def test_the_last_allowed_value_is_accepted(make):
    assert isinstance(make(), Problem)


WORDS = {
    "spacing": "Problem(spacing='cubic')",
    "training.data": "Training(data='stale')",
    "training.sampling": "Training(sampling='odd')",
    "training.method": "Training(method='magic')",
    "training.dtype": "Training(dtype='float16')",
    "solver.name": "Solver(name='euler')",
}
TELL = """import sys
from spectral_ode.problem import *
for make in sys.argv[1:]:
    try:
        eval(make)
    except BadInput as error:
        print(error)
"""


def test_an_unknown_word_is_refused_with_the_allowed_ones_also_without_a_type_checker():
    root = Path(__file__).resolve().parent.parent  # a process of its own: the tests' type checker would complain first
    done = subprocess.run([sys.executable, "-c", TELL, *WORDS.values()], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    for name, line in zip(WORDS, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{name} is '")
        assert "but it must be one of" in line


def test_bad_input_is_a_value_error():
    assert issubclass(BadInput, ValueError)


def test_a_problem_cannot_be_changed_behind_its_checks():
    with pytest.raises(FrozenInstanceError):
        Problem().horizon = -1.0
    with pytest.raises(FrozenInstanceError):
        Problem().task.context = 0


@pytest.mark.parametrize("scale", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("rtol", [1e-10, 1e-4])
def test_atol_is_rtol_times_the_start_scale_unless_it_was_given(rtol, scale):
    assert Problem(solver=Solver(rtol=rtol), start=Start(scale=scale)).atol == rtol * scale
    assert Problem(solver=Solver(rtol=rtol, atol=1e-9), start=Start(scale=scale)).atol == 1e-9


@pytest.mark.parametrize("spacing", ["linear", "log"])
@pytest.mark.parametrize("points", [3, 10, 800])
@pytest.mark.parametrize(("horizon", "eta"), [(60_000.0, 0.2), (0.2, 0.2), (1.0, 0.3), (7.7, 0.1), (1e9, 1.0), (123.4, 0.05)])
def test_the_clock_starts_at_zero_increases_and_ends_at_the_horizon(spacing, points, horizon, eta):
    problem = Problem(horizon=horizon, points=points, spacing=spacing, training=Training(learning_rate=eta))
    steps = problem.steps
    assert np.issubdtype(steps.dtype, np.integer)
    assert steps[0] == 0
    assert np.all(np.diff(steps) > 0)
    assert steps[-1] == round(horizon / eta)
    assert 2 <= len(steps) <= points
    np.testing.assert_array_equal(problem.times, eta * steps)
    assert abs(problem.times[-1] - horizon) <= eta / 2 * (1 + 1e-12)


@pytest.mark.parametrize("spacing", ["linear", "log"])
def test_two_points_are_the_start_and_the_end(spacing):
    np.testing.assert_array_equal(Problem(points=2, spacing=spacing).steps, [0, 300_000])


def test_every_point_is_kept_when_there_are_steps_enough():
    assert len(Problem(points=800).steps) == 800


def test_linear_spacing_is_even_and_log_spacing_grows_by_a_constant_factor():
    linear, log = Problem(points=101).steps, Problem(points=101, spacing="log").steps
    assert np.ptp(np.diff(linear)) <= 1
    late = log[log > 1000]
    np.testing.assert_allclose(late[1:] / late[:-1], (300_000 / 1) ** (1 / 99), rtol=2e-3)  # steps are whole numbers
