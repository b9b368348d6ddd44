"""The replay command: train a recorded run of the authors' script again, overlay the two, and judge the difference.

Like `run` it is the top of the program inside its lowest package: the layers above are imported inside the function.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from spectral_ode.folder import whole
from spectral_ode.run import Terminal


def readable(paths: list[str]) -> None:
    """Raise `BadInput` unless every file is a recording: a mistake in the last one is told before the first one is replayed."""
    from simulate import recording

    for path in paths:
        recording.load(path)


def carry_out(path: str, out: str, *, bound: float, dtype: str, method: str, talk: bool) -> dict[str, Any]:
    """Replay one file into a folder of its own, and return the report."""
    from simulate import recording as recordings
    from simulate.replay import method_of, replay

    recording = recordings.load(path)
    road = method_of(recording, method)
    from figures import replayed, style
    from validate.replay import judge

    progress = Terminal(talk and sys.stderr.isatty())
    settings: dict[str, Any] = {"dtype": dtype, "method": method}
    try:
        progress.stage(f"{recording.name}: starting")
        tell = lambda done, loss: progress.training(done / recording.epochs, float(done), loss, clock="epoch")
        curves = replay(recording, tell=tell, **settings)
        judgement = judge(recording, curves, bound, lambda: replay(recording, dtype="float32", method="attention", nudge=0, tell=tell))
        progress.stage("picture")
        folder = Path(out) / f"replay-{recording.name}"
        report = {"file": Path(path).name, "bound": bound, "dtype": dtype, "method": road, **asdict(judgement), "folder": str(folder)}
        with whole(folder) as aside:
            arrays = {f"recorded/{name}": curve for name, curve in recording.curves.items()}
            arrays |= {f"replayed/{name}": curve for name, curve in curves.items()}
            np.savez(aside / "curves.npz", allow_pickle=False, epoch=np.arange(recording.epochs), **arrays)
            style.save(replayed.draw(recording, curves, judgement, bound), aside / "overlay.png")
            (aside / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    finally:
        progress.close()
    if talk:
        word = {True: "yes", False: "NO", None: "no verdict"}[judgement.ok]
        print(f"{recording.name} ({road}, {dtype}): {word}\n    {judgement.sentence}")
        print(f"    wrote {folder}/ (overlay.png, report.json, curves.npz)")
    return report
