"""Loss curves from other programs: how they are read, and how late the compare command finds them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from close import assert_close

from spectral_ode import BadInput, Problem, cli, curve, document
from spectral_ode.problem import MergedHeads, Regression, SeparateHeads, Solver, Start, Training
from validate import perform
from validate.compare import crossing, stretched

SEPARATE = Problem(
    horizon=700.0,
    points=600,
    task=Regression(spectrum=(0.6, 0.3), context=15),
    attention=SeparateHeads(heads=2),
    start=Start(scale=0.3),
    training=Training(learning_rate=0.5),
    solver=Solver(rtol=1e-6),
)
SCRIPT = replace(
    SEPARATE,
    system="linear.merged",
    units="script",
    horizon=900.0,
    attention=MergedHeads(heads=2),
    start=Start(scale=1e-3),
    training=Training(learning_rate=0.002),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _written(folder, name: str, content) -> str:
    path = folder / name
    if isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


GOOD = {
    "a number per line": ("c.txt", "1.0\n0.5\n\n0.25\n", {}, [0, 1, 2], [1, 0.5, 0.25]),
    "every tenth step": ("c.txt", "1.0\n0.5\n0.25\n", {"step": 10.0}, [0, 10, 20], [1, 0.5, 0.25]),
    "columns of the script's tests": ("c.txt", "1.0 7 8\n0.5 7 8\n", {}, [0, 1], [1, 0.5]),
    "a column by its number": ("c.txt", "7 1.0\n7 0.5\n", {"column": "1"}, [0, 1], [1, 0.5]),
    "a comment above": ("c.txt", "# loss\n1e0\n5e-1\n", {}, [0, 1], [1, 0.5]),
    "a header": ("c.csv", "loss\n1.0\n0.5\n", {}, [0, 1], [1, 0.5]),
    "a header over words apart": ("c.txt", "epoch loss\n0 1.0\n5 0.5\n", {}, [0, 5], [1, 0.5]),
    "a step column": ("c.csv", "Step, loss\n0, 1.0\n20, 0.5\n50, 0.25\n", {}, [0, 20, 50], [1, 0.5, 0.25]),
    "a step column not to be used": ("c.csv", "epoch,loss\n0,1.0\n20,0.5\n", {"step": 2.0}, [0, 2], [1, 0.5]),
    "the only other column": ("c.csv", "iteration,train error\n3,1.0\n4,0.5\n", {}, [3, 4], [1, 0.5]),
    "loss among others": ("c.csv", "accuracy,loss,epoch\n9,1.0,1\n9,0.5,2\n", {}, [1, 2], [1, 0.5]),
    "a chosen one": ("c.csv", "train,test\n9,1.0\n9,0.5\n", {"column": "test"}, [0, 1], [1, 0.5]),
    "npz": ("c.npz", {"loss": np.array([1.0, 0.5]), "weights": np.ones((2, 2)), "name": np.array("x")}, {}, [0, 1], [1, 0.5]),
    "npz with steps": ("c.npz", {"epoch": np.array([0, 7]), "loss": np.array([1, 0], np.int32)}, {}, [0, 7], [1, 0]),
    "npz with one list": ("c.npz", {"L": np.array([1.0, 0.5], np.float32), "W": np.ones((2, 2))}, {}, [0, 1], [1, 0.5]),
}


@pytest.mark.parametrize(("name", "content", "settings", "steps", "loss"), GOOD.values(), ids=GOOD)
def test_a_curve_is_read_from(folder, name, content, settings, steps, loss):
    found = curve.read(_written(folder, name, content), settings.get("column"), settings.get("step"))
    assert_close(found[0], steps)
    assert_close(found[1], loss)


WRONG = "is not a curve: a txt or csv file with one row of numbers per step, or an npz, is expected"
BAD = {
    "words": ("c.txt", "the loss\nwas high\n", None, WRONG),
    "ragged rows": ("c.txt", "0 1\n1\n", None, WRONG),
    "a header alone": ("c.csv", "step,loss\n", None, WRONG),
    "semicolons": ("c.csv", "0;1\n1;2\n", None, WRONG),
    "bytes": ("c.txt", b"\xff\xfe\x00", None, WRONG),
    "no zip": ("c.npz", b"loss\n1\n", None, WRONG),
    "a cut zip": ("c.npz", b"PK\x03\x04 and no more", None, WRONG),
    "two losses": (
        "c.csv",
        "train,test\n1,2\n1,2\n",
        None,
        "which column is the loss is not clear; choose one of train, test with --column",
    ),
    "no such column": ("c.csv", "step,train\n1,2\n2,2\n", "loss", "there is no column 'loss'; choose one of train with --column"),
    "one number": ("c.txt", "1.0\n", None, "column '0' has shape (1,), but at least two finite numbers in a row are expected"),
    "not a number": ("c.txt", "1.0\nnan\n0.5\n", None, "but at least two finite numbers in a row are expected"),
    "steps that stand still": ("c.csv", "step,loss\n0,1\n0,0.5\n", None, "the column 'step' does not count upwards beside the loss"),
    "steps of another length": (
        "c.npz",
        {"step": np.arange(3), "loss": np.ones(2)},
        None,
        "the column 'step' does not count upwards beside the loss; give the distance of the rows with --step",
    ),
}


def _complaint(path: str, column: str | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        curve.read(path, column, None)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(path)
    return str(caught.value)


@pytest.mark.parametrize(("name", "content", "column", "part"), BAD.values(), ids=BAD)
def test_what_is_no_curve_is_told_in_one_sentence(folder, name, content, column, part):
    assert part in _complaint(_written(folder, name, content), column)


def test_a_missing_file_a_folder_and_a_pickle_are_told(folder):
    with pytest.raises(BadInput, match=r"there is no file absent\.csv"):
        curve.read("absent.csv", None, None)
    (folder / "folder.txt").mkdir()
    assert WRONG in _complaint(str(folder / "folder.txt"))
    np.savez(folder / "c.npz", loss=np.array([1, None], object), allow_pickle=True)
    assert WRONG in _complaint(str(folder / "c.npz"))


BROKEN = {
    "an empty file": ("c.txt", ""),
    "comments alone": ("c.txt", "# nothing\n"),
    "steps alone": ("c.csv", "step\n0\n1\n"),
    "an npz without a list": ("c.npz", {"a": np.ones((2, 2))}),
    "an entry beyond the reader's limit": ("c.csv", f'loss,"{"x" * 200_000}"\n1,2\n'),
}


@pytest.mark.parametrize(("name", "content"), BROKEN.values(), ids=BROKEN)
def test_a_curve_without_numbers_is_told(folder, name, content):
    _complaint(_written(folder, name, content))


def test_an_npy_that_is_named_npz_is_told(folder):
    np.save(folder / "c.npy", np.ones(3))
    (folder / "c.npy").rename(folder / "c.npz")
    assert WRONG in _complaint(str(folder / "c.npz"))


def test_crossing_is_the_first_time_below_a_level_interpolated():
    time = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    loss = np.array([1.0, 0.8, 0.4, 0.6, 0.1])
    assert crossing(time, loss, 0.5) == pytest.approx(1.75)
    assert crossing(time, loss, 0.3) == pytest.approx(3.6)
    assert crossing(time, loss, 0.05) is None
    assert crossing(time, loss, 1.5) is None  # below from the start: when it got there is not known


def test_the_theory_is_integrated_to_the_end_of_the_curve():
    assert stretched(SEPARATE, 50.0).end == 50
    assert stretched(SEPARATE, 0.1).end == 0.5  # one step at least
    assert_close(stretched(SCRIPT, 40 * SCRIPT.eta).end, 40 * SCRIPT.eta)
    assert_close(stretched(SCRIPT, 40 * SCRIPT.eta).horizon, 40)


@pytest.fixture(scope="module")
def courses():
    """Steps and losses of the population flow of both problems."""
    found = {}
    for name, problem in (("separate", SEPARATE), ("script", SCRIPT)):
        rung = perform(problem, train=False).rungs["population"]
        found[name] = problem, np.asarray(rung.time[0]) / problem.eta, np.asarray(rung["loss"][0])
    return found


def _report(folder, problem, steps, loss, *words) -> dict:
    (folder / "problem.toml").write_text(document.to_toml(problem))
    np.savetxt(folder / "curve.csv", np.stack([steps, loss], axis=1), delimiter=",", header="step,loss", comments="")
    assert cli.main(["compare", "curve.csv", "--problem", "problem.toml", *words]) == 0
    (report,) = (folder / "runs").glob("compare-curve-*/report.json")
    return json.loads(report.read_text())


def _late(report) -> list[float]:
    return [drop["curve"] / np.median(drop["theory"]) - 1 for drop in report["drops"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "drops"), [("separate", 2), ("script", 1)])
def test_the_curve_of_the_theory_is_not_late(courses, folder, capsys, name, drops):
    problem, steps, loss = courses[name]
    report = _report(folder, problem, steps, loss)
    assert len(report["drops"]) == drops
    assert_close(_late(report), np.zeros(drops), atol=1e-6)  # the solver's tolerance, and decimals of the file
    assert max(abs(report[gap]) for gap in ("start gap", "last gap", "largest gap")) < 1e-5
    shown = capsys.readouterr().out
    assert shown.count("+0.0 %") + shown.count("-0.0 %") == drops
    (made,) = (folder / "runs").iterdir()
    assert sorted(path.name for path in made.iterdir()) == ["overlay.png", "problem.toml", "report.json"]


def test_a_curve_stretched_by_ten_per_cent_is_ten_per_cent_late(courses, folder, capsys):
    problem, steps, loss = courses["separate"]
    report = _report(folder, problem, 1.1 * steps, loss)
    assert_close(_late(report), [0.1, 0.1], atol=1e-3)  # curve and theory are interpolated on different grids
    assert capsys.readouterr().out.count("+10.0 %") == 2
    assert report["problem"]["horizon"] == 700.0


def test_steps_last_as_long_as_the_learning_rate_says(courses, folder):
    problem, steps, loss = courses["script"]
    assert_close(_late(_report(folder, problem, 2 * steps, loss, "--learning-rate", "0.001")), [0.0], atol=1e-3)


def test_json_is_the_report_and_nothing_else(courses, folder, capsys):
    problem, steps, loss = courses["separate"]
    report = _report(folder, problem, steps, loss, "--json", "--step", "5", "--runs", "2")
    assert json.loads(capsys.readouterr().out) == report | {"ok": True}
    assert report["theory"] == "population"
    levels = [level["loss"] for level in report["levels"]]
    assert_close([drop["loss"] for drop in report["drops"]], [(levels[0] + levels[1]) / 2, (levels[1] + levels[2]) / 2])
    assert [len(drop["theory"]) for drop in report["drops"]] == [2, 2]
    first, second = 0.6 / (1 + 2.5 / 15), 0.3 / (1 + 4 / 15)  # lam / c with c = 1 + (1 + 0.9 / lam) / 15
    assert_close(levels, [0.9, 0.9 - first, 0.9 - first - second])


def test_a_flat_curve_has_no_drop_and_says_so(courses, folder, capsys):
    problem, steps, loss = courses["separate"]
    report = _report(folder, problem, steps, np.full_like(loss, 0.9))
    assert [drop["curve"] for drop in report["drops"]] == [None, None]
    assert all(drop["theory"] for drop in report["drops"])
    assert "%" not in capsys.readouterr().out


REFUSED = {
    "softmax": (["c.txt", "--problem", "saddle-to-saddle", "--attention.activation", "softmax"], "there is no theory to compare with"),
    "no problem": (["c.txt"], "--problem"),
    "unknown problem": (["c.txt", "--problem", "zhang2025-fig99"], "unknown preset 'zhang2025-fig99'"),
    "no curve": (["absent.txt", "--problem", "zhang2025-fig1"], "there is no file absent.txt"),
    "bad step": (["c.txt", "--problem", "zhang2025-fig1", "--step", "-1"], "--step is '-1', but it must be a positive number"),
    "bad rate": (["c.txt", "--problem", "zhang2025-fig1", "--learning-rate", "0"], "training.learning_rate is 0"),
    "bad column": (["c.txt", "--problem", "zhang2025-fig1", "--column", "9"], "there is no column '9'; choose one of 0 with --column"),
}


@pytest.mark.parametrize(("words", "part"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_one_line_exit_2_and_nothing_written(folder, capsys, words, part):
    _written(folder, "c.txt", "1.0\n0.5\n0.2\n")
    assert cli.main(["compare", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert part in shown.err
    assert [path.name for path in folder.iterdir()] == ["c.txt"]
