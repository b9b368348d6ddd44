"""The result type: a pytree that prints itself, stacks, and survives the way through a file that numpy alone can read."""

import gc
import io
import json
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_ode.problem import BadInput
from spectral_ode.trajectory import FORMAT, Trajectory

PROVENANCE = {"source": "linear.separate", "stopped": "reached the horizon", "ok": True, "statistics": {"steps": 12}, "note": "λ ≥ 0"}


def make(scale=1.0, length=4, **provenance):
    time = jnp.arange(length, dtype=jnp.float64)
    many = {"weights": scale * jnp.ones((length, 2, 3)) / 7, "steps": jnp.arange(length), "slow/loss": (time / 3).astype(jnp.float32)}
    phases = {"first": jnp.asarray(0.1 * scale), "second": jnp.asarray(jnp.nan)}
    return Trajectory(time, {"loss": scale * jnp.exp(-time)} | many, phases, "flow time", json.dumps(PROVENANCE | provenance))


def assert_same(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)  # nan equals nan here
    about = lambda this: (this.clock, this.provenance, this.observables.keys(), this.phases.keys())
    assert about(one) == about(two)


MEMBERS = {"run.npz": make(), "stack": Trajectory.stack([make(), make(2.0)]), "bare": Trajectory(jnp.zeros(1), {}, {}, "training step")}


@pytest.mark.parametrize(("name", "trajectory"), MEMBERS.items(), ids=MEMBERS)
def test_a_file_gives_back_what_was_saved_and_two_files_are_equal_byte_by_byte(tmp_path, name, trajectory):
    trajectory.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert_same(Trajectory.load(tmp_path / name), trajectory)
    trajectory.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / name).read_bytes()


WITHOUT_JAX = """import json, sys
sys.modules["jax"] = None
import numpy as np
with np.load(sys.argv[1], allow_pickle=False) as file:
    print(json.dumps([file["time"].tolist(), file["observable/loss"].tolist(), json.loads(str(file["header"]))]))
"""


def test_the_file_opens_with_numpy_alone(tmp_path):
    make().save(tmp_path / "run.npz")
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, tmp_path / "run.npz"], capture_output=True, text=True, timeout=60, check=True)
    header = {"format": FORMAT, "clock": "flow time", "provenance": PROVENANCE}
    assert json.loads(done.stdout) == [make().time.tolist(), make()["loss"].tolist(), header]


def parts(version=FORMAT, **changes):
    header = json.dumps({"format": version, "clock": "flow time", "provenance": {}})
    return {"header": np.array(header), "time": np.arange(4.0), "observable/loss": np.arange(4.0)} | changes


TRAP = type("Trap", (), {"__reduce__": lambda self: (sys.exit, ("a pickle in a file was run",))})()
FOREIGN = {
    "other-arrays": {"a": np.arange(3)},
    "no-time": {"header": parts()["header"]},
    "header-no-json": parts(header=np.array("hello")),
    "pickle": parts(time=np.array([TRAP], dtype=object)),
    "newer-format": parts(version=FORMAT + 1),
    "stray-array": parts(stray=np.arange(4.0)),
    "short-observable": parts(**{"observable/loss": np.arange(3.0)}),
    "phase-per-time": parts(**{"phase/first": np.arange(4.0)}),
    "text-observable": parts(**{"observable/loss": np.array(list("abcd"))}),
}


