"""Our trainer against the authors' PyTorch script (yedizhang/linattn-icl), interleaved on this machine.

    python benchmarks/against_script.py --script FOLDER --python PYTHON_WITH_TORCH [--sequences 200,5000] [--repeats 5]

The script is the user's own copy, and torch lives in the Python that is given: neither is part of this project. It runs in a process of
its own, generates the data and the start, and trains through its own functions; only the plot at its end is left out. It has the faster of
one thread and torch's own choice, which is slow where other programs run. We replay exactly that run, in float64.

Printed are medians over repetitions with their range: the time of an epoch; the time of a run of 2,501 epochs, ours in a fresh process with
nothing compiled before, and again with programs kept on disk; the largest difference of the loss curves; the time of 80,000 sequences and
10,001 epochs here; and the load of the machine. Nothing is asserted.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {  # rates and starts with which the loss falls to its floor in the epochs timed from end to end
    "separate, 5 heads": "--model attnS --head_num 5 --lr 0.02 --init 0.05",
    "merged, 8 heads": "--model attnM --head_num 8 --lr 0.001 --init 0.01",
}
WHOLE, WHOLE_SEQUENCES = 2501, 200  # the run timed from end to end
SHORT, LONG = 1001, 101_001  # our time of an epoch is the difference of two replays


class Script:
    """The user's script in its own process, which sleeps between requests."""

    def __init__(self, python: str, folder: str, kind: str, sequences: int) -> None:
        command = [python, __file__, "serve", folder, "--trainset_size", str(sequences), *KINDS[kind].split()]
        begun = time.perf_counter()
        self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.threads = self._answer()
        self.starting = time.perf_counter() - begun
        self.name = f"{kind}, {sequences} sequences"

    def train(self, epochs: int, path: Path, threads: int = 1) -> float:
        """Seconds for so many epochs from the start; the run is left in a file, in the layout of `simulate.recording`."""
        print(json.dumps([epochs, str(path), threads]), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        if not (line := self.process.stdout.readline()):
            raise SystemExit("the script has stopped; what it said is above")
        return json.loads(line)


def serve(folder: str, options: list[str]) -> None:
    """The other side, under the Python that has torch: train when asked, with the functions of the script in this folder."""
    os.environ["MPLBACKEND"] = "Agg"
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    told, sys.argv = sys.stdout, ["train.py", *options]
    say = lambda number: print(json.dumps(number), file=told, flush=True)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        import torch  # pyright: ignore[reportMissingImports]
        import train  # pyright: ignore[reportMissingImports]

        args = train.config().parse_args()
        torch.manual_seed(args.seed)
        np.random.seed(args.seed)  # noqa: NPY002 (the script draws from it)
        data, model = train.gen_dataset(args), train.creat_network(args)
        start = {name: part.clone() for name, part in model.state_dict().items()}
        results: dict = {}
        train.vis_loss = lambda _, found: results.update(found)
        say(torch.get_num_threads())
        for line in sys.stdin:
            args.epoch, path, threads = json.loads(line)
            torch.set_num_threads(threads)
            model.load_state_dict(start)
            begun = time.perf_counter()
            train.train(model, data, args)
            seconds = time.perf_counter() - begun
            same = ("lr", "rank", "in_dim", "seq_len", "model", "softmax", "vary_len")
            arrays = {"loss": results["Ls"], "epochs": args.epoch, "heads": args.head_num} | {name: getattr(args, name) for name in same}
            arrays |= {f"init_{name.removesuffix('.weight')}": part.cpu().numpy() for name, part in start.items()}
            arrays |= {f"data_{name}": part.cpu().numpy() for name, part in data.items()}
            np.savez(path, allow_pickle=False, **arrays)
            say(seconds)


def whole(path: str) -> None:
    """In a fresh process: read a recorded run and replay it, compilation included."""
    import spectral_ode as so

    so.configure()
    from simulate import recording, replay

    begun = time.perf_counter()
    run = recording.load(path)
    loss = replay.replay(run)["training"]
    print(json.dumps([time.perf_counter() - begun, np.abs(loss - run.curves["training"]).max()]))


def fresh(path: Path, cache: Path) -> tuple[float, float, float]:
    """`whole` with programs kept in this folder: its seconds, those of its process, and the largest difference of losses."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    begun = time.perf_counter()
    seconds, gap = json.loads(subprocess.check_output([sys.executable, __file__, "whole", str(path)], env=environment))
    return seconds, time.perf_counter() - begun, gap


def per_epoch(script: Script, folder: Path, repeats: int) -> int:
    """Time of an epoch, theirs and ours in turn; returned are the threads with which the script was faster."""
    from simulate import recording, replay

    path, choices = folder / "run.npz", sorted({1, script.threads})
    script.train(5, path)
    epochs = int(np.clip(5 / script.train(5, path), 10, 500))  # about a second
    run = recording.load(path)

    def ours(epochs: int) -> float:
        begun = time.perf_counter()
        replay.replay(replace(run, curves={"training": np.zeros(epochs)}))
        return time.perf_counter() - begun

    lap = lambda: [script.train(epochs, path, threads) / epochs for threads in choices] + [(ours(LONG) - ours(SHORT)) / (LONG - SHORT)]
    *theirs, mine = np.array([lap() for _ in range(repeats + 1)][1:]).T  # the first round compiles
    best = int(np.argmin(np.median(theirs, axis=1)))
    print(f"{script.name}: script {shown(1e3 * theirs[best], '.2f')} ms per epoch with {choices[best]} of {choices[-1]} threads")
    print(f"    ours {shown(1e6 * mine, '.2f')} us per epoch: {shown(theirs[best] / mine, ',.0f')} times as fast", flush=True)
    return choices[best]


def end_to_end(script: Script, folder: Path, repeats: int, threads: int) -> None:
    """A whole run, theirs and ours in turn."""
    path, rows = folder / "whole.npz", []
    for repeat in range(repeats):
        theirs, cache = script.train(WHOLE, path, threads), folder / f"{script.name} {repeat}"
        rows.append([theirs, *fresh(path, cache), *fresh(path, cache)])
    theirs, *ours = np.array(rows).T
    loss = np.load(path)["loss"]
    print(f"    {WHOLE} epochs from end to end, loss {loss[0]:.3f} to {loss[-1]:.3f}: script {shown(theirs, '.2f')} s")
    for name, (seconds, process, gap) in {"nothing compiled before": ours[:3], "programs kept on disk": ours[3:]}.items():
        print(
            f"    ours, {name}: {shown(seconds, '.2f')} s: {shown(theirs / seconds, '.1f')} times; losses differ by {gap.max():.1e} at most"
        )
        print(f"        whole processes, imports included: {shown((theirs + script.starting) / process, '.1f')} times", flush=True)


def large() -> None:
    """80,000 sequences and 10,001 epochs, of ours alone."""
    import simulate
    import spectral_ode as so

    base = so.load("zhang2025-fig3")
    problem = replace(base, runs=1, horizon=10_000 * base.training.learning_rate, training=replace(base.training, sequences=80_000))
    for name in ("with compilation", "again"):
        begun = time.perf_counter()
        simulate.train(problem)
        print(f"ours, 80,000 sequences, {problem.steps[-1] + 1:,} epochs, {name}: {time.perf_counter() - begun:.2f} s", flush=True)


def shown(values: np.ndarray, form: str) -> str:
    """Median and range."""
    return f"{np.median(values):{form}} ({values.min():{form}} to {values.max():{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--sequences", default="200,5000")
    parser.add_argument("--repeats", type=int, default=5)
    told = parser.parse_args()
    import spectral_ode as so

    so.configure(cache=False)
    with tempfile.TemporaryDirectory() as name:
        for sequences in map(int, told.sequences.split(",")):
            for kind in KINDS:
                script = Script(told.python, told.script, kind, sequences)
                threads = per_epoch(script, Path(name), told.repeats)
                if sequences == WHOLE_SEQUENCES:
                    end_to_end(script, Path(name), min(3, told.repeats), threads)
                script.process.communicate()  # ends it
    large()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", folder, *options]:
            serve(folder, options)
        case ["whole", path]:
            whole(path)
        case _:
            main()
