"""Problems as text: TOML files, presets, typed overrides, and a content hash that is a problem's identity. No jax here."""

import difflib
import functools
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from spectral_ode import archive
from spectral_ode.problem import COMPANIONS, BadInput, Problem

PRESETS = Path(__file__).parent / "presets"
LONGEST = 2**20  # bytes of a problem as TOML: room for ten thousands of eigenvalues
DEEPEST = 20  # dots in a key: the standard library's parser needs memory that grows with their square
DESCRIPTIVE = ("title", "reference", "headline")  # not part of a problem's identity


class Field(NamedTuple):
    """One settable number or word of a problem, by its dotted name; `kinds` are the kinds of its section that have it (empty: all)."""

    name: str
    type: Any
    default: Any
    doc: str
    kinds: tuple[str, ...] = ()


@functools.cache
def sections() -> dict[str, dict[str, type]]:
    """The sections of a problem, each with its classes by kind; a section of one class has the one kind ''."""
    found = {}
    for name, hint in typing.get_type_hints(Problem).items():
        options = [option for option in typing.get_args(hint) or (hint,) if is_dataclass(option)]
        if options:
            kind = lambda option: next((entry.default for entry in fields(option) if entry.name == "kind"), "")
            found[name] = {kind(option) if len(options) > 1 else "": option for option in options}
    return found


@functools.cache
def leaves() -> tuple[Field, ...]:
    """Every field of a problem, with the default of the first kind that has it."""
    return tuple(_leaves())


def _leaves() -> Iterator[Field]:
    hints = typing.get_type_hints(Problem)
    for entry in fields(Problem):
        kinds = sections().get(entry.name)
        if kinds is None:
            yield Field(entry.name, hints[entry.name], entry.default, entry.metadata["doc"])
            continue
        names = dict.fromkeys(inner.name for option in kinds.values() for inner in fields(option))
        for name in names:
            having = {kind: option for kind, option in kinds.items() if name in {inner.name for inner in fields(option)}}
            option = next(iter(having.values()))
            inner = next(inner for inner in fields(option) if inner.name == name)
            hint = typing.get_type_hints(option)[name] if name != "kind" or len(kinds) == 1 else typing.Literal[tuple(kinds)]
            only = tuple(having) if len(having) < len(kinds) else ()
            yield Field(f"{entry.name}.{name}", hint, inner.default, inner.metadata["doc"], only)


@functools.cache
def known() -> dict[str, Field]:
    """Every field of a problem by its name."""
    return {leaf.name: leaf for leaf in leaves()}


def override(problem: Problem, values: dict[str, Any]) -> Problem:
    """The problem with some fields changed, by dotted names; values may be text, as flags give them, or typed, as TOML does.

    A section that changes its kind keeps what was set and the two kinds have in common.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known():
            raise BadInput(f"unknown key {name!r}; {nearest(name, list(known()))}")
        section, _, rest = name.rpartition(".")
        nested.setdefault(section, {})[rest] = coerce(known()[name], value)
    top = nested.pop("", {})
    task = _kind(problem, "task", nested.get("task", {}))
    if task is not type(problem.task):  # sections whose kind was not asked for follow the kind of the task
        for section, classes in COMPANIONS[task].items():
            nested[section] = {"kind": classes[0].kind} | nested.get(section, {})
    # Sections are exchanged together with the top level, so that checks across sections see the final values only.
    return replace(problem, **top, **{section: _section(problem, section, changes) for section, changes in nested.items()})


def _kind(problem: Problem, section: str, changes: dict[str, Any]) -> type:
    """The class that a section has after some changes."""
    now = getattr(problem, section)
    return sections()[section].get(changes.get("kind", getattr(now, "kind", "")), type(now))


def _section(problem: Problem, section: str, changes: dict[str, Any]) -> Any:
    now, option = getattr(problem, section), _kind(problem, section, changes)
    names = {entry.name for entry in fields(option)}
    for name in changes:
        if name not in names:
            belongs = ", ".join(known()[f"{section}.{name}"].kinds)
            raise BadInput(f"{section}.{name} belongs to {section}.kind {belongs}, but the kind is {getattr(option, 'kind', '')}")
    hints = _hints(option)  # a field of one name may allow other words in another kind
    fitting = lambda values: {
        name: coerce(known()[f"{section}.{name}"]._replace(type=hints[name]), value) for name, value in values.items()
    }
    if option is type(now):
        return replace(now, **fitting(changes))
    kept = {entry.name: value for entry in fields(now) if entry.name in names and (value := getattr(now, entry.name)) != entry.default}
    return option(**fitting(kept | changes))


@functools.cache
def _hints(option: type) -> dict[str, Any]:
    return typing.get_type_hints(option)


def nearest(word: str, known: list[str]) -> str:
    """A hint at the right spelling."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not close and (last := word.rpartition(".")[2]):
        close = [name for name in known if name.endswith(last)]
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known)[:40])}"


