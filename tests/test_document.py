"""Problems as text: what is written is what is read, and every mistake in a file is told in one sentence."""

import re
import tomllib
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_ode import document, systems
from spectral_ode.problem import BadInput, EpisodeTraining, MergedHeads, Problem, Regression, Seed, SeparateHeads, Solver, Start, Training

SECTIONS = ("task", "attention", "start", "training", "solver", "seed")


def written(folder, text):
    path = folder / "problem.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def resolved(problem):
    return document.override(problem, {"solver.atol": problem.atol})


def complaint(source):
    with pytest.raises(BadInput) as caught:
        document.load(source)
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


words = lambda section, name: st.sampled_from(typing.get_args(typing.get_type_hints(section)[name]))
seeds, small = st.integers(0, 2**31 - 1), st.integers(1, 99)


@st.composite
def sections(draw):
    """Valid values, section by section, as plain data: the tests' type checker draws random numbers, which no strategy may."""
    eta, scale, spectrum = draw(st.floats(1e-3, 1.0)), draw(st.floats(1e-6, 1.0)), tuple(draw(st.lists(st.floats(1e-3, 9.0), min_size=1)))
    units, kind = draw(words(Problem, "units")), draw(st.sampled_from([SeparateHeads, MergedHeads]))
    variances = st.sampled_from([1, len(spectrum)]).flatmap(lambda count: st.tuples(*[st.floats(1e-3, 9.0)] * count))
    drawn = {
        Problem: {"title": st.text(), "reference": st.text(), "headline": st.booleans(), "spacing": words(Problem, "spacing")}
        | {"horizon": st.floats(1.0, 1e8).map(lambda steps: steps * (eta if units == "paper" else 1.0)), "units": st.just(units)}
        | {"points": st.integers(2, 5000), "runs": small},
        Regression: {"spectrum": st.just(spectrum), "context": small, "noise": st.floats(0.0, 2.0), "rotation": seeds}
        | {"prior": variances, "lengths": words(Regression, "lengths"), "in_context": st.floats(0.0, 1.0)},
        kind: {"heads": small} | ({"rank": st.integers(1, len(spectrum))} if kind is SeparateHeads else {}),
        Start: {"scale": st.just(scale)},
        Training: {"sequences": small, "learning_rate": st.just(eta)}
        | {name: words(Training, name) for name in ("dtype", "method", "sampling")},
        Solver: {"name": words(Solver, "name"), "rtol": st.floats(1e-13, 1e-2), "max_steps": small, "steady": st.booleans()}
        | {"atol": st.none() | st.floats(1e-12, 1e-2).map(lambda share: share * scale)},
        Seed: dict.fromkeys(("start", "task", "data", "noise"), seeds),
    }
    values = {section: draw(st.fixed_dictionaries(entries)) for section, entries in drawn.items()}
    if values[Training]["method"] != "moments" and values[Training]["sampling"] != "even":
        values[Training]["data"] = draw(words(Training, "data"))
    if values[Training]["method"] in ("auto", "attention"):
        values[kind]["activation"] = draw(words(kind, "activation"))
    return values


@settings(max_examples=50, deadline=None, database=None)
@given(values=sections())
def test_a_problem_survives_the_way_through_toml(tmp_path_factory, values):
    names = dict(zip((Regression, SeparateHeads, Start, Training, Solver, Seed), SECTIONS, strict=True)) | {MergedHeads: "attention"}
    problem = Problem(**values.pop(Problem), **{names[section]: section(**entries) for section, entries in values.items()})
    again = document.load(written(tmp_path_factory.mktemp("toml"), document.to_toml(problem)))
    assert again == resolved(problem)
    assert document.identity(again) == document.identity(problem) == document.identity(resolved(problem))
    assert document.to_toml(again) == document.to_toml(problem)


@pytest.mark.parametrize("name", document.preset_names())
def test_every_preset_is_a_described_problem_of_a_known_system(name, tmp_path):
    problem = document.load(name)
    assert problem.title
    assert problem.reference
    assert problem.system in systems.names()
    assert document.load(written(tmp_path, document.to_toml(problem))) == resolved(problem)


def test_a_run_without_a_preset_has_something_to_run():
    assert document.headlines()
    assert set(document.headlines()) <= set(document.preset_names())


def test_presets_differ_in_what_they_compute():
    assert len({document.identity(document.load(name)) for name in document.preset_names()}) == len(document.preset_names())


