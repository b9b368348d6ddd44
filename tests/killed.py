"""A program that trains with checkpoints and is killed again and again: `python killed.py FOLDER SEED KILLS`, for the tests.

It prepares everything once and forks: each child goes on from the checkpoints of those before it, and is killed, without warning, at a
random moment after a random number of records. The last one may end. Writes interrupted.npz, with the kills in kills.json.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from small import SMALL, SPECTRAL

import simulate
from simulate.checkpoint import Keeper
from spectral_ode import runtime

PROBLEMS = {
    "sequences": replace(SMALL, horizon=2000.0, points=161, training=replace(SMALL.training, sequences=5000)),
    "episodes": replace(SPECTRAL, horizon=0.8, points=41, runs=2, training=replace(SPECTRAL.training, test_contexts=100)),
}


def train(folder: Path, problem, name: str) -> None:
    runtime.configure()
    told = []
    keeper = Keeper(folder / "resume", every=0.0, tell=told.append)
    trained = simulate.train(problem, keep=keeper, progress=lambda share, time, loss: None)
    trained.save(folder / f"{name}.npz")
    keeper.clear()


def records(folder: Path) -> int:
    """How many checkpoints were made after which a child may be killed: the marks of all trainings."""
    return sum(max((int(path.stem.split("-")[1]) for path in run.glob("carry-*.npz")), default=0) for run in folder.glob("resume/*"))


def main(folder: Path, kind: str, seed: int, kills: int) -> None:
    problem, moments = PROBLEMS[kind], random.Random(seed)
    length = len(problem.steps) * (problem.runs if kind == "episodes" else 1)
    places = sorted(moments.sample(range(length * 9 // 10), kills))
    done = []
    for place in [*places, None]:
        child = os.fork()
        if not child:
            train(folder, problem, "interrupted")
            os._exit(0)
        ended = 0
        while place is not None and not ended and records(folder) < place:
            time.sleep(0.002)
            ended, _ = os.waitpid(child, os.WNOHANG)
        if place is not None and not ended:
            time.sleep(moments.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
        status = 0 if ended else os.waitpid(child, 0)[1]
        done.append({"wanted": place, "at": records(folder), "killed": os.WIFSIGNALED(status)})
    (folder / "kills.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
