"""Work dealt out to devices, so that their number cannot change a bit of the result.

A batch is a fixed list of pieces. Each piece is drawn and summed up by one program of fixed shape, whoever runs it, and the sums are added
in the order of their numbers: in every round each device makes one piece, all of them are gathered, and everybody adds them up in the same
order. What is not cut into pieces (the weights, the optimizer, what is observed) every device computes for itself, from the same numbers.
There is one mesh axis over all devices of all processes; one device knows nothing of it.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

AXIS = "devices"


@dataclass(frozen=True)
class Deal:
    """How a batch is cut and dealt out: pieces of about so many members (None: the size that its kind has), to the devices of a mesh."""

    microbatch: int | None = None
    mesh: Mesh | None = None

    @classmethod
    def over(cls, devices: list[Any] | None = None, microbatch: int | None = None) -> "Deal":
        """To these devices; unless given, to all there are, on all hosts."""
        devices = jax.devices() if devices is None else devices
        return cls(microbatch, Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None)

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return 1 if self.mesh is None else self.mesh.size

    def size(self, count: int, default: int, block: int | None = None) -> int:
        """Members of a piece of a batch of `count`, which is drawn in blocks (None: as one): a piece fills blocks, or divides one."""
        size = min(count, self.microbatch or default)
        if block is None or count <= block:
            return size
        return size // block * block if size >= block else max(part for part in range(1, size + 1) if block % part == 0)


ALONE = Deal()


class Dealt(eqx.Module):
    """Arrays of which each device holds its own pieces, along the axis after that of the runs."""

    pieces: Any


def total(part: Callable[[Any, int], Any], count: int, size: int, deal: Deal) -> Any:
    """The sum over pieces of part(first, size): each begins with member number `first`; the last may be smaller, and all make it."""
    whole, rest = divmod(count, size)
    shapes = eqx.filter_eval_shape(part, 0, size)
    zeros, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))

    # Sums are added as flat vectors: of arrays XLA may choose another layout on more devices, and with it another order of operations.
    def flat(number: Any, size: int) -> Array:
        return ravel_pytree(part(number, size))[0]

    def alone(sums: Array, number: Array) -> tuple[Array, None]:
        return sums + flat(number * size, size), None

    def together(number: Array, sums: Array) -> Array:
        made = jax.lax.all_gather(flat(_mine(number, whole, deal) * size, size), AXIS)
        for place in range(deal.devices):
            sums = jnp.where(number * deal.devices + place < whole, sums + made[place], sums)
        return sums

    if deal.devices == 1 or whole == 1:
        sums, _ = jax.lax.scan(alone, zeros, jnp.arange(whole))
    else:
        sums = jax.lax.fori_loop(0, _rounds(whole, deal), together, zeros)
    if not rest:
        return unravel(sums)
    last = lambda _, sums: sums + flat(whole * size, rest)
    return unravel(last(0, sums) if deal.devices == 1 else jax.lax.fori_loop(0, _rounds(1, deal), last, sums))


def mean(part: Callable[[Any, int], Any], count: int, size: int, deal: Deal) -> Any:
    """The mean over all members, of which part(first, size) is that of a piece."""
    if size == count:
        return part(0, count)
    weighed = lambda first, size: jax.tree.map(lambda leaf: leaf * (size / count), part(first, size))
    return total(weighed, count, size, deal)


def hand_out(make: Callable[[Any], Any], whole: int, deal: Deal) -> Dealt:
    """make(number) of this device's pieces, of `whole` ones in all: those that `total` will ask it for, round by round."""
    if deal.devices == 1:
        return Dealt(jax.lax.map(make, jnp.arange(whole)))
    shapes = eqx.filter_eval_shape(make, 0)
    empty = jax.tree.map(lambda leaf: jnp.zeros((math.ceil(whole / deal.devices), *leaf.shape), leaf.dtype), shapes)
    put = lambda number, all, one: jax.lax.dynamic_update_index_in_dim(all, one, number, 0)
    fill = lambda number, pieces: jax.tree.map(functools.partial(put, number), pieces, make(_mine(number, whole, deal)))
    return Dealt(jax.lax.fori_loop(0, _rounds(whole, deal), fill, empty))


def _mine(number: Array, whole: int, deal: Deal) -> Array:
    """The piece that this device makes in a round; where there are none left, the last one again."""
    return jnp.minimum(number * deal.devices + jax.lax.axis_index(AXIS).astype(number.dtype), whole - 1)


def _rounds(whole: int, deal: Deal) -> Array:
    """How many rounds there are. XLA must not know: it would write out a single one, and round otherwise than in a loop."""
    rounds = math.ceil(whole / deal.devices)
    return jnp.minimum(rounds + jax.lax.axis_index(AXIS), rounds)


def take(dealt: Dealt, number: Any, deal: Deal) -> Any:
    """Piece `number`, which this device holds."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number // deal.devices, keepdims=False), dealt.pieces)


def spread(function: Callable, deal: Deal, *arguments: Any) -> Any:
    """function(*arguments) by every device, inside a compiled program; everything is the same everywhere, except for what was `Dealt`."""
    if deal.mesh is None:
        return function(*arguments)
    arrays, static = eqx.partition(arguments, eqx.is_array)
    own = PartitionSpec(None, AXIS), PartitionSpec()

    def one(dealt: Any, shared: Any) -> tuple[Any, Any]:
        return _split(function(*eqx.combine(dealt, shared, static)))

    return eqx.combine(*jax.shard_map(one, mesh=deal.mesh, in_specs=own, out_specs=own, check_vma=False)(*_split(arrays)))


def from_first(data: bytes) -> bytes:
    """The bytes of the first process, in every process."""
    share = multihost_utils.broadcast_one_to_all
    size = int(share(np.array(len(data), np.int32)))
    return np.asarray(share(np.frombuffer(data.ljust(size, b"\0")[:size], np.uint8))).tobytes() if size else b""


def _split(tree: Any) -> tuple[Any, Any]:
    """What was dealt, and the rest."""
    dealt = lambda node: isinstance(node, Dealt)
    return eqx.partition(tree, jax.tree.map(lambda node: jax.tree.map(lambda _: dealt(node), node), tree, is_leaf=dealt))
