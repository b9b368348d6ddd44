"""The work of a sweep: groups of members through the batch solver, into chunks on disk, within a bound of memory.

What a member's numbers depend on is its group alone: the width of a group and who stands in it follow from the sweep, not from the number
of devices, threads or processes, nor from what an earlier process left behind. Chunks are groups in a row; process number i of n takes
every n-th chunk.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from spectral_ode import batch, integrate
from spectral_ode.problem import BadInput
from spectral_ode.sweep.members import Bucket, Member
from spectral_ode.sweep.store import Chunks
from spectral_ode.trajectory import Trajectory

BASE = 700 * 2**20  # bytes of a process that has compiled a program and solved nothing
LARGEST = 256 * 2**20  # bytes of a chunk at most, so that little is lost when a sweep is killed
WORKING = 4  # what a group needs while it is solved, in units of its states and observables


class Layout(NamedTuple):
    """How members are laid out: the width of a group, and how many groups make a chunk of each bucket."""

    width: int
    groups: tuple[int, ...]


class Chunk(NamedTuple):
    """Groups in a row of one bucket."""

    number: int
    bucket: int
    place: int  # of its first member in the bucket
    members: list[Member]


@dataclass
class Outcome:
    """What came of a sweep here: members done, solver failures, groups whose members had to be solved alone."""

    done: int = 0
    found_there: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


def layout(buckets: list[Bucket], memory: int, keep: tuple[str, ...] | None) -> Layout:
    """The widest groups, up to `batch.WIDTH`, and the largest chunks that the memory allows."""
    sizes = [_bytes(bucket, keep) for bucket in buckets]
    # Groups in flight are counted for any number of cores up to 8, so that the layout is the same on every machine like that.
    width, room, flying = batch.WIDTH, memory - BASE, max(os.cpu_count() or 1, 8) + 1
    while width > 1 and any(flying * WORKING * full * width > room / 2 for full, _ in sizes):
        width //= 2
    for bucket, (full, _) in zip(buckets, sizes, strict=True):
        if flying * WORKING * full * width > room / 2:
            least = BASE + 2 * flying * WORKING * full
            raise BadInput(
                f"--memory is {memory / 2**30:.3g} GB, but members of {len(bucket.times.T)} recorded times need {least / 2**30:.3g} GB; "
                "give more, or fewer --points"
            )
    groups = [max(1, int(min(room / 2, LARGEST) // (width * max(kept, 1)))) for _, kept in sizes]
    return Layout(width, tuple(min(count, math.ceil(len(bucket.members) / width)) for count, bucket in zip(groups, buckets, strict=True)))


def _seen(bucket: Bucket) -> tuple[Any, dict[str, Any]]:
    """Shapes of one member's state and of its observables."""
    made = bucket.build(bucket.members[:1], batch.WIDTH)
    arrays, rest = eqx.partition(made.system, eqx.is_array)
    arrays = jax.tree.map(lambda flag, leaf: leaf[0] if flag else leaf, made.many, arrays)
    state = jax.tree.map(lambda leaf: leaf[0], made.state)
    return state, jax.eval_shape(lambda arrays, state: eqx.combine(arrays, rest).observe(state), arrays, state)


def observables(bucket: Bucket) -> dict[str, int]:
    """The observables of a theory rung with their ranks: 0 a number, 1 a list."""
    return {name: leaf.ndim for name, leaf in _seen(bucket)[1].items()}


def _bytes(bucket: Bucket, keep: tuple[str, ...] | None) -> tuple[int, int]:
    """Bytes of one member's course: states and all observables, and what is kept of them."""
    points = bucket.times.shape[-1]
    if bucket.rung == "training":
        return points * 8 * 16, points * 8 * 16
    state, seen = _seen(bucket)
    count = lambda tree: 8 * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    kept = {name: leaf for name, leaf in seen.items() if keep is None or name in keep}
    return points * (count(state) + count(seen)), points * count(kept)


def chunks(buckets: list[Bucket], plan: Layout) -> list[Chunk]:
    """All chunks, in order."""
    found: list[Chunk] = []
    for index, (bucket, groups) in enumerate(zip(buckets, plan.groups, strict=True)):
        size = groups * plan.width
        for place in range(0, len(bucket.members), size):
            found.append(Chunk(len(found), index, place, bucket.members[place : place + size]))
    return found


