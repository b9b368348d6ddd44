"""A training step of softmax attention against the authors' PyTorch network (FFishy-git/MS-Attn-Simulation), at equal variance.

The network is the user's own copy, and torch lives in the Python that is given: neither is part of this project. Their network and their
data generator run in a process of their own, with the faster of one thread and torch's own choice; a step is the body of the loop in their
training.py (fresh data, forward, MSELoss, backward, SGD) without its logging. Ours is `simulate.estimators.slope` and the same descent in
float32. Both draw their data within the time that is measured; 2,000 contexts, L = 100, d = 30, H = 3. At equal variance of the gradient,
times as fast is

    (their time / our time) x (variance of a context's gradient with their estimator / with ours),

at three points of training, without counting K_Y and Q_Y, whose gradient the integrated estimator leaves out (it would look better with
them). The error is the difference of both networks' losses on the same weights and data. Most of the gain at equal variance is algebra,
which could be had in torch as well.
"""

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Options, Row, Skipped, in_turns
from benchmarks.processes import Served

CONTEXTS, LENGTH, HEADS, TASKS, D = 2000, 100, 3, 3, 30
SAME = ("sampled", 1, "box-muller")  # their estimator: one query per context
VARIANTS = (
    ("sampled", 1, "threefry"),
    *(("sampled", queries, "box-muller") for queries in (2, 8)),
    *(("integrated", queries, "box-muller") for queries in (2, 16)),
)
GOALS = {("sampled", 8, "box-muller"): 25, ("integrated", 16, "box-muller"): 200}  # of a first study, with a factor two of slack
POINTS = {"warm-up": (0.0028, 0.0028, 0.064, 0.016), "mid-emergence": (0.12, 0.0, 3.9, 0.0), "convergence": (0.316, 0.0, 2.48, 0.0)}
SPREAD, RATE = 0.003, 1e-6  # noise on all matrices; a rate that does not leave the point
MEASURED, SEEDS = 1000, 3  # contexts per measured variance, and how many of those


