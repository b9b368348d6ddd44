"""The work of a sweep: groups of members through the batch solver, into chunks on disk, within a bound of memory.

What a member's numbers depend on is its group alone: the width of a group and who stands in it follow from the sweep, not from the number
of devices, threads or processes, nor from what an earlier process left behind. Chunks are groups in a row; process number i of n takes
every n-th chunk.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from spectral_ode import batch, integrate, rungs
from spectral_ode.problem import BadInput
from spectral_ode.sweeps.layout import Chunk, Layout, Names
from spectral_ode.sweeps.members import Bucket, Member
from spectral_ode.sweeps.store import Chunks
from spectral_ode.trajectory import Trajectory


@dataclass
class Outcome:
    """What this process has done: members solved now, members that were on disk, and the time it took."""

    done: int = 0
    found_there: int = 0
    seconds: float = 0.0


def perform(
    buckets: list[Bucket], plan: Layout, keep: list[Names], store: Chunks, workers: int, tell: Callable[[int, int, float], None]
) -> Outcome:
    """Solve what is not on disk yet, `workers` groups at a time; `tell` hears how many members are done, of how many, and their rate."""
    mine = plan.chunks(buckets)[jax.process_index() :: jax.process_count()]
    todo = [chunk for chunk in mine if not store.there(chunk)]
    total = sum(chunk.count for chunk in mine)
    outcome, begun = Outcome(found_there=total - sum(chunk.count for chunk in todo)), time.perf_counter()
    width = lambda chunk: buckets[chunk.bucket].width(plan.width)
    pieces = ((chunk, start) for chunk in todo for start in range(0, chunk.count, width(chunk)))
    work = lambda piece: _group(buckets[piece[0].bucket], *piece, width(piece[0]), keep[piece[0].bucket])  # pyright: ignore
    waiting, parts = iter(todo), []
    chunk = next(waiting, None)
    if buckets[0].rung == "training":  # which uses all cores itself
        workers = min(workers, len(jax.local_devices()))
    for arrays in batch.each(work, pieces, workers=workers, ahead=workers + 1):
        assert chunk is not None
        parts.append(arrays)
        outcome.done += arrays["member"].size
        tell(outcome.found_there + outcome.done, total, outcome.done / (time.perf_counter() - begun))
        if sum(part["member"].size for part in parts) == chunk.count:
            size, count = plan.groups[chunk.bucket] * width(chunk), len(buckets[chunk.bucket].numbers)
            store.save(chunk, _joined(parts), size=size, count=count)
            parts, chunk = [], next(waiting, None)
    outcome.seconds = time.perf_counter() - begun
    return outcome


def _group(bucket: Bucket, chunk: Chunk, start: int, width: int, names: Names) -> dict[str, np.ndarray]:
    """One group as arrays, members first."""
    place, count = chunk.place + start, min(width, chunk.count - start)
    members = bucket.some(place, count)
    clock = bucket.clock(members)
    found = None if bucket.rung == "training" else _together(bucket, place, count, width, clock, names)
    # One member that cannot be built or solved spoils its group: then each is solved alone and says why.
    return found or _gather(members, clock, [_alone(member, bucket.rung) for member in members], names)


def _together(bucket: Bucket, place: int, count: int, width: int, clock: np.ndarray, names: Names) -> dict[str, np.ndarray] | None:
    """A whole group by the batch solver; None where that does not work."""
    try:
        built = bucket.build(place, count, width)
    except BadInput:
        return None
    full = clock if clock.ndim == 1 else np.concatenate([clock, np.repeat(clock[-1:], width - count, axis=0)])
    found = batch.solve(built, full, bucket.settings._replace(keep=names))
    failure = np.asarray(found.failure)
    if np.any((failure != 0) & (failure != 2)):
        return None
    steps, reached = np.asarray(found.steps)[:count], np.asarray(found.reached)
    words = [
        integrate._reason(int(failure[one]), float(times[int(reached[one]) - 1]), float(times[-1]), int(steps[one]), 0, "")
        for one, times in enumerate(np.broadcast_to(full, (width, full.shape[-1]))[:count])
    ]
    observables = {name: np.asarray(array)[:count] for name, array in found.observables.items()}
    phases = {name: np.asarray(array)[:count] for name, array in found.phases.items()}
    return _arrays(bucket.some(place, count), clock, observables, phases, steps, words, np.ones(count, bool))


def _alone(member: Member, rung: str) -> Trajectory | str:
    """The course of one member, or why there is none."""
    try:
        if rung == "training":
            from simulate import train

            return train(member.problem, devices=jax.local_devices()[:1]).run(0)
        system, state = rungs.made(member.problem, rung)
        return integrate.solve_problem(system, member.problem, state, steady=False)  # to its end: what is held there is the last value
    except BadInput as error:
        return str(error)


def _gather(members: list[Member], clock: np.ndarray, found: list[Trajectory | str], names: Names) -> dict[str, np.ndarray]:
    """Trajectories as one group; a course that ended early holds its last value, and what never began is not a number."""
    example = next((one for one in found if isinstance(one, Trajectory)), None)

    def course(one: Trajectory | str, name: str) -> np.ndarray:
        assert example is not None
        if isinstance(one, str):
            return np.full((clock.shape[-1], *np.shape(example[name])[1:]), np.nan)
        array = np.asarray(one[name])
        return np.concatenate([array, np.repeat(array[-1:], clock.shape[-1] - len(array), axis=0)])

    kept = [name for name in (example.observables if example else ()) if names is None or name in names]
    observables = {name: np.stack([course(one, name) for one in found]) for name in kept}
    moment = lambda one, name: np.nan if isinstance(one, str) else float(one.phases[name])
    phases = {name: np.asarray([moment(one, name) for one in found]) for name in (example.phases if example else ())}
    steps = np.asarray([0 if isinstance(one, str) else one.provenance.get("solver", {}).get("steps", 0) for one in found])
    words = [one if isinstance(one, str) else one.stopped for one in found]
    return _arrays(members, clock, observables, phases, steps, words, np.asarray([not isinstance(one, str) and one.ok for one in found]))


def _arrays(
    members: list[Member],
    clock: np.ndarray,
    observables: dict[str, np.ndarray],
    phases: dict[str, np.ndarray],
    steps: np.ndarray,
    words: list[str],
    ok: np.ndarray,
) -> dict[str, Any]:
    arrays: dict[str, Any] = {"member": np.asarray([member.number for member in members]), "time": clock}
    arrays |= {f"observable/{name}": array for name, array in observables.items()}
    arrays |= {f"final/{name}": array[:, -1] for name, array in observables.items() if array.ndim == 2}
    arrays |= {f"phase/{name}": array for name, array in phases.items()}
    return arrays | {"steps": steps, "ok": ok, "stopped": np.asarray(words)}


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Groups in a row as one; where a group has no course at all, what the others have is not a number."""
    examples = {name: array for part in parts for name, array in part.items()}

    def piece(part: dict[str, np.ndarray], name: str) -> np.ndarray:
        return part[name] if name in part else np.full((part["member"].size, *examples[name].shape[1:]), np.nan)

    one_clock = examples["time"].ndim == 1
    return {
        name: array if name == "time" and one_clock else np.concatenate([piece(part, name) for part in parts])
        for name, array in examples.items()
    }
