"""A program that trains one small problem of each kind on virtual devices, for the tests.

`python dealt.py FOLDER`: with 1 and 2 devices of this process, data sets also with 4. `python dealt.py FOLDER PORT PROCESS`: with the two
devices of each of two processes.
"""

import sys
from dataclasses import replace
from pathlib import Path

import jax
from small import SPARSE, SPECTRAL, with_training

import simulate
from spectral_ode import runtime
from spectral_ode.problem import AdamTraining, MergedHeads, Start
from spectral_ode.sections.sparse import LinearLayers

SHORT = {"horizon": 4.0, "points": 5}
FRESH = with_training(data="fresh", sampling="mirrored", sequences=70, dtype="float32")
SOFTMAX = replace(
    with_training(sequences=50, method="attention", sampling="iid", dtype="float32"),
    system="linear.merged",
    attention=MergedHeads(heads=2, activation="softmax"),
)
LAYERS = replace(
    SPARSE["sparse.gains"],
    system="sparse.depth",
    horizon=6.0,
    points=3,
    attention=LinearLayers(layers=2, heads=2),
    start=Start(scale=0.3),
    training=AdamTraining(tasks=22, queries=4, test_tasks=50),
)
# Each with more pieces than devices, or fewer, and a last piece that is smaller.
PROBLEMS = {
    "moments": (replace(with_training(sequences=22_000), **SHORT), None),
    "stored": (replace(SOFTMAX, **SHORT), 8),
    "fresh": (replace(FRESH, **SHORT), 16),
    "episodes": (replace(SPECTRAL, horizon=0.04, points=3, training=replace(SPECTRAL.training, test_contexts=50)), 10),
    "gains": (replace(SPARSE["sparse.gains"], horizon=0.04, points=3), 100),
    "adam": (LAYERS, 5),
}

FOUR = ("stored", "fresh")  # tried on four devices of one process, too; all of them are tried on two devices of two processes


def main(folder: Path, port: str | None = None, process: str = "0") -> None:
    jax.config.update("jax_num_cpu_devices", 4 if port is None else 2)
    if port is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
    runtime.configure()
    for name, (problem, microbatch) in PROBLEMS.items():
        for count in [1, 2, *[4] * (name in FOUR)] if port is None else [4]:
            trained = simulate.train(problem, microbatch=microbatch, devices=jax.devices()[:count])
            if jax.process_index() == 0:
                trained.save(folder / f"{name}-{count if port is None else 'processes'}.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