def perform(
    buckets: list[Bucket], plan: Layout, store: Chunks, keep: tuple[str, ...] | None, tell: Callable[[int, int, float], None]
) -> Outcome:
    """Solve what is not on disk yet; `tell` hears how many members are done, of how many, and how many a second."""
    everything = chunks(buckets, plan)
    mine = everything[jax.process_index() :: jax.process_count()]
    outcome, begun = Outcome(), time.perf_counter()
    outcome.found_there = sum(len(chunk.members) for chunk in mine if store.there(chunk.number))
    todo = [chunk for chunk in mine if not store.there(chunk.number)]
    total = sum(len(chunk.members) for chunk in mine)
    pieces = ((chunk, start) for chunk in todo for start in range(0, len(chunk.members), plan.width))
    work = lambda piece: _group(buckets[piece[0].bucket], piece[0], piece[1], plan.width, keep)
    parts: list[dict[str, np.ndarray]] = []
    waiting = iter(todo)
    chunk = next(waiting, None)
    for arrays in _each(work, pieces, training=any(bucket.rung == "training" for bucket in buckets)):
        assert chunk is not None
        parts.append(arrays)
        outcome.done += arrays["member"].size
        outcome.failed |= {int(n): str(s) for n, s, ok in zip(arrays["member"], arrays["stopped"], arrays["ok"], strict=True) if not ok}
        tell(outcome.found_there + outcome.done, total, outcome.done / (time.perf_counter() - begun))
        if sum(part["member"].size for part in parts) == len(chunk.members):
            size = plan.groups[chunk.bucket] * plan.width
            whole = {name: parts[0][name] if name == "time" else np.concatenate([part[name] for part in parts]) for name in parts[0]}
            if buckets[chunk.bucket].times.ndim == 2:
                whole["time"] = np.concatenate([part["time"] for part in parts])
            count = len(buckets[chunk.bucket].members)
            store.save(chunk.number, whole, bucket=chunk.bucket, place=chunk.place, count=count, size=size)
            parts, chunk = [], next(waiting, None)
    outcome.seconds = time.perf_counter() - begun
    return outcome


def _each(work: Callable, pieces: Iterator, *, training: bool) -> Iterator[dict[str, np.ndarray]]:
    """Groups on all devices; trainings, which use all cores themselves, one after the other."""
    return map(work, pieces) if training else batch.each(work, pieces, ahead=max(os.cpu_count() or 1, len(jax.local_devices())) + 1)


def _group(bucket: Bucket, chunk: Chunk, start: int, width: int, keep: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """One group as arrays, members first."""
    members = chunk.members[start : start + width]
    clock = bucket.times if bucket.times.ndim == 1 else bucket.times[chunk.place + start : chunk.place + start + len(members)]
    if bucket.rung == "training":
        return _gather(members, clock, [_trained(member) for member in members], keep)
    built = bucket.build(members, width)
    full = clock if clock.ndim == 1 else np.concatenate([clock, np.repeat(clock[-1:], width - len(members), axis=0)])
    found = batch.solve(built, full, bucket.settings._replace(keep=keep))
    count, failure = len(members), np.asarray(found.failure)
    if np.any(failure == 1):  # one member spoils its group: solve them one by one, so that each says why
        return _gather(members, clock, [_alone(built, place, member) for place, member in enumerate(members)], keep)
    words = [
        integrate._reason(
            int(failure[place]), float(times[int(found.reached[place]) - 1]), float(times[-1]), int(found.steps[place]), 0, ""
        )
        for place, times in enumerate(np.broadcast_to(full, (width, full.shape[-1]))[:count])
    ]
    observables = {name: np.asarray(array)[:count] for name, array in found.observables.items()}
    phases = {name: np.asarray(array)[:count] for name, array in found.phases.items()}
    return _arrays(members, clock, observables, phases, np.asarray(found.steps)[:count], words, np.ones(count, bool))


def _alone(built: batch.Members, place: int, member: Member) -> Trajectory:
    one = batch._pick(built, np.asarray([place]))
    arrays, rest = eqx.partition(one.system, eqx.is_array)
    system = eqx.combine(jax.tree.map(lambda flag, leaf: leaf[0] if flag else leaf, one.many, arrays), rest)
    return integrate.solve_problem(system, member.problem, jax.tree.map(lambda leaf: jax.numpy.asarray(leaf[0]), one.state))


def _trained(member: Member) -> Trajectory:
    from simulate import train

    return train(member.problem).run(0)


def _gather(members: list[Member], clock: np.ndarray, found: list[Trajectory], keep: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """Trajectories as one group; a course that ended early holds its last value."""
    length = clock.shape[-1]
    hold = lambda array: np.concatenate([array, np.repeat(np.asarray(array)[-1:], length - len(array), axis=0)])
    names = [name for name in found[0].observables if keep is None or name in keep]
    observables = {name: np.stack([hold(np.asarray(one[name])) for one in found]) for name in names}
    phases = {name: np.asarray([float(one.phases[name]) for one in found]) for name in found[0].phases}
    steps = np.asarray([one.provenance.get("solver", {}).get("steps", 0) for one in found])
    return _arrays(members, clock, observables, phases, steps, [one.stopped for one in found], np.asarray([one.ok for one in found]))


def _arrays(members, clock, observables, phases, steps, words, ok) -> dict[str, np.ndarray]:
    arrays = {"member": np.asarray([member.number for member in members]), "time": clock}
    arrays |= {f"observable/{name}": array for name, array in observables.items()}
    arrays |= {f"final/{name}": array[:, -1] for name, array in observables.items() if array.ndim == 2}
    arrays |= {f"phase/{name}": array for name, array in phases.items()}
    return arrays | {"steps": steps, "ok": ok, "stopped": np.asarray(words)}
