"""The run command: one problem through every layer, into one folder.

This is the top of the program inside its lowest package, so the layers above (`validate`, `figures`) are imported inside functions.
A run folder is written aside and renamed when it is whole: an interruption leaves nothing behind.
"""

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spectral_ode import cluster, document
from spectral_ode.folder import whole
from spectral_ode.problem import BadInput, Problem


def writable(out: str) -> None:
    """Raise `BadInput` unless the output folder can be written; nothing is left behind by the question."""
    folder = Path(out).absolute()
    try:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists() or parent.is_symlink())
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is something else of that name")
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise BadInput(f"the output folder {out} cannot be written ({error.strerror}); choose another with --out") from None


def carry_out(name: str, problem: Problem, out: str, *, talk: bool, scale: cluster.Scale = cluster.Scale()) -> dict[str, Any]:  # noqa: B008
    """Answer a problem on every rung, judge it, write its folder, and return the report."""
    progress = Terminal(talk and sys.stderr.isatty())
    begun = time.perf_counter()
    progress.stage(f"{name}: starting")
    from figures import overlay, style
    from validate import charts, check, page, perform, report, store

    training = scale.training(name, problem, out, talk=talk, wipe=progress.close)
    try:
        experiment = perform(problem, progress, **training)
        progress.stage("claims")
        verdicts = check(experiment)
        progress.stage("picture")
        folder = Path(out) / f"{name}-{document.identity(problem)}"
        summary: dict[str, Any] = report.summarize(name, experiment, verdicts) | {"folder": str(folder)}
        if not cluster.first():
            return summary
        with whole(folder) as aside:
            (aside / "problem.toml").write_text(document.to_toml(problem), encoding="utf-8")
            store.write(experiment, aside)
            style.save(overlay.draw(experiment), aside / "overlay.png")
            summary["seconds"]["imports, claims, picture"] = time.perf_counter() - begun - sum(summary["seconds"].values())
            (aside / "report.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
            (aside / "report.html").write_text(page.experiment(summary, charts.picture(experiment)), encoding="utf-8")
        training["keep"].clear()
    finally:
        progress.close()
    if talk:
        print(report.table(summary, color=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    return summary


class Terminal:
    """Progress on a terminal, one line that is wiped at the end; silent anywhere else."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def stage(self, text: str) -> None:
        """A new part of the work begins."""
        self._show(f"{text} ...")

    def training(self, share: float, time: float, loss: float, *, clock: str = "flow time") -> None:
        """Training has got this far."""
        self.bar("training", share, f"   {clock} {time:.4g}   loss {loss:.4f}")

    def bar(self, text: str, share: float, more: str = "") -> None:
        """A part of the work with a known length has got this far."""
        filled = "#" * round(20 * share)
        self._show(f"{text} [{filled:<20}] {100 * share:3.0f} %{more}")

    def close(self) -> None:
        """Wipe the line."""
        self._show("")

    def _show(self, text: str) -> None:
        if self.on:
            print(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