def refused(path, *words):
    """Load a bad file; returns the warnings, such as of a file that was left open."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        with pytest.raises(BadInput) as error:
            Trajectory.load(path)
        text = str(error.value)
        del error
        gc.collect()
    assert "\n" not in text
    assert all(word in text for word in (str(path), *words))
    return caught


@pytest.mark.parametrize("arrays", FOREIGN.values(), ids=FOREIGN)
def test_an_npz_that_is_no_trajectory_is_refused_in_one_sentence(tmp_path, arrays):
    np.savez(tmp_path / "foreign.npz", **arrays)
    refused(tmp_path / "foreign.npz")


def test_refusals_say_what_is_wrong(tmp_path):
    path = tmp_path / "run.npz"
    refused(path, "there is no file")
    np.savez(path, **FOREIGN["newer-format"])
    refused(path, f"format {FORMAT + 1}", f"format {FORMAT}")
    np.savez(path, **FOREIGN["short-observable"])
    refused(path, "observable/loss", "(3,)")
    np.save(tmp_path / "array.npy", np.arange(3))
    refused(tmp_path / "array.npy", "is not a trajectory file")
    refused(tmp_path, "is not a trajectory file")


np.savez(whole := io.BytesIO(), **parts())
NOT_NPZ = {"empty": b"", "text": b"time,loss\n0,1\n", "zip-start": b"PK\x03\x04", "npy-start": b"\x93NUMPY"}
NOT_NPZ |= {f"cut-{share}": whole.getvalue()[: int(share * len(whole.getvalue()))] for share in (0.01, 0.3, 0.6, 0.95, 0.999)}


@pytest.mark.parametrize("content", NOT_NPZ.values(), ids=NOT_NPZ)
def test_a_file_that_is_no_npz_or_was_cut_short_is_refused(tmp_path, content):
    (tmp_path / "run.npz").write_bytes(content)
    refused(tmp_path / "run.npz", "is not a trajectory file, or it was cut short")


def test_a_refused_file_is_closed(tmp_path):
    (tmp_path / "run.npz").write_bytes(b"PK\x03\x04")
    assert refused(tmp_path / "run.npz") == []


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["disk-full", "interrupt"])
@pytest.mark.parametrize("older", [True, False], ids=["older-file", "no-file"])
def test_a_failure_while_writing_leaves_the_folder_as_it_was(tmp_path, monkeypatch, error, older):
    if older:
        make().save(tmp_path / "run.npz")
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

    def broken(file, **_):
        file.write_bytes(b"PK half a file")
        raise error

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(type(error)):
        make(2.0).save(tmp_path / "run.npz")
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_run_undoes_stack():
    members = [make(1.0, seed=0), make(2.0, seed=1, stopped="diverged", ok=False)]
    stacked = Trajectory.stack(members)
    for index, member in enumerate(members):
        assert_same(stacked.run(index), member)
    assert (stacked.runs, members[0].runs, stacked.ok, stacked.run(0).ok) == (2, 0, False, True)
    assert stacked.stopped == "reached the horizon; diverged"
    assert {"source", "seed"} & stacked.provenance.keys() == {"source"}  # the runs differ in their seed


@pytest.mark.parametrize("short", [0, 1], ids=["short-first", "short-last"])
def test_a_stack_holds_the_last_value_of_a_shorter_run(short):
    members = [make(1.0, length=5, seed=0), make(2.0, length=5, seed=1)]
    members[short] = make(3.0, length=2, seed=9, stopped="steady")
    stacked = Trajectory.stack(members)
    np.testing.assert_array_equal(stacked.time, np.stack([np.arange(5.0)] * 2))
    for name, values in members[short].observables.items():
        np.testing.assert_array_equal(stacked[name][short], np.stack([*values, *[values[-1]] * 3]))
        np.testing.assert_array_equal(stacked[name][1 - short], members[1 - short][name])
        assert stacked[name].dtype == values.dtype
    assert stacked.run(short).provenance == members[short].provenance


def test_jax_transformations_go_through():
    assert_same(jax.vmap(make)(jnp.asarray([1.0, 2.0])).run(1), make(2.0))
    np.testing.assert_allclose(jax.grad(lambda scale: make(scale)["loss"].sum())(3.0), np.exp(-np.arange(4.0)).sum(), rtol=1e-14)
    simple = Trajectory(jnp.arange(3.0), {"loss": jnp.arange(3.0)}, {"first": jnp.asarray(2.0)}, origin=json.dumps(PROVENANCE))
    slope = jax.grad(lambda trajectory: (trajectory["loss"] ** 2).sum() + trajectory.phases["first"])(simple)
    np.testing.assert_array_equal(slope["loss"], [0.0, 2.0, 4.0])
    assert (float(slope.phases["first"]), slope.provenance) == (1.0, PROVENANCE)
    np.testing.assert_array_equal(jax.tree.map(lambda leaf: 2 * leaf, simple)["loss"], [0.0, 2.0, 4.0])
    assert_same(jax.jit(lambda trajectory: trajectory)(simple), simple)


def test_repr_says_what_over_which_time_with_which_landmarks_and_why_it_stopped():
    shown = repr(make())
    for word in ("linear.separate", "4 points", "flow time 0 to 3", "loss: scalar, 1 -> 0.0497871", "weights: 2x3", "first at 0.1"):
        assert word in shown
    assert (shown.endswith("reached the horizon"), "second" in shown) == (True, False)  # the second phase was never reached
    assert "2 runs" in repr(Trajectory.stack([make(), make()]))


@pytest.mark.parametrize("transform", [jax.jit, lambda _: lambda time: repr(jax.eval_shape(make))], ids=["traced", "shapes"])
def test_repr_works_on_what_has_no_numbers_yet(transform):
    transform(lambda x: (repr(Trajectory(MEMBERS["run.npz"].time, {"loss": x}, {})), x)[1])(make().time)


def test_an_unknown_observable_is_told_with_the_known_ones():
    with pytest.raises(KeyError, match=r"no observable 'los'; there are loss, weights, steps, slow/loss"):
        make()["los"]
