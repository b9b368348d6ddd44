"""A replay against the authors' PyTorch script (yedizhang/linattn-icl).

The script is the user's own copy, and torch lives in the Python that is given: neither is part of this project. It runs in a process of
its own, generates the data and the start, and trains through its own functions; only the plot at its end is left out. It has the faster of
one thread and torch's own choice, which is slow where other programs run. We replay exactly that run, in float64; the error is the largest
difference of the loss curves. An epoch of ours is the difference of two replays. A whole run has 2,501 epochs, ours in a fresh process
with nothing compiled before, and again with programs kept on disk. Most of the gain is algebra that PyTorch could use as well.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measure import Options, Row, Skipped, clock, in_turns
from benchmarks.processes import Served, fresh

KINDS = {  # rates and starts with which the loss falls to its floor in the epochs timed from end to end
    "separate, 5 heads": "--model attnS --head_num 5 --lr 0.02 --init 0.05",
    "merged, 8 heads": "--model attnM --head_num 8 --lr 0.001 --init 0.01",
}
SIZES, WHOLE, WHOLE_SEQUENCES = (200, 5000), 2501, 200  # the run timed from end to end
SHORT, LONG = 1001, 101_001  # our time of an epoch is the difference of two replays


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


def whole(path: str) -> list[float]:
    """In a fresh process: seconds to read a recorded run and replay it, compilation included; and the largest difference of losses."""
    import spectral_ode as so

    so.configure()
    from simulate import recording, replay

    def work() -> float:
        run = recording.load(path)
        return float(np.abs(replay.replay(run)["training"] - run.curves["training"]).max())

    return list(clock(work))


def per_epoch(script: Served, name: str, path: Path, rounds: int) -> tuple[Row, int]:
    """Time of an epoch, theirs and ours in turn; and the threads with which the script was faster."""
    from simulate import recording, replay

    choices = sorted({1, script.threads})
    script.ask(5, str(path), 1)
    epochs = int(np.clip(5 / script.ask(5, str(path), 1), 10, 500))  # about a second
    run = recording.load(path)
    mine = lambda epochs: clock(lambda: replay.replay(replace(run, curves={"training": np.zeros(epochs)})))[0]
    ours = lambda: (mine(LONG) - mine(SHORT)) / (LONG - SHORT)
    ours()  # compiles
    theirs = {str(threads): lambda threads=threads: script.ask(epochs, str(path), threads) / epochs for threads in choices}
    took = in_turns(rounds, ours=ours, **theirs)
    best = min(theirs, key=lambda threads: np.median(took[threads]))
    return Row(f"epoch, {name}", took["ours"], f"script, {best} of {choices[-1]} threads", took[best]), int(best)


def end_to_end(script: Served, name: str, folder: Path, rounds: int, threads: int) -> Iterator[Row]:
    """A whole run, theirs and ours in turn."""
    path, theirs, ours, gaps = folder / "whole.npz", [], [], []
    for number in range(rounds):
        theirs.append(script.ask(WHOLE, str(path), threads))
        pair = [fresh("against_script", "whole", str(path), XDG_CACHE_HOME=str(folder / f"{name} {number}")) for _ in range(2)]
        ours.append([seconds for seconds, _ in pair])
        gaps += [gap for _, gap in pair]
    for what, took in zip(("nothing compiled before", "programs kept on disk"), zip(*ours, strict=True), strict=True):
        yield Row(f"{WHOLE} epochs, {name}, {what}", list(took), "script", theirs, errors=(max(gaps), None))


def run(options: Options) -> Iterator[Row]:
    if not (options.script_linear and options.python):
        raise Skipped("needs a copy of the authors' script and a Python with torch: --script-linear FOLDER --python PYTHON")
    rounds = min(options.rounds, 3)
    with tempfile.TemporaryDirectory() as name:
        for sequences in SIZES[: 1 if options.small else None]:
            for kind, words in KINDS.items():
                label, told = f"{kind}, {sequences} sequences", ("--trainset_size", str(sequences), *words.split())
                with Served(options.python, "against_script", options.script_linear, *told) as script:
                    row, threads = per_epoch(script, label, Path(name) / "run.npz", rounds)
                    yield row
                    if sequences == WHOLE_SEQUENCES and not options.small:
                        yield from end_to_end(script, label, Path(name), min(2, rounds), threads)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", folder, *options]:
            serve(folder, options)
        case ["whole", path]:
            print(json.dumps(whole(path)))
