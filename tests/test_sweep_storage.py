"""The folder of a sweep: killed, damaged, full, in use, of another version; made by two processes; within its memory."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from test_devices import _environment, _port
from test_sweep import read, small_sweep

from spectral_ode import cli
from spectral_ode.sweeps import begun, store

TESTS = Path(__file__).parent
SAID = {"summary.json"}  # what says when and where


def files(folder: Path) -> dict[str, bytes]:
    """Everything that a sweep has written, by its place in the folder."""
    (made,) = folder.glob("sweep-*")
    return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file() and path.name not in SAID}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "zarr"])
def test_killed_nine_times_it_ends_with_the_same_bytes(kind, tmp_path):
    if kind == "zarr":
        pytest.importorskip("zarr", reason="zarr is an optional extra")
    words = [sys.executable, str(TESTS / "swept.py"), str(tmp_path), "7", "9", kind]
    done = subprocess.run(words, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills = json.loads((tmp_path / "kills.json").read_text())
    assert sum(kill["killed"] for kill in kills) >= 7  # now and then one has ended before
    assert kills[-1]["status"] == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def start(out: Path, *words: str) -> subprocess.Popen:
    code = "import sys; from spectral_ode.sweeps import layout; from spectral_ode.cli import main"
    code += "; layout.LARGEST = 20_000; sys.exit(main(sys.argv[1:]))"
    problem = ["sweep", "saddle-to-saddle", "--horizon", "300", "--points", "11", "--over", "start.scale=linspace:0.2,0.4,400"]
    program = [sys.executable, "-c", code, *problem, "--out", str(out), *words]
    return subprocess.Popen(program, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A real sweep of many chunks, undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    process = start(folder, "--quiet")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return folder


@pytest.mark.slow
def test_a_real_sweep_killed_twice_ends_with_the_same_bytes(tmp_path, whole):
    assert len([name for name in files(whole) if name.startswith("chunks/")]) > 3
    generator = np.random.default_rng(0)
    for wanted in (1, 3):
        process = start(tmp_path, "--quiet")
        while process.poll() is None and len(list(tmp_path.glob("sweep-*/chunks/[0-9]*.npz"))) < wanted:
            time.sleep(0.002)
        time.sleep(float(generator.uniform(0, 0.05)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(tmp_path, "--quiet")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert files(tmp_path) == files(whole)


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one_and_the_first_alone_prints(tmp_path, whole):
    words = ["--coordinator", f"127.0.0.1:{_port()}", "--processes", "2"]
    both = [start(tmp_path, *words, "--process", number) for number in "01"]
    (output, errors), (silence, _) = (process.communicate() for process in both)
    assert [process.returncode for process in both] == [0, 0], errors
    assert output.startswith("400 members, population: ")
    assert silence == ""
    assert files(tmp_path) == files(whole)


@pytest.mark.slow
def test_processes_without_a_common_folder_are_told(tmp_path):
    words = ["--coordinator", f"127.0.0.1:{_port()}", "--processes", "2"]
    both = [start(tmp_path / number, *words, "--process", number) for number in "01"]
    (_, errors), (_, silence) = (process.communicate() for process in both)
    assert [process.returncode for process in both] == [2, 2], errors
    assert "give --out a folder that all hosts share" in errors
    assert "Traceback" not in errors + silence


@pytest.mark.slow
def test_a_sweep_stays_below_its_memory(tmp_path):
    process = start(tmp_path, "--seeds", "5", "--memory", "1GB", "--json")
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    summary = json.loads(output)
    assert summary["solved"] == 2000
    assert 0.3e9 < summary["peak memory"] < summary["memory"] == 10**9


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert small_sweep(folder)["code"] == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("damage", ["gone", "truncated", "changed", "empty", "another"])
def test_a_damaged_chunk_is_made_again(damage, copy, finished):
    (folder,) = copy.glob("sweep-*")
    path = folder / "chunks" / "00000.npz"
    data = bytearray(path.read_bytes())
    if damage == "another":
        shutil.copy(folder / "chunks" / "00001.npz", path)
    elif damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes({"truncated": data[: len(data) // 2], "changed": data, "empty": b""}[damage])
    assert small_sweep(copy)["code"] == 0
    assert files(copy) == files(finished)
    assert 0 < json.loads((folder / "summary.json").read_text())["solved"] < 12


def refused(folder: Path, capsys, *more: str) -> str:
    assert small_sweep(folder, *more)["code"] == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing = [", "is not the description of a sweep; move it away, or begin anew with --fresh"),
        ("a = 1", "is not the description of a sweep"),
        ("[sweep]\nover = []\n[layout]\nwidth = 1", "describes another sweep"),
    ],
)
def test_a_foreign_description_is_refused_and_nothing_is_lost(text, sentence, copy, finished, capsys):
    (folder,) = copy.glob("sweep-*")
    (folder / "sweep.toml").write_text(text)
    assert sentence in refused(copy, capsys)
    kept = {name: data for name, data in files(copy).items() if name != "sweep.toml"}
    assert kept == {name: data for name, data in files(finished).items() if name != "sweep.toml"}
    assert small_sweep(copy, "--fresh")["code"] == 0
    assert files(copy) == files(finished)


def test_another_version_does_not_go_on_with_it_but_reads_it(copy, capsys, monkeypatch):
    (folder,) = copy.glob("sweep-*")
    monkeypatch.setattr(begun.runtime, "provenance", lambda problem: {"commit": "another"})
    assert small_sweep(copy)["code"] == 0  # nothing is left to do
    (folder / "chunks" / "00000.npz").unlink()
    assert "was begun by another version of the program" in refused(copy, capsys)
    (folder / "chunks" / "00001.npz").unlink()
    assert small_sweep(copy)["code"] == 0  # nothing was done
    assert tomllib.loads((folder / "sweep.toml").read_text())["made by"] == {"commit": "another"}


def test_a_full_disk_is_one_sentence_and_what_is_there_is_kept(tmp_path, finished, capsys, monkeypatch):
    real, count = np.savez, [0]

    def full(file, *arguments, **arrays):
        count[0] += 1
        if count[0] == 2:
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, *arguments, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(store.np, "savez", full)
        assert "(No space left on device); make room, and start the same command again" in refused(tmp_path, capsys)
    assert set(files(tmp_path)) == {"sweep.toml", "chunks/00000.npz"}
    assert small_sweep(tmp_path)["code"] == 0
    assert files(tmp_path) == files(finished)


def test_a_folder_that_cannot_be_written_is_one_sentence(copy, finished, capsys, monkeypatch):
    def no(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(store, "prepare", no)
        assert "(Permission denied); choose another folder with --out" in refused(copy, capsys)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_table", no)
        assert "(Permission denied); make room, and start the same command again: nothing is solved twice" in refused(copy, capsys)
    assert files(copy) == files(finished)


def test_two_sweeps_do_not_share_a_folder(copy, finished, capsys):
    fcntl = pytest.importorskip("fcntl")
    (folder,) = copy.glob("sweep-*")
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert "another run is using it" in refused(copy, capsys)
    os.close(other)
    assert files(copy) == files(finished)


def test_leftovers_of_a_kill_are_removed(copy, finished):
    (folder,) = copy.glob("sweep-*")
    for name in ("chunks/.00007.npz", ".members.csv", ".map.123.png"):
        (folder / name).write_bytes(b"half")
    assert small_sweep(copy)["code"] == 0
    assert files(copy) == files(finished)


def test_zarr_holds_the_same_numbers_and_notices_what_is_lost(tmp_path, finished):
    zarr = pytest.importorskip("zarr", reason="zarr is an optional extra")
    small_sweep(tmp_path, "--store", "zarr")
    (plain,), (other,) = finished.glob("sweep-*"), tmp_path.glob("sweep-*")
    stored = zarr.open_group(other / "data.zarr", mode="r")
    for number in range(2):
        with np.load(plain / "chunks" / f"{number:05d}.npz") as file:
            assert np.array_equal(stored[f"{number}/loss"][:], file["observable/loss"])
    assert read(plain) == read(other)
    before = files(tmp_path)
    shutil.rmtree(other / "data.zarr" / "0" / "loss" / "c")  # zarr itself would read zeros
    (other / "data.zarr" / "1" / "loss" / "zarr.json").write_text("{")
    assert small_sweep(tmp_path, "--store", "zarr")["code"] == 0
    assert files(tmp_path) == before


def test_a_smaller_bound_of_memory_is_refused_when_it_is_gone_on_with(copy, capsys):
    (folder,) = copy.glob("sweep-*")
    (folder / "chunks" / "00000.npz").unlink()
    assert "--memory is 0.9 GB, but 12 members of 21 recorded times need" in refused(copy, capsys, "--memory", "900M")


def test_amounts_and_hosts_are_read_as_everywhere(capsys, tmp_path):
    for words, sentence in (
        (["--memory", "lots"], "--memory is 'lots', but it must be a number of bytes, such as 500M or 8G"),
        (["--memory", "9" * 400], "it must be a number of bytes"),
        (["--processes", "2"], "give --coordinator and --process too"),
    ):
        assert cli.main(["sweep", "one-drop", "--over", "start.scale=0.1", "--out", str(tmp_path), *words]) == 2
        assert sentence in capsys.readouterr().err
