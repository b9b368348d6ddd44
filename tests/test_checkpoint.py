"""Checkpoints: a training that is killed, or whose files are hurt, ends with the same bits; nothing of another problem is ever used."""

import errno
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from killed import PROBLEMS
from small import SMALL

import simulate
from simulate import checkpoint
from simulate.checkpoint import Keeper
from spectral_ode import cli, document, runtime
from spectral_ode.folder import LOCKS

PROBLEM = replace(SMALL, horizon=100.0, points=81, training=replace(SMALL.training, sequences=5000))
TESTS = Path(__file__).parent


def _same(one, two) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves((one.observables, one.phases)), jax.tree.leaves((two.observables, two.phases)), strict=True)
    )


class _Stop(Exception):
    pass


def _stop(at: float):
    def progress(share, time, loss):
        if share >= at:
            raise _Stop

    return progress


@pytest.fixture(scope="module")
def whole():
    return simulate.train(PROBLEM)


@pytest.fixture
def stopped(tmp_path):
    """The folder of a training that stopped half-way."""
    with pytest.raises(_Stop):
        simulate.train(PROBLEM, keep=Keeper(tmp_path / "resume", every=0.0), progress=_stop(0.5))
    return tmp_path / "resume"


def _go_on(folder, problem=PROBLEM):
    """The training from its checkpoints, with everything that was said."""
    said = {"warn": [], "tell": []}
    keeper = Keeper(folder, every=0.0, warn=said["warn"].append, tell=said["tell"].append)
    trained = simulate.train(problem, keep=keeper)
    keeper.clear()
    return trained, said


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.parametrize(("kind", "kills"), [("sequences", 20), ("episodes", 4)])
def test_killed_at_random_moments_it_ends_with_the_same_bytes(kind, kills, tmp_path):
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    words = [sys.executable, str(TESTS / "killed.py"), str(tmp_path), kind, "7", str(kills)]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    story = json.loads((tmp_path / "kills.json").read_text())
    assert sum(one["killed"] for one in story) == kills
    assert not (tmp_path / "resume").exists()
    simulate.train(PROBLEMS[kind], progress=lambda share, time, loss: None).save(tmp_path / "whole.npz")
    assert (tmp_path / "interrupted.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_it_goes_on_where_it_stopped_and_says_so(stopped, whole):
    assert len(list(stopped.rglob("carry-*.npz"))) == 2
    trained, said = _go_on(stopped)
    assert _same(trained, whole)
    assert said == {"warn": [], "tell": ["resumed at 52 %"]}
    assert not stopped.exists()


@pytest.mark.parametrize("harm", ["cut short", "changed", "emptied"])
def test_a_hurt_checkpoint_is_told_and_the_one_before_it_is_taken(harm, stopped, whole):
    newest = sorted(stopped.rglob("carry-*.npz"))[-1]
    content = bytearray(newest.read_bytes())
    for place in random.Random(0).sample(range(len(content)), 20):
        content[place] ^= 0xFF
    newest.write_bytes({"cut short": newest.read_bytes()[:-100], "changed": bytes(content), "emptied": b""}[harm])
    trained, said = _go_on(stopped)
    assert _same(trained, whole)
    assert said["tell"] == ["resumed at 48 %"]
    assert len(said["warn"]) == 1
    assert newest.name in said["warn"][0]


def test_any_changed_byte_is_noticed_or_harmless(stopped, whole):
    """Every byte counts: whatever is changed in a record or a checkpoint, the result is the same."""
    moments = random.Random(1)
    files = sorted(stopped.rglob("*.npz"))
    kept = {path: path.read_bytes() for path in files}
    for _ in range(15):
        stopped.joinpath(files[0].parent).mkdir(parents=True, exist_ok=True)
        for path, content in kept.items():
            path.write_bytes(content)
        victim = moments.choice(files)
        content = bytearray(kept[victim])
        content[moments.randrange(len(content))] ^= 1 << moments.randrange(8)
        victim.write_bytes(bytes(content))
        assert _same(_go_on(stopped)[0], whole)


def test_without_its_records_a_checkpoint_is_worthless(stopped, whole):
    min(stopped.rglob("records-*.npz")).unlink()
    trained, said = _go_on(stopped)
    assert _same(trained, whole)
    assert said["tell"] == []
    assert len(said["warn"]) == 1


@pytest.mark.parametrize("what", ["problem", "version", "x64", "microbatch"])
def test_a_checkpoint_of_something_else_is_never_used(what, stopped, monkeypatch):
    problem, told = PROBLEM, {}
    if what == "problem":
        problem = replace(PROBLEM, seed=replace(PROBLEM.seed, data=9))
    elif what == "microbatch":
        told = {"microbatch": 100_000}
    else:
        entries = {"version": {"versions": {"jax": "0.0.1"}}, "x64": {"x64": False}}[what]
        real = runtime.provenance
        monkeypatch.setattr(runtime, "provenance", lambda problem: real(problem) | entries)
    warned, resumed = [], []
    keeper = Keeper(stopped, every=0.0, warn=warned.append, tell=resumed.append)
    trained = simulate.train(problem, keep=keeper, **told)
    assert resumed == []
    assert len(warned) == 1
    assert "another version or problem" in warned[0]
    assert _same(trained, simulate.train(problem, **told))


def test_begun_anew_it_knows_nothing(stopped, whole):
    resumed = []
    assert _same(simulate.train(PROBLEM, keep=Keeper(stopped, every=0.0, fresh=True, tell=resumed.append)), whole)
    assert resumed == []


def test_a_full_disk_is_told_once_and_the_training_goes_on(tmp_path, monkeypatch, whole):
    real, count = np.savez, [0]

    def full(file, *arguments, **arrays):
        count[0] += 1
        if count[0] % 3:  # something is written now and then, and some of it only half
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, *arguments, **arrays)

    monkeypatch.setattr(checkpoint.np, "savez", full)
    warned = []
    trained = simulate.train(PROBLEM, keep=Keeper(tmp_path / "resume", every=0.0, warn=warned.append), progress=lambda *_: None)
    assert _same(trained, whole)
    assert len(warned) == 1
    assert "No space left on device" in warned[0]
    assert not [path for path in tmp_path.rglob(".*.npz")]


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path, whole):
    (tmp_path / "resume").write_text("a file")
    warned = []
    assert _same(simulate.train(PROBLEM, keep=Keeper(tmp_path / "resume", every=0.0, warn=warned.append)), whole)
    assert len(warned) == 1


