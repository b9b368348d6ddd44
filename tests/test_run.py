"""The run command as a user has it: a process, a folder, an exit code."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import SMALL

import simulate
from figures import style
from spectral_ode import Trajectory, cli, document, load
from spectral_ode.folder import whole

FILES = {"problem.toml", "reduced.npz", "population.npz", "training.npz", "overlay.png", "report.json", "report.html"}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "spectral_ode", *words]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run from a TOML file in a folder of its own."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.toml").write_text(document.to_toml(SMALL))
    done = subprocess.run(_command("run", "small.toml", "--out", "out"), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = (folder / "out").iterdir()
    return result, done


def test_the_folder_holds_everything_and_nothing_else(finished):
    result, done = finished
    assert {path.name for path in result.iterdir()} == FILES
    assert "claim" in done.stdout
    assert result.name in done.stdout
    assert done.stderr == ""  # silent where there is no terminal


def test_the_report_has_verdicts_provenance_and_no_path_of_the_machine(finished):
    result, _ = finished
    text = (result / "report.json").read_text()
    report = json.loads(text)
    assert report["ok"] is True
    assert {"claim", "measured", "bound", "ok", "reason", "place"} <= set(report["verdicts"][0])
    assert report["provenance"]["versions"]["jax"]
    assert str(Path.home()) not in text


def test_the_resolved_problem_runs_again_to_the_same_bytes(finished, tmp_path):
    result, _ = finished
    assert document.identity(load(str(result / "problem.toml"))) == document.identity(SMALL)
    words = _command("run", str(result / "problem.toml"), "--out", str(tmp_path), "--json")
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for name in ("reduced", "population", "training"):
        assert (Path(report["folder"]) / f"{name}.npz").read_bytes() == (result / f"{name}.npz").read_bytes()


def test_trajectories_carry_phases_and_provenance(finished):
    result, _ = finished
    population = Trajectory.load(result / "population.npz")
    assert population.provenance["problem"]["task"]["context"] == SMALL.task.context
    assert np.isfinite(np.asarray(population.phases["half 1"])).all()
    assert "horizon" in population.stopped
    assert "PopulationFlow" in repr(population)


def test_a_verdict_that_does_not_hold_is_exit_code_1(tmp_path):
    (tmp_path / "few.toml").write_text(document.to_toml(SMALL))
    few = ("--training.sequences", "30", "--training.sampling", "iid", "--horizon", "400", "--start.scale", "0.3", "--seed", "1")
    done = subprocess.run(_command("run", "few.toml", *few), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NO" in done.stdout


def _interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("module", "name"), [(simulate, "train"), (style, "save")], ids=["while training", "while writing the folder"])
def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch, capsys, module, name):
    (tmp_path / "small.toml").write_text(document.to_toml(replace(SMALL, horizon=50.0, points=20)))
    monkeypatch.setattr(module, name, _interrupt)
    assert cli.main(["run", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "small.toml"]


def test_a_folder_is_whole_or_not_there(tmp_path):
    target = tmp_path / "target"
    with whole(target) as aside:
        (aside / "file").write_text("old")
    with contextlib.suppress(RuntimeError), whole(target) as aside:
        (aside / "file").write_text("half")
        raise RuntimeError
    assert (target / "file").read_text() == "old"
    with whole(target) as aside:
        (aside / "other").write_text("new")
    assert [path.name for path in target.iterdir()] == ["other"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
