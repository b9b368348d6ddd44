"""Files made to harm: each is refused in one sentence by every reader and command, runs nothing, writes nothing, and gets no memory."""

import io
import json
import os
import struct
import tracemalloc
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from small import SMALL

from simulate import recording
from spectral_ode import archive, cli, curve, document, runtime
from spectral_ode.problem import BadInput
from spectral_ode.trajectory import FORMAT, Trajectory
from validate import fuzz, hostile, store

HEADER = ("header.npy", ("header", 0))
TIME = ("time.npy", ("array", (4,), "f8"))
LOSS = ("observable/loss.npy", ("array", (4,), "f8"))
READERS = {
    "trajectory": Trajectory.load,
    "recording": recording.load,
    "curve": lambda path: curve.read(path, None, None),
}


def packed(*members, method=zipfile.ZIP_STORED, damage=()):
    return hostile.made({"members": list(members), "method": method, "damage": list(damage)})


def bomb(size):
    """Zeros that shrink a thousandfold, behind a header that is honest about them."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file, file.open("loss.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (size // 8,)})
        for _ in range(size // 2**20):
            member.write(bytes(2**20))
    return raw.getvalue()


def overlapping(copies, size):
    """One member that the directory names many times."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("0000.npy", hostile._npy("<f8", (size // 8,), bytes(size)))
        only = file.filelist[0]
        for number in range(1, copies):
            again = zipfile.ZipInfo(f"{number:04d}.npy")
            for name in ("compress_type", "CRC", "compress_size", "file_size", "header_offset"):
                setattr(again, name, getattr(only, name))
            file.filelist.append(again)
    return raw.getvalue()


def crowded(members):
    """A directory that names more members than anyone reads."""
    entry = struct.pack("<4s4B4H3L5H2L", b"PK\x01\x02", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0)
    directory = b"".join(entry + f"{number:056d}.npy".encode() for number in range(members))
    return directory + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, len(directory), 0, 0)


HOSTILE = {
    "a pickle": packed(HEADER, ("time.npy", ("pickle",))),
    "a pickle beside": packed(HEADER, TIME, LOSS, ("x.npy", ("pickle",))),
    "a header that declares terabytes": packed(HEADER, ("time.npy", ("claim", "<f8", (10**12,), b"12345678", 1, False))),
    "a shape that overflows": packed(("loss.npy", ("claim", "<f8", (2**32, 2**32), b"", 1, False))),
    "a negative shape": packed(("loss.npy", ("claim", "<f8", (-4, -2), bytes(64), 1, False))),
    "a shape of a thousand axes": packed(("loss.npy", ("claim", "<f8", (1,) * 1000, bytes(8), 1, False))),
    "an axis that no machine counts": packed(("loss.npy", ("claim", "<f8", (16**5000,), bytes(8), 1, False))),
    "elements of no size": packed(("loss.npy", ("claim", "|V0", (10**12,), b"", 1, False))),
    "a huge element": packed(("loss.npy", ("claim", "(1000000000,)f8", (1,), bytes(8), 1, False))),
    "fields": packed(("loss.npy", ("claim", "f8,O", (1,), bytes(16), 1, False))),
    "a newer npy": packed(("loss.npy", ("claim", "<f8", (1,), bytes(8), 9, False))),
    "a directory that declares gigabytes": packed(HEADER, TIME, damage=[("declare", 0.0, 2**32 - 1)]),
    "a directory that declares less": packed(HEADER, TIME, damage=[("declare", 0.0, 10)]),
    "a name twice": packed(HEADER, TIME, TIME, ("loss.npy", TIME[1]), ("loss.npy", TIME[1])),
    "a path out of the folder": packed(HEADER, TIME, ("observable/../../../evil.npy", TIME[1]), ("../../evil.npy", TIME[1])),
    "an absolute path": packed(HEADER, TIME, ("/etc/evil.npy", TIME[1])),
    "a member that is no array": packed(HEADER, TIME, ("evil.sh", ("bytes", b"#!/bin/sh\n"))),
    "bytes that are called an array": packed(HEADER, TIME, ("x.npy", ("bytes", b"#!/bin/sh\n"))),
    "zeros without end": bomb(2**28 + 2**20),
    "one array a thousand times": overlapping(1000, 2**20),
    "a crowded directory": crowded(20_000),
    "nothing": b"",
    "a text": b"\xff\xfe\x00 not UTF-8",
}  # fmt: skip


