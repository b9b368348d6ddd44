"""Trainings that survive a kill: where a training is, and what it has recorded, go to disk now and then.

Batches are pure functions of a key and the step's number, so that the weights, the optimizer's state and the records are all there is to
keep, and a training that goes on from them ends with the same bits. In the folder of a training lie

    records-A-B.npz    records A to B, written once and never touched again: neither device nor host holds them afterwards
    carry-S.npz        where it was at mark S (a record, or a step); the last two are kept

each written aside and renamed, each with the problem, versions, commit, platform and float types in its header, which must all be the
same. A file that cannot be read is told about, and the older carry is taken; if nothing can be written, the training goes on in memory.
Several processes: the first one reads and writes, and tells the others what it found.
"""

import contextlib
import io
import json
import os
import shutil
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from simulate.mesh import Deal, from_first
from spectral_ode import runtime
from spectral_ode.folder import aside, hold, release
from spectral_ode.problem import BadInput, Problem

EVERY = 5.0  # seconds between checkpoints
UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, RuntimeError, zlib.error, zipfile.BadZipFile)
Records = dict[str, np.ndarray]


class Keeper:
    """The checkpoints of one problem, in a folder that is gone once its results are whole (`clear`)."""

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        every: float = EVERY,
        fresh: bool = False,
        warn: Callable[[str], None] = warnings.warn,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.every, self.warn, self.tell = Path(folder), every, warn, tell
        self.writes = jax.process_index() == 0
        if self.writes and fresh:
            shutil.rmtree(self.folder, ignore_errors=True)

    def session(self, problem: Problem, deal: Deal, *, run: int | None = None, model: str = "") -> "Session":
        """The checkpoints of one training of the problem: of one run, or of all together."""
        name = "-".join(word for word in (problem.training.kind, model, "" if run is None else str(run)) if word)
        header = runtime.provenance(problem) | {"training": name, "microbatch": deal.microbatch, "dtype": problem.training.dtype}
        done, of = (0, 1) if run is None else (run, problem.runs)
        return Session(self.folder / name, json.loads(json.dumps(header)), self, lambda share: (done + share) / of)

    def make(self, folder: Path) -> None:
        """The folder of a training, which no other run may use at the same time: raises an `OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        hold(self.folder)

    def clear(self) -> None:
        """Remove everything."""
        if self.writes:
            shutil.rmtree(self.folder, ignore_errors=True)
            release(self.folder)
            with contextlib.suppress(OSError):  # another problem's checkpoints are there
                self.folder.parent.rmdir()


class Session:
    """What one training has recorded, and where it is; without a folder everything stays in memory."""

    def __init__(
        self,
        folder: Path | None = None,
        header: Any = None,
        keeper: Keeper | None = None,
        share: Callable[[float], float] = lambda one: one,
    ) -> None:
        self.folder, self.header, self.keeper, self.share = folder, header, keeper, share
        self.files: list[Path] = []  # records on disk
        self.parts: list[Records] = []  # records after those, in memory
        self.carries: list[Path] = []  # the last two
        self.done, self.saved, self.warned, self.last = 0, 0, False, time.monotonic()

    def begin(self, carry: Any, length: int) -> tuple[Any, int]:
        """Where to go on, of so many records: the last checkpoint, or else the start that is given, and the records that are there."""
        found = None
        if self.keeper is not None:
            if self.keeper.writes:
                found = self._find(carry)
            found = self._share(found)
        if found is None:
            return carry, 0
        arrays, static = eqx.partition(carry, eqx.is_array)
        carry = eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), [jnp.asarray(leaf) for leaf in found]), static)
        assert self.keeper is not None
        if self.done < length or self.share(1.0) == 1:
            self.keeper.tell(f"resumed at {100 * self.share(self.done / length):.0f} %")
        return carry, self.done

    def add(self, part: Records) -> None:
        """Some more records, runs x records x ... ."""
        self.parts.append(part)
        self.done += next(iter(part.values())).shape[1]

    def save(self, mark: int, carry: Any, *, end: bool = False) -> None:
        """Write a checkpoint if it is time for one; at the end, if there were others."""
        if self.keeper is None or self.folder is None or not self.keeper.writes:
            return
        if time.monotonic() - self.last < self.keeper.every and not (end and self.files):
            return
        self.last = time.monotonic()
        try:
            self.keeper.make(self.folder)
            for path in set(self.folder.glob("*.npz")) - {*self.files, *self.carries}:
                path.unlink()  # another version's, or broken, or from beyond the checkpoint that was taken
            if self.parts:
                path = self.folder / f"records-{self.saved:08d}-{self.done:08d}.npz"
                _write(path, self.header, _joined(self.parts, self.done - self.saved))
                self.files, self.parts, self.saved = [*self.files, path], [], self.done
            path = self.folder / f"carry-{mark:010d}.npz"
            _write(path, self.header | {"records": self.done}, {f"{n:04d}": leaf for n, leaf in enumerate(_leaves(carry))})
            old, self.carries = self.carries[:-1], [*self.carries[-1:], path]
            for path in old:
                path.unlink(missing_ok=True)
        except OSError as error:
            self._warn(f"no checkpoint could be written to {self.folder} ({error.strerror or error}); the training goes on without it")

    def all(self) -> Records:
        """Everything that was recorded."""
        return _joined([*self.files, *self.parts], self.done)

    def _find(self, carry: Any) -> list[np.ndarray] | None:
        """The newest checkpoint of this training that is whole, with all records before it."""
        assert self.keeper is not None
        assert self.folder is not None
        if not self.folder.is_dir():
            return None
        try:
            self.keeper.make(self.folder)
        except OSError as error:
            self._warn(f"the checkpoints in {self.folder} were not used ({error.strerror or error})")
            return None
        paths = sorted(self.folder.glob("carry-*.npz"), reverse=True)
        for number, path in enumerate(paths):
            try:
                header, arrays = _read(path)
                records, leaves = header.pop("records"), [arrays[f"{n:04d}"] for n in range(len(arrays))]
                if header != self.header or [_kind(leaf) for leaf in leaves] != [_kind(leaf) for leaf in _leaves(carry)]:
                    self._warn(f"the checkpoint {path} is of another version or problem and was not used")
                    continue
                files = self._chain(records)
            except UNREADABLE:
                self._warn(f"the checkpoint {path}, or a record before it, cannot be read and was not used")
                continue
            self.files, self.saved, self.done, self.carries = files, records, records, paths[number : number + 2][::-1]
            return leaves
        return None

    def _chain(self, records: int) -> list[Path]:
        """The files that hold the first so many records, each read once; raises one of `UNREADABLE`."""
        assert self.folder is not None
        files, place = [], 0
        while place < records:
            path = min(self.folder.glob(f"records-{place:08d}-*.npz"), default=None)
            if path is None:
                raise KeyError(place)
            header, arrays = _read(path)
            size = next(iter(arrays.values())).shape[1]
            if header != self.header or path.stem != f"records-{place:08d}-{place + size:08d}":
                raise ValueError(path)
            files, place = [*files, path], place + size
        if place != records:
            raise ValueError(records)
        return files

    def _share(self, found: list[np.ndarray] | None) -> list[np.ndarray] | None:
        """What the first process found, for all of them; the others hold the records in memory."""
        if jax.process_count() == 1:
            return found
        file = io.BytesIO()
        if found is not None:
            leaves = {f"leaf/{n:04d}": leaf for n, leaf in enumerate(found)}
            np.savez(file, allow_pickle=False, **leaves, **{f"record/{name}": array for name, array in self.all().items()})
        if not (told := from_first(file.getvalue())):
            return None
        with np.load(io.BytesIO(told), allow_pickle=False) as arrays:
            part = {name.removeprefix("record/"): arrays[name] for name in arrays.files if name.startswith("record/")}
            leaves = [arrays[name] for name in sorted(arrays.files) if name.startswith("leaf/")]
        if found is None and part:
            self.add(part)
        return leaves

    def _warn(self, text: str) -> None:
        assert self.keeper is not None
        if not self.warned:  # one sentence is enough: the next reason is most likely the same
            self.keeper.warn(text)
        self.warned = True


def _leaves(carry: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(carry, eqx.is_array))]


def _kind(leaf: np.ndarray) -> tuple[tuple[int, ...], str]:
    return leaf.shape, leaf.dtype.name


def _joined(sources: Sequence[Path | Records], length: int) -> Records:
    """Records after one another, from memory or from files, with one of them in memory at a time."""
    arrays: Records = {}
    place = 0
    for source in sources:
        try:
            part = source if isinstance(source, dict) else _read(source)[1]
        except UNREADABLE:
            raise BadInput(f"the records in {source} cannot be read back; run again with --fresh") from None
        if not arrays:
            arrays = {name: np.empty((array.shape[0], length, *array.shape[2:]), array.dtype) for name, array in part.items()}
        size = next(iter(part.values())).shape[1]
        for name, array in part.items():
            arrays[name][:, place : place + size] = array
        place += size
    return arrays


def _write(path: Path, header: dict[str, Any], arrays: Records) -> None:
    with aside(path) as other, open(other, "wb") as file:
        np.savez(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)


def _read(path: Path) -> tuple[dict[str, Any], Records]:
    """Header and arrays; the checksums of a zip file notice what was changed since."""
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("header"))), arrays
