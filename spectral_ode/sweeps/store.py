"""The folder of a sweep: chunks of members that are whole or not there, so that a sweep which was killed goes on where it was.

sweep.toml          the problem, the axes, and how members are laid out in chunks
chunks/00000.npz    arrays with members first: member, time, observable/NAME, final/NAME, phase/NAME, steps, ok, stopped
data.zarr           with --store zarr: the observables of all members, one group per bucket; checksums of them are in the chunks
members.csv         one row per member, written at the end, as are failures.json, summary.json and the pictures
"""

import csv
import json
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spectral_ode.folder import aside
from spectral_ode.problem import BadInput
from spectral_ode.sweeps.layout import Chunk

BIG, CHECKSUM = "observable/", "checksum/"  # what zarr takes, and what a chunk then remembers of it
BROKEN = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, zlib.error, zipfile.BadZipFile)  # what a broken file may raise


class Chunks:
    """The chunks of a sweep in npz files; observables optionally in one zarr store."""

    def __init__(self, folder: Path, *, zarr: bool) -> None:
        self.folder, self.zarr = folder / "chunks", folder / "data.zarr"
        self.store: Any = _library().open_group(self.zarr, mode="a") if zarr else None

    def path(self, number: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"{number:05d}.npz"

    def there(self, chunk: Chunk) -> bool:
        """Whether a chunk is on disk, whole, with the members that it should have."""
        try:
            with zipfile.ZipFile(self.path(chunk.number)) as file:
                if file.testzip() is not None:
                    return False
            with np.load(self.path(chunk.number), allow_pickle=False) as file:
                if not np.array_equal(file["member"], chunk.numbers):
                    return False
                sums = {name.removeprefix(CHECKSUM): int(file[name]) for name in file.files if name.startswith(CHECKSUM)}
            return all(_checksum(self._stored(chunk, name)) == wanted for name, wanted in sums.items())
        except BROKEN:
            return False

    def save(self, chunk: Chunk, arrays: dict[str, np.ndarray], *, size: int, count: int) -> None:
        """Write a chunk of at most `size` members of a bucket of `count`; the npz file comes last and says that all of it is there."""
        if self.store is not None:
            group = self.store.require_group(str(chunk.bucket))
            for name in [name for name in arrays if name.startswith(BIG)]:
                values, own = arrays.pop(name), name.removeprefix(BIG)
                shape, chunks = (count, *values.shape[1:]), (size, *values.shape[1:])
                try:
                    array = group.require_array(own, shape=shape, chunks=chunks, dtype=values.dtype)
                except (ValueError, KeyError, TypeError):  # what describes it is broken, so that no chunk of it was taken to be there
                    array = group.create_array(own, shape=shape, chunks=chunks, dtype=values.dtype, overwrite=True)
                array[chunk.place : chunk.place + chunk.count] = values
                arrays[CHECKSUM + own] = np.asarray(_checksum(values))
        with aside(self.path(chunk.number)) as other, open(other, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]

    def small(self, chunks: Iterable[Chunk]) -> Iterator[dict[str, np.ndarray]]:
        """The chunks without their observables, one after the other."""
        for chunk in chunks:
            with np.load(self.path(chunk.number), allow_pickle=False) as file:
                yield {name: file[name] for name in file.files if not name.startswith((BIG, CHECKSUM))}

    def losses(self, chunks: Iterable[Chunk], wanted: set[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Clock and loss of some members, by their number."""
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for chunk in chunks:
            places = [place for place, one in enumerate(chunk.numbers) if int(one) in wanted]
            if not places:
                continue
            with np.load(self.path(chunk.number), allow_pickle=False) as file:
                if "final/loss" not in file.files:  # none of them has a course
                    continue
                time = file["time"]
                loss = file[f"{BIG}loss"] if self.store is None else self._stored(chunk, "loss")
            found |= {int(chunk.numbers[place]): (time if time.ndim == 1 else time[place], loss[place]) for place in places}
        return found

    def _stored(self, chunk: Chunk, name: str) -> np.ndarray:
        """An observable of a chunk from the zarr store."""
        return np.asarray(self.store[f"{chunk.bucket}/{name}"][chunk.place : chunk.place + chunk.count])


def prepare(folder: Path, *, zarr: bool, fresh: bool) -> None:
    """Make the folder of a sweep, and remove what a killed process left half-written."""
    if fresh:
        shutil.rmtree(folder / "chunks", ignore_errors=True)
        shutil.rmtree(folder / "data.zarr", ignore_errors=True)
        (folder / "sweep.toml").unlink(missing_ok=True)
    (folder / "chunks").mkdir(parents=True, exist_ok=True)
    for leftover in [*folder.glob("chunks/.*"), *folder.glob(".*"), *folder.glob("data.zarr/**/*.partial")]:
        if leftover.is_file():
            leftover.unlink()
    if zarr:
        try:
            _library().open_group(folder / "data.zarr", mode="a")
        except BROKEN:  # half of it was written, or it is something else: the chunks that belong to it are then made again
            shutil.rmtree(folder / "data.zarr")
            _library().open_group(folder / "data.zarr", mode="a")


def _library() -> Any:
    try:
        import zarr
    except ImportError:
        raise BadInput("--store zarr needs the package zarr; install it with pip install 'spectral-ode[sweep]'") from None
    return zarr


def _checksum(values: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)


def write(path: Path, text: str) -> None:
    """A text file that is whole or not there."""
    with aside(path) as other:
        other.write_text(text, encoding="utf-8")


def write_table(path: Path, rows: Iterable[dict[str, Any]], columns: Iterable[str]) -> None:
    """A csv, row by row; what a row does not have stays empty."""
    with aside(path) as other, open(other, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), restval="")
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)


def _plain(value: Any) -> Any:
    """Text that numpy and spreadsheets read: full precision, lists with spaces."""
    if isinstance(value, float | np.floating):
        return repr(float(value))
    return " ".join(map(repr, value)) if isinstance(value, tuple) else value


def write_list(path: Path, entries: Iterable[Any]) -> None:
    """A JSON list, one entry a line, entry by entry."""
    with aside(path) as other, open(other, "w", encoding="utf-8") as file:
        for number, entry in enumerate(entries):
            file.write(("[\n" if number == 0 else ",\n") + json.dumps(_clean(entry)))
        file.write("\n]\n" if file.tell() else "[]\n")


def to_json(data: Any) -> str:
    """JSON text without NaN, which JSON does not have."""
    return json.dumps(_clean(data), indent=1) + "\n"


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
