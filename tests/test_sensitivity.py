"""Sensitivities: against differences for every system, against closed forms, and in one sentence where there is none."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from close import assert_close
from small import of_system

from spectral_ode import BadInput, cli, document, draw, sensitivity, solve_problem, systems, traced
from spectral_ode.rungs import made
from spectral_ode.systems.linear.separate import HALF

TO = {"linear": ("start.scale", "task.spectrum"), "softmax": ("start.scale", "task.signal", "task.noise"), "sparse": ("task.noise",)}


DISTINCT = {"task.spectrum": [1.0, 0.7], "start.scale": 0.01}  # equal eigenvalues have no derivatives of their own


def small(name: str):
    problem = of_system(name)
    problem = replace(problem, horizon=400.0, points=81) if name.startswith("linear.") else problem
    problem = document.override(problem, DISTINCT) if name == "linear.merged" else problem
    return replace(problem, solver=replace(problem.solver, rtol=1e-11))


def along(problem, names, direction, step):
    """The problem moved by a step along relative changes of its fields."""
    changes = {}
    for name, part in zip(names, direction, strict=True):
        value = np.asarray(traced.read(problem, name), float) * (1 + step * part)
        changes[name] = list(value) if value.ndim else float(value)
    return document.override(problem, changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear.separate", "linear.merged", "softmax.emergence", "sparse.depth"])  # each kind of task and of rung
def test_phases_and_losses_move_as_differences_say(name):
    problem, names = small(name), TO[name.split(".")[0]]
    phase = sensitivity(problem, of="half 1", to=names)
    moment = float(problem.times[np.searchsorted(problem.times, phase.value[0])])
    loss = sensitivity(problem, of="loss", to=names, at=(moment,))
    generator = np.random.default_rng(1)
    values = [np.asarray(traced.read(problem, one), float) for one in names]
    direction = [generator.uniform(0.5, 1.5, value.shape) for value in values]

    def seen(step):
        moved = along(problem, names, direction, step)
        course = solve_problem(*_reordered(made(moved, phase.rung), moved))
        return np.asarray([course.phases["half 1"], course["loss"][np.searchsorted(problem.times, moment)]])

    # Fourth order in the step, and the solver's 1e-11 divided by it. A loss in the middle of its drop bends within a thousandth.
    for found, h, quantity in ((phase, 2e-3, 0), (loss, 2e-5, 1)):
        differences = (8 * (seen(h) - seen(-h)) - (seen(2 * h) - seen(-2 * h))) / (12 * h)
        slope = sum(np.sum(found.derivative[one][0] * value * part) for one, value, part in zip(names, values, direction, strict=True))
        assert_close(slope, differences[quantity], rtol=1e-6)


def _reordered(system_and_state, problem):
    return system_and_state[0], problem, system_and_state[1]


def test_the_time_of_a_drop_is_that_of_the_closed_form():
    problem = replace(small("linear.separate"), horizon=2500.0)
    found = sensitivity(problem, of="half-2", to=("task.spectrum", "start.scale"), rung="reduced")
    weights = draw(problem)

    def time(spectrum):
        system = systems.load("linear.separate").from_problem(traced.insert(problem, {"task.spectrum": tuple(spectrum)}))
        return system.time_to(HALF ** (1 / 3) * system.limit, system.project(weights).v)[1]

    assert_close(found.derivative["task.spectrum"][0], jax.jacrev(time)(jax.numpy.asarray(problem.task.spectrum)), rtol=1e-7)

    def later(scale):
        system = systems.load("linear.separate").from_problem(problem)
        moved = jax.tree.map(lambda leaf: leaf * (scale / problem.start.scale), weights)
        return system.time_to(HALF ** (1 / 3) * system.limit, system.project(moved).v)[1]

    assert_close(found.derivative["start.scale"][0], jax.grad(later)(problem.start.scale), rtol=1e-7)  # the solver, and the drop


def test_all_weights_at_once_are_those_one_by_one():
    problem = small("linear.separate")
    found = sensitivity(problem, of="half 1", to=("weights", "start.scale"))
    slopes = found.derivative["weights"]
    weights = draw(problem)
    # The start is proportional to its scale: the chain rule ties the backward mode to the forward one.
    through = sum(
        np.sum(slope[0] * np.asarray(leaf)) for slope, leaf in zip(jax.tree.leaves(slopes), jax.tree.leaves(weights), strict=True)
    )
    assert_close(through / problem.start.scale, found.derivative["start.scale"][0], rtol=1e-6)


def test_an_observable_of_several_numbers_at_several_times():
    problem = small("linear.separate")
    found = sensitivity(problem, of="v", to=("task.spectrum", "start.scale"), at=(50.0, 100.0), rung="reduced")
    assert found.value.shape == (2, 2)
    assert found.derivative["task.spectrum"].shape == (2, 2, 2)
    rows = found.rows(problem)
    assert len(rows) == 12
    assert {row["of"] for row in rows} == {"v 1", "v 2"}
    assert all(np.isclose(row["elasticity"], row["derivative"] * row["setting"] / row["value"]) for row in rows)


def test_equal_eigenvalues_have_no_derivative():
    problem = of_system("linear.merged")
    for name in ("task.spectrum", "task.spectrum.2", "task.prior"):
        with pytest.raises(BadInput, match="make them distinct"):
            sensitivity(problem, of="half 1", to=name)


def test_times_beyond_the_end_are_refused():
    with pytest.raises(BadInput, match=r"--at is 5,1e\+09, but everything ends at 400; raise --horizon"):
        sensitivity(small("linear.separate"), of="loss", to="start.scale", at=(5.0, 1e9))
    with pytest.raises(BadInput, match="--at is given, but 'half 1' is a phase"):
        sensitivity(small("linear.separate"), of="half 1", to="start.scale", at=(5.0,))


@pytest.mark.parametrize(
    ("to", "of", "sentence"),
    [
        ("task.context", "half 1", "task.context is a whole number, which has no derivative"),
        ("task.kind", "half 1", "task.kind is a word, which has no derivative"),
        ("horizon", "half 1", "no flow depends on it"),
        ("start.scal", "half 1", "unknown key 'start.scal'"),
        ("start.scale", "half 9", "there is no quantity 'half 9'"),
        ("start.scale", "half 2", "so it has no derivative"),
    ],
)
def test_what_has_no_derivative_is_one_sentence(to, of, sentence):
    problem = replace(small("linear.separate"), horizon=200.0, points=41)
    with pytest.raises(BadInput) as error:
        sensitivity(problem, of=of, to=to)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_writes_a_table(tmp_path, capsys):
    words = ["sensitivity", "zhang2025-fig1", "--of", "half-1", "--to", "start.scale", "--rung", "reduced", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    assert "elasticity" in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"problem.toml", "derivatives.csv", "report.json"}
    assert cli.main([*words[:-4], "--to", "task.context", *words[-4:]]) == 2
