"""Problems whose numbers are traced: the same frozen data with arrays in place of some floats, so that jax goes through `from_problem`.

A problem that exists is valid, because it checked itself when it was made. A copy with other numbers skips the checks: they are for people
and need to know the numbers. So the numbers that are put in here must have been checked before, in a problem of their own.

Entries of a list have names of their own, from 1: task.spectrum.2 is the second eigenvalue.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from spectral_ode import document
from spectral_ode.problem import BadInput, Problem


def insert(problem: Problem, values: Mapping[str, Any]) -> Problem:
    """The problem with some fields replaced by anything at all, by dotted names, and no questions asked."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        if re.fullmatch(r"\d+", last):  # one entry of a list
            inside, _, own = section.rpartition(".")
            entries = tree.get(inside, {}).get(own) or list(getattr(getattr(problem, inside), own))
            entries[int(last) - 1] = value
            tree.setdefault(inside, {})[own] = entries
        else:
            tree.setdefault(section, {})[last] = value
    top = tree.pop("", {})
    lists = lambda changes: {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    return _copy(problem, top | {section: _copy(getattr(problem, section), lists(changes)) for section, changes in tree.items()})


def _copy(data: Any, changes: Mapping[str, Any]) -> Any:
    assert is_dataclass(data)
    new = object.__new__(type(data))
    for entry in fields(data):
        object.__setattr__(new, entry.name, changes.get(entry.name, getattr(data, entry.name)))
    return new


def read(problem: Problem, name: str) -> Any:
    """The value of a field, or of one entry of a list, by its dotted name; `BadInput` if there is none."""
    section, _, last = name.rpartition(".")
    place = re.fullmatch(r"(.*)\.(\d+)", name)
    if place:
        values = read(problem, place.group(1))
        if not isinstance(values, tuple) or not 1 <= int(place.group(2)) <= len(values):
            size = f"has {len(values)} entries, numbered from 1" if isinstance(values, tuple) else "is not a list"
            raise BadInput(f"there is no {name}: {place.group(1)} {size}")
        return values[int(place.group(2)) - 1]
    known = document.known()
    if name not in known:
        raise BadInput(f"unknown key {name!r}; {document.nearest(name, list(known))}")
    within = getattr(problem, section) if section else problem
    if not hasattr(within, last):
        belongs = ", ".join(known[name].kinds)
        raise BadInput(f"{name} belongs to {section}.kind {belongs}, but the kind is {getattr(within, 'kind', '')}")
    return getattr(within, last)
