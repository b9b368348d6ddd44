"""Sweeps: axes from text, members as problems, chunks that survive a kill, the same bits however the work is cut."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from close import assert_close
from small import SMALL

from spectral_ode import BadInput, cli, document, draw, solve_problem, systems
from spectral_ode.sweeps import axes, command, members, perform, table

ROOT = Path(__file__).parent.parent
SHORT = replace(SMALL, horizon=400.0, points=21, start=replace(SMALL.start, scale=0.3))
SEPARATE = replace(SHORT, system="linear.separate")


def plan(*over: str, problem=SEPARATE, samples: int = 1, seeds: int = 1) -> axes.Plan:
    return axes.Plan(problem, tuple(axes.axis(problem, text) for text in over), samples, 0, seeds)


def test_axes_are_lists_spaces_ranges_and_entries():
    values = lambda text: axes.axis(SEPARATE, text).values
    assert values("task.context=16,32") == (16, 32)
    assert values("task.context=range:16,64,16") == (16, 32, 48, 64)
    assert values("task.context=logspace:2,9,4") == (2, 3, 5, 9)  # rounded
    assert_close(values("start.scale=linspace:0.1,0.3,3"), [0.1, 0.2, 0.3])
    assert_close(values("start.scale=logspace:0.01,1,3"), [0.01, 0.1, 1.0])
    assert values("task.spectrum=0.4,0.3/0.5,0.2") == ((0.4, 0.3), (0.5, 0.2))
    assert plan("task.spectrum.2=0.1,0.2").member({"task.spectrum.2": 0.2}).regression.spectrum == (0.6, 0.2)
    assert values("attention.kind=separate,merged") == ("separate", "merged")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("start.scal=1", "unknown key 'start.scal'; did you mean 'start.scale'?"),
        ("start.scale", "must be FIELD=VALUES"),
        ("task.context=1.5", "task.context is '1.5', but it must be a whole number"),
        ("start.scale=logspace:0,1,3", "use linspace"),
        ("start.scale=loguniform:0,1", "use uniform"),
        ("start.scale=linspace:0,1", "linspace takes three numbers a,b,n"),
        ("start.scale=spread:1,2", "known are linspace, logspace, range, uniform, loguniform"),
        ("task.kind=linspace:1,2,3", "is not a number"),
        ("task.spectrum.3=1,2", "task.spectrum has 2 entries, numbered from 1"),
        ("start.boost=1,2", "start.boost belongs to start.kind decomposable, but the kind is random"),
        ("task.context=range:1,5,-1", "never gets from 1 to 5"),
    ],
)
def test_a_wrong_axis_is_one_sentence(text, sentence):
    with pytest.raises(BadInput) as error:
        axes.axis(SEPARATE, text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_plans_count_and_refuse():
    made = plan("start.scale=0.1,0.2", "task.noise=uniform:0,1", samples=3, seeds=2)
    rows = list(made.rows())
    assert len(rows) == made.size == 12
    assert rows == list(made.rows())  # drawn from an explicit seed
    assert rows[0]["task.noise"] == rows[1]["task.noise"] != rows[2]["task.noise"]
    assert rows[0]["task.noise"] == rows[6]["task.noise"]  # the same draws at every point of the grid
    seeds = made.member(rows[1]).seed
    assert (seeds.start, seeds.noise) == (SEPARATE.seed.start + 1, SEPARATE.seed.noise + 1)
    for arguments in (
        {"over": ("start.scale=1,2", "start.scale=3"), "samples": 1},
        {"over": ("start.scale=uniform:1,2",), "samples": 0},
        {"over": ("start.scale=1,2",), "samples": 5},
        {"over": ("seed.start=1,2",), "seeds": 2},
    ):
        over = arguments.pop("over")
        with pytest.raises(BadInput):
            plan(*over, **arguments)


def small_sweep(folder, *more: str) -> dict:
    words = ["--start.scale=0.3", "--horizon=400", "--points=21", "--task.spectrum=0.6,0.3", "--attention.heads=2", "--task.context=15"]
    over = ["--over", "start.scale=0.25,0.3,0.4", "--over", "task.context=8,15", "--seeds", "2"]
    code = cli.main(["sweep", "saddle-to-saddle", *words, *over, "--quiet", "--out", str(folder), *more])
    (made,) = Path(folder).glob("sweep-*")
    return {"code": code, "folder": made}


def read(folder: Path) -> list[dict[str, str]]:
    with open(folder / "members.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_is_its_problems_one_by_one(tmp_path):
    made = small_sweep(tmp_path)
    assert made["code"] == 0
    rows = read(made["folder"])
    assert [int(row["member"]) for row in rows] == list(range(12))
    summary = json.loads((made["folder"] / "summary.json").read_text())
    assert summary["solved"] == 12
    assert summary["peak memory"] < summary["memory"]
    assert {"scaling.png", "map.png", "losses.png", "sweep.toml", "failures.json"} <= {path.name for path in made["folder"].iterdir()}
    row = rows[5]  # scale 0.3, context 8, second seed
    problem = document.load("saddle-to-saddle")
    changes = {"start.scale": 0.3, "horizon": 400, "points": 21, "task.spectrum": [0.6, 0.3], "attention.heads": 2, "task.context": 8}
    changes |= {f"seed.{name}": 6 for name in ("start", "task", "data", "noise")}
    problem = document.override(problem, changes)
    assert (row["start.scale"], row["task.context"], row["seed"]) == ("0.3", "8", "1")
    flow = systems.load(problem.system).from_problem(problem).population()
    one = solve_problem(flow, problem, draw(problem))
    assert_close(float(row["final loss"]), one["loss"][-1], rtol=1e-6)  # another step size: ten tolerances, amplified by the drop
    for name in one.phases:
        assert_close(float(row[name]), one.phases[name], rtol=1e-6)
    with np.load(made["folder"] / "chunks" / "00000.npz", allow_pickle=False) as file:
        assert file["observable/loss"].shape[1:] == (21,)

    # Started again: nothing is solved, nothing changes.
    before = {path.name: path.read_bytes() for path in (made["folder"] / "chunks").iterdir()}
    assert small_sweep(tmp_path)["code"] == 0
    assert json.loads((made["folder"] / "summary.json").read_text())["found there"] == 12
    assert before == {path.name: path.read_bytes() for path in (made["folder"] / "chunks").iterdir()}


def test_refused_combinations_are_named_and_the_rest_is_done(tmp_path):
    made = small_sweep(tmp_path, "--over", "attention.rank=1,3")
    assert made["code"] == 0
    rows = read(made["folder"])
    refused = [row for row in rows if row["stopped"].startswith("refused: attention.rank is 3")]
    assert len(refused) == 12
    failures = json.loads((made["folder"] / "failures.json").read_text())
    assert {failure["kind"] for failure in failures} == {"refused"}
    assert failures[0]["values"]["attention.rank"] == 3
    assert sum(row["final loss"] != "" for row in rows) == 12


def test_solver_failures_are_named_and_give_exit_code_one(tmp_path):
    made = small_sweep(tmp_path, "--solver.max-steps", "25")
    assert made["code"] == 1
    failures = json.loads((made["folder"] / "failures.json").read_text())
    assert failures
    assert all(failure["kind"] == "failed" and "raise --solver.max-steps" in failure["reason"] for failure in failures)
    assert failures[0]["problem"]["solver"]["max_steps"] == 25


def test_bad_sweeps_are_one_sentence_and_exit_code_two(tmp_path, capsys):
    for words, sentence in (
        (["--over", "start.scale=-1,-2"], "every combination is refused"),
        (["--over", "start.scale=1,2", "--memory", "lots"], "--memory is 'lots'"),
        (["--over", "start.scale=1,2", "--rung", "best"], "--rung is 'best'"),
        (["--over", "start.scale=0.3,0.4", "--show", "quarter 1", "--horizon", "50", "--points", "5"], "--show is 'quarter 1'"),
        (["--over", "start.scale=0.3,0.4", "--keep", "mass"], "--keep names 'mass'"),
        (["--seeds", "-1"], "--seeds is '-1'"),
    ):
        assert cli.main(["sweep", "saddle-to-saddle", *words, "--out", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1


def test_zarr_holds_the_same_numbers(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is an optional extra")
    plain, other = small_sweep(tmp_path / "a")["folder"], small_sweep(tmp_path / "b", "--store", "zarr")["folder"]
    stored = zarr.open_group(other / "data.zarr", mode="r")
    for number in range(2):
        with np.load(plain / "chunks" / f"{number:05d}.npz") as file:
            assert_close(stored[f"{number}/loss"][:], file["observable/loss"], rtol=0, atol=0)
    assert read(plain) == read(other)


def test_memory_bounds_groups_and_chunks():
    buckets, _ = members.gather(plan("start.scale=linspace:0.1,0.3,200"), "population")
    roomy, tight = (perform.layout(buckets, size, None) for size in (4 * 2**30, perform.BASE + 40 * 2**20))
    assert roomy.width == 64
    assert tight.groups[0] < roomy.groups[0] or tight.width < roomy.width
    with pytest.raises(BadInput, match="--memory is"):
        perform.layout(buckets, perform.BASE + 1000, None)


def test_members_with_clocks_of_their_own_are_solved_together():
    buckets, _ = members.gather(plan("horizon=300.0,400.0", "start.scale=0.2,0.3"), "population")
    (bucket,) = buckets
    assert bucket.times.shape == (4, 21)


def test_exponents_of_a_power_law():
    rows = [{"x": x, "y": y, "q": 3 * x**-1.5 * y**2} for x in (1.0, 2.0, 4.0) for y in (1.0, 3.0, 5.0)]
    found = table.exponents(rows, ["x", "y"], "q")
    assert_close([found["x"]["exponent"], found["y"]["exponent"]], [-1.5, 2.0])
    noisy = [row | {"q": row["q"] * factor} for row, factor in zip(rows, np.exp(0.1 * np.cos(np.arange(9))), strict=True)]
    assert 0.005 < table.exponents(noisy, ["x", "y"], "q")["x"]["standard error"] < 0.2
    assert table.exponents(rows, ["x"], "nothing") == {}


def test_what_a_memory_is():
    assert command.memory_of("2GB") == 2 * 2**30
    assert command.memory_of("500 MB") == 500 * 2**20


RUN = [
    "-m",
    "spectral_ode",
    "sweep",
    "saddle-to-saddle",
    "--horizon",
    "300",
    "--points",
    "11",
    "--over",
    "start.scale=linspace:0.2,0.4,400",
]


def start(out: Path, **environment: str) -> subprocess.Popen:
    code = "import sys; from spectral_ode.sweeps import perform; from spectral_ode.cli import main"
    code += "; perform.LARGEST = 20_000; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, *RUN[2:], "--out", str(out), "--quiet"]
    return subprocess.Popen(words, cwd=ROOT, env=os.environ | environment, start_new_session=True)


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_and_ends_with_the_same_bytes(tmp_path):
    assert start(tmp_path / "whole").wait() == 0
    (whole,) = (tmp_path / "whole").glob("sweep-*")
    names = sorted(path.name for path in (whole / "chunks").iterdir())
    assert len(names) > 3
    generator = np.random.default_rng(0)
    for _ in range(3):
        process = start(tmp_path / "killed")
        deadline = time.monotonic() + 600
        wanted = len(list((tmp_path / "killed").glob("sweep-*/chunks/[0-9]*.npz"))) + 1
        while process.poll() is None and len(list((tmp_path / "killed").glob("sweep-*/chunks/[0-9]*.npz"))) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(float(generator.uniform(0, 0.05)))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert start(tmp_path / "killed").wait() == 0
    (killed,) = (tmp_path / "killed").glob("sweep-*")
    assert sorted(path.name for path in (killed / "chunks").iterdir()) == names
    for name in names:
        one, two = (np.load(folder / "chunks" / name) for folder in (whole, killed))
        assert all(one[key].tobytes() == two[key].tobytes() for key in one.files), name
    assert read(whole) == read(killed)