def refused(action, *words):
    """The sentence of a refusal, the memory that it took being small."""
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as caught:
            action()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    fuzz.sentence(caught.value, *words)
    assert peak < 2**25
    assert hostile.RAN == []
    return str(caught.value)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    return tmp_path


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_every_reader_refuses_it(folder, reader, content):
    (folder / "inside/run.npz").write_bytes(content)
    refused(lambda: READERS[reader]("run.npz"), "run.npz")
    assert tree(folder) == ["inside", "inside/run.npz"]


def test_the_trap_is_set(folder):
    """Whoever trusts the file runs what is in it, so that its not being run says something."""
    with zipfile.ZipFile(io.BytesIO(HOSTILE["a pickle"])) as file:
        np.load(io.BytesIO(file.read("time.npy")), allow_pickle=True)
    assert hostile.RAN == ["a pickle was run"]
    hostile.RAN.clear()


@pytest.mark.parametrize("content", [HOSTILE["a pickle beside"], HOSTILE["a path out of the folder"]], ids=["pickle", "path"])
@pytest.mark.parametrize("words", [["replay", "run.npz"], ["compare", "run.npz", "--problem", "one-drop"]], ids=lambda words: words[0])
def test_every_command_refuses_it(folder, capsys, words, content):
    (folder / "inside/run.npz").write_bytes(content)
    assert cli.main([*words, "--out", "results"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("spectral_ode: run.npz is not")
    assert tree(folder) == ["inside", "inside/run.npz"]


def test_a_large_but_honest_file_is_read_and_a_dishonest_one_is_not(folder, monkeypatch):
    monkeypatch.setattr(archive, "MODEST", 2**10)
    np.savez("plain.npz", loss=np.arange(1000.0))
    np.savez_compressed("zeros.npz", loss=np.zeros(100_000))
    assert archive.arrays("plain.npz", "no")["loss"].size == 1000
    assert "declares 8e+05 bytes of arrays in a file of" in refused(lambda: archive.arrays("zeros.npz", "no"))
    monkeypatch.setattr(archive, "LIMIT", 2**10)
    assert "at most 1.02e+03 are read" in refused(lambda: archive.arrays("plain.npz", "no"))


def test_memory_is_given_only_after_the_check(folder, monkeypatch):
    """What is allocated is counted: nothing for a lie of one byte, and what is declared for an honest file."""
    given = []
    monkeypatch.setattr(archive, "bytearray", lambda size: given.append(size) or bytearray(size), raising=False)
    for extra in (8, 0):
        (folder / "inside/run.npz").write_bytes(packed(("loss.npy", ("claim", "<f8", (4,), bytes(32 + extra), 1, False))))
        if extra:
            refused(lambda: archive.arrays("run.npz", "a sentence of its own"))
        else:
            assert archive.arrays("run.npz", "no")["loss"].tolist() == [0.0] * 4
    assert given == [32]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressed", [True, False])
def test_what_numpy_writes_is_read_as_numpy_reads_it(folder, order, compressed):
    arrays = {"a": np.asarray(np.arange(6.0).reshape(2, 3), order=order), "b/c": np.array("λ"), "d": np.zeros((0, 3), np.float32)}
    arrays |= {"e": np.array(True), "f": np.array(["2020-01-01"], "M8[D]"), "g.npy": np.arange(3, dtype=">i4"), "h": np.array(1 + 2j)}
    (np.savez_compressed if compressed else np.savez)("x.npz", **arrays)
    read = archive.arrays("x.npz", "no")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape, read[name].tobytes("A")) == (array.dtype, array.shape, array.tobytes("A"))


HEADERS = {
    "no text": ({"format": FORMAT, "clock": [1], "provenance": []}, "is not a trajectory file"),
    "runs that are none": ({"format": FORMAT, "clock": "t", "provenance": {"runs": [{}, {}]}}, "of each of its runs"),
    "a reason that is no text": ({"format": FORMAT, "clock": "t", "provenance": {"stopped": 3}}, "why it ended"),
    "a format of two lines": ({"format": "2\nlines", "clock": "t", "provenance": {}}, r"file format '2\nlines'"),
    "lists in lists": (None, "is not a trajectory file"),
}


@pytest.mark.parametrize(("header", "part"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_describes_nothing_is_refused(folder, header, part):
    text = "[" * 100_000 if header is None else json.dumps(header)
    np.savez("run.npz", header=np.array(text), time=np.arange(4.0))
    assert part in refused(lambda: Trajectory.load("run.npz"), "run.npz")


def test_numbers_of_another_machine_are_read_and_those_that_jax_does_not_know_are_refused(folder):
    header = np.array(json.dumps({"format": FORMAT, "clock": "t", "provenance": {}}))
    np.savez("run.npz", header=header, time=np.arange(4.0).astype(">f8"), **{"observable/loss": np.arange(4).astype(">i4")})
    read = Trajectory.load("run.npz")
    assert (read.time.tolist(), read["loss"].tolist()) == ([0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3])
    if np.dtype("longdouble").itemsize > 8:
        np.savez("run.npz", header=header, time=np.arange(4.0), **{"observable/loss": np.arange(4).astype("longdouble")})
        assert "does not belong to a trajectory" in refused(lambda: Trajectory.load("run.npz"), "run.npz")


@pytest.mark.parametrize("name", ["../x", "a\nb", "x" * 2000, "a\\b"])
def test_a_name_that_no_file_can_hold_is_not_written(folder, name):
    one = Trajectory(jnp.zeros(2), {name: jnp.zeros(2)}, {})
    with pytest.raises(ValueError, match="cannot be the name of an array"):
        one.save("run.npz")
    assert tree(folder) == ["inside"]


DEEP = 5000
TABLES = {
    "lists in lists": "x = " + "[" * DEEP,
    "tables in tables": "x = " + "{x = " * DEEP,
    "a key of many parts": "[task]\nspectrum" + ".a" * 100_000 + " = 1",
    "a table of many parts": "[a" + ".a" * 100_000 + "]",
    "a key of many parts inside": "x = {a" + ".a" * 100_000 + " = 1}",
    "a number beyond text": "points = 0x" + "f" * 5000,
    "another": "runs = 0x" + "f" * 5000,
    "for a word": "headline = 0x" + "f" * 5000,
    "a power": "horizon = 1e99999",
    "no UTF-8": b"title = '\xff\xfe'",
    "a zero byte": "title = '\x00'",
    "a terminal's command": '"\\u001b[2J" = 1',
    "a megabyte": "#" * 2**21,
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
def test_a_hostile_table_is_refused(folder, capsys, content):
    (folder / "inside/problem.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    told = refused(lambda: document.load("problem.toml"), "problem.toml")
    assert cli.main(["run", "problem.toml", "--out", "results"]) == 2
    assert capsys.readouterr() == ("", f"spectral_ode: {told}\n")
    assert tree(folder) == ["inside", "inside/problem.toml"]


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is no device without end here")
def test_links_into_circles_and_to_a_device_without_end_are_refused(folder):
    for name in ("a.npz", "a.toml", "a.csv"):
        os.symlink(name, name)
        os.symlink("/dev/zero", f"zero-{name}")
    for where in ("", "zero-"):
        for reader in READERS.values():
            refused(lambda reader=reader, where=where: reader(f"{where}a.npz"), "a.npz")
        with pytest.raises(BadInput, match=r"a\.toml"):
            document.load(f"{where}a.toml")
        with pytest.raises(BadInput, match=r"a\.csv"):
            curve.read(f"{where}a.csv", None, None)


@pytest.mark.parametrize("content", [*HOSTILE.values()][:3], ids=[*HOSTILE][:3])
def test_a_kept_experiment_that_was_tampered_with_is_refused(folder, content):
    (folder / "inside/training.npz").write_bytes(content)
    refused(lambda: store.read(folder / "inside", SMALL), "training.npz")


def test_a_kept_experiment_of_another_problem_is_not_taken_for_this_one(folder):
    origin = runtime.provenance(SMALL)
    for changes, same in (({"hash": "../../evil"}, False), ({"versions": ["a"]}, False)):
        Trajectory(jnp.arange(2.0), {"loss": jnp.zeros(2)}, {}, origin=json.dumps(origin | changes)).save("training.npz")
        assert (store.read(folder / "inside", SMALL) is not None) is same
