"""A program that sweeps and is killed again and again: `python swept.py FOLDER SEED KILLS npz|zarr`, for the tests.

It prepares everything once and forks: each child goes on from the chunks of those before it, and is killed, without warning, a random
number of chunks and moments later. The last one may end. `whole` in FOLDER is the same sweep undisturbed; kills.json says what was done.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from spectral_ode import cli, runtime
from spectral_ode.sweeps import layout

WORDS = ["sweep", "zhang2025-fig1", "--horizon", "30", "--points", "11", "--over", "start.scale=linspace:0.2,0.4,60", "--over"]
WORDS += ["task.noise=linspace:0.1,0.3,16", "--quiet"]


def sweep(folder: Path, store: str) -> None:
    runtime.configure()
    layout.LARGEST = 20_000  # many small chunks
    code = cli.main([*WORDS, "--store", store, "--out", str(folder)])
    os._exit(code)


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
            time.sleep(0.001)
            ended, status = os.waitpid(child, os.WNOHANG)
        if place is not None and not ended:
            time.sleep(moments.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
        status = status if ended else os.waitpid(child, 0)[1]
        done.append({"wanted": place, "at": chunks(folder / "killed"), "killed": os.WIFSIGNALED(status), "status": status})
    (folder / "kills.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
