"""The mutation suite: every coefficient, sign and exponent is changed once, one place at a time, and a change is noticed."""

import difflib
import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from validate import mutants, mutate, staged
from validate.tiers import GAINS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("module", mutants.modules())
def test_a_mutant_is_its_module_with_one_expression_changed(module):
    text = mutants.source(module)
    for mutant in mutants.mutants(module):
        compile(mutant.text, module, "exec")
        assert mutant.kind in ("coefficient", "sign", "exponent")
        changed = [line for line in difflib.ndiff(text.splitlines(), mutant.text.splitlines()) if line.startswith("+ ")]
        assert len(changed) == 1, mutant.name


def test_each_kind_of_change_is_made_and_sizes_are_left_alone():
    found = [(mutant.before, mutant.after, mutant.kind) for mutant in mutants.mutants("spectral_ode.systems.linear.separate")]
    assert ("v**2", "(v) ** ((2) + 1)", "exponent") in [(before.replace(" ", ""), after, kind) for before, after, kind in found]
    assert any(kind == "sign" and " - " in before and " + " in after for before, after, kind in found)
    assert any(kind == "coefficient" and after.startswith("1.1 * (") for _, after, kind in found)
    assert not any("axis" in before and "sum" not in before for before, _, _ in found)


def test_claims_have_no_mutants():
    assert not [module for module in mutants.modules() if module.endswith("_claims")]


def test_known_survivors_exist():
    there = {mutate._key(mutant) for module in mutants.modules() for mutant in mutants.mutants(module)}
    known = mutate.reasons()
    assert known
    assert not known.keys() - there
    assert all(len(reason) > 20 for reason in known.values())


def test_a_mutant_with_a_reason_is_asked_the_cheap_claims_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(staged, "staged", lambda problems, count: asked.append(count) or iter(()))
    monkeypatch.setattr(mutate, "OURS", ())  # modules stay as they are, and so does what finds and keeps them
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    mutant = next(mutants.mutants("spectral_ode.systems.linear._scalar"))
    assert [mutate.attempt(mutant, cheap=cheap) for cheap in (False, True)] == ["", ""]
    assert asked == [staged.STAGES, staged.CHEAP]


@pytest.mark.slow
def test_a_broken_curve_is_caught_and_reported(tmp_path):
    words = ["--mutate", "linear._scalar", "--cheap", "--every", "9999", "--jobs", "1", "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "validate", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 mutants caught" in done.stdout
    (row,) = json.loads((tmp_path / "out" / "mutants.json").read_text())["mutants"]
    assert row["caught by"].startswith("linear.separate: ")


@pytest.mark.slow
def test_the_right_program_is_not_caught_and_each_claim_is_asked_once():
    verdicts = [verdict for _, verdict in staged.staged({"gains": GAINS})]
    assert [verdict.claim for verdict in verdicts if verdict.ok is False] == []
    names = [verdict.claim for verdict in verdicts]
    assert len(names) == len(set(names)) > 20