def serve(folder: str) -> None:
    """The other side, under the Python that has torch: ["step", laps, threads] or ["loss", file with weights and data]."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    told = sys.stdout
    say = lambda number: print(json.dumps(number), file=told, flush=True)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        import torch  # pyright: ignore[reportMissingImports]
        from AttentionNetwork import AttentionNetwork  # pyright: ignore[reportMissingImports]
        from data_generator import DataGenerator  # pyright: ignore[reportMissingImports]

        model = AttentionNetwork(dx=D, dy=TASKS, L=LENGTH, num_heads=HEADS, attention_type="softmax")
        model.initialization()
        data = DataGenerator(LENGTH, D, TASKS, CONTEXTS)
        optimizer, measure = torch.optim.SGD(model.parameters(), lr=RATE), torch.nn.MSELoss()
        say(torch.get_num_threads())
        for line in sys.stdin:
            match json.loads(line):
                case ["step", laps, threads]:
                    torch.set_num_threads(threads)
                    begun = time.perf_counter()
                    for _ in range(laps):
                        tokens, query, target = data.generate_data()
                        predicted, _ = model(query=query, key=tokens, value=tokens)
                        loss = measure(predicted, target)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                    say((time.perf_counter() - begun) / laps)
                case ["loss", path]:
                    kept = {name: part.clone() for name, part in model.state_dict().items()}
                    given = {name: torch.from_numpy(part) for name, part in np.load(path).items()}
                    model.load_state_dict({name: given[name] for name in kept})
                    with torch.no_grad():
                        say(
                            TASKS
                            * measure(model(query=given["query"], key=given["tokens"], value=given["tokens"])[0], given["target"]).item()
                        )
                    model.load_state_dict(kept)


def weights(name: str, heads: int = HEADS, seed: int = 0):
    """A model at a point of training: head h serves task h; K_Y = Q_Y = 0."""
    import jax.numpy as jnp

    from simulate.full_attention import FullAttention

    omega, other, mu, off = POINTS[name]
    own, z = np.eye(heads, TASKS, dtype=bool), D + TASKS
    key, value = np.zeros((2, heads, z, z))
    for h in range(heads):
        np.fill_diagonal(key[h, :D, :D], np.repeat(np.sqrt(np.where(own[h], omega, other) * np.sqrt(z)), D // TASKS))
        np.fill_diagonal(value[h, D:, D:], np.sqrt(np.where(own[h], mu, off)))
    noise = np.random.default_rng(seed)
    output, value, key, query = (part + SPREAD * noise.normal(size=part.shape) for part in (value[:, D:], value, key, key))
    key[..., D:] = query[..., D:] = 0
    return FullAttention(*(jnp.asarray(part, jnp.float32) for part in (output, value, key, query)))


def contexts(normals: str = "threefry", length: int = LENGTH, seed: int = 0):
    import jax

    from simulate.episodes import Contexts

    return Contexts.build((D // TASKS,) * TASKS, length, jax.random.key(seed), normals=normals)


def ours(variant: tuple[str, int, str], *, number: int = CONTEXTS, length: int = LENGTH, heads: int = HEADS):
    """A function from a number of laps to the seconds of a step; it is compiled here."""
    import jax

    from simulate import estimators

    estimator, queries, normals = variant
    sampler = contexts(normals, length)

    @jax.jit
    def step(model, count):
        _, slope = estimators.slope(model, sampler, count, contexts=number, queries=queries, estimator=estimator)
        return jax.tree.map(lambda part, change: part - RATE * change, model, slope)

    def seconds(laps: int) -> float:
        model = weights("convergence", heads)
        begun = time.perf_counter()
        for count in range(laps):
            model = step(model, count)
        jax.block_until_ready(model)
        return (time.perf_counter() - begun) / laps

    seconds(1)
    return seconds


@functools.cache
def gradients(estimator: str, queries: int):
    """A compiled function from a model and a sampler to the gradients of single contexts, without K_Y and Q_Y."""
    import jax
    import jax.numpy as jnp

    from simulate import estimators

    def one(model, sampler, number):
        _, found = estimators.slope(model, sampler, number, contexts=1, queries=queries, estimator=estimator)
        parts = (found.output, found.value, found.key[..., :D], found.query[..., :D])
        return jnp.concatenate([part.ravel() for part in parts])

    return jax.jit(lambda model, sampler: jax.lax.map(lambda number: one(model, sampler, number), jnp.arange(MEASURED), batch_size=100))


def variance(point: str, estimator: str, queries: int, seed: int) -> float:
    """Of the gradient of a single context, summed over its entries."""
    found = gradients(estimator, queries)(weights(point, seed=seed), contexts(seed=1 + seed))
    return float(np.var(found, axis=0, ddof=1, dtype=np.float64).sum())


def agree(network: Served, folder: Path) -> float:
    """How far the losses of both networks are apart, on the same weights and data."""
    import jax.numpy as jnp

    from simulate import estimators

    model, batch = weights("convergence"), contexts()(0, 0, 500, 1)
    each = lambda part: np.asarray(part).reshape(-1, D + TASKS)
    np.savez(
        folder / "same.npz",
        **{"q_proj.weight": each(model.query), "k_proj.weight": each(model.key), "v_proj.weight": each(model.value)},
        **{"o_proj.weight": np.asarray(model.output).transpose(1, 0, 2).reshape(TASKS, -1)},
        tokens=np.concatenate([batch.x, batch.labels], axis=1).transpose(0, 2, 1),
        query=np.pad(batch.q, ((0, 0), (0, 0), (0, TASKS))),
        target=np.asarray(batch.targets),
    )
    found = float(jnp.sum(jnp.mean(estimators.sampled(*estimators.products(model), batch), axis=0)))
    return abs(network.ask("loss", str(folder / "same.npz")) - found)


def run(options: Options) -> Iterator[Row]:
    if not (options.script_softmax and options.python):
        raise Skipped("needs a copy of the authors' network and a Python with torch: --script-softmax FOLDER --python PYTHON")
    variants, laps = (VARIANTS[:2], 1) if options.small else (VARIANTS, 6)
    timers = {str(variant): ours(variant) for variant in (SAME, *variants)}
    with Served(options.python, "softmax_step", options.script_softmax) as network, tempfile.TemporaryDirectory() as name:
        apart = agree(network, Path(name))
        theirs = {str(threads): lambda threads=threads: network.ask("step", max(1, laps // 3), threads) for threads in {1, network.threads}}
        both = theirs | {name: lambda timer=timer: timer(laps) for name, timer in timers.items()}
        in_turns(1, **both)  # warms up
        took = in_turns(options.rounds, **both)
    best = min(theirs, key=lambda threads: np.median(took[threads]))
    against = f"network, {best} of {network.threads} threads"
    for variant, goal in ((VARIANTS[0], None), (SAME, 10)):
        what = f"softmax step, same estimator, {variant[2]}"
        yield Row(what, took[str(variant)], against, took[best], errors=(apart, None), at_least=goal)
    seeds = range(1 if options.small else SEEDS)
    plain = {point: np.array([variance(point, "sampled", 1, seed) for seed in seeds]) for point in POINTS}
    reduction = functools.cache(lambda point, *kind: plain[point] / np.array([variance(point, *kind, seed) for seed in seeds]))
    for variant in variants[1:]:
        estimator, queries, normals = variant
        for point in POINTS:
            speedup = np.outer(np.divide(took[best], took[str(variant)]), reduction(point, estimator, queries)).ravel().tolist()
            what = f"equal variance, {point}: {estimator}, {queries} queries, {normals}"
            yield Row(what, took[str(variant)], against, took[best], speedup, at_least=GOALS.get(variant))


if __name__ == "__main__":
    serve(sys.argv[2])
