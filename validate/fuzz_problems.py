"""Random problems: every kind of section, every field, sensible and absurd values, built from what `document` says of the fields.

A case is a flat table as a TOML file or flags give it, so a section or a field that is new is covered on arrival.
"""

import contextlib
import datetime
import functools
import io
import itertools
import os
import tempfile
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import numpy as np

from spectral_ode import cli, document, systems
from spectral_ode.problem import COMPANIONS, BadInput, Problem
from validate.fuzz import Property, attempt, sentence

Flat = dict[str, Any]
NUMBERS = (0, -0.0, 1, -1, 2, 0.5, 5e-324, 1e-300, 1e-12, 1e-6, 1e6, 1e12, 1e300, float("nan"), float("inf"), -float("inf"))
NUMBERS += (2**31, 2**63, 2**64, 10**30, 10**400, 16**5000, -(16**5000))
WORDS = ("", " ", ",", "nan", "-inf", "-1", "1e400", "0x10", "1_0", "٣", "λ", "\x00", "a\nb", "\x1b[31m", "9" * 5000, "1,,2", "[1]", "../x")
HORIZONS = (60_000.0, 20.0)  # one of them suits the learning rate of every kind of training


@functools.cache
def bases() -> tuple[Flat, ...]:
    """Every choice of kinds that makes a problem, with a horizon or a word that it needs beside them."""
    found = []
    for task, others in COMPANIONS.items():
        for kinds in itertools.product(*others.values()):
            flat = {"task.kind": task.kind} | {f"{name}.kind": kind.kind for name, kind in zip(others, kinds, strict=True)}
            words = [{leaf.name: word} for leaf in having(flat) for word in _words(leaf)]
            for beside in ({"horizon": horizon} | word for word in ({}, *words) for horizon in HORIZONS):
                with contextlib.suppress(BadInput):
                    document.override(Problem(), flat | beside)
                    found.append(flat | beside)
                    break
    return tuple(found)


def _words(leaf: document.Field) -> tuple[str, ...]:
    return typing.get_args(leaf.type) if typing.get_origin(leaf.type) is typing.Literal else ()


@functools.cache
def _systems() -> list[str]:
    return systems.names()


def having(base: Flat) -> list[document.Field]:
    """The fields that a problem of these kinds has, the kinds aside."""
    kind = lambda leaf: base.get(f"{leaf.name.partition('.')[0]}.kind")
    return [leaf for leaf in document.leaves() if not leaf.name.endswith(".kind") and (not leaf.kinds or kind(leaf) in leaf.kinds)]


def sensible(leaf: document.Field) -> Any:
    """A strategy of values of the field's type, not far from its default."""
    from hypothesis import strategies as st

    kind = leaf.type
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    if words := _words(leaf):
        return st.sampled_from(words)
    if typing.get_origin(kind) is tuple:
        entry = leaf._replace(type=typing.get_args(kind)[0], default=next(iter(leaf.default), None))
        return st.lists(sensible(entry), max_size=4)
    if kind is float:
        size = abs(leaf.default or 1.0)
        return st.one_of(st.floats(size / 100, size * 100), st.floats(1e-12, 1.0), st.just(0.0))
    if kind is int:
        return st.one_of(st.integers(0, 12), st.integers(0, 3 * (leaf.default or 10)))
    if kind is bool:
        return st.booleans()
    return st.sampled_from(_systems()) if leaf.name == "system" else st.text(max_size=20)


def absurd() -> Any:
    """A strategy of whatever a TOML file or a flag can hold."""
    from hypothesis import strategies as st

    plain = st.sampled_from((*NUMBERS, *WORDS, True, False, datetime.date(1979, 5, 27), {}, [], {"": {}}))
    return st.one_of(plain, plain, st.lists(plain, max_size=3), st.text(max_size=20), st.floats(), st.integers())


