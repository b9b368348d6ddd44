"""Properties that hold for every input, tried on many random ones: a finite result or one sentence, never anything else.

A property is data: a strategy of plain cases and a check that raises where a case violates it. `verdicts` counts violations over
thousands of cases for `python -m validate --full`; the tests run a few hundred of the same cases, where hypothesis also shrinks what it
finds. `fuzz_problems` has the cases that are problems, `fuzz_rungs` solves and trains them, `fuzz_files` has those that are files. Cases
are made again the same way every time; hypothesis is imported only when cases are drawn.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spectral_ode.problem import BadInput
from spectral_ode.sections.checks import LONGEST


@dataclass(frozen=True)
class Property:
    """A statement about all cases of a strategy; `share` is its part of all cases tried."""

    name: str
    share: float
    cases: Callable[[], Any]
    check: Callable[[Any], None]
    reason: str


def sentence(error: BadInput, *words: str) -> None:
    """Assert that a complaint is one readable sentence, and that it names one of the words."""
    text = str(error)
    assert text.isprintable(), f"the complaint {text!r:.200} cannot be printed on one line"
    assert 10 < len(text) <= LONGEST, f"the complaint has {len(text)} characters"
    assert "Traceback (most recent" not in text
    assert not words or any(word in text for word in words), f"the complaint {text!r} does not say what was given"


def attempt(action: Callable[[], Any], *words: str) -> Any:
    """What the action gives, or None if it refuses in one sentence that names one of the words; any other error goes through."""
    try:
        return action()
    except BadInput as error:
        sentence(error, *words)
        return None


def properties() -> tuple[Property, ...]:
    """All properties, the cheap ones first."""
    from validate import fuzz_files, fuzz_problems, fuzz_rungs

    return (*fuzz_problems.PROPERTIES, *fuzz_files.PROPERTIES, *fuzz_rungs.PROPERTIES)


def _shown(case: Any) -> str:
    try:
        return repr(case)[:600]
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists in lists
        return "a case that cannot be printed"


def violations(entry: Property, cases: int, progress: Callable[[int], None] | None = None) -> tuple[int, list[str]]:
    """The number of cases tried, and a line for each that violates the property."""
    from hypothesis import HealthCheck, Phase, given, settings

    found, tried = [], 0

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
    )
    @given(case=entry.cases())
    def run(case: Any) -> None:
        nonlocal tried
        tried += 1
        try:
            entry.check(case)
        except Exception as error:  # also an error that nobody thought of is a finding
            place = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"{type(error).__name__} {str(error)!r:.300} at {place.name}:{place.lineno} for {_shown(case)}")
        if progress is not None:
            progress(tried)

    run()
    return tried, found


def verdicts(cases: int, progress: Callable[[str, int], None] | None = None) -> list:
    """A verdict on each property: how many of its share of the cases violate it, and the shortest such case in a line."""
    from validate.check import Verdict

    about = lambda entry: {"bound": 0.0, "place": "ours", "exactness": "exact", "reason": entry.reason, "claim": f"fuzz: {entry.name}"}
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        why = "hypothesis is not installed; pip install 'spectral-ode[dev]' brings it"
        return [Verdict(measured=None, ok=None, note=why, **about(entry)) for entry in properties()]
    made, whole = [], sum(entry.share for entry in properties())
    for entry in properties():
        tell = None if progress is None else lambda count, entry=entry: progress(entry.name, count)
        tried, found = violations(entry, max(1, round(cases * entry.share / whole)), tell)
        note = f"{tried} cases" + (f"; such as {min(found, key=len)}" if found else "")
        made.append(Verdict(measured=float(len(found)), ok=not found, note=note, **about(entry)))
    return made
