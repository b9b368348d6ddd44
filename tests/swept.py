"""A program that sweeps and is killed again and again: `python swept.py FOLDER SEED KILLS npz|zarr`, for the tests.

It forks: each child goes on from the chunks of those before it, and is killed, without warning, a random number of chunks and moments
later. The last one may end. `whole` in FOLDER is the same sweep undisturbed; kills.json says what was done. A group is not solved here
but computed from the numbers of its members, so that many kills take little time; real ones are killed in test_sweep_killed.py.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from spectral_ode import cli, rungs
from spectral_ode.sweeps import layout, members, perform

WORDS = ["sweep", "zhang2025-fig1", "--horizon", "30", "--points", "11", "--over", "start.scale=linspace:0.2,0.4,60", "--over"]
WORDS += ["task.noise=linspace:0.1,0.3,4", "--quiet"]


def group(bucket, chunk, start, width, names):
    time.sleep(0.01)
    found = bucket.some(chunk.place + start, min(width, chunk.count - start))
    loss = np.stack([np.random.default_rng(member.number).normal(size=11) for member in found])
    fine = [True] * len(found)
    return perform._arrays(found, bucket.times, {"loss": loss}, {"half 1": loss[:, 0]}, np.arange(len(found)), ["done"] * len(found), fine)


def sweep(folder: Path, store: str) -> None:
    perform._group, rungs.chosen, members._refusal = group, lambda problem, rung: "population", lambda *_: ""
    layout.fit, layout.check = lambda *_: layout.Layout(4, (2,), 1, True), lambda *_: None
    layout.kept = lambda wanted, buckets: [("loss",)] * len(buckets)
    os._exit(cli.main([*WORDS, "--store", store, "--out", str(folder)]))


def fork(folder: Path, store: str) -> int:
    child = os.fork()
    if not child:
        sweep(folder, store)
    return child


def chunks(folder: Path) -> int:
    return len(list(folder.glob("sweep-*/chunks/[0-9]*.npz")))


def main(folder: Path, seed: int, kills: int, store: str) -> None:
    moments, done = random.Random(seed), []
    assert os.waitpid(fork(folder / "whole", store), 0)[1] == 0
    places = sorted(moments.sample(range(chunks(folder / "whole")), kills))
    for place in [*places, None]:
        child, ended, status = fork(folder / "killed", store), 0, 0
        while place is not None and not ended and chunks(folder / "killed") < place:
            time.sleep(0.0005)
            ended, status = os.waitpid(child, os.WNOHANG)
        if place is not None and not ended:
            time.sleep(moments.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
        status = status if ended else os.waitpid(child, 0)[1]
        done.append({"wanted": place, "at": chunks(folder / "killed"), "killed": os.WIFSIGNALED(status), "status": status})
    (folder / "kills.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
