"""The command line: what it shows, what it resolves, and one line for every mistake. Nothing here does a run."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spectral_ode import cli, document, run, systems

ROOT = Path(__file__).resolve().parent.parent
FLAGS = [leaf for leaf in document.leaves() if leaf.name not in document.DESCRIPTIVE]
PRESET = "saddle-to-saddle"


@pytest.fixture(autouse=True)
def _no_work(monkeypatch, tmp_path):
    """A mistake that slips through fails here and at once; what lands in the default folder lands where it is seen."""
    monkeypatch.setattr(run, "carry_out", lambda *_, **__: pytest.fail("the work began"))
    monkeypatch.chdir(tmp_path)


def resolve(capsys, *words):
    assert cli.main(["run", *words, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return tomllib.loads(shown.out)


def test_list_shows_every_system_and_every_preset_with_its_title(capsys):
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for entry in systems.entries():
        assert f"  {entry.name} " in shown
        assert entry.title in shown
    for name in document.preset_names():
        line = next(line for line in shown.splitlines() if line[2:].startswith(f"{name} "))
        assert document.load(name).title in line
        assert line.startswith("*") == (name in document.headlines())


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == 0
    assert "{run,sweep,sensitivity,replay,compare,list}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["run", "-h"], ["replay", "--help"], ["compare", "--help"], ["list", "--help"]]
)
def test_help_is_not_an_error(capsys, words):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m spectral_ode")


@pytest.mark.parametrize("leaf", FLAGS, ids=lambda leaf: leaf.name)
def test_help_shows_each_field_with_its_meaning_and_default(capsys, leaf):
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    shown = "".join(capsys.readouterr().out.split())  # lines are wrapped, also at hyphens
    default = ",".join(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
    ending = "" if leaf.default is None else f"(default: {default})"
    assert f"--{leaf.name.replace('_', '-')}" in shown
    assert "".join(f"{leaf.doc}{ending}".split()) in shown


@pytest.mark.parametrize("name", document.preset_names())
def test_dry_run_prints_the_resolved_problem_ready_to_run_again(capsys, tmp_path, name):
    table = resolve(capsys, name)
    assert table == tomllib.loads(document.to_toml(document.load(name)))
    (tmp_path / "again.toml").write_text(document.to_toml(document.load(name)))
    assert resolve(capsys, "again.toml") == table


def test_dry_run_without_a_preset_prints_the_headlines_and_writes_nothing(capsys, tmp_path):
    cli.main(["run", "--dry-run"])
    assert capsys.readouterr().out == "".join(document.to_toml(document.load(name)) for name in document.headlines())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--training.learning-rate", "0.25"],
        ["--training.learning_rate", "0.25"],
        ["--training.learning-rate=0.25"],
        ["--training.learning_rate=0.25"],
        ["--training.learning-rate", "0.5", "--training.learning-rate", "0.25"],
    ],
    ids=" ".join,
)
def test_hyphen_underscore_and_equals_are_one_flag(capsys, words):
    assert resolve(capsys, PRESET, *words)["training"]["learning_rate"] == 0.25


def test_overrides_change_what_they_name_and_nothing_else(capsys):
    before = resolve(capsys, PRESET)
    after = resolve(capsys, PRESET, "--task.spectrum", "0.5,0.25", "--points", "77", "--dtype", "float64", "--solver.steady", "true")
    before["task"]["spectrum"], before["points"], before["training"]["dtype"], before["solver"]["steady"] = [0.5, 0.25], 77, "float64", True
    assert after == before


def test_another_kind_of_attention_keeps_what_both_have(capsys):
    before = resolve(capsys, PRESET, "--attention.heads", "7")
    after = resolve(capsys, PRESET, "--attention.heads", "7", "--attention.kind", "merged", "--system", "linear.merged")
    assert before["attention"] == {"kind": "separate", "heads": 7, "rank": 1, "activation": "linear"}
    assert after["attention"] == {"kind": "merged", "heads": 7, "activation": "linear"}
    assert {**before, "attention": 0, "system": 0} == {**after, "attention": 0, "system": 0}


@pytest.mark.parametrize("words", [["--seed", "7", "--seed.start", "3"], ["--seed.start", "3", "--seed", "7"]], ids=" ".join)
def test_seed_sets_all_four_and_a_single_seed_wins(capsys, words):
    assert resolve(capsys, PRESET, "--seed", "7")["seed"] == {"start": 7, "task": 7, "data": 7, "noise": 7}
    assert resolve(capsys, PRESET, *words)["seed"] == {"start": 3, "task": 7, "data": 7, "noise": 7}


BAD = {
    "unknown-preset": (["run", "qqqq"], "unknown preset 'qqqq'"),
    "misspelt-preset": (["run", "sadle-to-sadle"], "did you mean 'saddle-to-saddle'?"),
    "second-preset-unknown": (["run", PRESET, "qqqq"], "unknown preset 'qqqq'"),
    "missing-file": (["run", "absent.toml"], "cannot read absent.toml: No such file"),
    "folder-for-file": (["run", "./"], "cannot read ./"),
    "unknown-flag": (["run", "--zzz", "1"], "unknown flag --zzz"),
    "misspelt-flag": (["run", "--horizn", "10"], "unknown flag --horizn; did you mean '--horizon'?"),
    "misspelt-nested-flag": (["run", "--training.learnig_rate=1"], "did you mean '--training.learning-rate'?"),
    "flag-without-section": (["run", "--learning-rate", "1"], "did you mean '--training.learning-rate'?"),
    "abbreviated-flag": (["run", "--horiz", "10"], "did you mean '--horizon'?"),
    "flag-of-run-on-list": (["list", "--seed", "1"], "unknown flag --seed"),
    "flag-without-value": (["run", "--horizon"], "--horizon: expected one argument"),
    "unknown-command": (["runn"], "unknown command 'runn'; did you mean 'run'?"),
    "preset-for-command": ([PRESET], f"unknown command '{PRESET}'"),
    "word-too-many": (["list", "more"], "'more' is one word too many"),
    "not-a-number": (["run", "--horizon", "long"], "horizon is 'long', but it must be a number"),
    "nan": (["run", "--horizon", "nan"], "horizon is nan"),
    "too-large-for-a-float": (["run", "--horizon", "1e400"], "horizon is inf"),
    "negative": (["run", "--horizon", "-5"], "horizon is -5"),
    "negative-spectrum": (["run", "--task.spectrum=-1,2"], "task.spectrum is -1"),
    "gap-in-spectrum": (["run", "--task.spectrum", "0.4,,0.3"], "task.spectrum is ''"),
    "fraction-for-int": (["run", "--points", "2.5"], "points is '2.5', but it must be a whole number"),
    "word-for-bool": (["run", "--solver.steady", "maybe"], "solver.steady is 'maybe', but it must be true or false"),
    "unknown-choice": (["run", "--solver.name", "euler"], "but it must be one of tsit5, dopri5, dopri8, kvaerno5"),
    "unknown-dtype": (["run", "--dtype", "float16"], "training.dtype is 'float16'"),
    "unknown-system": (["run", "--system", "linear.seperate"], "did you mean 'linear.separate'?"),
    "bad-seed": (["run", "--seed", "x"], "seed.start is 'x'"),
    "negative-seed": (["run", "--seed=-1"], "seed.start is -1"),
    "across-sections": (["run", PRESET, "--attention.rank", "99"], "attention.rank is 99"),
    "field-of-another-kind": (
        ["run", PRESET, "--attention.kind", "merged", "--attention.rank", "2"],
        "attention.rank belongs to attention.kind separate, but the kind is merged",
    ),
    "unknown-kind": (["run", PRESET, "--attention.kind", "mixed"], "attention.kind is 'mixed', but it must be one of separate, merged"),
    "fresh-even": (["run", PRESET, "--training.data", "fresh"], "training.sampling is 'even'"),
    "fresh-moments": (
        ["run", PRESET, "--training.sampling", "iid", "--training.data", "fresh", "--training.method", "moments"],
        "training.method is 'moments'",
    ),
    "dry-run-too": (["run", "--horizon", "0", "--dry-run"], "horizon is 0"),
}


def refused(capsys, words, part):
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("spectral_ode: ")
    assert shown.err.count("\n") == 1
    assert shown.err.endswith("\n")
    assert part in shown.err


@pytest.mark.parametrize(("words", "part"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_line_on_stderr_exit_2_and_nothing_written(capsys, tmp_path, words, part):
    refused(capsys, [*words, "--out", "results"] if words[0] == "run" and words[-1] != "--horizon" else words, part)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["taken", "taken/below", "taken/below/further"])
def test_a_file_in_the_way_of_the_output_folder_is_told_before_the_work(capsys, tmp_path, out):
    (tmp_path / "taken").write_text("mine")
    refused(capsys, ["run", PRESET, "--out", out], f"the output folder {out} cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("out", ["link", "x" * 300], ids=["dangling-link", "too-long"])
def test_a_name_that_cannot_become_a_folder_is_told_before_the_work(capsys, tmp_path, out):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(capsys, ["run", PRESET, "--out", out], "cannot be written")


def test_debug_shows_where_a_mistake_was_found():
    with pytest.raises(document.BadInput):
        cli.main(["run", "qqqq", "--debug"])


LIGHT = """import sys
from spectral_ode.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(code, sorted({"jax", "jaxlib", "equinox", "diffrax", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""
QUICK = {"list": (["list"], 0), "help": (["run", "--help"], 0), "dry-run": (["run", "--dry-run"], 0), "mistake": (["run", "qqqq"], 2)}
QUICK |= {"replay": (["replay", "absent.npz"], 2), "compare": (["compare", "absent.csv", "--problem", PRESET], 2)}


@pytest.mark.parametrize(("words", "code"), [*QUICK.values(), (["run", PRESET, "--out", "/dev/null/x"], 2)], ids=[*QUICK, "out"])
def test_what_needs_no_work_imports_no_jax(words, code):
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines()[-1] == f"{code} []"
