"""Random files: what is saved comes back bit by bit; what was damaged or made to harm is refused, and nothing is run, written or allocated.

A case is a recipe in plain data, so that it can be printed and made again; `validate.hostile` has those of npz files.
"""

import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simulate import recording
from spectral_ode import archive, curve, document
from spectral_ode.trajectory import Trajectory
from validate.fuzz import Property, attempt
from validate.hostile import EVIL, NAMES, RAN, made, recipes

MEMORY = 2**25  # bytes that reading a hostile file may take: all files here are below a megabyte, what they declare is not


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
    "table": lambda path: attempt(lambda: document.load(path), path),
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
            "provenance": st.dictionaries(
                st.text(max_size=4), st.one_of(st.none(), st.text(max_size=4), st.integers(), st.floats(0, 1)), max_size=3
            ),
        }
    )


def kept(case: dict[str, Any]) -> None:
    """A trajectory comes back from its file bit by bit, or a name that no file can hold is refused and nothing is written."""
    before = ((case["runs"],) if case["runs"] else ()) + (case["length"],)
    time = np.broadcast_to(np.arange(float(case["length"])), before)
    observables = {
        name: jnp.asarray(
            np.frombuffer(np.random.default_rng(seed).bytes(8 * 64 * 4), kind)[: int(np.prod(before + shape))].reshape(before + shape)
        )
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


DEEP = 3000  # more than Python's stack
TABLES = (
    "x = " + "[" * DEEP,
    "a." * DEEP + "a = 1",
    "[task]\nspectrum" + ".a" * DEEP + " = 1",
    "points = 0x" + "f" * 5000,
    "horizon = 0x" + "f" * 5000,
    "headline = 0b1" + "0" * 20000,
    "horizon = 1e99999",
    "points = " + "9" * 5000,
    "[[task]]",
    "task = []",
    "[task.task]",
    "seed = {start = 1}",
    "'' = 1",
    '"\\n" = 1',
    '"\\u001b[2J" = {}',
    "[task]\n[task]",
    "title = 1979-05-27",
    "[task]\nspectrum = [" + "0.1, " * 2000 + "]",
    "\x00",
    "\ufeff",
)
ROWS = (
    "0,1.0\n1,0.5",
    "step,loss\n0,1\n1,2",
    "loss",
    "1e999",
    "nan",
    "a,a",
    '"a\nb",c',
    "\x1b[2J,b,c",
    "1," * 3000,
    "٣",
    "#",
    "\x00",
    "0x10",
    "1_0",
    "λ",
)


def texts(fragments: tuple[str, ...], whole: tuple[str, ...]) -> Any:
    """A strategy of text files as bytes: fragments and whole files in any order, with bytes put in between."""
    from hypothesis import strategies as st

    part = st.one_of(st.sampled_from(fragments), st.sampled_from(whole), st.text(max_size=12)).map(str.encode)
    damaged = st.one_of(part, part, part, st.binary(max_size=4), st.sampled_from([b"\xff\xfe", b"\r", b"\n", b","]))
    return st.lists(damaged, min_size=1, max_size=4).map(b"\n".join)


def tables() -> Any:
    """A strategy of TOML files, good and bad."""
    return texts(TABLES, tuple(document.to_toml(document.load(name)) for name in document.preset_names()[:4]))


PROPERTIES = (
    Property("a trajectory comes back from its file bit by bit", 7.0, trajectories, kept, "a kept result must be the result"),
    Property(
        "a hostile npz is read or refused in one sentence",
        20.0,
        recipes,
        lambda recipe: bounded(made(recipe), "file.npz", ("trajectory", "recording", "curve")),
        "nothing is run, written or allocated that a file asks for",
    ),
    Property(
        "a hostile TOML file is a problem or one sentence",
        15.0,
        tables,
        lambda content: bounded(content, "file.toml", ("table",)),
        "a configuration is data, and a mistake in it is told",
    ),
    Property(
        "a hostile text file is a curve or one sentence",
        8.0,
        lambda: texts(ROWS, ("step,loss\n0,1.0\n1,0.5\n", "1.0\n0.5\n")),
        lambda content: bounded(content, "file.csv", ("curve",)),
        "a mistake in a curve is told",
    ),
)