BAD_FILES = {
    "misspelt-key": ("horzon = 3.0", "unknown key 'horzon'; did you mean 'horizon'?"),
    "misspelt-nested": ("[training]\nlerning_rate = 0.1", "did you mean 'training.learning_rate'?"),
    "misspelt-section": ("[trainning]\nlearning_rate = 0.1", "did you mean 'training'?"),
    "key-in-the-wrong-place": ("learning_rate = 0.1", "did you mean 'training.learning_rate'?"),
    "section-as-number": ("task = 3", "unknown key 'task'"),
    "nan": ("horizon = nan", "horizon is nan"),
    "infinite": ("horizon = inf", "horizon is inf"),
    "nan-eigenvalue": ("[task]\nspectrum = [0.4, nan]", "task.spectrum is nan"),
    "nan-for-int": ("points = nan", "points is nan, but it must be a whole number"),
    "text-for-int": ("points = 'many'", "points is 'many', but it must be a whole number"),
    "text-for-float": ("horizon = 'long'", "horizon is 'long', but it must be a number"),
    "fraction-for-int": ("points = 3.5", "points is 3.5, but it must be a whole number"),
    "bool-for-int": ("runs = true", "runs is True, but it must be a whole number"),
    "bool-for-float": ("horizon = true", "horizon is True, but it must be a number"),
    "list-for-float": ("horizon = [1.0]", "horizon is [1.0], but it must be a number"),
    "date-for-float": ("horizon = 1979-05-27", "horizon is"),
    "number-for-list": ("[task]\nspectrum = 0.4", "task.spectrum is 0.4, but it must be a list of numbers"),
    "list-in-list": ("[task]\nspectrum = [[0.4]]", "task.spectrum is [0.4]"),
    "int-for-bool": ("[solver]\nsteady = 1", "solver.steady is 1, but it must be true or false"),
    "unknown-word": ("spacing = 'cubic'", "spacing is 'cubic', but it must be one of linear, log"),
    "number-for-word": ("spacing = 1", "spacing is 1, but it must be one of linear, log"),
    "list-for-text": ("system = ['linear.separate']", "but it must be text"),
    "field-of-another-kind": (
        "[attention]\nkind = 'merged'\nrank = 2",
        "attention.rank belongs to attention.kind separate, but the kind is merged",
    ),
    "unknown-kind": ("[attention]\nkind = 'mixed'", "attention.kind is 'mixed', but it must be one of separate, merged"),
    "field-of-no-kind": ("[attention]\nkind = 'merged'\nrang = 2", "unknown key 'attention.rang'; did you mean 'attention.rank'?"),
    "invalid-problem": ("[attention]\nrank = 9", "attention.rank is 9"),
    "not-toml": ("horizon: 3", "is not a TOML file"),
    "binary": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "is not a TOML file"),
    "number-for-text": ("system = 3", "system is 3"),
    "misspelt-empty-section": ("[trainning]", "trainning"),
    "int-beyond-text": (f"horizon = {'9' * 5000}", ""),
}