def test_two_runs_do_not_share_a_folder(stopped, whole):
    fcntl = pytest.importorskip("fcntl")
    os.close(LOCKS.pop(stopped.resolve()))
    warned, before = [], {path: path.read_bytes() for path in stopped.rglob("*.npz")}
    other = os.open(stopped, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert _same(simulate.train(PROBLEM, keep=Keeper(stopped, every=0.0, warn=warned.append)), whole)
    os.close(other)
    assert len(warned) == 1
    assert "another run is using it" in warned[0]
    assert before == {path: path.read_bytes() for path in stopped.rglob("*.npz")}


def test_records_go_to_disk_and_memory_stays_as_it_is(tmp_path, monkeypatch):
    sizes, real = [], checkpoint.Session.save

    def save(self, mark, carry, *, end=False):
        real(self, mark, carry, end=end)
        sizes.append((len(self.parts), sum(array.nbytes for array in jax.live_arrays())))

    monkeypatch.setattr(checkpoint.Session, "save", save)
    simulate.train(replace(PROBLEM, points=401), keep=Keeper(tmp_path / "resume", every=0.0))
    assert len(sizes) > 30
    assert {parts for parts, _ in sizes} == {0}  # nothing waits in the memory of the host
    assert len({live for _, live in sizes[1:]}) == 1  # nor on the device


def test_an_optimizer_of_ones_own_cannot_be_kept(tmp_path):
    import optax

    with pytest.raises(ValueError, match="optimizer"):
        simulate.train(PROBLEM, keep=Keeper(tmp_path), optimizer=optax.sgd(0.1))


def test_the_run_command_goes_on_and_leaves_no_checkpoints(tmp_path, monkeypatch, capsys):
    (tmp_path / "small.toml").write_text(document.to_toml(replace(PROBLEM, horizon=20.0)))
    words = ["run", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--save-every", "0"]
    real, count = checkpoint.Session.save, [0]

    def save(*arguments, **settings):
        real(*arguments, **settings)
        count[0] += 1
        if count[0] == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Session, "save", save)
    assert cli.main(words) == 130
    assert list((tmp_path / "out" / ".resume").rglob("carry-*.npz"))
    capsys.readouterr()
    assert cli.main(words) in (0, 1)
    assert "resumed at 74 %" in capsys.readouterr().err
    assert [path.name.startswith("linear") for path in (tmp_path / "out").iterdir()] == [True]