def coerce(leaf: Field, value: Any) -> Any:
    """A value of the field's type from text or TOML, or a sentence about why not."""
    kind = leaf.type
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    origin, wrong = typing.get_origin(kind), BadInput(f"{leaf.name} is {_shown(value)}, but it must be {_expected(kind)}")
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise wrong
        return value
    if origin is tuple:
        parts = (value.split(",") if value else []) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise wrong
        entry = typing.get_args(kind)[0]
        return tuple(coerce(Field(f"an entry of {leaf.name}", entry, None, ""), part) for part in parts)
    if kind is bool:
        found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise wrong
        return found
    if kind is str:
        if not isinstance(value, str):
            raise wrong
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong
    try:
        return float(value) if kind is float else _whole(value)
    except (ValueError, OverflowError):
        raise wrong from None


def _shown(value: Any) -> str:
    """The value as it was given, unless it is too long to be one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or tables in tables
        return "too long to be shown"
    return text if len(text) < 80 else f"{text[:60]}..."


def _whole(value: str | int | float) -> int:
    number = int(value)
    if (isinstance(value, float) and number != value) or not -(2**63) < number < 2**63:  # more than any machine counts, or can print
        raise ValueError
    return number


def _expected(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(typing.get_args(kind))}"
    if typing.get_origin(kind) is tuple:
        return "a list of numbers, such as 0.4,0.3"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def load(source: str) -> Problem:
    """A preset by name, or a problem from the path of a TOML file."""
    path = PRESETS / f"{source}.toml"
    if source.endswith(".toml") or "/" in source:
        path = Path(source)
    elif source not in preset_names():
        raise BadInput(f"unknown preset {source!r}; {nearest(source, preset_names())}")
    try:
        text = archive.text(path, LONGEST)
        if any(key.count(".") > DEEPEST for line in text.split("\n") for key in _keys(line)):
            raise ValueError(f"a key has more than {DEEPEST} dots")
        table = tomllib.loads(text)
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"cannot read {source}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not a TOML file: {error}") from None
    flat, names = {}, list(sections())
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in names:
                raise BadInput(f"{source}: unknown section {key!r}; {nearest(key, names)}")
            flat |= {f"{key}.{name}": entry for name, entry in value.items()}
        else:
            flat[key] = value
    try:
        return override(Problem(), flat)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


def _keys(line: str) -> list[str]:
    """Parts of a line of TOML that may hold a key: before an equals sign, or the header of a table."""
    return line.split("=")[:-1] or ([line] if line.lstrip().startswith("[") else [])


def preset_names() -> list[str]:
    """Names of the presets that ship with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def headlines() -> list[str]:
    """Presets that run when none is named."""
    return [name for name in preset_names() if load(name).headline]


def to_dict(problem: Problem) -> dict[str, Any]:
    """The resolved problem as nested plain data."""
    table = asdict(problem)
    table["solver"]["atol"] = problem.atol
    for leaf in leaves():  # 1 and 1.0 are one number, also in the identity
        section, _, name = leaf.name.rpartition(".")
        within = table[section] if section else table
        if leaf.type is float and name in within:
            within[name] = float(within[name])
    return table


def to_toml(problem: Problem) -> str:
    """The resolved problem as TOML, ready to run again."""
    unset = lambda value: {k: unset(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value  # TOML has no null
    return tomli_w.dumps(unset(to_dict(problem)))


def identity(problem: Problem) -> str:
    """Twelve hexadecimal digits that name what the problem computes."""
    table = {key: value for key, value in to_dict(problem).items() if key not in DESCRIPTIVE}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]