@pytest.mark.parametrize(("text", "part"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_mistake_in_a_file_is_told_in_one_sentence_that_names_file_and_field(tmp_path, text, part):
    path = written(tmp_path, text)
    told = complaint(path)
    assert part in told
    assert told.startswith(path)


def test_a_missing_file_a_folder_and_an_unknown_preset_are_told(tmp_path):
    assert "No such file" in complaint(str(tmp_path / "absent.toml"))
    assert "directory" in complaint(f"{tmp_path}/")
    assert "did you mean 'saddle-to-saddle'?" in complaint("sadle-to-sadle")


def test_a_whole_number_may_be_written_as_a_float_and_a_float_as_a_whole_number(tmp_path):
    problem = document.load(written(tmp_path, "points = 50.0\nhorizon = 70"))
    assert (problem.points, type(problem.points), problem.horizon, type(problem.horizon)) == (50, int, 70.0, float)


TRAINED = {"task.kind": "sparse-regression", "training.kind": "adam", "start.kind": "random"}
BASES = [
    Problem(),
    document.override(Problem(), {"task.kind": "multi-task"}),
    document.override(Problem(), {"task.kind": "sparse-regression", "horizon": 20}),
    document.override(Problem(), {"task.kind": "sparse-regression", "training.kind": "gains", "start.kind": "gains"}),
    document.override(Problem(), TRAINED | {"attention.kind": "linear-transformer"}),
    document.override(Problem(), TRAINED | {"attention.kind": "softmax-transformer"}),
]
PARTNERS = {"training.changes": {"training.rates": (0.01,)}, "training.rates": {"training.changes": (20.0,)}}  # of the same length
VALUES = {
    "solver.atol": 1e-12,
    "task.prior": (0.5,),
    "task.dimension": 30,
    "task.signal": (0.5,),
    "attention.embedding": 40,
    "task.tested": (7, 8),
    "start.preferred": (2, 1, 1),
    "start.omega": 0.5,
    "start.mu": 0.5,
    "training.changes": (10.0,),
    "training.rates": (0.03,),
    "training.queries": 10,
    "attention.width": 64,
}


def home(leaf):
    """A problem that has the field."""
    section = leaf.name.rpartition(".")[0]
    return next(base for base in BASES if not leaf.kinds or getattr(base, section).kind in leaf.kinds)


def other(leaf):
    """A valid value that is not the default, with whatever must change beside it."""
    value = VALUES.get(leaf.name)
    if typing.get_origin(leaf.type) is typing.Literal:
        value = next(word for word in typing.get_args(leaf.type) if word != leaf.default)
    elif value is None:
        change = {bool: lambda x: not x, int: lambda x: x + 1, float: lambda x: x / 2 or 0.5, str: lambda x: x + "a"}
        value = change.get(leaf.type, lambda x: (*x, type(x[0])(0.05) or 5))(leaf.default)
    return {leaf.name: value} | PARTNERS.get(leaf.name, {})


CHANGEABLE = [
    leaf
    for leaf in document.leaves()
    if leaf.name not in ("start.kind", "training.kind")  # they follow the kind of the task
    and (typing.get_origin(leaf.type) is not typing.Literal or len(typing.get_args(leaf.type)) > 1)
]


@pytest.mark.parametrize("leaf", CHANGEABLE, ids=lambda leaf: leaf.name)
def test_identity_is_what_is_computed_and_not_how_it_is_described(leaf):
    before = home(leaf)
    changed = document.override(before, other(leaf))
    assert changed != before
    assert re.fullmatch("[0-9a-f]{12}", document.identity(changed))
    assert (document.identity(changed) == document.identity(before)) == (leaf.name in ("title", "reference", "headline"))


@pytest.mark.parametrize("leaf", CHANGEABLE, ids=lambda leaf: leaf.name)
def test_every_field_can_be_set_by_text_as_flags_give_it(leaf):
    values = other(leaf)
    text = {name: ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for name, value in values.items()}
    assert document.override(home(leaf), text) == document.override(home(leaf), values)


def test_the_other_sections_follow_the_kind_of_the_task_unless_they_are_asked_for():
    full = document.override(Problem(), {"task.kind": "multi-task", "training.contexts": "7"})
    assert (full.attention.kind, full.start.kind, full.training.kind) == ("full", "decomposable", "episodes")
    assert (full.training.contexts, full.training.learning_rate) == (7, EpisodeTraining().learning_rate)
    assert document.override(full, {"start.kind": "balanced"}).start.kind == "balanced"
    back = document.override(full, {"task.kind": "linear-regression"})
    assert (back.attention.kind, back.start.kind, back.training.kind) == ("separate", "random", "sequences")
    with pytest.raises(BadInput, match=r"attention.kind is merged, but task.kind multi-task goes with full; use --attention.kind full"):
        document.override(Problem(), {"task.kind": "multi-task", "attention.kind": "merged"})
    with pytest.raises(BadInput, match=r"start.kind is balanced, but task.kind linear-regression goes with random"):
        document.override(Problem(), {"start.kind": "balanced"})


def test_overrides_are_judged_together_and_leave_the_original_alone():
    before = Problem()
    after = document.override(before, {"attention.rank": "5", "task.spectrum": "0.5,0.4,0.3,0.2,0.1"})
    assert (after.attention.rank, len(after.task.spectrum), before) == (5, 5, Problem())


def test_a_merged_problem_is_written_without_a_rank_and_read_again(tmp_path):
    problem = Problem(system="linear.merged", attention=MergedHeads(heads=5))
    table = tomllib.loads(document.to_toml(problem))
    assert table["attention"] == {"kind": "merged", "heads": 5, "activation": "linear"}
    again = document.load(written(tmp_path, document.to_toml(problem)))
    assert again == resolved(problem)
    assert type(again.attention) is MergedHeads
    same = Problem(system="linear.merged", attention=SeparateHeads(heads=5))
    assert document.identity(problem) != document.identity(same)


def test_a_section_that_changes_its_kind_keeps_what_both_kinds_have():
    separate = Problem(attention=SeparateHeads(heads=7, rank=2, activation="softmax"))
    merged = document.override(separate, {"attention.kind": "merged"})
    assert merged.attention == MergedHeads(heads=7, activation="softmax")
    assert document.override(merged, {"attention.kind": "separate"}).attention == SeparateHeads(heads=7, rank=1, activation="softmax")
    assert document.override(merged, {"attention.kind": "separate", "attention.rank": "3"}).attention.rank == 3
    assert document.override(merged, {"attention.kind": "merged", "attention.heads": "2"}).attention.heads == 2
    # Without heads a merged problem in a file has those of the default problem, which is separate.
    assert document.override(Problem(), {"attention.kind": "merged"}).attention.heads == Problem().attention.heads


def test_leaves_say_which_kinds_have_a_field():
    kinds = {leaf.name: leaf.kinds for leaf in document.leaves() if leaf.name.startswith("attention.")}
    assert kinds["attention.kind"] == kinds["attention.activation"] == ()
    assert kinds["attention.heads"] == ("separate", "merged", "full", "linear-transformer", "softmax-transformer")
    assert kinds["attention.rank"] == ("separate",)
    assert kinds["attention.embedding"] == ("full",)


def test_leaves_know_every_field_of_the_written_problem():
    flat = set()
    for base in [
        *BASES,
        document.override(BASES[0], {"attention.kind": "merged"}),
        document.override(BASES[1], {"start.kind": "balanced"}),
    ]:
        table = tomllib.loads(document.to_toml(base))
        flat |= {f"{key}.{name}" for key, section in table.items() if isinstance(section, dict) for name in section}
        flat |= {key for key, value in table.items() if not isinstance(value, dict)}
    optional = {"start.omega", "start.mu"}  # unset: not written
    assert {leaf.name for leaf in document.leaves()} - flat == optional
    assert flat <= {leaf.name for leaf in document.leaves()}
    assert all(leaf.doc for leaf in document.leaves())
