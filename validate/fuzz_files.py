"""Random files: what is saved comes back bit by bit; what was damaged or made to harm is refused, and nothing is run, written or allocated.

A case is a recipe in plain data (arrays by name, and what is done to the bytes), so that it can be printed and made again.
"""

import contextlib
import io
import json
import os
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simulate import recording
from spectral_ode import archive, curve, document
from spectral_ode.trajectory import FORMAT, Trajectory
from validate.fuzz import Property, attempt

MEMORY = 2**25  # bytes that reading a hostile file may take: all files here are below a megabyte, what they declare is not
RAN: list[str] = []  # filled if a pickle is ever run
NAMES = ("time", "header", "observable/loss", "observable/λ 1/2", "phase/half 1", "loss", "epoch", "lr", "model", "heads", "data_x")
EVIL = ("../../evil", "/etc/evil", "observable/../../../evil", "a\\b", "c:evil", "\n", "", "x" * 2000, "\x1b[2J", "con", "λ\ud800")
SHAPES = ((), (0,), (2,), (4,), (3, 2), (0, 10**18), (10**12,), (2**62,), (2**32, 2**32), (-1,), (-4, -2), (1,) * 70, (10**5000,), (True,), ("4",))
TYPES = ("<f8", "<f4", "<i8", "|b1", "<U3", "|S4", "<U0", "|V0", "|V8", "|O", "<c16", "<M8[D]", ">f8", "f8,f8", "(1000000,)f8", "<f16", "λ", "<U99999999")
HEADERS = (
    {"format": FORMAT, "clock": "flow time", "provenance": {}},
    {"format": FORMAT, "clock": "flow time", "provenance": {"ok": "yes", "stopped": 3, "runs": [{}]}},
    {"format": FORMAT, "clock": {"a": []}, "provenance": []},
    {"format": FORMAT, "clock": "a\nb", "provenance": {"runs": "none"}},
    {"format": "2\nthis is a second line", "clock": "", "provenance": {}},
    {"format": 10**30, "clock": "flow time"},
    [],
    "text",
)


class Trap:
    """An object that says so when it is unpickled."""

    def __reduce__(self) -> tuple:
        return RAN.append, ("a pickle was run",)


def _npy(descr: str, shape: tuple, content: bytes, version: int = 1, fortran: bool = False) -> bytes:
    """An npy member with any header whatsoever."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {hex_shape(shape)}, }}".encode("utf-8", "surrogatepass") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + content


def hex_shape(shape: tuple) -> str:
    """A shape as text; long integers have no decimal one."""
    shown = [hex(entry) if type(entry) is int and abs(entry) > 10**20 else repr(entry) for entry in shape]
    return f"({', '.join(shown)}{',' if len(shown) == 1 else ''})"


def zipped(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip with these members; names may be repeated, or be none."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name twice
        for name, content in members:
            with contextlib.suppress(UnicodeEncodeError):  # a name that no zip can have
                entry = zipfile.ZipInfo(name)
                entry.compress_type = method
                file.writestr(entry, content)
    return raw.getvalue()


def declaring(content: bytes, size: int) -> bytes:
    """The same zip, its directory declaring so many bytes for every member."""
    where, changed = content.find(b"PK\x01\x02"), bytearray(content)
    while where >= 0:
        changed[where + 24 : where + 28] = struct.pack("<I", size)
        where = content.find(b"PK\x01\x02", where + 1)
    return bytes(changed)


def _member(kind: str, *about: Any) -> bytes:
    """One member by its recipe."""
    if kind == "bytes":
        return about[0]
    if kind == "claim":
        return _npy(*about)
    raw = io.BytesIO()
    if kind == "pickle":
        np.save(raw, np.array([Trap()], dtype=object), allow_pickle=True)
    else:
        np.save(raw, np.array(json.dumps(HEADERS[about[0]])) if kind == "header" else np.zeros(*about), allow_pickle=False)
    return raw.getvalue()


def made(recipe: dict[str, Any]) -> bytes:
    """The bytes of a recipe: members, how they are packed, and the damage done to the whole."""
    content = zipped([(name, _member(*member)) for name, member in recipe["members"]], recipe["method"])
    for kind, place, what in recipe["damage"]:
        at = int(place * len(content))
        if kind == "cut":
            content = content[:at]
        elif kind == "declare":
            content = declaring(content, what)
        else:
            content = content[:at] + what + content[at + (len(what) if kind == "replace" else 0) :]
    return content


def recipes() -> Any:
    """A strategy of npz files: first a whole trajectory or curve, then members of any kind, then damage."""
    from hypothesis import strategies as st

    names = st.one_of(st.sampled_from(NAMES), st.sampled_from(EVIL), st.text(max_size=8)).flatmap(
        lambda name: st.sampled_from([name + ".npy", name + ".npy", name])
    )
    shapes = st.sampled_from(SHAPES)
    claims = st.tuples(st.just("claim"), st.sampled_from(TYPES), shapes, st.binary(max_size=64), st.sampled_from([1, 2, 3, 9]), st.booleans())
    plain = st.tuples(st.just("array"), st.sampled_from(SHAPES[:5]), st.sampled_from(["f8", "f4", "i8", "?", "U3", "c16", "M8[D]"]))
    headers = st.tuples(st.just("header"), st.integers(0, len(HEADERS) - 1))
    members = st.one_of(plain, plain, claims, headers, st.just(("pickle",)), st.tuples(st.just("bytes"), st.binary(max_size=64)))
    begin = st.one_of(
        st.tuples(headers, st.sampled_from([(4,), (2, 4), (1,), (0,), (2, 0)])).map(
            lambda it: [("header.npy", it[0]), ("time.npy", ("array", it[1], "f8")), ("observable/loss.npy", ("array", it[1], "f8"))]
        ),
        st.just([("loss.npy", ("array", (4,), "f8"))]),
        st.just([]),
    )
    damage = st.one_of(
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(b"")),
        st.tuples(st.just("declare"), st.just(0.0), st.sampled_from([0, 1, 200, 2**28 + 1, 2**32 - 1])),
        st.tuples(st.sampled_from(["insert", "replace"]), st.floats(0, 1), st.binary(min_size=1, max_size=20)),
    )
    return st.fixed_dictionaries(
        {
            "members": st.tuples(begin, st.lists(st.tuples(names, members), max_size=3)).map(lambda it: [*it[0], *it[1]]),
            "method": st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]),
            "damage": st.lists(damage, max_size=2),
        }
    )


def _used(trajectory: Trajectory | None) -> None:
    """What was read can be printed, asked and taken apart."""
    if trajectory is not None:
        assert repr(trajectory)
        assert trajectory.stopped.isprintable()
        assert trajectory.ok in (True, False)
        for index in range(trajectory.runs):
            assert trajectory.run(index).ok in (True, False)


READERS: dict[str, Callable[[str], Any]] = {
    "trajectory": lambda path: _used(attempt(lambda: Trajectory.load(path), path)),
    "recording": lambda path: attempt(lambda: recording.load(path), path),
    "curve": lambda path: attempt(lambda: curve.read(path, None, None), path),
}


def bounded(content: bytes, name: str, readers: tuple[str, ...]) -> None:
    """Each reader gives something usable or a sentence; nothing is run, nothing appears on the disk, and memory stays small."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "inside"
        inside.mkdir()
        (inside / name).write_bytes(content)
        for reader in readers:
            tracemalloc.start()
            try:
                READERS[reader](str(inside / name))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < MEMORY + 8 * len(content), f"{reader} took {peak:.3g} bytes for a file of {len(content)}"
            assert not RAN, RAN.clear() or f"{reader} ran a pickle"
        assert [str(path.relative_to(folder)) for path in sorted(Path(folder).rglob("*"))] == ["inside", f"inside/{name}"]


