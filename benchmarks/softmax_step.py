"""A training step of softmax attention against the authors' PyTorch network (FFishy-git/MS-Attn-Simulation), interleaved on this machine.

    python benchmarks/softmax_step.py --script FOLDER --python PYTHON_WITH_TORCH [--repeats 5] [--laps 8]

FOLDER is the user's own copy of that repository, and torch lives in the Python that is given: neither is part of this project. Their
network and their data generator run in a process of their own, with the faster of one thread and torch's own choice; a step is the body of
the loop in their training.py (fresh data, forward, MSELoss, backward, SGD) without its logging. Ours is `simulate.estimators.slope` and the
same descent in float32. Both draw their data within the time that is measured.

Printed are medians over repetitions with their range: whether both networks have the same loss on the same data; the time of a step with
the same estimator, one query per context; and for other estimators the speed-up at equal variance of the gradient,

    (their time / our time) x (variance of a context's gradient with their estimator / with ours),

at three points of training, without counting K_Y and Q_Y, whose gradient the integrated estimator leaves out (it would look better with
them); then how our time grows with contexts, length and heads; and the load of the machine. Most of the gain at equal variance is algebra,
which could be had in torch as well. Nothing is asserted.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from against_script import shown

CONTEXTS, LENGTH, HEADS, TASKS, D = 2000, 100, 3, 3, 30
SAME = ("sampled", 1, "box-muller")  # their estimator: one query per context
VARIANTS = (
    ("sampled", 1, "threefry"),
    *(("sampled", queries, "box-muller") for queries in (2, 8, 16)),
    *(("integrated", queries, "box-muller") for queries in (2, 8, 16)),
    ("integrated", 16, "threefry"),
)
POINTS = {"warm-up": (0.0028, 0.0028, 0.064, 0.016), "mid-emergence": (0.12, 0.0, 3.9, 0.0), "convergence": (0.316, 0.0, 2.48, 0.0)}
SPREAD, RATE = 0.003, 1e-6  # noise on all matrices; a rate that does not leave the point
MEASURED, SEEDS = 1000, 3  # contexts per measured variance, and how many of those
GROWTH = {"contexts": (1000, 2000, 4000, 8000), "length": (50, 100, 200, 400), "heads": (2, 4, 8, 16)}


class Network:
    """The authors' network in a process of its own, which sleeps between requests."""

    def __init__(self, python: str, folder: str) -> None:
        command = [python, __file__, "serve", folder]
        self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.threads = self._answer()

    def ask(self, *words: Any) -> float:
        """A number for a request that `serve` understands."""
        print(json.dumps(words), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        if not (line := self.process.stdout.readline()):
            raise SystemExit("the authors' network has stopped; what it said is above")
        return json.loads(line)


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


def agree(network: Network, folder: Path) -> None:
    """The loss of both networks on the same weights and data."""
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
    theirs = network.ask("loss", str(folder / "same.npz"))
    found = float(jnp.sum(jnp.mean(estimators.sampled(*estimators.products(model), batch), axis=0)))
    print(f"loss on the same weights and data: theirs {theirs:.6f}, ours {found:.6f}")


def compare(network: Network, repeats: int, laps: int) -> None:
    """Times in turn, then variances, and what follows from both."""
    choices = sorted({1, network.threads})
    timers = {variant: ours(variant) for variant in (SAME, *VARIANTS)}
    rows = []
    for _ in range(repeats + 1):  # the first round warms up
        rows.append([network.ask("step", max(2, laps // 4), threads) for threads in choices] + [timer(laps) for timer in timers.values()])
    columns = np.array(rows[1:]).T
    best = int(np.argmin(np.median(columns[: len(choices)], axis=1)))
    theirs, times = columns[best], dict(zip(timers, columns[len(choices) :], strict=True))
    print(f"{CONTEXTS} contexts, L = {LENGTH}, d = {D}, H = {HEADS}, I = {TASKS}; load {os.getloadavg()[0]:.1f}")
    print(f"authors' network: {shown(1e3 * theirs, '.0f')} ms per step with {choices[best]} of {choices[-1]} threads")
    for variant in (VARIANTS[0], SAME):
        print(f"ours, same estimator, {variant[2]}: {shown(1e3 * times[variant], '.1f')} ms: {shown(theirs / times[variant], '.1f')} times")
    plain = {point: np.array([variance(point, "sampled", 1, seed) for seed in range(SEEDS)]) for point in POINTS}
    reduction = functools.cache(lambda point, *kind: plain[point] / np.array([variance(point, *kind, seed) for seed in range(SEEDS)]))
    for variant in VARIANTS[1:]:
        estimator, queries, normals = variant
        print(f"{estimator}, {queries} queries, {normals}: {shown(1e3 * times[variant], '.1f')} ms")
        for point in POINTS:
            less = reduction(point, estimator, queries)
            speedup = np.outer(theirs / times[variant], less).ravel()
            print(f"    {point}: variance {shown(less, ',.1f')} times smaller, speed-up {shown(speedup, ',.0f')}", flush=True)


def growth(repeats: int, laps: int) -> None:
    """How our time grows."""
    variant = ("integrated", 8, "box-muller")
    for name, sizes in GROWTH.items():
        timers = [ours(variant, **{"number" if name == "contexts" else name: size}) for size in sizes]
        times = np.array([[timer(laps) for timer in timers] for _ in range(repeats)])
        powers = np.polyfit(np.log(sizes), np.log(times).T, 1)[0]
        listed = ", ".join(f"{size}: {1e3 * lap:.0f}" for size, lap in zip(sizes, np.median(times, axis=0), strict=True))
        print(f"{name} ({', '.join(map(str, variant))}): {listed} ms; power {shown(powers, '.2f')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--laps", type=int, default=8)
    told = parser.parse_args()
    import spectral_ode as so

    so.configure(cache=False)
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    network = Network(told.python, told.script)
    with tempfile.TemporaryDirectory() as name:
        agree(network, Path(name))
    compare(network, told.repeats, told.laps)
    network.process.communicate()  # ends it
    growth(told.repeats, told.laps)
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", folder]:
            serve(folder)
        case _:
            main()
