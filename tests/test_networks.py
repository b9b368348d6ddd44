"""The linear networks that attention is in disguise: the same predictions, the same gradients, the same course of training."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

import simulate
from simulate import loss as losses
from simulate.attention import Prompt, model_of
from simulate.networks import Convolutional, TwoLayer, cubic, twin_of
from simulate.tasks import Sampler
from spectral_ode import Problem, draw, systems
from spectral_ode.problem import MergedHeads, Regression, SeparateHeads, Start, Training
from validate.experiment import Experiment
from validate.trials import twin

TASK = Regression(spectrum=(0.8, 0.5, 0.3), context=6, noise=0.3, rotation=2)
SEPARATE = Problem(task=TASK, attention=SeparateHeads(heads=3), start=Start(scale=3.0), training=Training(sequences=100, dtype="float64"))
MERGED = replace(SEPARATE, system="linear.merged", attention=MergedHeads(heads=3), start=Start(scale=1.0))
KINDS = {"merged": MERGED, "separate": SEPARATE}


def _short(kind: str, sampling: str) -> Problem:
    """Forty steps that descend far."""
    problem = KINDS[kind]
    return replace(problem, horizon=2.0, points=11, training=replace(problem.training, sampling=sampling, learning_rate=0.05))


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_predicts_what_the_attention_predicts(kind):
    problem = KINDS[kind]
    start, prompts = draw(problem), Sampler.from_problem(problem)(0, 50)
    network, attention = (model.from_weights(start, "float64", "linear") for model in (twin_of(kind), model_of(kind)))
    found = jax.vmap(network.predict)(prompts.each())
    assert float(jnp.std(found)) > 0.1
    assert_close(found, jax.vmap(attention.predict)(prompts.each()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_enters_the_other_roads_to_the_loss_by_its_bilinear_form(kind):
    problem = KINDS[kind]
    prompts = Sampler.from_problem(problem)(0, 50)
    network = twin_of(kind).from_weights(draw(problem), "float64")
    direct = jax.vmap(network.predict)(prompts.each())
    assert_close(losses.gram(prompts).phi @ losses.coefficients(*network.bilinear()), direct)
    for method in ("gram", "moments"):
        assert_close(losses.of_prompts(prompts, method)(network), losses.Tokens(prompts)(network))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_survive_the_way_through_the_network(kind):
    start = draw(KINDS[kind])
    network = twin_of(kind).from_weights(start, "float32")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(network)} == {"float32"}
    again = twin_of(kind).from_weights(start, "float64").weights()
    for one, two in zip(jax.tree.leaves(start), jax.tree.leaves(again), strict=True):
        assert_close(one, two, rtol=0, atol=0)
    assert float(network.idle()) == 0


def test_the_kinds_are_those_of_the_paper():
    assert (twin_of("merged"), twin_of("separate")) == (TwoLayer, Convolutional)


def test_cubic_feature_is_the_outer_product_of_beta_and_the_query_by_columns():
    tokens = np.random.default_rng(0).normal(size=(3, 5))
    tokens[-1, -1] = 0
    prompt = Prompt(jnp.asarray(tokens), jnp.ones(5, bool), jnp.asarray(0.25))
    beta, query = 0.25 * sum(tokens[-1, n] * tokens[:-1, n] for n in range(4)), tokens[:-1, -1]
    assert_close(cubic(prompt), [query[0] * beta[0], query[0] * beta[1], query[1] * beta[0], query[1] * beta[1]])


def test_the_convolution_is_one_with_kernel_size_and_stride_d():
    network = Convolutional.from_weights(draw(SEPARATE), "float64")
    prompt = jax.tree.map(lambda leaf: leaf[0], Sampler.from_problem(SEPARATE)(0, 1).each())
    z, expected = np.asarray(cubic(prompt)), 0.0
    for v, q, k in zip(network.v, network.q, network.k, strict=True):
        convolved = np.array([np.dot(k, z[3 * step : 3 * step + 3]) for step in range(3)])
        expected += float(v) * np.dot(q, convolved)
    assert_close(network.predict(prompt), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_trained_from_the_same_start_on_mirrored_data_they_are_one_trajectory(kind):
    problem = KINDS[kind]
    experiment = Experiment(problem, systems.load(problem.system).from_problem(problem), {}, {})
    worst, note = twin(experiment)
    assert worst <= 1e-11  # the same algebra in float64, over 200 steps
    begin, end = (float(word) for word in note.removeprefix("loss falls from ").split(" to "))
    assert end < 0.8 * begin


@pytest.mark.parametrize("kind", KINDS)
def test_without_mirror_images_they_part_because_the_other_blocks_of_attention_move(kind):
    gaps, idle = {}, {}
    for sampling in ("mirrored", "iid"):
        problem = _short(kind, sampling)
        attention, network = simulate.train(problem), simulate.train(problem, model=twin_of(kind))
        gaps[sampling] = float(jnp.max(jnp.abs(attention["loss"] - network["loss"])))
        idle[sampling] = float(jnp.max(attention["idle"]))
        assert float(jnp.max(network["idle"])) == 0
    assert gaps["mirrored"] <= 1e-12
    assert gaps["iid"] > 1e-4  # a hundred sequences are far from symmetric
    assert idle["mirrored"] < 1e-28  # squares of what rounding leaves of exact cancellations
    assert idle["iid"] > 1e-5


@pytest.mark.parametrize("method", ["moments", "gram", "attention"])
@pytest.mark.parametrize("kind", KINDS)
def test_on_mirrored_data_the_gradient_of_the_other_blocks_vanishes_by_every_road(kind, method):
    problem = _short(kind, "mirrored")
    loss = eqx.filter_jit(losses.of_data_set)(Sampler.from_problem(problem), 100, method)
    model = model_of(kind).from_weights(draw(problem), "float64", "linear")
    slope = eqx.filter_jit(lambda model: jax.grad(lambda model: loss(model))(model))(model)
    idle = [slope.value[:, -1, :-1], slope.key_query[:, -1, :-1] if kind == "merged" else slope.key[..., -1]]
    assert max(float(jnp.max(jnp.abs(part))) for part in idle) < 1e-13
    assert float(jnp.max(jnp.abs(slope.value[:, -1, -1]))) > 1e-3
