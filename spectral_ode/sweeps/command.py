"""The sweep command: plan, solve what is missing, then the table, the pictures and the summary, in a folder that can be resumed.

Several processes solve chunks of their own, into one folder; the first one prepares the folder, and makes the rest of it in the end.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spectral_ode import cluster, document, rungs
from spectral_ode.folder import hold, release
from spectral_ode.problem import BadInput
from spectral_ode.run import Terminal
from spectral_ode.sweeps import begun, layout, members, perform, store, table
from spectral_ode.sweeps.axes import Plan
from spectral_ode.sweeps.layout import Layout
from spectral_ode.sweeps.table import Table


class Request(NamedTuple):
    """What is asked for beside the plan."""

    rung: str | None = None
    keep: str | None = None  # names, comma separated, or all
    show: str | None = None
    memory: int = 2 * 10**9
    zarr: bool = False
    fresh: bool = False


class Swept(NamedTuple):
    """What came of a sweep: its summary, and (in the first process) its table, a column for every name; printed, it says the summary."""

    summary: dict[str, Any]
    table: Table

    @property
    def folder(self) -> Path:
        """Where it is."""
        return Path(self.summary["folder"])

    def __str__(self) -> str:
        return words(self.summary)


def identity(plan: Plan, request: Request, rung: str) -> str:
    """Twelve hexadecimal digits that name what the sweep computes."""
    parts = [document.identity(plan.problem), [axis.text for axis in plan.axes], plan.samples, plan.sample_seed, plan.seeds]
    return hashlib.sha256(json.dumps([*parts, rung, request.keep, request.zarr]).encode()).hexdigest()[:12]


def carry_out(name: str, plan: Plan, request: Request, out: str, *, talk: bool) -> Swept:
    """Do the sweep, or what is left of it."""
    progress = Terminal(talk and sys.stderr.isatty())
    progress.stage(f"{name}: laying out {plan.size} members")
    rung = rungs.chosen(plan.problem, request.rung)
    folder = Path(out) / f"sweep-{name}-{identity(plan, request, rung)}"
    try:
        buckets, refused = members.gather(plan, rung)
        if not buckets:
            raise BadInput(f"every combination is refused, the first because {next(iter(refused.values()))}")
        keep = layout.kept(request.keep, buckets)

        def begin() -> None:
            with _told(folder, "choose another folder with --out"):
                folder.mkdir(parents=True, exist_ok=True)
                hold(folder)
                store.prepare(folder, zarr=request.zarr, fresh=request.fresh)
                begun.lay_out(folder, plan, rung, buckets, keep, request.memory, zarr=request.zarr)

        def tell(done: int, total: int, rate: float) -> None:
            left = (total - done) / max(rate, 1e-9)
            progress.bar("sweep", done / total, f"   {done} of {total}, {rate:.3g} a second, {_duration(left)} left")

        def work() -> tuple[Layout, store.Chunks, perform.Outcome]:
            with _told(folder, "make room, and start the same command again: the chunks that are there are kept"):
                laid_out, chunks = begun.read(folder), store.Chunks(folder, zarr=request.zarr)
                workers = laid_out.workers(request.memory, plan.size)
                return laid_out, chunks, perform.perform(buckets, laid_out, keep, chunks, workers, tell)

        cluster.agree(begin)
        laid_out, chunks, outcome = cluster.everyone(work)
        summary: dict[str, Any] = {"name": name, "folder": str(folder), "rung": rung, "members": plan.size, "refused": len(refused)}
        summary |= {"found there": outcome.found_there, "solved": outcome.done, "seconds": outcome.seconds}
        made: list[Table] = []

        def finish() -> dict[str, Any]:
            progress.stage("table and pictures")
            with _told(folder, "make room, and start the same command again: nothing is solved twice"):
                everything = laid_out.chunks(buckets)
                made.append(table.gather(plan, chunks.small(everything), refused))
                more = _finish(folder, plan, request, made[0], lambda wanted: chunks.losses(everything, wanted))
                more |= {"peak memory": _peak(), "memory": request.memory}
                store.write(folder / "summary.json", store.to_json(summary | more))
                return more

        summary |= cluster.agree(finish)
    finally:
        progress.close()
        release(folder)
    if talk:
        print(words(summary))
    return Swept(summary, made[0] if made else Table())


@contextmanager
def _told(folder: Path, remedy: str) -> Iterator[None]:
    """A full disk or a folder that cannot be written, in one sentence."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{error.filename or folder} cannot be written or read ({error.strerror or error}); {remedy}") from None


def _finish(folder: Path, plan: Plan, request: Request, made: Table, losses) -> dict[str, Any]:
    """Everything that is made of the members together."""
    from figures import style, swept

    shown = table.quantity(made, plan, request.show)
    names = [axis.name for axis in plan.axes]
    fits = table.exponents(made, names, shown)
    columns = [*(name for name in made if name not in table.OTHER), "steps", "stopped"]
    store.write_table(folder / "members.csv", made.rows(plan), ["member", *columns])
    store.write_list(folder / "failures.json", _failures(plan, made))
    for name, figure in swept.draw(plan, made, shown, fits, losses).items():
        style.save(figure, folder / f"{name}.png")
    failed = int(np.sum(made["ended"] == table.FAILED))
    return {"shown": shown, "exponents": fits, "failed": failed, "ok": not failed}


def _failures(plan: Plan, made: Table) -> Iterator[dict[str, Any]]:
    """The members that were refused or failed: their values, the reason, and the whole problem if there can be one."""
    for kind, code in (("refused", table.REFUSED), ("failed", table.FAILED)):
        for number in np.flatnonzero(made["ended"] == code):
            member = members.Member(plan, int(number))
            problem = document.to_dict(member.problem) if code == table.FAILED else None
            yield {"member": int(number), "kind": kind, "values": member.row, "reason": made["stopped"][number], "problem": problem}


def _peak() -> int:
    """The largest memory of this process so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        import resource  # not Linux; what is counted there may include the program that started this one

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(min(seconds, 3.6e6)), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def words(summary: dict[str, Any]) -> str:
    """The summary for people."""
    rate = summary["solved"] / max(summary["seconds"], 1e-9)
    there = f"{summary['found there']} were there already"
    solved = f"{summary['solved']} solved in {summary['seconds']:.3g} s ({rate:.3g} a second)"
    both = ", ".join([solved] * bool(summary["solved"]) + [there] * bool(summary["found there"]))
    count = lambda number, word: f"{number} {word}" + "s" * (number != 1)
    lines = [f"{count(summary['members'], 'member')}, {summary['rung']}: {both}"]
    for name, fit in summary["exponents"].items():
        bend = f", but no power law: from {fit['first']:.3g} to {fit['last']:.3g} along the axis" if table.bent(fit) else ""
        lines.append(f"{summary['shown']} ~ {name}^({fit['exponent']:.4g} +- {fit['standard error']:.2g}){bend}")
    if summary["refused"]:
        lines.append(f"{count(summary['refused'], 'combination')} not allowed and left out; failures.json says why")
    if summary["failed"]:
        lines.append(f"{count(summary['failed'], 'member')} failed; failures.json has the problem and the reason of each")
    lines.append(f"peak memory {summary['peak memory'] / 1e9:.2g} of {summary['memory'] / 1e9:.3g} GB; {summary['folder']}")
    return "\n".join(lines)
