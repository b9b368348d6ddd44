"""Many members as one ODE: the same numbers as one by one, whatever stands beside a member, on whatever device."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close
from small import SMALL, of_system

from spectral_ode import batch, draw, last_axis, solve, systems, traced

ROOT = Path(__file__).parent.parent
SHORT = replace(SMALL, horizon=600.0, points=41, start=replace(SMALL.start, scale=0.3))


def starts(problem, count: int):
    return jax.vmap(lambda seed: draw(traced.insert(problem, {"seed.start": seed})))(jnp.arange(count))


def test_fields_and_observables_run_along_the_last_axis(system):
    # Every system, as vmap: the algebra is the same, written out; sums may be rounded in another order.
    reduction, problem = system
    rungs = [reduction] if "population" in reduction.missing(problem) else [reduction, reduction.population()]
    for one in rungs:
        state = one.project(draw(problem))
        states = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.9 * leaf, 1.1 * leaf]), state)
        arrays, rest = eqx.partition(one, eqx.is_array)
        last = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), states)
        for function in (lambda system, y: system.vector_field(jnp.zeros(()), y), lambda system, y: system.observe(y)):
            at = lambda arrays, y, function=function, rest=rest: function(eqx.combine(arrays, rest), y)
            nowhere = jax.tree.map(lambda _: False, arrays)
            new = jax.jit(lambda last, at=at, arrays=arrays, nowhere=nowhere: last_axis.prepare(at, arrays, nowhere, last)(last))(last)
            old = jax.jit(jax.vmap(lambda y, at=at, arrays=arrays: at(arrays, y)))(states)
            for mine, theirs in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
                size = np.abs(np.asarray(theirs)).max() or 1.0
                assert_close(np.moveaxis(np.asarray(mine), -1, 0) / size, np.asarray(theirs) / size, rtol=1e-11, atol=1e-11)


def test_sums_of_products_are_written_out():
    # Axes of one beside longer ones, a fixed factor, a product that is used again, a sum too long to write out, a number as a factor.
    fixed, one = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 40))), jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)))

    def function(fixed, y):
        a, b = y[:, :, None], y[:, None, :]
        again = a * b
        short = jnp.sum(a * b, axis=(0, 1)), jnp.sum(fixed[0, :, :5] * y, axis=0), jnp.sum(fixed[:, :, :1] * y[None], axis=(0, 2))
        return *short, jnp.sum(again, axis=2) + again[:, :, 0], jnp.sum(fixed[0] * y[:, :1], axis=1), jnp.sum(2.0 * y, axis=1)

    many = jnp.stack([one, 2 * one, -one, 0 * one], axis=-1)
    mine = jax.jit(lambda many: last_axis.prepare(function, fixed, False, many)(many))(many)
    theirs = jax.vmap(lambda y: function(fixed, y), in_axes=-1, out_axes=-1)(many)
    for new, old in zip(mine, theirs, strict=True):
        assert_close(new, old, rtol=1e-13, atol=1e-13)
    text = str(jax.make_jaxpr(lambda many: last_axis.prepare(function, fixed, False, many)(many))(many))
    assert "f64[3,5,5,4]" in text  # the product that is used again is an array ...
    assert text.count("mul") > 2 * 15  # ... and the others are as many as they have terms


def test_what_does_not_move_is_computed_once():
    calls = []
    function = lambda fixed, y: jax.pure_callback(lambda x: calls.append(1) or x, fixed, fixed) * y
    call = last_axis.prepare(function, jnp.ones(()), False, jnp.ones(3))
    assert len(calls) == 1
    assert_close(call(jnp.arange(3.0)) + call(jnp.arange(3.0)), 2 * np.arange(3.0))
    assert len(calls) == 1


def test_a_group_is_its_members_one_by_one():
    flow = systems.load("linear.separate").from_problem(SHORT).population()
    states = starts(SHORT, 5)
    members = batch.stack(flow, states, 1e-9, batch.tolerance(states, 1e-9))
    (group,) = batch.groups(members, 8)
    found = batch.solve(group, SHORT.times, batch.Settings())
    assert found.observables["loss"].shape == (8, 41)
    for index in range(5):
        one = solve(flow, jax.tree.map(lambda leaf, index=index: leaf[index], states), SHORT.times, rtol=1e-10)
        # Ten tolerances, as for a single solve; a drop time carries the error of the whole plateau before it.
        assert_close(found.observables["loss"][index], one["loss"], rtol=1e-7)
        for name, moment in one.phases.items():
            assert_close(found.phases[name][index], moment, rtol=1e-7)
    assert int(found.reached[0]) == 41
    assert np.all(np.asarray(found.failure) == 0)


def test_systems_may_differ_from_member_to_member():
    problems = [replace(SHORT, task=replace(SHORT.task, noise=noise, spectrum=(0.6, low))) for noise, low in ((0.0, 0.3), (0.5, 0.25))]
    flows = [systems.load("linear.separate").from_problem(problem).population() for problem in problems]
    state = draw(SHORT)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *flows)
    many = jax.tree.map(lambda _: True, stacked)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), state)
    members = batch.Members(stacked, many, states, np.full(2, 1e-9), np.full(2, 1e-10))
    found = batch.solve(members, SHORT.times, batch.Settings(phases=False))
    for index, flow in enumerate(flows):
        assert_close(found.observables["loss"][index], solve(flow, state, SHORT.times, rtol=1e-10, phases=False)["loss"], rtol=1e-7)


def test_an_implicit_solver_and_clocks_of_their_own_go_through_vmap():
    flow = systems.load("linear.separate").from_problem(SHORT).population()
    states = starts(SHORT, 2)
    members = batch.stack(flow, states, 1e-8, batch.tolerance(states, 1e-8))
    clocks = np.stack([SHORT.times, 0.5 * SHORT.times])
    for times, solver in ((SHORT.times, "kvaerno5"), (clocks, "dopri8")):
        found = batch.solve(members, times, batch.Settings(solver))
        for index, clock in enumerate(np.broadcast_to(times, (2, 41))):
            one = solve(flow, jax.tree.map(lambda leaf, index=index: leaf[index], states), clock, rtol=1e-10, phases=False)
            assert_close(found.observables["loss"][index], one["loss"], rtol=1e-6)  # kvaerno5 at 1e-8


def test_a_group_that_fails_says_so():
    flow = systems.load("linear.separate").from_problem(SHORT).population()
    members = batch.stack(flow, starts(SHORT, 2), 1e-9, 1e-10)
    found = batch.solve(members, SHORT.times, batch.Settings(max_steps=20))
    assert np.all(np.asarray(found.failure) == 1)
    assert int(found.reached[0]) < 41
    assert np.isfinite(np.asarray(found.observables["loss"])).all()


def test_the_steady_state_ends_a_group():
    problem = replace(of_system("linear.merged"), horizon=400.0, points=401, start=replace(SMALL.start, scale=0.3))
    flow = systems.load("linear.merged").from_problem(problem)
    states = jax.vmap(flow.project)(starts(problem, 2))
    found = batch.solve(batch.stack(flow, states, 1e-8, 1e-9), problem.times, batch.Settings(steady=True))
    plain = batch.solve(batch.stack(flow, states, 1e-8, 1e-9), problem.times, batch.Settings())
    assert np.all(np.asarray(found.failure) == 2)
    assert int(found.steps[0]) < int(plain.steps[0])
    assert_close(found.observables["loss"][:, -1], plain.observables["loss"][:, -1], rtol=1e-7)  # steady to 1e-9 of the state


def test_work_is_handed_out_in_order():
    assert list(batch.each(lambda x: x + 1, [1, 2, 3], workers=2, ahead=2)) == [2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        list(batch.each(lambda x: 1 // x, [1, 0, 2], workers=2))


DEVICES = """
import sys, numpy as np, jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, "tests")
from test_batch import SHORT, batch, starts, systems
assert len(jax.devices()) == int(sys.argv[1])
flow = systems.load("linear.separate").from_problem(SHORT).population()
members = batch.stack(flow, starts(SHORT, 10), 1e-8, 1e-9)
found = list(batch.each(lambda group: batch.solve(group, SHORT.times, batch.Settings()), batch.groups(members, 4), workers=2))
where = {str(device) for part in found for device in part.steps.devices()}
assert len(where) == int(sys.argv[1]), where
np.savez(sys.argv[2], **{f"{i} {name}": array for i, part in enumerate(found) for name, array in (part.observables | part.phases).items()})
"""


def test_two_devices_give_the_bits_of_one(tmp_path):
    for count in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", DEVICES, str(count), str(tmp_path / f"{count}.npz")], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    one, two = (np.load(tmp_path / f"{count}.npz") for count in (1, 2))
    assert set(one.files) == set(two.files)
    for name in one.files:
        assert one[name].tobytes() == two[name].tobytes(), name
