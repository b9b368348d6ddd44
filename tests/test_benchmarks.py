"""The benchmarks run, with tiny sizes; what they call an error is one, what they call met is met, and the page has every row."""

import json
import re

import numpy as np
import pytest

import benchmarks.__main__ as benchmarking
from benchmarks import flows, measure, page, saddles
from benchmarks.measure import Growth, Options, Row, fitted

SMALL = Options(rounds=1, small=True)
WHERE = page.machine(0.5, 0.7, False)


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| |")]


def test_a_goal_that_is_not_met_is_said_to_be_not_met():
    row = lambda **goals: Row("a", [1.0, 1.0, 9.0], "b", [50.0, 60.0, 70.0], errors=(1e-6, 1e-7), **goals)
    assert row().met is None
    assert row(at_least=40).met  # the median of 50, 60 and 70/9
    assert row(at_least=55).met is False
    assert row(at_most=1.0).met
    assert row(at_most=0.9).met is False
    assert row(at_least=40, no_worse=True).met is False  # fast and wrong
    assert row(error_below=1e-5).met
    assert row(at_most=1.0, error_below=1e-7).met is False
    assert Row("a", [1.0], "b", [2.0], errors=(float("nan"), 1.0), no_worse=True).met is False
    assert Row("a", [1.0], "b", [2.0], at_least=1, no_worse=True).met is False  # no errors were measured
    found = {"one": [row(at_least=55), row(at_least=40), row()]}
    made = rows_of(page.text(found, {"one": "One.\n\nNote."}, {}, WHERE))[:3]
    assert [line.split("|")[-2].strip() for line in made] == ["**not met**", "met", ""]
    assert [one["met"] for one in json.loads(page.numbers(found, {}, WHERE))["results"]["one"]] == [False, True, None]
    assert measure.line(row(at_least=55)).endswith("goal NOT met")


def test_a_power_is_fitted_with_its_standard_error():
    sizes = [2, 4, 8, 16]
    power, error = fitted(sizes, [[3 * size**1.5 for size in sizes]] * 2)
    assert (power, error) == (pytest.approx(1.5), pytest.approx(0, abs=1e-12))
    rng = np.random.default_rng(0)
    draws = [fitted(sizes, np.asarray(sizes) ** 0.7 * np.exp(0.1 * rng.normal(size=(5, 4)))) for _ in range(400)]
    powers, errors = np.array(draws).T
    assert powers.mean() == pytest.approx(0.7, abs=0.01)
    assert np.median(errors) == pytest.approx(powers.std(), rel=0.15)  # 400 draws: 4 %, and the median of an estimate


def test_seconds_are_shown_in_units_that_suit_them():
    assert [measure.seconds(value) for value in ([2.5], [0.0025], [2.5e-6], [1.0, 2.0, 4.0])] == [
        "2.5 s",
        "2.5 ms",
        "2.5 us",
        "2 (1 to 4) s",
    ]


def test_inversion_is_exact_where_scipy_is_not():
    rows = list(saddles.run(SMALL))
    inverted = [row for row in rows if "inverted" in row.what]
    assert all(row.errors[0] < 1e-10 for row in inverted)  # rounding of a clock of 1e5: 1e-11 in its units
    loose = next(row for row in rows if row.against == saddles.GOAL)
    assert 1e-7 < loose.errors[1] < 1e-1
    assert all(row.errors[0] < 1e-8 for row in rows if "Diffrax" in row.what)  # 1e-11, amplified by a plateau
    curves = saddles.prepare(2, 5)
    radau = saddles.scipy(curves, 3, "solve_ivp Radau", 1e-12)
    assert np.abs(saddles.exact(curves, 3) - radau).max() < 1e-7  # an independent solver, its tolerance amplified by the plateau


@pytest.mark.slow
def test_flows_are_those_of_scipy():
    case = flows.CASES["easy"]._replace(horizon=100.0)
    fast, old = flows.measure("easy", case, 64, 1, 1, compiled=False)
    assert fast.errors[0] < 1e-5  # tolerance 3e-7
    assert fast.errors[1] < 1e-5
    assert old.at_least is None
    assert fast.no_worse


@pytest.mark.slow
def test_the_command_writes_a_page_with_every_row_and_goes_on_after_a_failure(tmp_path, capsys, monkeypatch):
    from benchmarks import sparse

    def broken(options):
        yield Row("before the fall", [1.0])
        raise RuntimeError("a reason")

    monkeypatch.setattr(sparse, "run", broken)
    out, numbers = tmp_path / "page.md", tmp_path / "page.json"
    words = ["sparse", "against_script", "softmax_step", "picture", "--small", "--rounds", "1"]
    assert benchmarking.main([*words, "--out", str(out), "--json", str(numbers)]) == 1
    text, told = out.read_text(encoding="utf-8"), json.loads(numbers.read_text(encoding="utf-8"))
    assert not list(tmp_path.glob(".*"))
    rows = [row["what"] for found in told["results"].values() for row in found]
    assert len(rows) == 5
    assert all(f"| {what} |" in text for what in rows)
    assert "before the fall" in text
    assert "**Failed**: RuntimeError: a reason" in text
    assert text.count("Skipped: needs a copy") == 2
    assert "Tiny sizes" in text
    assert re.search(r"Measured on \d+ cores, load [\d.]+ before and [\d.]+ after; jax", text)
    assert "first picture of one-drop, closed form, cold" in capsys.readouterr().out


def test_growth_is_a_row_of_the_page():
    curve = Growth("a step", "D", [2, 4], [[1.0, 4.0], [1.0, 4.0]], [8.0, 64.0], [0.0, 0.0])
    (row,) = rows_of(page.text({"one": [curve]}, {"one": "One"}, {}, WHERE))[:1]
    assert row == "| a step | D | 2: 1 s, 4: 4 s | 2.00 ± 0.00 | 3.00 ± 0.00 |  |"


@pytest.mark.slow
def test_costs_are_measured_and_counted():
    from benchmarks import scaling

    grown = {}
    for size in (8, 32):
        program = scaling.flow(D=size)
        grown[size] = program.operations
        assert scaling._seconds(program) > 0
    assert fitted([8, 32], list(grown.values()))[0] == pytest.approx(3, abs=1)  # products of D x D matrices
    steps = [scaling.softmax(contexts=count).operations for count in (200, 400)]
    assert steps[1] / steps[0] == pytest.approx(2, rel=0.05)  # the weights' own share does not grow


def test_unknown_names_are_answered(capsys):
    assert benchmarking.main(["flws"]) == 2
    assert "unknown name 'flws'" in capsys.readouterr().err
