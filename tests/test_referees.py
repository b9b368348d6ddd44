"""Referees: scipy and thirty digits agree with us, and say no when a field or a closed form is changed in one number."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import optimistix
import pytest
from close import assert_close
from judged import verdict
from small import of_system

from spectral_ode import marchenko_pastur, systems
from spectral_ode.systems.linear import Merged, _escape, _scalar
from spectral_ode.systems.linear.blocks import Blocks
from spectral_ode.systems.linear.data import Statistics
from spectral_ode.systems.softmax import _expectations, _leading, _optimal, _view
from spectral_ode.systems.sparse import Gains, _algorithms, _moments, _risk, _two_groups
from validate import perform, plain, slopes
from validate.courses import Flow
from validate.plain.numbers import floats, integrate, many
from validate.referees import worst_form
from validate.slopes import ORDERS, SOLVERS, order


@pytest.fixture(autouse=True)
def _compiled_anew():
    """A program compiled before a function was replaced would not know of it."""
    jax.clear_caches()


def test_every_system_has_its_equations_and_closed_forms_once_more():
    for name in systems.names():
        assert (name, "reduced") in plain.FIELDS
        assert name in plain.FORMS


def test_integrator_of_plain_numbers_has_twenty_digits():
    with mpmath.workdps(30):
        state, correction = integrate(lambda y: np.asarray([y[1], -y[0]]), many([0.0, 1.0]), 1.0, steps=4)
        assert abs(state[0] - mpmath.sin(1)) < mpmath.mpf(10) ** -20
    assert correction < 1e-18
    assert_close(floats(state), [np.sin(1), np.cos(1)], rtol=1e-15)


SCALED = lambda function: lambda *given, **named: jax.tree.map(lambda leaf: 1.001 * leaf, function(*given, **named))
# One or two of each module; `python -m validate --mutate` changes every number, and `python -m validate` asks that they hold as they are.
BROKEN = [
    ("linear.separate", Statistics, "loss"),
    ("linear.separate", _scalar, "inverse"),
    ("linear.separate", _escape, "_speed"),
    ("linear.merged", Merged, "escape_constant"),
    ("linear.merged", Merged, "closed_form"),
    ("linear.blocks", Blocks, "population_loss"),
    ("softmax.balanced", _expectations.Expectations, "_pair"),
    ("softmax.factored", _view, "_split"),
    ("softmax.slaved", _leading, "slaved"),
    ("softmax.emergence", _optimal, "fill"),
    ("sparse.depth", marchenko_pastur, "resolvent"),
    ("sparse.depth", _algorithms, "after_steps"),
    ("sparse.depth", _algorithms, "oracle"),
    ("sparse.depth", _risk, "threshold_risk"),
    ("sparse.depth", _two_groups, "off_support"),
    ("sparse.gains", _moments, "correlations"),
]


@pytest.mark.parametrize(("name", "owner", "function"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_a_closed_form_off_by_a_thousandth_is_caught(name, owner, function, monkeypatch):
    monkeypatch.setattr(owner, function, SCALED(getattr(owner, function)))
    assert worst_form(of_system(name))[0] > 1


@pytest.mark.parametrize(
    ("name", "owner", "function"), [("sparse.gains", Gains, "weights_field"), ("softmax.slaved", _leading, "slaved_field")]
)
def test_a_field_off_by_a_thousandth_is_caught_at_thirty_digits(name, owner, function, monkeypatch):
    problem = of_system(name)
    monkeypatch.setattr(owner, function, SCALED(getattr(owner, function)))
    experiment = perform(problem, train=False)
    assert verdict(experiment, "field = the equations").ok is False
    assert verdict(experiment, "solve = solve of those").ok is False


def test_scipy_catches_another_course(monkeypatch):
    experiment = perform(of_system("linear.merged"), train=False)
    assert verdict(experiment, "scipy integrates").ok is True
    field = functools.cache(Flow.field.func)  # compiled once for each flow
    monkeypatch.setattr(Flow, "field", property(lambda self: lambda flat: (1 + 1e-5) * np.asarray(field(self)(flat))))
    assert verdict(experiment, "scipy integrates").ok is False


def _pendulum(method) -> float:
    return order(method, lambda y: jnp.stack([y[1], -jnp.sin(y[0])]), jnp.asarray([1.5, 0.0]), 3.0, 1.0)


@pytest.mark.parametrize("name", ORDERS)
def test_solvers_have_their_order(name):
    # Equal steps have no tolerance that the equations of an implicit method could be solved to.
    tight = {"root_finder": optimistix.Newton(rtol=1e-12, atol=1e-12)} if name == "kvaerno5" else {}
    assert ORDERS[name] - 0.3 < _pendulum(SOLVERS[name](**tight)) < ORDERS[name] + 1.7


def test_a_solver_of_lower_order_is_seen(monkeypatch):
    assert 1.9 < _pendulum(diffrax.Heun()) < 2.1
    experiment = perform(of_system("sparse.gains"), train=False)
    assert verdict(experiment, "converges at its order").ok is True
    monkeypatch.setitem(slopes.SOLVERS, "dopri8", diffrax.Dopri5)
    assert verdict(experiment, "converges at its order").ok is False
