"""Sweeps: axes from text, members as problems, what is refused and what fails, tables and fits."""

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from close import assert_close
from small import SMALL, of_system

from spectral_ode import BadInput, batch, cli, document, draw, solve_problem, sweep, systems
from spectral_ode.sweeps import axes, layout, members, perform, table

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
    rows = [made.row(number) for number in range(made.size)]
    assert len(rows) == 12
    assert rows == [dict(zip(made.columns(), values, strict=True)) for values in zip(*made.columns().values(), strict=True)]
    longer = plan("start.scale=0.1,0.2", "task.noise=uniform:0,1", samples=5, seeds=2)
    assert longer.row(0)["task.noise"] == rows[0]["task.noise"]  # drawn from an explicit seed, one after the other
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


def test_memory_bounds_groups_and_chunks_and_workers(monkeypatch):
    buckets, _ = members.gather(plan("start.scale=linspace:0.1,0.3,200"), "population")
    monkeypatch.setattr(layout.batch, "cost", lambda built, clock, settings: batch.Cost(10**6 * built.rtol.size, False))
    fit = lambda memory: layout.fit(buckets, memory, [None], 200)
    assert fit(4 * 10**9) == layout.Layout(64, (4,), 64 * 10**6, False)
    tight = layout.BASE + 200 * layout.EACH + 50 * 10**6
    assert fit(tight) == layout.Layout(16, (13,), 16 * 10**6, False)  # two groups of 25 members would fit
    assert fit(tight).workers(tight, 200) == 1
    assert fit(4 * 10**9).workers(4 * 10**9, 200) == len(os.sched_getaffinity(0))
    for refuse in (fit, lambda memory: layout.check(fit(4 * 10**9), buckets, memory, [None], 200)):
        with pytest.raises(BadInput, match=r"--memory is 0.9 GB, but 200 members of 21 recorded times need .* GB; give more"):
            refuse(layout.BASE + 1000)


def test_programs_with_lapack_leave_a_thread_free():
    problem = of_system("linear.merged")
    buckets, _ = members.gather(plan("start.scale=0.1,0.2", problem=problem), "population")
    found = layout.fit(buckets, 4 * 10**9, [None], 2)
    assert found.lapack
    assert found.workers(4 * 10**9, 2) == max(1, len(os.sched_getaffinity(0)) - 1)


def test_members_with_clocks_of_their_own_are_solved_together():
    buckets, _ = members.gather(plan("horizon=300.0,400.0", "start.scale=0.2,0.3"), "population")
    (bucket,) = buckets
    assert bucket.clock(bucket.some(0, 4)).shape == (4, 21)


def test_seeds_of_one_stream_need_no_program_of_their_own():
    buckets, _ = members.gather(plan("seed.start=1,2,3"), "population")
    assert len(buckets) == 1


def test_a_rung_that_some_members_lack_is_refused_for_them_alone():
    _, refused = members.gather(plan("task.spectrum=0.6,0.3/0.5,0.5", "start.scale=0.2,0.3"), "reduced")
    assert sorted(refused) == [2, 3]
    assert "distinct eigenvalues" in refused[2]


def test_a_member_that_cannot_be_begun_fails_and_the_others_are_done():
    fine, wrong = (members.Member(plan(f"start.scale={scale}"), 0) for scale in (0.3, 0.2))
    clock = fine.problem.times
    one = perform._alone(fine, "population")
    made = perform._gather([fine, wrong], clock, [one, "no start"], None)
    assert list(made["ok"]) == [True, False]
    assert made["stopped"][1] == "no start"
    assert np.isnan(made["final/loss"][1])
    nothing = perform._gather([wrong], clock, ["no start"], None)
    both = perform._joined([nothing, made])
    assert both["observable/loss"].shape == (3, clock.size)
    assert list(both["ok"]) == [False, True, False]


def test_exponents_of_a_power_law():
    x, y = (axis.ravel() for axis in np.meshgrid([1.0, 2.0, 4.0], [1.0, 3.0, 5.0], indexing="ij"))
    rows = table.Table(member=np.arange(9), x=x, y=y, q=3 * x**-1.5 * y**2)
    found = table.exponents(rows, ["x", "y"], "q")
    assert_close([found["x"]["exponent"], found["y"]["exponent"]], [-1.5, 2.0])
    noisy = table.Table(rows | {"q": rows["q"] * np.exp(0.1 * np.cos(np.arange(9)))})
    assert 0.005 < table.exponents(noisy, ["x", "y"], "q")["x"]["standard error"] < 0.2
    assert table.exponents(rows, ["x"], "nothing") == {}


def test_what_is_no_power_law_is_told():
    x = np.geomspace(1e-4, 0.1, 30)
    fit = lambda q: table.exponents(table.Table(member=np.arange(30), x=x, q=q), ["x"], "q")["x"]
    logarithm = fit(-0.5 * np.log(x))  # whose local exponent is 1 / ln x
    assert table.bent(logarithm)
    assert logarithm["first"] > logarithm["exponent"] > logarithm["last"]
    assert not table.bent(fit(3 * x**-0.7))
    assert not table.bent(fit(3 * x**-0.7 * np.exp(0.05 * np.cos(np.arange(30.0) ** 2))))


def test_a_sweep_from_python_has_its_table(tmp_path):
    over = {"start.scale": np.array([0.3, 0.4]), "task.spectrum": [(0.6, 0.3), (0.5, 0.2)]}
    found = sweep(SEPARATE, over, seeds=2, keep=["loss"], out=tmp_path)
    assert found.folder.is_dir()
    assert found.table["start.scale"] == [0.3] * 4 + [0.4] * 4
    assert found.table["task.spectrum"][2] == (0.5, 0.2)
    assert np.isfinite(found.table["half 1"]).all()
    assert str(found).startswith("8 members, population: 8 solved")
    with np.load(found.folder / "chunks" / "00000.npz", allow_pickle=False) as chunk:
        assert chunk["observable/loss"].shape == (8, 21)
        assert not [name for name in chunk.files if name.startswith("observable/") and name != "observable/loss"]
    again = sweep(SEPARATE, {"start.scale": "0.3,0.4", "task.spectrum": "0.6,0.3/0.5,0.2"}, seeds=2, keep=["loss"], out=tmp_path)
    assert again.folder == found.folder
    assert again.summary["found there"] == 8
    with pytest.raises(BadInput, match="store is 'disk'"):
        sweep(SEPARATE, over, store="disk", out=tmp_path)
