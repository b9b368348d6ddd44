"""Units of the authors' script: no 1/N in the scores, no half in the loss. Converted, step by step, it is the training here."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from close import assert_close

import simulate
from simulate.tasks import Sampler
from spectral_ode import Problem, draw, solve_problem
from spectral_ode.flow import PopulationFlow
from spectral_ode.problem import MergedHeads, Regression, SeparateHeads, Start, Training

N = 8
BASE = Problem(
    units="script",
    horizon=40.0,
    points=41,
    task=Regression(spectrum=(0.8, 0.5), context=N, noise=0.2, rotation=1),
    attention=SeparateHeads(heads=3, rank=2),
    start=Start(scale=0.5),
    training=Training(sequences=60, learning_rate=0.02, dtype="float64"),
)
MERGED = replace(BASE, system="linear.merged", attention=MergedHeads(heads=3))
ALL = {"separate": BASE, "merged": MERGED}


def of(kind: str, *, softmax: bool = False, lengths: str = "full", **changes) -> Problem:
    problem = ALL[kind]
    heads = replace(problem.attention, activation="softmax" if softmax else "linear")
    return replace(problem, attention=heads, task=replace(problem.task, lengths=lengths), **changes)


ALPHA = {
    "merged": (of("merged"), N ** (1 / 2)),
    "separate": (of("separate"), N ** (1 / 3)),
    "merged softmax": (of("merged", softmax=True), 1.0),
    "separate softmax": (of("separate", softmax=True), 1.0),
    "merged all lengths": (of("merged", lengths="all"), 1.0),
    "separate all lengths": (of("separate", lengths="all"), 1.0),
}


@pytest.mark.parametrize(("problem", "alpha"), ALPHA.values(), ids=ALPHA)
def test_learning_rate_scale_and_horizon_are_converted(problem, alpha):
    eta = 2 * alpha**2 * 0.02
    assert_close([problem.alpha, problem.eta, problem.scale, problem.end], [alpha, eta, alpha * 0.5, 40 * eta])
    assert_close(problem.steps, np.arange(41))
    assert_close(problem.times, eta * np.arange(41))


@pytest.mark.parametrize(("problem", "alpha"), ALPHA.values(), ids=ALPHA)
def test_in_the_papers_units_nothing_is_converted(problem, alpha):
    paper = replace(problem, units="paper", horizon=10.0)
    assert (paper.alpha, paper.eta, paper.scale, paper.end) == (1.0, 0.02, 0.5, 10.0)
    assert paper.factor(5) == (1.0 if "softmax" in problem.attention.activation else 1 / 5)


def test_sums_over_tokens_are_divided_as_each_convention_says():
    assert of("merged").factor(N) == 1 / N  # the script's missing 1/N is in alpha
    assert of("merged", softmax=True).factor(N) == 1
    assert of("merged", lengths="all").factor(3) == 1 / 4
    assert of("merged", lengths="all", softmax=True).factor(3) == 1 / 4


def test_the_script_starts_its_merged_weights_all_at_one_scale():
    start = draw(replace(MERGED, attention=MergedHeads(heads=20_000)))
    for part in (start.value, start.key_query):
        assert_close(jnp.std(part) / MERGED.alpha, 0.5, rtol=0.02)  # 20,000 draws: 0.5 % standard error


def _script(problem: Problem, epochs: int):
    """The script's own descent on the problem's data: plain arrays, its weights, its loss and its learning rate; losses and weights."""
    prompts = Sampler.from_problem(problem)(0, problem.training.sequences)
    X, y = np.asarray(prompts.tokens), np.asarray(prompts.target)
    start = draw(problem)
    heads, d = start.value.size, X.shape[1] - 1
    a = np.zeros((heads, d + 1))
    a[:, -1] = np.asarray(start.value) / problem.alpha
    pad = lambda part, rows: np.pad(np.asarray(part) / problem.alpha, ((0, 0), (0, rows), (0, 1)))
    if problem.attention.kind == "merged":
        W = pad(start.key_query, 1)
    else:
        K, Q = pad(start.key, 0), pad(start.query, 0)
    # X X^T of each prompt: over all lengths the script divides by the number of tokens.
    tokens = np.asarray(prompts.present).sum(axis=1) if problem.task.lengths == "all" else np.ones(len(y))
    G, query = X @ np.swapaxes(X, 1, 2) / tokens[:, None, None], X[:, :, -1]
    losses, course = [], []
    for _ in range(epochs):
        if problem.attention.kind == "separate":
            W = np.swapaxes(K, 1, 2) @ Q
        asked = np.einsum("hab,sb->sha", W, query)
        residual = np.einsum("ha,sab,shb->s", a, G, asked) - y
        losses.append(np.mean(residual**2))
        course.append((a[:, -1].copy(), W[:, :-1, :-1].copy()))
        da = 2 * np.einsum("s,sab,shb->ha", residual, G, asked) / len(y)
        dW = 2 * np.einsum("s,sab,ha,sc->hbc", residual, G, a, query) / len(y)
        a -= problem.training.learning_rate * da
        if problem.attention.kind == "merged":
            W = W - problem.training.learning_rate * dW
        else:
            dK, dQ = Q @ np.swapaxes(dW, 1, 2), K @ dW
            K, Q = K - problem.training.learning_rate * dK, Q - problem.training.learning_rate * dQ
    return np.array(losses), [np.array(part) for part in zip(*course, strict=True)]


# Learning rate and start scale at which each descends far in forty steps: without the 1/N the script's steps are N times as long.
FAR = {("merged", "full"): (0.004, 0.5), ("merged", "all"): (0.02, 0.5), ("separate", "full"): (0.01, 1.0), ("separate", "all"): (0.2, 1.5)}


@pytest.mark.parametrize(("kind", "lengths"), FAR, ids=[" ".join(key) for key in FAR])
def test_training_is_the_scripts_descent_step_by_step(kind, lengths):
    eta, scale = FAR[kind, lengths]
    problem = of(kind, lengths=lengths, start=Start(scale=scale))
    problem = replace(problem, training=replace(problem.training, learning_rate=eta))
    trained = simulate.train(problem)
    losses, (value, product) = _script(problem, 41)
    assert losses[-1] < 0.9 * losses[0]
    assert_close(trained["loss"][0], losses)
    assert_close(trained["value"][0], problem.alpha * value)
    if kind == "merged":
        assert_close(trained["key_query"][0], problem.alpha * product)
    else:
        found = np.einsum("thra,thrb->thab", trained["key"][0], trained["query"][0])
        assert_close(found, problem.alpha**2 * product)


def test_the_same_problem_converted_by_hand_gives_the_same_loss_curve():
    script = replace(BASE, training=replace(BASE.training, learning_rate=0.004))
    alpha = N ** (1 / 3)
    eta = 2 * alpha**2 * 0.004
    training = replace(script.training, learning_rate=eta)
    paper = replace(script, units="paper", horizon=40 * eta, start=Start(scale=0.5 * alpha), training=training)
    one, two = simulate.train(script), simulate.train(paper)
    assert_close(one["loss"], two["loss"], rtol=1e-12)
    assert_close(one.time, two.time)
    theory = [solve_problem(PopulationFlow.from_problem(problem), problem, draw(problem)) for problem in (script, paper)]
    assert_close(theory[0]["loss"], theory[1]["loss"], rtol=1e-9)  # the solver is given the same numbers up to rounding


def test_a_merged_problem_converted_by_hand_too():
    # The script's merged start is not balanced; with one head and one direction both conventions draw the same.
    one = Regression(spectrum=(0.8,), context=N)
    script = replace(MERGED, task=one, attention=MergedHeads(heads=1), training=replace(MERGED.training, learning_rate=0.002))
    eta = 2 * N * 0.002
    training = replace(script.training, learning_rate=eta)
    paper = replace(script, units="paper", horizon=40 * eta, start=Start(scale=0.5 * N**0.5), training=training)
    assert_close(simulate.train(script)["loss"], simulate.train(paper)["loss"], rtol=1e-12)


@pytest.mark.parametrize("kind", ALL)
def test_softmax_training_is_the_scripts_descent(kind):
    problem = of(kind, softmax=True)
    problem = replace(problem, training=replace(problem.training, learning_rate=0.2))
    prompts = Sampler.from_problem(problem)(0, 60)
    X, y = prompts.tokens, prompts.target
    start = draw(problem)
    pad = lambda part, rows: jnp.pad(part, ((0, 0), (0, rows), (0, 1)))
    V = jnp.zeros((3, 3, 3)).at[:, -1, -1].set(start.value)
    weights = [V, pad(start.key_query, 1)] if kind == "merged" else [V, pad(start.key, 0), pad(start.query, 0)]

    def loss(weights):
        V, *rest = weights
        KQ = rest[0] if kind == "merged" else jnp.einsum("hra,hrb->hab", *rest)
        scores = jnp.einsum("san,hab,sb->shn", X, KQ, X[:, :, -1])
        shares = jnp.exp(scores) / jnp.sum(jnp.exp(scores), axis=-1, keepdims=True)
        return jnp.mean((jnp.einsum("hb,sbn,shn->s", V[:, -1], X, shares) - y) ** 2)

    descend = jax.jit(jax.value_and_grad(loss))
    losses = []
    for _ in range(41):
        value, slopes = descend(weights)
        losses.append(float(value))
        weights = [part - 0.2 * slope for part, slope in zip(weights, slopes, strict=True)]
    assert losses[-1] < 0.99 * losses[0]
    assert_close(simulate.train(problem)["loss"][0], losses)
