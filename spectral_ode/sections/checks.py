"""How a section describes its fields and checks itself; a mistake is told in one sentence. No jax here."""

import math
from dataclasses import field
from typing import Any

Number = Any  # a float; in the copy of a problem that `traced` makes, a number of jax
LONGEST = 1000  # characters of a complaint: more is what was given, not what is wrong with it


class BadInput(ValueError):
    """A user's mistake, told in one sentence: what was given, what is allowed, what to do."""

    def __init__(self, sentence: str) -> None:
        # What was given may hold line breaks or a terminal's commands: they are shown, not obeyed.
        text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in sentence)
        super().__init__(text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 3 :]}")


def documented(default: Any, doc: str) -> Any:
    """A field with its default and a line for the help."""
    return field(default=default, metadata={"doc": doc})


def require(condition: bool, sentence: str) -> None:
    """Raise `BadInput` with this sentence unless the condition holds."""
    if not condition:
        raise BadInput(sentence)


def above_zero(name: str, value: float) -> None:
    """Refuse what is not a positive number."""
    require(math.isfinite(value) and value > 0, f"{name} is {value:g}, but it must be a positive number")


def moderate(name: str, value: float, least: float, most: float) -> None:
    """A positive number of a size that float64 can square and cube along the way."""
    above_zero(name, value)
    require(least <= value <= most, f"{name} is {value:g}, but it must lie between {least:g} and {most:g}")


def not_above(name: str, value: float, most: float) -> None:
    """Zero, or a positive number of a size that float64 can square and cube along the way."""
    require(0 <= value <= most, f"{name} is {value:g}, but it must be zero or a positive number of at most {most:g}")


def at_least(name: str, value: int, least: int, most: int = 10**6) -> None:
    """Refuse a whole number below the least, or so large that it can only be a slip."""
    require(value >= least, f"{name} is {value}, but it must be a whole number of at least {least}")
    require(value <= most, f"{name} is {value}, but it must be a whole number of at most {most}")


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not allowed."""
    require(value in allowed, f"{name} is {value!r}, but it must be one of {', '.join(allowed)}")
