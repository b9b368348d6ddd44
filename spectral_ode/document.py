"""Problems as text: TOML files, presets, typed overrides, and a content hash that is a problem's identity. No jax here."""

import difflib
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from spectral_ode.problem import BadInput, Problem

PRESETS = Path(__file__).parent / "presets"
DESCRIPTIVE = ("title", "reference", "headline")  # not part of a problem's identity


class Field(NamedTuple):
    """One settable number or word of a problem, by its dotted name."""

    name: str
    type: Any
    default: Any
    doc: str


def leaves(node: Any = Problem, prefix: str = "") -> Iterator[Field]:
    """Every field of a problem (the class, or one problem with its own values as defaults)."""
    hints = typing.get_type_hints(node if isinstance(node, type) else type(node))
    for entry in fields(node):
        name, kind = f"{prefix}{entry.name}", hints[entry.name]
        if is_dataclass(kind):
            yield from leaves(kind if isinstance(node, type) else getattr(node, entry.name), f"{name}.")
        else:
            default = getattr(node, entry.name) if not isinstance(node, type) else None if entry.default is MISSING else entry.default
            yield Field(name, kind, default, entry.metadata.get("doc", ""))


def override(problem: Problem, values: dict[str, Any]) -> Problem:
    """The problem with some fields changed, by dotted names; values may be text, as flags give them, or typed, as TOML does."""
    known = {leaf.name: leaf for leaf in leaves()}
    nested: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise BadInput(f"unknown key {name!r}; {nearest(name, list(known))}")
        section, _, rest = name.rpartition(".")
        nested.setdefault(section, {})[rest] = coerce(known[name], value)
    top = nested.pop("", {})
    # Sections are exchanged together with the top level, so that checks across sections see the final values only.
    return replace(problem, **top, **{section: replace(getattr(problem, section), **changes) for section, changes in nested.items()})


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
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise wrong
        return tuple(coerce(Field(f"an entry of {leaf.name}", float, None, ""), part) for part in parts)
    if kind is bool:
        words = {"true": True, "false": False}
        if isinstance(value, bool) or str(value).lower() in words:
            return value if isinstance(value, bool) else words[value.lower()]
        raise wrong
    if kind is str:
        if not isinstance(value, str):
            raise wrong
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong
    try:
        return kind(value) if not (kind is int and isinstance(value, float)) else _whole(value)
    except (ValueError, OverflowError):
        raise wrong from None


def _shown(value: Any) -> str:
    """The value as it was given, unless it is too long to be one."""
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "a very long number"
    return text if len(text) < 80 else f"{text[:60]}..."


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError
    return int(value)


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
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {source}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not a TOML file: {error}") from None
    flat, sections = {}, [entry.name for entry in fields(Problem) if "doc" not in entry.metadata]
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in sections:
                raise BadInput(f"{source}: unknown section {key!r}; {nearest(key, sections)}")
            flat |= {f"{key}.{name}": entry for name, entry in value.items()}
        else:
            flat[key] = value
    try:
        return override(Problem(), flat)
    except BadInput as error:
        raise BadInput(f"{source}: {error}") from None


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
        if leaf.type is float:
            section, _, name = leaf.name.rpartition(".")
            within = table[section] if section else table
            within[name] = float(within[name])
    return table


def to_toml(problem: Problem) -> str:
    """The resolved problem as TOML, ready to run again."""
    return tomli_w.dumps(to_dict(problem))


def identity(problem: Problem) -> str:
    """Twelve hexadecimal digits that name what the problem computes."""
    table = {key: value for key, value in to_dict(problem).items() if key not in DESCRIPTIVE}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]
