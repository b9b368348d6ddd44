"""The folder of a sweep: chunks of members that are whole or not there, so that a sweep which was killed goes on where it was.

sweep.toml          the problem, the axes, and how members are laid out in chunks
chunks/00000.npz    arrays with members first: member, time, observable/NAME, final/NAME, phase/NAME, steps, stopped
data.zarr           with --store zarr: the observables of all members instead, one group per bucket; the rest stays in the chunks
members.csv         one row per member, written at the end, as are failures.json, summary.json and the pictures
"""

import csv
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spectral_ode.problem import BadInput

BIG = "observable/"  # what zarr takes


def write(path: Path, text: str) -> None:
    """A text file that is whole or not there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


class Chunks:
    """The chunks of a sweep in npz files; observables optionally in one zarr store."""

    def __init__(self, folder: Path, *, zarr: bool) -> None:
        self.folder, self.store = folder / "chunks", None
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".*.npz"):  # of a process that was killed
            leftover.unlink(missing_ok=True)
        if zarr:
            try:
                import zarr as library
            except ImportError:
                raise BadInput("--store zarr needs the package zarr; install it with pip install 'spectral-ode[sweep]'") from None
            self.store = library.open_group(folder / "data.zarr", mode="a")

    def path(self, number: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"{number:05d}.npz"

    def there(self, number: int) -> bool:
        """Whether a chunk is on disk, whole."""
        try:
            with zipfile.ZipFile(self.path(number)) as file:
                return "member.npy" in file.namelist()
        except (OSError, zipfile.BadZipFile):
            return False

    def save(self, number: int, arrays: dict[str, np.ndarray], *, bucket: int, place: int, count: int, size: int) -> None:
        """Write a chunk of at most `size` members; `place` is where they begin among the `count` of their bucket."""
        if self.store is not None:
            group = self.store.require_group(str(bucket))
            for name in [name for name in arrays if name.startswith(BIG)]:
                values = arrays.pop(name)
                own = name.removeprefix(BIG)
                shape = (count, *values.shape[1:])
                array = group.require_array(own, shape=shape, chunks=(size, *values.shape[1:]), dtype=values.dtype)
                array[place : place + values.shape[0]] = values  # pyright: ignore[reportIndexIssue]
        aside = self.folder / f".{number:05d}.{os.getpid()}.npz"
        np.savez(aside, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
        os.replace(aside, self.path(number))

    def small(self, numbers: Iterable[int]) -> Iterator[dict[str, np.ndarray]]:
        """The chunks without their observables, one after the other."""
        for number in numbers:
            with np.load(self.path(number), allow_pickle=False) as file:
                yield {name: file[name] for name in file.files if not name.startswith(BIG)}

    def losses(self, numbers: Iterable[int], wanted: set[int], buckets: list) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Clock and loss of some members, by their number."""
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for number in numbers:
            with np.load(self.path(number), allow_pickle=False) as file:
                member, time = file["member"], file["time"]
                places = [place for place, one in enumerate(member) if int(one) in wanted]
                if not places:
                    continue
                loss = file["observable/loss"] if self.store is None else self._stored(member, buckets)
                for place in places:
                    found[int(member[place])] = (time if time.ndim == 1 else time[place], loss[place])
        return found

    def _stored(self, member: np.ndarray, buckets: list) -> np.ndarray:
        """The losses of a chunk from the zarr store."""
        assert self.store is not None
        for index, bucket in enumerate(buckets):
            place = next((place for place, one in enumerate(bucket.members) if one.number == member[0]), None)
            if place is not None:
                return np.asarray(self.store[f"{index}/loss"][place : place + member.size])  # pyright: ignore
        raise KeyError(member[0])


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """A csv with the union of all columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    os.replace(aside, path)


def _plain(value: Any) -> Any:
    """Text that numpy and spreadsheets read: full precision, lists with spaces."""
    if isinstance(value, float | np.floating):
        return repr(float(value))
    return " ".join(map(repr, value)) if isinstance(value, tuple) else value


def to_json(data: Any) -> str:
    """JSON text without NaN, which JSON does not have."""
    clean = lambda value: (
        {key: clean(part) for key, part in value.items()}
        if isinstance(value, dict)
        else [clean(part) for part in value]
        if isinstance(value, list | tuple)
        else None
        if isinstance(value, float) and not np.isfinite(value)
        else value
    )
    return json.dumps(clean(data), indent=1) + "\n"
