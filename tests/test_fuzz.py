"""The properties of `validate.fuzz` on a few hundred cases, the same ones every time; `python -m validate --full` tries thousands."""

import io
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from spectral_ode import archive, cli, curve, document, systems
from spectral_ode.integrate import solve
from spectral_ode.problem import COMPANIONS, BadInput, Problem
from validate import fuzz, fuzz_files, fuzz_problems, fuzz_rungs, hostile

CHEAP = (*fuzz_problems.PROPERTIES, *fuzz_files.PROPERTIES)
fuzz_problems.bases()  # once, before anything is drawn


def always(entry, cases, strategy=None):
    """Run a property as hypothesis does, which also shrinks what it finds."""

    @settings(max_examples=cases, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=entry.cases() if strategy is None else strategy)
    def run(case):
        entry.check(case)

    run()


@pytest.mark.parametrize("entry", CHEAP, ids=lambda entry: entry.name)
def test_a_property_holds(entry):
    always(entry, 40)


@pytest.mark.slow
def test_the_theory_of_a_tiny_problem_is_finite_or_refused():
    names = ("linear.merged", "softmax.warmup", "sparse.gains")  # one of each paper: every shape compiles anew
    always(fuzz_rungs.PROPERTIES[0], 25, fuzz_rungs.cases((float,), (9, 10_000), names))


@pytest.mark.slow
def test_the_training_of_a_tiny_problem_is_finite_or_refused():
    always(fuzz_rungs.PROPERTIES[1], 3, fuzz_rungs.cases((float,), (16,), ("linear.merged",)))


def test_every_kind_of_section_is_among_the_cases():
    named = {(key, value) for base in fuzz_problems.bases() for key, value in base.items()}
    for task, others in COMPANIONS.items():
        assert ("task.kind", task.kind) in named
        for section, classes in others.items():
            assert {(f"{section}.kind", option.kind) for option in classes} <= named


def test_sensible_values_are_mostly_accepted_and_absurd_ones_mostly_not():
    """Were all of them refused, or none, a property would speak of nothing."""
    counts = {}
    for wild in (False, True):
        seen = []
        note = lambda flat, seen=seen: seen.append(fuzz_problems.given(flat) is not None)
        fuzz.violations(fuzz.Property("", 1.0, lambda wild=wild: fuzz_problems.tables(wild), note, ""), 60)
        counts[wild] = sum(seen) / len(seen)
    assert counts[False] > 0.2
    assert 0 < counts[True] < 0.6


def refuse(*_):
    raise BadInput("this is not right at all")


def unpickle(file, member):
    return np.load(io.BytesIO(file.read(member)), allow_pickle=True)


PLACES = dict(zip(("wild", "sensible", "again", "command", "kept", "npz", "toml", "curve"), CHEAP, strict=True))
BROKEN = {
    "a traceback": ("wild", document, "coerce", lambda leaf, value: 1 / 0),
    "two lines": ("wild", BadInput, "__init__", lambda self, text: ValueError.__init__(self, f"{text}\n")),
    "a sentence about nothing": ("wild", document, "coerce", refuse),
    "a clock that stands": ("sensible", Problem, "clock", lambda self, steps: 0.0 * steps),
    "a lost field": ("again", document, "to_toml", lambda problem: 'title = "another"\n'),
    "a command that raises": ("command", cli, "_dispatch", lambda words: 1 / 0),
    "a command that fails silently": ("command", cli, "_dispatch", lambda words: 1),
    "other numbers": ("kept", archive, "PIECE", 0),
    "any memory": ("npz", archive, "_array", lambda file, member: bytearray(2**26) and jnp.zeros(1)),
    "a pickle that runs": ("npz", archive, "_array", unpickle),
    "keys of any depth": ("toml", document, "DEEPEST", 10**9),
    "a curve that raises": ("curve", curve, "_text", lambda text: {}[0]),
}


@pytest.mark.parametrize(("entry", "module", "name", "instead"), BROKEN.values(), ids=BROKEN)
def test_a_broken_program_is_found_and_the_verdict_says_so(monkeypatch, entry, module, name, instead):
    monkeypatch.setattr(module, name, instead)
    monkeypatch.setattr(fuzz, "properties", lambda: (PLACES[entry],))
    (verdict,) = fuzz.verdicts(60)
    hostile.RAN.clear()
    assert verdict.ok is False
    assert verdict.measured >= 1
    assert "cases; such as" in verdict.note
    assert "\n" not in verdict.note


def test_without_hypothesis_there_is_no_verdict_but_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    made = fuzz.verdicts(10)
    assert len(made) == len(fuzz.properties())
    assert all(verdict.ok is None and "hypothesis is not installed" in verdict.note for verdict in made)


SLIPS = {
    "an integer beyond text": {"points": 16**5000},
    "one for a word": {"headline": 16**5000},
    "one that no machine counts": {"runs": 2**63},
    "an absurd size": {"attention.heads": 10**12},
    "a context without end": {"task.context": 10**15, "task.lengths": "all"},
    "a seed beyond seeds": {"task.rotation": 2**40},
    "a vanishing rate": {"task.kind": "multi-task", "training.learning_rate": 5e-324},
    "noise that overflows": {"task.noise": 1e300},
}


@pytest.mark.parametrize("values", SLIPS.values(), ids=SLIPS)
def test_what_was_once_a_traceback_is_a_sentence(values):
    with pytest.raises(BadInput) as caught:
        document.override(Problem(), values)
    fuzz.sentence(caught.value, *(name.rpartition(".")[2] for name in values))


def test_a_flow_that_is_no_number_is_cut_short_or_refused():
    """The warm-up of softmax attention overflows from a large start."""
    flat = next(flat for flat in fuzz_rungs.shapes(("softmax.warmup",)) if flat["start.kind"] == "decomposable")
    problem = fuzz_rungs._problem(flat | {"start.scale": 1000.0}, 100)
    system = systems.load(problem.system).from_problem(problem)
    huge = system.project(fuzz_rungs.weights.draw(problem))
    with pytest.raises(BadInput, match="not a number at its start already"):
        solve(system, huge, problem.times, rtol=1e-6)