def tables(wild: bool, most: int = 5) -> Any:
    """A strategy of flat tables: a choice of kinds and a few fields beside."""
    from hypothesis import strategies as st

    # Made before anything is drawn: the tests' type checker draws random numbers, which no strategy may.
    choices = [(base, {leaf.name: sensible(leaf) for leaf in having(base)}) for base in bases()]
    anything = absurd()

    @st.composite
    def drawn(draw):
        base, values = draw(st.sampled_from(choices))
        names = draw(st.lists(st.sampled_from(list(values)), max_size=most, unique=True))
        flat = base | {name: draw(values[name]) for name in names}
        if wild:
            names = draw(st.lists(st.sampled_from([leaf.name for leaf in document.leaves()]), min_size=1, max_size=2))
            flat |= {name: draw(anything) for name in names}
        return flat

    return drawn()


def given(flat: Flat) -> Problem | None:
    """The problem of a table, or None if it is refused in a sentence that names a field."""
    return attempt(lambda: document.override(Problem(), flat), *(leaf.name.rpartition(".")[2] for leaf in document.leaves()))


def usable(flat: Flat) -> None:
    """A problem that is not refused has a clock that grows from zero, an identity and a text."""
    problem = given(flat)
    if problem is None:
        return
    assert problem.times[0] == 0
    assert np.isfinite(problem.times).all(), "a time is not a number"
    assert (np.diff(problem.times) > 0).all(), "the clock does not grow"
    assert len(document.identity(problem)) == 12
    assert tomllib.loads(document.to_toml(problem))


def again(flat: Flat) -> None:
    """What is written as TOML is read as the same problem, with the same identity and the same text."""
    problem = given(flat)
    if problem is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.toml"
        path.write_text(document.to_toml(problem), encoding="utf-8", newline="")
        read = document.load(str(path))
    assert read == document.override(problem, {"solver.atol": problem.atol})
    assert document.identity(read) == document.identity(problem)
    assert document.to_toml(read) == document.to_toml(problem)


def command_lines() -> Any:
    """A strategy of the words of a dry run, with flags of the fields and values of any kind."""
    from hypothesis import strategies as st

    flags = [f"--{leaf.name}" for leaf in document.leaves()] + ["--seed", "--dtype", "--out", "--nonsense", "--json", "--task", "-x", "--"]
    words = st.one_of(st.sampled_from(WORDS), st.text(max_size=10), st.sampled_from([str(number) for number in NUMBERS[:-3]]))
    flag = st.tuples(st.sampled_from(flags), words, st.booleans()).map(lambda it: [f"{it[0]}={it[1]}"] if it[2] else [it[0], it[1]])
    table = tables(False).map(lambda flat: [[f"--{name}", _flag(value)] for name, value in flat.items()])
    flags_given = st.one_of(st.lists(flag, min_size=1, max_size=3), table)
    return st.tuples(st.sampled_from(["run", "run", "run", "compare", "replay", "rum", ""]), st.lists(words, max_size=1), flags_given).map(
        lambda it: [it[0], *it[1], *(["--dry-run"] if it[0] == "run" else []), *itertools.chain(*it[2])]
    )


def _flag(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def answered(words: list[str]) -> None:
    """The command gives exit code 0, or 2 with one line on stderr and nothing on stdout; no file appears."""
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.main(words)
        except SystemExit as leave:  # the help leaves this way
            code = leave.code
        finally:
            os.chdir(before)
        assert os.listdir(folder) == []
    assert code in (0, 2), f"exit code {code}"
    if code == 2:
        assert out.getvalue() == ""
        told = err.getvalue().removesuffix("\n").removeprefix("spectral_ode: ")
        sentence(BadInput(told))


PROPERTIES = (
    Property(
        "a table of any values is a usable problem or one sentence",
        30.0,
        lambda: tables(True),
        usable,
        "a user's mistake is told, never shown as a traceback",
    ),
    Property(
        "sensible tables are usable problems or one sentence",
        10.0,
        lambda: tables(False),
        usable,
        "every kind of section is reached with values that pass",
    ),
    Property(
        "a problem goes through TOML unchanged", 15.0, lambda: tables(False), again, "a saved problem must be the problem that was run"
    ),
    Property("a command line gives an exit code and at most one line", 5.0, command_lines, answered, "exit code 2 means one sentence"),
)
