"""Sensitivities: against differences for every system, against closed forms, and in one sentence where there is none."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from close import assert_close
from small import SMALL, of_system

from spectral_ode import BadInput, cli, document, draw, sensitivity, solve_problem, systems, traced
from spectral_ode.rungs import made
from spectral_ode.systems.linear.separate import HALF

TO = {"linear": ("start.scale", "task.spectrum"), "softmax": ("start.scale", "task.signal", "task.noise"), "sparse": ("task.noise",)}


def small(name: str):
    problem = of_system(name)
    problem = replace(problem, horizon=400.0, points=81) if name.startswith("linear.") else problem
    return replace(problem, solver=replace(problem.solver, rtol=1e-11))


def along(problem, names, direction, step):
    """The problem moved by a step along relative changes of its fields."""
    changes = {}
    for name, part in zip(names, direction, strict=True):
        value = np.asarray(traced.read(problem, name), float) * (1 + step * part)
        changes[name] = list(value) if value.ndim else float(value)
    return document.override(problem, changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", systems.names())
def test_a_phase_moves_as_differences_say(name):
    problem, names = small(name), TO[name.split(".")[0]]
    found = sensitivity(problem, of="half 1", to=names)
    generator = np.random.default_rng(1)
    values = [np.asarray(traced.read(problem, one), float) for one in names]
    direction = [generator.uniform(0.5, 1.5, value.shape) for value in values]
    slope = sum(np.sum(found.derivative[one] * value * part) for one, value, part in zip(names, values, direction, strict=True))

    def moment(step):
        moved = along(problem, names, direction, step)
        return float(solve_problem(*made(moved, found.rung)[:1], moved, made(moved, found.rung)[1]).phases["half 1"])

    h = 2e-3
    differences = (8 * (moment(h) - moment(-h)) - (moment(2 * h) - moment(-2 * h))) / (12 * h)
    assert_close(slope, differences, rtol=1e-5)  # fourth order: h^4, and the solver's 1e-11 / h


def test_the_time_of_a_drop_is_that_of_the_closed_form():
    problem = replace(small("linear.separate"), horizon=2500.0)
    found = sensitivity(problem, of="half-2", to=("task.spectrum", "start.scale"), rung="reduced")
    weights = draw(problem)

    def time(spectrum):
        system = systems.load("linear.separate").from_problem(traced.insert(problem, {"task.spectrum": tuple(spectrum)}))
        return system.time_to(HALF ** (1 / 3) * system.limit, system.project(weights).v)[1]

    assert_close(found.derivative["task.spectrum"][0], jax.jacrev(time)(jax.numpy.asarray(problem.task.spectrum)), rtol=1e-7)
    # Escape from a plateau scales as 1 / scale; what is left is the time of the drop itself, which does not depend on it.
    (row,) = [row for row in found.rows(problem) if row["to"] == "start.scale"]
    assert -1.0 < row["elasticity"] < -0.9


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


def test_an_observable_at_given_times():
    problem = small("linear.merged")
    found = sensitivity(problem, of="loss", to="start.scale", at=(8.0, 12.0), rung="reduced")
    assert found.value.shape == found.derivative["start.scale"].shape == (2,)
    h = 1e-3 * problem.start.scale

    def loss(scale):
        moved = document.override(problem, {"start.scale": scale})
        system, state = made(moved, "reduced")
        return np.asarray(solve_problem(system, replace(moved, horizon=16.0, points=5), state)["loss"])[[2, 3]]

    at = lambda scale: loss(scale)
    differences = (8 * (at(0.05 + h) - at(0.05 - h)) - (at(0.05 + 2 * h) - at(0.05 - 2 * h))) / (12 * h)
    assert_close(found.derivative["start.scale"], differences, rtol=1e-6)


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
