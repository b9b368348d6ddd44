"""`python -m validate` as a user has it: every system on small problems, one sentence for a mistake, a folder that is whole."""

import contextlib
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from spectral_ode import BadInput, document, systems
from validate import __main__ as command
from validate import charts, report, tiers, workers

FOURTH = '''"""Gains once more, as a paper of its own. Paper: arXiv:0000.00000."""

from spectral_ode.flow import AbstractReduction
from spectral_ode.systems.sparse.gains import Gains


class Again(Gains, AbstractReduction):
    """gains once more."""
'''


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A system in a new file and one of ours, answered by two processes; what was printed, and the folder."""
    folder = tmp_path_factory.mktemp("validate")
    (folder / "systems").mkdir()
    (folder / "systems" / "fourth.py").write_text(FOURTH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(systems, "__path__", [*systems.__path__, str(folder / "systems")])
        patch.chdir(folder)
        problem = tiers.of_system("fourth.again")
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            code = command.main(["fourth.again", "sparse.gains", "--out", "out"])
    return code, shown.getvalue(), folder / "out", problem


def test_a_system_in_a_new_file_is_answered_by_every_process(finished):
    code, _, folder, problem = finished
    assert code == 0
    found = json.loads((folder / "report.json").read_text())
    assert [one["name"] for one in found["reports"]] == ["fourth.again", "sparse.gains"]  # in the order asked
    assert found["reports"][0]["provenance"]["hash"] == document.identity(problem)
    first, second = ([verdict["measured"] for verdict in one["verdicts"]] for one in found["reports"])
    both = [pair for pair in zip(first, second, strict=True) if pair[0] is not None]  # no plain numbers there
    assert len(both) >= 15
    assert all(one == two for one, two in both)  # the same reduction of the same problem


def test_the_report_counts_what_the_tables_show(finished):
    _, shown, folder, _ = finished
    assert {path.name for path in folder.iterdir()} == set(command.FILES)
    found = json.loads((folder / "report.json").read_text())
    assert found["ok"] is True
    assert found["counts"] == {key: sum(one["counts"][key] for one in found["reports"]) for key in ("hold", "fail", "skip")}
    for one in found["reports"]:
        assert one["counts"]["hold"] == sum(verdict["ok"] is True for verdict in one["verdicts"])
        assert report.table(one) in shown
    assert shown.rstrip().splitlines()[-2].startswith(report.tally(found["counts"]))


def test_every_system_has_a_quick_problem_that_it_admits():
    quick = tiers.quick()
    assert {problem.system for problem in quick.values()} == set(systems.names())
    tiers.admitted(quick)


def test_both_rungs_of_training_are_in_the_quick_tier():
    found = {charts.descent(problem) for problem in tiers.quick().values()}
    assert {"full-batch descent on sampled sequences", "SGD on fresh sequences", "SGD on fresh contexts"} <= found


def test_the_full_tier_has_every_preset_but_says_why_not_one():
    assert set(tiers.full()) | set(tiers.APART) == set(tiers.quick()) | set(document.preset_names())
    assert not set(tiers.full()) & set(tiers.APART)
    assert "GPU" in tiers.APART["head-importance-gpu"]


class _Picky:
    """A system without a small problem of its own, for softmax attention alone."""

    @staticmethod
    def from_problem(problem):
        if problem.task.kind != "multi-task":
            raise BadInput("only for several tasks")


def test_a_system_without_a_small_problem_gets_the_first_that_it_accepts(monkeypatch):
    known = systems.names()
    monkeypatch.setattr(systems, "names", lambda: [*known, "fifth.picky"])
    monkeypatch.setattr(systems, "load", lambda name: _Picky)
    found = tiers.quick()["fifth.picky"]
    assert (found.system, found.task.kind) == ("fifth.picky", "multi-task")
    refuse = lambda problem: (_ for _ in ()).throw(BadInput("never"))
    monkeypatch.setattr(_Picky, "from_problem", staticmethod(refuse))
    with pytest.raises(BadInput, match=r"fits system fifth\.picky: never"):
        tiers.quick()


def _judged(name: str, problem, progress=None, **more):
    experiment, verdicts = REAL(name, problem, progress, **more)
    return experiment, [replace(one, ok=False, measured=0.5) if one.claim.startswith("activation times") else one for one in verdicts]


REAL = tiers.judge


def test_a_broken_claim_is_exit_code_1_and_is_named_in_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tiers, "judge", _judged)
    assert command.main(["sparse.gains", "--out", str(tmp_path / "out"), "--quiet"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("validate: 1 claim does not hold: sparse.gains: activation times of the heads")
    assert "(measured 0.5, bound 0.05)" in shown.err
    assert shown.err.count("\n") == 1
    assert "FAILS" in (tmp_path / "out" / "report.html").read_text()


MISTAKES = {
    "unknown flag": (["--ful"], "unknown flag --ful; did you mean '--full'?"),
    "unknown preset": (["saddle-to-sadle"], "did you mean 'saddle-to-saddle'?"),
    "no file": (["absent.toml"], "cannot read absent.toml"),
    "no jobs": (["--jobs", "0"], "--jobs is '0', but it must be a whole number from 1 to 64"),
    "no value": (["--out"], "argument --out: expected one argument"),
    "both": (["saddle-to-saddle", "--full"], "leave out the names, or --full"),
    "cheap alone": (["--cheap"], "--cheap goes with --mutate"),
    "lost": (["--out", "full"], "holds other things (thesis.tex), which would be lost"),
    "file": (["--out", "full/thesis.tex"], "cannot be written"),
    "not admitted": (["bad.toml"], "bad: system sparse.gains is for training.kind gains"),
    "no system": (["none.toml"], "unknown system 'linear.none'"),
}


@pytest.mark.parametrize(("words", "part"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(words, part, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "answer", lambda *_, **__: pytest.fail("the work began"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    (tmp_path / "bad.toml").write_text(document.to_toml(replace(tiers.DEPTH, system="sparse.gains")))
    (tmp_path / "none.toml").write_text('system = "linear.none"\n')
    assert command.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert part in shown.err
    assert shown.err.count("\n") == 1
    assert not Path("runs").exists()


def _die(*_):
    os._exit(9)


def test_a_process_that_dies_is_one_sentence_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workers, "_prepare", _die)  # pickled by name: the new process finds this file's function in its place
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert command.main(["sparse.gains", "sparse.depth", "--out", str(tmp_path / "out"), "--quiet"]) == 1
    assert capsys.readouterr().err.startswith("validate: a process ended before it had an answer")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    def interrupt(*_, full):
        yield {"name": "first", "verdicts": []}, {}
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "answer", interrupt)
    assert command.main(["sparse.gains", "--out", str(tmp_path / "out"), "--quiet"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_stand_for_presets_files_and_the_small_problems_of_a_system(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text(document.to_toml(tiers.GAINS))
    files = [str(tmp_path / folder / "mine.toml") for folder in ("one", "two")]
    found = tiers.chosen(["linear.separate", "one-drop", *files])
    assert list(found) == ["linear.separate", "linear.separate, fresh data", "one-drop", "mine", "mine 2"]
