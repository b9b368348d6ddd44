"""The gallery with several processes: the same bytes, and one that fails, dies or is interrupted is told in a sentence."""

import multiprocessing
import os
from contextlib import suppress

import pytest
from drawn import GOOD, PROBLEM, listed

import figures.__main__ as gallery
from figures import zhang2025_fig5
from spectral_ode import document, systems
from validate import workers

TROUBLE = '''"""Systems that go wrong. Paper: arXiv:0000.00000."""

import multiprocessing
import os

from spectral_ode.flow import AbstractReduction
from spectral_ode.systems.linear import Separate


class Refuses(Separate, AbstractReduction):
    """fails."""

    @classmethod
    def from_problem(cls, problem):
        raise ValueError("there is no such law\\nat all")


class Dies(Separate, AbstractReduction):
    """takes its process with it."""

    @classmethod
    def from_problem(cls, problem):
        assert multiprocessing.parent_process(), "this is not another process"
        os._exit(9)
'''
OTHERS = 'document.override(PROBLEM, {{"system": "trouble.{}"}})'


@pytest.fixture
def trouble(tmp_path, monkeypatch):
    """A folder with more systems, which other processes find, too."""
    folder = tmp_path / "systems"
    folder.mkdir()
    (folder / "trouble.py").write_text(TROUBLE)
    monkeypatch.setattr(systems, "__path__", [*systems.__path__, str(folder)])


def made(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.suffix in (".npz", ".png")}


def living():
    """Processes that this one began and that are there still; what Python remembers of one that is gone does not count."""
    found = []
    for child in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(child.pid, 0)
            found.append(child)
    return found


def test_two_processes_make_the_same_bytes_as_one(tmp_path):
    for jobs in ("1", "2"):
        assert gallery.main(["zhang2025_fig5", "--fast", "--jobs", jobs, "--out", str(tmp_path / jobs)]) == 0
    one, two = (made(tmp_path / jobs) for jobs in ("1", "2"))
    assert len(one) == 3
    assert set(one) == set(two)
    assert [str(name) for name in one if one[name] != two[name]] == []
    assert not living()


def test_an_experiment_that_fails_in_another_process_fails_the_figures_that_need_it(more, trouble, tmp_path, capsys):
    refused = GOOD.replace("PROBLEM}", OTHERS.format("refuses") + "}").replace(
        "import style", "import style\nfrom spectral_ode import document"
    )
    (more / "bad.py").write_text(refused)
    (more / "good.py").write_text(GOOD)
    (more / "same.py").write_text(refused)
    out = tmp_path / "out"
    assert gallery.main(["bad", "good", "same", "--out", str(out)]) == 1
    told = capsys.readouterr().err
    for name in ("bad", "same"):
        assert f"{name}: failed: ValueError: there is no such law\n" in told
    assert told.endswith("figures: bad, same failed, as told above; the others are there\n")
    assert "Traceback" not in told
    records = listed(out)
    assert records["bad"]["error"] == records["same"]["error"] == "ValueError: there is no such law"
    assert records["good"]["of"] > 5
    assert {path.name for path in (out / "data").iterdir()} == {document.identity(PROBLEM)}


def test_a_process_that_dies_is_one_sentence_and_what_needs_none_is_drawn(more, trouble, tmp_path, capsys):
    both = 'PROBLEM, "another": ' + OTHERS.format("dies") + "}"
    (more / "bad.py").write_text(GOOD.replace("PROBLEM}", both).replace("import style", "import style\nfrom spectral_ode import document"))
    out = tmp_path / "out"
    assert gallery.main(["bad", "chen2024_fig4", "--out", str(out)]) == 1
    told = capsys.readouterr().err
    assert f"bad: failed: {workers.DIED}\n" in told
    assert "Traceback" not in told
    assert "error" not in listed(out)["chen2024_fig4"]
    assert not list(out.rglob(".*"))


def test_an_interruption_ends_the_other_processes(more, tmp_path, capsys):
    (more / "long.py").write_text(
        GOOD.replace('{"a problem": PROBLEM}', "{}").replace("    with plt", "    raise KeyboardInterrupt\n    with plt")
    )
    out = tmp_path / "out"
    small = zhang2025_fig5.problems(True)["merged"]
    (out / "fast" / "data" / f".{document.identity(small)}-half").mkdir(parents=True)  # as if one was ended while it wrote
    assert gallery.main(["long", "zhang2025_fig5", "--fast", "--out", str(out)]) == 130
    assert "nothing half-written" in capsys.readouterr().err
    assert not living()
    assert not list(out.rglob(".*"))


@pytest.mark.parametrize("jobs", ["0", "65", "two", "-1", "1.5", ""])
def test_a_wrong_number_of_processes_is_one_sentence(jobs, tmp_path, capsys):
    assert gallery.main(["zhang2025_fig5", f"--jobs={jobs}", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"figures: --jobs is {jobs!r}, but it must be a whole number from 1 to 64\n"
    assert not list(tmp_path.iterdir())