def trajectories() -> Any:
    """A strategy of trajectories as plain data: runs, length, observables with their types and shapes, phases, clock, provenance."""
    from hypothesis import strategies as st

    names = st.one_of(st.text(max_size=6), st.sampled_from([name for name in (*NAMES, *EVIL) if name.isascii()]))
    kinds = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u1", "?"])
    observable = st.tuples(kinds, st.sampled_from([(), (2,), (0,), (2, 3), (1, 0)]), st.integers(0, 2**32 - 1))
    return st.fixed_dictionaries(
        {
            "runs": st.integers(0, 3),
            "length": st.integers(1, 4),
            "observables": st.dictionaries(names, observable, max_size=3),
            "phases": st.dictionaries(names, st.floats(), max_size=3),
            "clock": st.text(max_size=6),
            "provenance": st.dictionaries(st.text(max_size=4), st.one_of(st.none(), st.text(max_size=4), st.integers(), st.floats(0, 1)), max_size=3),
        }
    )


def kept(case: dict[str, Any]) -> None:
    """A trajectory comes back from its file bit by bit, or a name that no file can hold is refused and nothing is written."""
    before = ((case["runs"],) if case["runs"] else ()) + (case["length"],)
    time = np.broadcast_to(np.arange(float(case["length"])), before)
    observables = {
        name: jnp.asarray(np.frombuffer(np.random.default_rng(seed).bytes(8 * 64 * 4), kind)[: int(np.prod(before + shape))].reshape(before + shape))
        for name, (kind, shape, seed) in case["observables"].items()
    }
    phases = {name: jnp.full(before[:-1], moment) for name, moment in case["phases"].items()}
    saved = Trajectory(jnp.asarray(time), observables, phases, case["clock"], json.dumps(case["provenance"]))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.npz")
        try:
            saved.save(path)
        except ValueError:
            assert not all(_named(name) for name in (*observables, *phases)), "a good name was refused"
            assert os.listdir(folder) == []
            return
        read = Trajectory.load(path)
        assert os.listdir(folder) == ["run.npz"]
    about = lambda this: (this.clock, this.provenance, this.observables.keys(), this.phases.keys())
    assert about(read) == about(saved)
    for one, two in zip(jax.tree.leaves(read), jax.tree.leaves(saved), strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes()


def _named(name: str) -> bool:
    try:
        return bool(archive.acceptable(f"observable/{name}"))
    except ValueError:
        return False


PROPERTIES = (
    Property("a trajectory comes back from its file bit by bit", 7, trajectories, kept, "a kept result must be the result"),
    Property(
        "a hostile npz is read or refused in one sentence",
        20,
        recipes,
        lambda recipe: bounded(made(recipe), "file.npz", ("trajectory", "recording", "curve")),
        "nothing is run, written or allocated that a file asks for",
    ),
)
