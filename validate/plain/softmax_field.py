r"""The right sides of the softmax systems (arXiv:2402.19442) at one place, before anything is integrated."""

import equinox as eqx
import jax.numpy as jnp
import mpmath
import numpy as np
from jax.flatten_util import ravel_pytree

from spectral_ode.problem import Problem
from spectral_ode.systems import load
from spectral_ode.weights import draw
from validate.plain.numbers import ALGEBRA, DIGITS, Form, floats, many
from validate.plain.softmax import FIELDS


def field(problem: Problem) -> dict[str, Form]:
    """The right side of the reduced ODE at a state beside its start; along the course it is asked at thirty digits."""
    referee, system = FIELDS[problem.system, "reduced"](problem), load(problem.system).from_problem(problem)
    if referee is None:
        return {}
    start, unravel = ravel_pytree(system.project(draw(problem)))
    place = np.asarray(start) + 0.2 * np.random.default_rng(4).normal(size=start.size)
    rate = eqx.filter_jit(lambda system, flat: ravel_pytree(system.vector_field(jnp.zeros(()), unravel(flat)))[0])
    with mpmath.workdps(DIGITS):
        exact = floats(referee.rate(many(place[referee.entries])))
    return {"field": Form(np.asarray(rate(system, jnp.asarray(place)))[referee.entries], exact, ALGEBRA)}
