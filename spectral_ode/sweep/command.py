"""The sweep command: plan, solve what is missing, then the table, the pictures and the summary, in a folder that can be resumed."""

import hashlib
import json
import math
import re
import resource
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from spectral_ode import document
from spectral_ode.problem import BadInput
from spectral_ode.run import Terminal
from spectral_ode.sweep import store
from spectral_ode.sweep.axes import Plan


class Request(NamedTuple):
    """What is asked for beside the plan."""

    rung: str | None = None
    keep: str | None = None  # names, comma separated, or all
    show: str | None = None
    memory: int = 2 * 2**30
    zarr: bool = False


def memory_of(text: str) -> int:
    """Bytes from text such as 2GB."""
    match = re.fullmatch(r"([0-9.]+)\s*([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    try:
        value = float(match.group(1)) * 2 ** {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2).upper()] if match else math.nan
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"--memory is {text!r}, but it must be an amount such as 2GB or 500MB")
    return int(value)


def identity(plan: Plan, request: Request) -> str:
    """Twelve hexadecimal digits that name what the sweep computes."""
    parts = [document.identity(plan.problem), [axis.text for axis in plan.axes], plan.samples, plan.sample_seed, plan.seeds]
    return hashlib.sha256(json.dumps([*parts, request.rung, request.keep, request.zarr]).encode()).hexdigest()[:12]


def carry_out(name: str, plan: Plan, request: Request, out: str, *, talk: bool) -> dict[str, Any]:
    """Do the sweep, or what is left of it, and return its summary."""
    import jax

    from spectral_ode.sweep import members, perform, table

    progress = Terminal(talk and sys.stderr.isatty())
    progress.stage(f"{name}: laying out {plan.size} members")
    try:
        rung = members.rung_of(plan.problem, request.rung)
        buckets, refused = members.gather(plan, rung)
        if not buckets:
            raise BadInput(f"every combination is refused, the first because {next(iter(refused.values()))[1]}")
        keep = _keep(request.keep, buckets, rung)
        folder = Path(out) / f"sweep-{name}-{identity(plan, request)}"
        folder.mkdir(parents=True, exist_ok=True)
        layout = _laid_out(folder, plan, request, rung, buckets, keep)
        chunks = store.Chunks(folder, zarr=request.zarr)

        def tell(done: int, total: int, rate: float) -> None:
            left = (total - done) / max(rate, 1e-9)
            progress.bar("sweep", done / total, f"   {done} of {total} members, {rate:.3g} a second, {left:.0f} s left")

        outcome = perform.perform(buckets, layout, chunks, keep, tell)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices("sweep")
        summary: dict[str, Any] = {"name": name, "folder": str(folder), "rung": rung, "members": plan.size, "refused": len(refused)}
        summary |= {"found there": outcome.found_there, "solved": outcome.done, "seconds": outcome.seconds}
        if jax.process_index() > 0:
            return summary | {"ok": not outcome.failed}
        progress.stage("table and pictures")
        numbers = [chunk.number for chunk in perform.chunks(buckets, layout)]
        made = table.rows(plan, chunks.small(numbers), refused)
        summary |= _finish(folder, plan, request, made, chunks, numbers, buckets)
    finally:
        progress.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    summary |= {"peak memory": peak, "memory": request.memory}
    store.write(folder / "summary.json", store.to_json(summary))
    if talk:
        print(words(summary))
    return summary


def _keep(wanted: str | None, buckets: list, rung: str) -> tuple[str, ...] | None:
    from spectral_ode.sweep import perform

    if wanted == "all" or (wanted is None and rung == "training"):
        return None
    there = {} if rung == "training" else perform.observables(buckets[0])
    if wanted is None:
        return tuple(name for name, rank in there.items() if rank < 2)
    chosen = tuple(dict.fromkeys(["loss", *wanted.split(",")]))
    if there and (unknown := next((one for one in chosen if one not in there), None)):
        raise BadInput(f"--keep names {unknown!r}, but the observables are {', '.join(there)}, or all")
    return chosen


def _laid_out(folder: Path, plan: Plan, request: Request, rung: str, buckets: list, keep):
    """The layout of an earlier process that began this sweep, or a new one, written down."""
    from spectral_ode.sweep import perform

    path = folder / "sweep.toml"
    try:
        earlier = tomllib.loads(path.read_text(encoding="utf-8"))["layout"]
        return perform.Layout(earlier["width"], tuple(earlier["groups"]))
    except FileNotFoundError:
        pass
    except (KeyError, ValueError):
        raise BadInput(f"{path} is not the description of a sweep; move the folder away to start anew") from None
    layout = perform.layout(buckets, request.memory, keep)
    problem = tomllib.loads(document.to_toml(plan.problem))
    described = {"over": [axis.text for axis in plan.axes], "samples": plan.samples, "sample_seed": plan.sample_seed, "seeds": plan.seeds}
    described |= {"rung": rung, "keep": list(keep or ["all"]), "layout": {"width": layout.width, "groups": list(layout.groups)}}
    store.write(path, tomli_w.dumps(described | {"problem": problem}))
    return layout


def _finish(folder: Path, plan: Plan, request: Request, made: list, chunks: store.Chunks, numbers: list[int], buckets: list):
    """Everything that is made of the members together."""
    from figures import style, swept
    from spectral_ode.sweep import table

    shown = table.quantity(made, request.show)
    names = [axis.name for axis in plan.axes]
    fits = table.exponents(made, names, shown)
    bad = {kind: [row for row in made if row["stopped"].startswith(f"{kind}: ")] for kind in ("refused", "failed")}
    failures = [
        {"member": row["member"], "kind": kind, "values": {name: row[name] for name in (*names, "seed") if name in row}}
        | {"reason": row["stopped"].removeprefix(f"{kind}: "), "problem": _problem(plan, row)}
        for kind, those in bad.items()
        for row in those
    ]
    store.write_table(folder / "members.csv", made)
    store.write(folder / "failures.json", store.to_json(failures))
    for name, figure in swept.draw(plan, made, shown, fits, lambda wanted: chunks.losses(numbers, wanted, buckets)).items():
        style.save(figure, folder / f"{name}.png")
    return {"shown": shown, "exponents": fits, "failed": len(bad["failed"]), "ok": not bad["failed"]}


def _problem(plan: Plan, row: dict[str, Any]) -> dict[str, Any] | None:
    """The whole problem of a member, if there can be one."""
    try:
        return document.to_dict(plan.member({name: row[name] for name in row if name in {axis.name for axis in plan.axes} | {"seed"}}))
    except BadInput:
        return None


def words(summary: dict[str, Any]) -> str:
    """The summary for people."""
    rate = summary["solved"] / max(summary["seconds"], 1e-9)
    there = f", {summary['found there']} were there already" if summary["found there"] else ""
    solved = f"{summary['solved']} solved in {summary['seconds']:.3g} s ({rate:.3g} a second){there}"
    lines = [f"{summary['members']} members, {summary['rung']}: {solved}"]
    for name, fit in summary["exponents"].items():
        lines.append(f"{summary['shown']} ~ {name}^({fit['exponent']:.4g} +- {fit['standard error']:.2g})")
    if summary["refused"]:
        lines.append(f"{summary['refused']} combinations are not allowed and were left out; failures.json says why")
    if summary["failed"]:
        lines.append(f"{summary['failed']} members could not be integrated; failures.json says why")
    lines.append(f"peak memory {summary['peak memory'] / 2**30:.2g} of {summary['memory'] / 2**30:.3g} GB; {summary['folder']}")
    return "\n".join(lines)
