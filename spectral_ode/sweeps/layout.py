"""How a sweep is laid out in memory and on disk: the width of its groups, the size of its chunks, and which observables are kept.

A process needs BASE bytes for its programs and EACH for every member of the sweep (its numbers, its row of the table). Half of the rest is
for groups that are being solved: as many at a time as fit, each with what XLA says its program needs. The other half is for a chunk: its
groups, and the same once more while they are joined and written. Nothing of the layout depends on the machine, only on the bound.
"""

import math
import os
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from spectral_ode import batch
from spectral_ode.problem import BadInput
from spectral_ode.sweeps.members import Bucket

BASE = 900 * 10**6  # a process that has compiled its programs and solved nothing: 0.5 to 0.8 GB
EACH = 1000
LARGEST = 256 * 10**6  # bytes of a chunk at most, so that little is lost when a sweep is killed
Names = tuple[str, ...] | None  # of the observables that are kept; None: all


@dataclass(frozen=True)
class Chunk:
    """Groups in a row of one bucket: one file."""

    number: int
    bucket: int
    place: int  # of its first member in the bucket
    numbers: np.ndarray  # of its members

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.numbers)


class Layout(NamedTuple):
    """The width of a group at most, how many groups make a chunk of each bucket, and what a group needs (`batch.Cost`)."""

    width: int
    groups: tuple[int, ...]
    bytes: int
    lapack: bool

    def chunks(self, buckets: list[Bucket]) -> list[Chunk]:
        """All chunks, in order."""
        found: list[Chunk] = []
        for index, (bucket, groups) in enumerate(zip(buckets, self.groups, strict=True)):
            size = groups * bucket.width(self.width)
            for place in range(0, len(bucket.numbers), size):
                found.append(Chunk(len(found), index, place, bucket.numbers[place : place + size]))
        return found

    def workers(self, memory: int, members: int) -> int:
        """How many groups may be solved at a time: on every core, or on all but one where LAPACK waits for another thread."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(cores - self.lapack, int(_room(memory, members) / 2 // self.bytes)))


def fit(buckets: list[Bucket], memory: int, keep: list[Names], members: int) -> Layout:
    """The widest groups, up to `batch.WIDTH`, and the largest chunks that the memory allows."""
    training = buckets[0].rung == "training"
    room, width = _room(memory, members), 1 if training else batch.WIDTH
    need, lapack = _most(buckets, width, keep)
    while width > 1 and need > room / 2:
        guess = int(width * max(room, 1) / 2 / need)  # it grows in a straight line
        width = max(1, min(width // 2, 2 ** int(math.log2(max(guess, 1)))))
        need, lapack = _most(buckets, width, keep)
    sizes = [_kept(bucket, names) for bucket, names in zip(buckets, keep, strict=True)]
    widths = [bucket.width(width) for bucket in buckets]
    groups = [max(1, int(min(room / 4, LARGEST) // (own * size))) for own, size in zip(widths, sizes, strict=True)]
    filling = [math.ceil(len(bucket.numbers) / own) for own, bucket in zip(widths, buckets, strict=True)]
    groups = [1] * len(buckets) if training else list(map(min, groups, filling))  # a training takes long: each is kept when it is done
    found = Layout(width, tuple(groups), need, lapack)
    check(found, buckets, memory, keep, members)
    return found


def check(layout: Layout, buckets: list[Bucket], memory: int, keep: list[Names], members: int) -> None:
    """Raise `BadInput` unless a layout stays below the bound of memory."""
    sizes = [groups * _kept(bucket, names) for groups, bucket, names in zip(layout.groups, buckets, keep, strict=True)]
    least = memory - _room(memory, members) + max(2 * layout.bytes, 4 * max(sizes) * layout.width)
    if least > memory:
        raise BadInput(
            f"--memory is {memory / 1e9:.3g} GB, but {members} members of {max(bucket.points for bucket in buckets)} recorded times need "
            f"{math.ceil(least / 1e7) / 100:.3g} GB; give more, or fewer --points"
        )


def _room(memory: int, members: int) -> int:
    return memory - BASE - EACH * members


def _most(buckets: list[Bucket], width: int, keep: list[Names]) -> batch.Cost:
    """What a group of any bucket needs while it is solved; buckets of one program are asked once."""
    found: dict[str, batch.Cost] = {}
    for bucket, names in zip(buckets, keep, strict=True):
        if bucket.rung == "training":  # one after the other, whatever the width is
            found[str(len(found))] = batch.Cost(_training(bucket), False)
            continue
        own = bucket.width(width)
        count = min(own, len(bucket.numbers))
        built, clock = bucket.build(0, count, own), bucket.clock(bucket.some(0, count))
        clock = clock if clock.ndim == 1 else np.resize(clock, (own, clock.shape[-1]))
        settings = bucket.settings._replace(keep=names)
        program = str((jax.tree.structure(built), [np.shape(leaf) for leaf in jax.tree.leaves(built)], clock.shape, settings))
        if program not in found:
            cost = batch.cost(built, clock, settings)
            found[program] = cost._replace(lapack=cost.lapack or bucket.lapack)
    return batch.Cost(max(cost.bytes for cost in found.values()), any(cost.lapack for cost in found.values()))


def _training(bucket: Bucket) -> int:
    import simulate

    try:
        return simulate.cost(bucket.some(0, 1)[0].problem).memory
    except BadInput:  # nothing is trained
        return 1


def _kept(bucket: Bucket, names: Names) -> int:
    """Bytes that are kept of one member's course."""
    if bucket.rung == "training":
        return bucket.points * 8 * 16
    kept = [leaf for name, leaf in bucket.shapes[1].items() if names is None or name in names]
    return 8 * bucket.points * max(1, sum(math.prod(leaf.shape) for leaf in kept))


def kept(wanted: str | None, buckets: list[Bucket]) -> list[Names]:
    """The observables that are kept of each bucket: those asked for by name, or all, or else all numbers and lists, no matrices."""
    chosen = tuple(dict.fromkeys(["loss", *(wanted or "").split(",")]))
    if wanted == "all" or buckets[0].rung == "training":
        return [None if wanted in ("all", None) else chosen] * len(buckets)
    there = [{name: leaf.ndim for name, leaf in bucket.shapes[1].items()} for bucket in buckets]
    if wanted is None:
        return [tuple(name for name, rank in names.items() if rank < 2) for names in there]
    known = dict.fromkeys(name for names in there for name in names)
    if unknown := next((one for one in chosen if one not in known), None):
        raise BadInput(f"--keep names {unknown!r}, but the observables are {', '.join(known)}, or all")
    return [chosen] * len(buckets)
