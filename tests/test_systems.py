"""What every system must do, whichever paper it comes from: a new file is covered on arrival."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

from spectral_ode import BadInput, draw, systems
from spectral_ode.flow import AbstractReduction


def test_projected_state_moves_and_is_observed_under_the_names_of_the_weights(system):
    system, problem = system
    start = draw(problem)
    state = system.project(start)
    rate = system.vector_field(jnp.asarray(0.0), state)
    assert jax.tree.structure(rate) == jax.tree.structure(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, rate)))
    reduced, full = system.observe(state), system.observe_weights(start)
    assert "loss" in reduced
    assert set(reduced) <= set(full)
    for name, value in reduced.items():
        assert value.shape == full[name].shape, name


def test_phases_landmarks_and_forecast_are_well_formed(system):
    system, problem = system
    observed = system.observe_weights(draw(problem))
    assert all(value.shape == () for value in system.phases(observed).values())
    landmarks = system.landmarks()
    assert next(iter(landmarks)) == "loss"
    assert set(landmarks) <= set(observed)
    assert all(np.isfinite(np.asarray(value)).all() for level in landmarks.values() for value in level.values())
    assert isinstance(system.forecast(draw(problem)), dict)


def test_flow_of_the_weights_is_minus_half_the_gradient_at_the_start(system):
    system, problem = system
    if not isinstance(system, AbstractReduction):
        pytest.skip("no population loss of all weights is known")
    start = draw(problem)
    slope = jax.grad(system.population_loss)(start)
    for field, gradient in zip(jax.tree.leaves(system.weights_field(start)), jax.tree.leaves(slope), strict=True):
        assert_close(field, -0.5 * gradient, rtol=1e-12, atol=1e-20)


def test_an_unknown_system_is_answered_with_the_nearest():
    with pytest.raises(BadInput, match=r"did you mean 'linear\.separate'"):
        systems.load("linear.seperate")
