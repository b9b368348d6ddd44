"""Recorded runs trained again: synthetic ones made from the script's description (tests/script.py), and the shared ones of the script."""

import json
from pathlib import Path

import numpy as np
import pytest
from close import assert_close
from script import record

from simulate import recording as recordings
from simulate.replay import loss, method_of, model, replay
from spectral_ode import BadInput, cli

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "reference" / "linear_attention"
NAMES = {"training": "loss", "in-weight": "loss_in_weight_test", "in-context": "loss_in_context_test"}
RUNS = {
    "merged": {},
    "separate": {"model": "attnS", "lr": 0.03, "scale": 0.5},
    "separate, rank 2": {"model": "attnS", "rank": 2, "heads": 3, "lr": 0.03, "scale": 0.4},
    "merged, softmax": {"softmax": True, "lr": 0.3},
    "separate, softmax": {"model": "attnS", "softmax": True, "rank": 2, "lr": 0.3},
    "all lengths": {"vary_len": True, "lr": 0.1},
    "all lengths, softmax": {"model": "attnS", "vary_len": True, "softmax": True, "lr": 0.5},
    "tests": {"tests": True},
    "tests, all lengths": {"tests": True, "vary_len": True, "lr": 0.1},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Arrays and path of a synthetic run, made once."""
    made = {}

    def of(name: str):
        if name not in made:
            path = tmp_path_factory.mktemp("runs") / "run.npz"
            arrays = record(**RUNS[name])
            np.savez(path, allow_pickle=False, **arrays)
            made[name] = arrays, recordings.load(path), path
        return made[name]

    return of


def _apart(arrays, curves) -> float:
    assert {NAMES[name] for name in curves} == {name for name in NAMES.values() if name in arrays}
    return max(float(np.max(np.abs(curve - arrays[NAMES[name]]))) for name, curve in curves.items())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_made_by_the_scripts_description_is_replayed_to_rounding(recorded, name):
    arrays, recording, _ = recorded(name)
    curves = replay(recording)
    assert arrays["loss"][-1] < 0.9 * arrays["loss"][0]
    assert curves["training"].shape == (60,)
    assert _apart(arrays, curves) < 1e-10  # the same algebra in float64, over 60 epochs


@pytest.mark.parametrize("method", ["moments", "gram", "attention"])
@pytest.mark.parametrize("name", ["separate, rank 2", "tests, all lengths"])
def test_every_road_to_the_loss_replays_the_same_run(recorded, name, method):
    arrays, recording, _ = recorded(name)
    assert _apart(arrays, replay(recording, method=method)) < 1e-10


@pytest.mark.parametrize("name", ["merged", "separate, softmax", "all lengths"])
def test_single_precision_replays_within_its_rounding(recorded, name):
    arrays, recording, _ = recorded(name)
    curves = replay(recording, dtype="float32")
    assert 1e-12 < _apart(arrays, curves) <= 5e-5  # 2^-24 of each sum, over 60 epochs


def test_the_roads_of_a_recording():
    kinds = {name: recordings.Recording("x", "merged", name == "softmax", False, 1.0, 1, 1, {}, {}, {}) for name in ("linear", "softmax")}
    assert [method_of(kinds["linear"], method) for method in ("auto", "gram")] == ["moments", "gram"]
    assert [method_of(kinds["softmax"], method) for method in ("auto", "attention")] == ["attention", "attention"]
    for method in ("moments", "gram"):
        with pytest.raises(BadInput, match=f"--method is {method} and the run has softmax attention"):
            method_of(kinds["softmax"], method)


def test_a_nudge_moves_every_weight_in_its_last_bit_of_single_precision(recorded):
    _, recording, _ = recorded("separate")
    still, moved, again, other = (model(recording, "float64", nudge) for nudge in (None, 0, 0, 1))
    for name in ("value", "key", "query"):
        ratio = np.asarray(getattr(moved, name)) / np.asarray(getattr(still, name)) - 1
        assert_close(np.abs(ratio), np.full(ratio.shape, 2.0**-24), rtol=1e-6)
        assert_close(getattr(moved, name), getattr(again, name), rtol=0, atol=0)
    assert np.any(np.asarray(moved.value) != np.asarray(other.value))


def test_tests_are_on_the_full_length_also_when_the_training_varies_it(recorded):
    _, recording, _ = recorded("tests, all lengths")
    prompts = lambda name: loss(recording, name, "float64", "attention").prompts
    assert prompts("training").target.shape == (30 * 5,)
    tested = prompts("in-weight")
    assert tested.target.shape == (20,)
    assert_close(tested.factor, np.full(20, 1 / 6))


def test_progress_is_told_to_the_last_epoch(recorded):
    _, recording, _ = recorded("merged")
    told = []
    curves = replay(recording, tell=lambda done, loss: told.append((done, loss)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (60, pytest.approx(curves["training"][-1]))


def test_a_run_with_one_of_the_two_tests_is_replayed(tmp_path):
    arrays = record(tests=True)
    del arrays["loss_in_weight_test"]
    np.savez(tmp_path / "run.npz", allow_pickle=False, **arrays)
    assert _apart(arrays, replay(recordings.load(tmp_path / "run.npz"))) < 1e-10


def _shared(name: str) -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the recorded runs of the authors' script are not at {SHARED}")
    return SHARED / f"{name}.npz"


ORIGINALS = ["separate", "separate_rank2", "merged", "merged_icl06", "softmax_separate", "softmax_merged"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINALS)
def test_a_run_of_the_authors_script_is_replayed(name):
    recording = recordings.load(_shared(name))
    distance = lambda curves: max(float(np.max(np.abs(curves[key] - curve))) for key, curve in recording.curves.items())
    assert distance(replay(recording)) <= 5e-6  # the script's own rounding in float32
    assert distance(replay(recording, dtype="float32")) <= 5e-5  # and ours
    if not recording.softmax:  # where auto is not the attention layer itself
        assert distance(replay(recording, method="attention")) <= 5e-6


KEPT = Path(__file__).resolve().parent / "data"  # small runs of the authors' script that come with the tests
STABLE = [
    "merged_icl0",
    "merged_vary",
    "separate_rank3",
    "separate_vary",
    "single_head",
    "softmax_merged_vary",
    "softmax_separate_vary",
]


@pytest.mark.parametrize("name", STABLE)
def test_a_kept_run_of_the_authors_script_is_replayed(name):
    recording = recordings.load(KEPT / f"{name}.npz")
    curves = replay(recording)
    for key, curve in recording.curves.items():
        assert_close(curves[key], curve, rtol=0, atol=5e-6)  # the script's own rounding in float32


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _strict(text: str):
    """JSON as its standard has it, without NaN and Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder; results go to its subfolder `runs`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_a_folder_and_says_yes(recorded, folder, capsys):
    _, _, path = recorded("tests")
    assert cli.main(["replay", str(path), "--out", "results"]) == 0
    shown = capsys.readouterr()
    assert "run (moments, float64): yes" in shown.out
    assert "the same run, within 0.0001" in shown.out
    assert shown.err == ""
    assert _files(folder) == [f"results/replay-run/{name}" for name in ("curves.npz", "overlay.png", "report.json")]
    report = _strict((folder / "results/replay-run/report.json").read_text())
    assert (report["ok"], report["file"], report["method"], report["dtype"], report["bound"]) == (
        True,
        "run.npz",
        "moments",
        "float64",
        1e-4,
    )
    assert report["difference"] < 1e-10
    with np.load(folder / "results/replay-run/curves.npz", allow_pickle=False) as curves:
        assert len(curves.files) == 7
        assert_close(curves["replayed/in-weight"], curves["recorded/in-weight"])
        assert_close(curves["epoch"], np.arange(60))


def test_json_is_the_report_and_nothing_else(recorded, folder, capsys):
    paths = [str(recorded(name)[2]) for name in ("merged", "separate, softmax")]
    assert cli.main(["replay", paths[0], "--json", "--dtype", "float32", "--method", "gram"]) == 0
    one = _strict(capsys.readouterr().out)
    assert (one["dtype"], one["method"], one["ok"]) == ("float32", "gram", True)
    assert one == _strict((folder / one["folder"] / "report.json").read_text())
    assert cli.main(["replay", *paths, "--json"]) == 0
    assert [report["method"] for report in _strict(capsys.readouterr().out)] == ["moments", "attention"]


def test_quiet_prints_nothing(recorded, folder, capsys):
    assert cli.main(["replay", str(recorded("merged")[2]), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_curve_that_is_not_that_of_the_run_is_told_and_a_wider_bound_lets_it_pass(recorded, folder, capsys):
    arrays = dict(recorded("merged")[0])
    arrays["loss"] = arrays["loss"] + 0.01 * np.linspace(0, 1, 60)
    np.savez("other.npz", allow_pickle=False, **arrays)
    assert cli.main(["replay", "other.npz"]) == 1
    shown = capsys.readouterr().out
    assert "other (moments, float64): NO" in shown
    assert "not the same run" in shown
    assert _strict((folder / "runs/replay-other/report.json").read_text())["ok"] is False
    assert cli.main(["replay", "other.npz", "--bound", "0.02", "--quiet"]) == 0
    assert _strict((folder / "runs/replay-other/report.json").read_text())["bound"] == 0.02


@pytest.mark.parametrize("change", ["lr", "init_kq", "data_x"])
def test_another_learning_rate_start_or_data_is_not_the_same_run(recorded, folder, change):
    arrays = dict(recorded("merged")[0])
    arrays[change] = 1.02 * arrays[change]
    np.savez("other.npz", allow_pickle=False, **arrays)
    assert cli.main(["replay", "other.npz", "--quiet"]) == 1


BAD = {
    "no file": (["absent.npz"], "there is no file absent.npz"),
    "one of two files": (["{run}", "absent.npz"], "there is no file absent.npz"),
    "a folder": (["."], "there is no file ."),
    "no file given": ([], "FILE.npz"),
    "bound is text": (["{run}", "--bound", "small"], "--bound is 'small', but it must be a positive number"),
    "bound is zero": (["{run}", "--bound", "0"], "--bound is '0', but it must be a positive number"),
    "bound is nan": (["{run}", "--bound", "nan"], "--bound is 'nan', but it must be a positive number"),
    "unknown dtype": (["{run}", "--dtype", "float16"], "--dtype is 'float16', but it must be one of float32, float64"),
    "unknown method": (["{run}", "--method", "magic"], "--method is 'magic', but it must be one of auto, moments, gram, attention"),
    "moments of a softmax": (["{softmax}", "--method", "moments"], "--method is moments and the run has softmax attention"),
    "unknown flag": (["{run}", "--horizon", "3"], "unknown flag --horizon"),
    "misspelt flag": (["{run}", "--bond", "3"], "did you mean '--bound'?"),
}


@pytest.mark.parametrize(("words", "part"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_line_exit_2_and_nothing_written(recorded, folder, capsys, words, part):
    paths = {"run": recorded("merged")[2], "softmax": recorded("merged, softmax")[2]}
    assert cli.main(["replay", *(word.format(**paths) for word in words)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("spectral_ode: ")
    assert shown.err.count("\n") == 1
    assert part in shown.err
    assert _files(folder) == []


EDGE = {"softmax": True, "heads": 3, "lr": 0.5, "epochs": 200, "dtype": "float32"}
UNSTABLE = {"at the edge of stability": EDGE, "diverged": {"lr": 0.5}, "diverged in float32": {"lr": 0.5, "dtype": "float32"}}


@pytest.mark.parametrize("settings", UNSTABLE.values(), ids=UNSTABLE)
def test_where_rounding_decides_there_is_no_verdict_and_the_report_is_strict_json(folder, capsys, settings):
    arrays = record(**settings)
    np.savez("run.npz", allow_pickle=False, **arrays)
    assert cli.main(["replay", "run.npz"]) == 0
    assert "run (" in (shown := capsys.readouterr().out)
    assert "no verdict" in shown
    report = _strict((folder / "runs/replay-run/report.json").read_text())
    assert report["ok"] is None
    assert "edge of stability" in report["sentence"]
    if settings is EDGE:
        assert np.isfinite(arrays["loss"]).all()
        assert min(report["difference"], report["nudged"]) > 0.01


@pytest.mark.parametrize("name", ["unstable_linear", "diverged"])
def test_an_unstable_run_of_the_authors_script_has_no_verdict(folder, name):
    assert cli.main(["replay", str(KEPT / f"{name}.npz"), "--quiet"]) == 0
    assert _strict((folder / f"runs/replay-{name}/report.json").read_text())["ok"] is None


@pytest.mark.parametrize("where", [slice(0, 1), slice(None)], ids=["first", "all"])
def test_losses_that_are_not_numbers_are_judged_and_drawn(recorded, folder, where):
    arrays = dict(recorded("merged")[0])
    arrays["loss"] = arrays["loss"].copy()
    arrays["loss"][where] = np.nan
    np.savez("run.npz", allow_pickle=False, **arrays)
    assert cli.main(["replay", "run.npz", "--quiet"]) == 1
    assert _strict((folder / "runs/replay-run/report.json").read_text())["difference"] is None
