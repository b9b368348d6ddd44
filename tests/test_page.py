"""The page of experiments: its numbers are those of the report, hostile words are inert, and in Chromium it does what it shows."""

import html
import html.parser
import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from spectral_ode import Trajectory
from validate import charts, page, report, tiers
from validate.check import Verdict
from validate.experiment import Experiment, perform

HOSTILE = "</title><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "br", "link", "img", "input", "hr"}


@pytest.fixture(scope="module")
def judged() -> list[tuple[Experiment, list[Verdict]]]:
    """Two systems; the words of the second one's problem and verdicts are hostile, and a claim of it fails."""
    first = tiers.judge("gains", tiers.GAINS, tiers=("run",))
    problem = replace(tiers.DEPTH, title=HOSTILE, reference=HOSTILE)
    experiment, verdicts = tiers.judge("depth", problem, tiers=("run",))
    verdicts[0] = replace(verdicts[0], claim=HOSTILE, note=HOSTILE, reason=HOSTILE, place=HOSTILE, ok=False, measured=0.123456)
    verdicts[1] = replace(verdicts[1], ok=None, measured=None, note="a condition that is not met")
    return [first, (experiment, verdicts)]


@pytest.fixture(scope="module")
def summary(judged):
    reports = [report.summarize(name, *each) for name, each in zip(("gains", HOSTILE), judged, strict=True)]
    return report.whole(reports, tier="quick", skipped={"large": "it needs a GPU"}, seconds=1.0)


@pytest.fixture(scope="module")
def text(judged, summary) -> str:
    """The page; the second experiment's picture is as hostile as its words."""
    pictures = [charts.picture(experiment) for experiment, _ in judged]
    pictures[1]["labels"]["training"] = HOSTILE
    pictures[1]["toml"] += f"# {HOSTILE}"
    for panel in pictures[1]["panels"]:
        panel |= {"title": HOSTILE, "summary": HOSTILE, "levels": [level | {"label": HOSTILE} for level in panel["levels"]]}
    return page.validation(summary, pictures)


class _Reader(html.parser.HTMLParser):
    """Tags, attributes, rows of tables; complains about a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.open, self.rows, self.row, self.captions = [], [], [], None, 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def read(text) -> _Reader:
    return _Reader(text)


def test_the_page_loads_nothing_and_says_so(read, text):
    for tag, attributes in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    (policy,) = [attributes["content"] for tag, attributes in read.tags if attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert len(re.findall(r"plotly\.js v\d", text)) == 1  # written into it once


def test_the_structure_is_sound(read):
    identities = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    targets = {attributes["href"][1:] for tag, attributes in read.tags if tag == "a"}
    assert targets == {"main", "e0", "e1"}
    assert targets <= set(identities)
    count = lambda wanted: sum(tag == wanted for tag, _ in read.tags)
    assert count("caption") == count("table") == 3
    assert count("h1") == 1
    assert count("figure") == sum("chart" in (attributes.get("class") or "").split() for _, attributes in read.tags)
    assert all(attributes["aria-label"] for tag, attributes in read.tags if tag == "figure")
    assert all(attributes.get("tabindex", "0") == "0" for _, attributes in read.tags)


def test_hostile_words_are_text(read, text, judged):
    assert "<script>window.hacked" not in text
    assert "<img" not in text.partition("<script>/**")[0]
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert sum(HOSTILE in cell for row in read.rows for cell in row) == 4  # name and title, claim and note, place, reason


def test_numbers_are_those_of_the_report(read, summary):
    shown = [row for row in read.rows if len(row) == 6]
    verdicts = [verdict for one in summary["reports"] for verdict in one["verdicts"]]
    assert len(shown) == len(verdicts)
    for row, verdict in zip(shown, verdicts, strict=True):
        assert row[0] == {True: "holds", False: "FAILS", None: "skipped"}[verdict["ok"]]
        for cell, number in ((row[2], verdict["measured"]), (row[3], verdict["bound"])):
            assert cell == ("-" if number is None else f"{number:.2g}")
    oks = [verdict["ok"] for verdict in verdicts]
    assert summary["counts"] == {"hold": oks.count(True), "fail": 1, "skip": oks.count(None)}
    assert oks.count(None) >= 1


def test_the_banner_comes_first_and_names_what_is_broken(text, summary):
    body = text.partition("</h1>")[2]
    hold, total = summary["counts"]["hold"], sum(summary["counts"].values())
    assert body.lstrip().startswith(f'<p class="banner no-banner"><strong>{hold} of {total} claims hold</strong>')
    assert "not answered: large, since it needs a GPU" in text


def test_lines_are_those_of_the_trajectories(text, judged):
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    for one, (experiment, _) in zip(data, judged, strict=True):
        assert one["panels"][0]["name"] == "loss"
        loss = np.asarray(experiment.rungs["training"]["loss"])
        assert one["log"] == (loss.max() > 30 * loss.min())
        for panel in one["panels"]:
            for line in panel["lines"]:
                rung = experiment.rungs["training" if line["rung"] == "other" else line["rung"]]
                exact = np.asarray(rung[panel["name"]])[0].reshape(rung.time.shape[1], -1)[:, line["direction"]]
                np.testing.assert_allclose(line["y"], exact, rtol=1e-5)
                np.testing.assert_allclose(one["time"][line["rung"]], np.asarray(rung.time)[0], rtol=1e-5)


def test_long_lines_keep_their_ends_and_a_thousand_points():
    values = np.arange(12_345.0)
    thin = charts._thin(values)
    assert (thin.size, thin[0], thin[-1]) == (charts.POINTS, 0, 12_344)
    assert charts._numbers(np.array([1.23456789, np.nan])) == [1.23457, None]


@pytest.mark.parametrize(
    ("label", "words"),
    [(r"$\mathcal{M}_{12}$", "M₁₂"), (r"$\lambda_1 = 0.4$", "λ₁ = 0.4"), (r"$\kappa^* = B/C$", "κ* = B/C"), ("start", "start")],
)
def test_labels_lose_their_tex(label, words):
    assert charts.plain(label) == words


def test_a_run_that_has_only_training_is_drawn(judged):
    experiment, _ = judged[0]
    alone = replace(experiment, rungs={"training": Trajectory.stack([experiment.rungs["training"].run(0)] * 3)})
    found = charts.picture(alone)
    assert set(found["labels"]) == {"training"}
    assert [line["rung"] for line in found["panels"][0]["lines"]] == ["other", "other", "training"]


# A window of Chromium is never narrower than 500 pixels, a frame in it may be; as `srcdoc` it is rendered with its parent.
FRAME = """<!doctype html><body style="margin:0"><iframe style="width:{width}px;height:{height}px;border:0" srcdoc="{page}"></iframe>
<pre id="result"></pre>
<script>addEventListener("message", event => {{ document.getElementById("result").textContent = event.data; }});</script>"""
EARLY = "<script>window.faults = []; addEventListener('error', e => faults.push(e.message));</script>"
TOOLS = "const wait = ms => new Promise(resolve => setTimeout(resolve, ms)), all = words => [...document.querySelectorAll(words)];"
# On a busy machine the first frame comes late: a script begins when charts are there and no more of them come.
SETTLED = """const painted = () => all('.chart').filter(chart => chart.querySelector('svg.main-svg')).length;
const settled = async () => { for (let round = 0, before = 0; round < 60 && !(before && before === painted()); round++) {
  before = painted(); await Promise.race([new Promise(requestAnimationFrame), wait(100)]); await wait(100); } };"""
ATTEMPTS = 3  # a browser that paints no frame at all in its time says nothing about the page; seen once, on busy cores
TALL = 40_000  # headless Chromium paints once: all charts must be near the window then


@pytest.fixture
def browse(text, tmp_path):
    """Run a script in the page in headless Chromium, in a frame of some size, and return what it found."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed, so the page is not opened in a browser")

    def ask(script: str, *, width: int = 1280, height: int = 900) -> dict:
        found = f"{TOOLS} {SETTLED} (async () => {{ await settled(); {script} }})().catch(e => ({{error: String(e)}}))"
        asked = f'<script>{found}.then(found => parent.postMessage(JSON.stringify({{faults, charts: painted(), ...found}}), "*"));</script>'
        inside = html.escape(text.replace("<head>", f"<head>{EARLY}", 1) + asked)
        (tmp_path / "frame.html").write_text(FRAME.format(width=width, height=height, page=inside))
        quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
        quiet += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=20000"]
        words = [CHROMIUM, *quiet, f"--window-size={max(width, 500)},{height}", "--dump-dom", f"file://{tmp_path / 'frame.html'}"]
        answer: dict = {}
        for _ in range(ATTEMPTS):
            shown = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
            result = shown.rpartition('<pre id="result">')[2].partition("</pre>")[0]
            assert result, "the script in the page gave no answer"
            answer = json.loads(html.unescape(result))
            if answer.pop("charts"):
                break
        assert answer.pop("faults") == []
        assert "error" not in answer, answer
        return answer

    return ask


@pytest.mark.slow
def test_only_charts_near_the_window_are_drawn_and_nothing_is_fetched(browse, judged):
    counts = "return { drawn: painted(), count: all('.chart').length, fetched: performance.getEntriesByType('resource').length };"
    panels = sum(len(charts.picture(experiment)["panels"]) for experiment, _ in judged)
    assert browse(counts, height=500)["drawn"] < panels
    assert browse(counts, height=TALL) == {"drawn": panels, "count": panels, "fetched": 0}


@pytest.mark.slow
def test_hostile_words_do_nothing_and_the_policy_is_in_force(browse):
    found = browse(
        """let blocked = 0; addEventListener('securitypolicyviolation', () => blocked++);
        await fetch('http://127.0.0.1:9/').catch(() => null); await wait(100);
        return { hacked: window.hacked || 0, blocked, shown: document.body.innerText.includes('<script>window.hacked') };"""
    )
    assert found == {"hacked": 0, "blocked": 1, "shown": True}


@pytest.mark.slow
def test_controls_are_reached_by_keyboard_and_do_what_they_say(browse):
    found = browse(
        """const stops = all('a[href], button, summary, pre[tabindex]').filter(one => one.checkVisibility());
        const reached = stops.filter(one => { one.focus(); return document.activeElement === one; }).length;
        const chart = all('.chart')[0];
        const press = one => { one.focus(); document.activeElement.click(); return one.getAttribute('aria-pressed'); };
        const ink = () => chart.data.at(-1).line.color, paper = () => getComputedStyle(document.body).backgroundColor;
        const kinds = () => [chart.layout.xaxis.type, chart.layout.yaxis.type];
        const before = { ink: ink(), paper: paper(), kinds: kinds() };
        const pressed = all('[data-experiment="0"][data-axis]').map(press), logs = kinds();
        Plotly.relayout(chart, { 'xaxis.range[0]': 0.1, 'xaxis.range[1]': 0.5 }); await wait(300);
        const other = all('.chart')[1].layout.xaxis.range;
        document.querySelector('[data-reset="0"]').click(); await wait(300);
        const reset = chart.layout.xaxis.range[1] > 0.5;
        press(document.getElementById('theme')); await wait(300);
        const rows = () => all('section tr.verdict').filter(row => row.checkVisibility()).length, every = rows();
        press(document.querySelector('[data-show="no"]'));
        return { first: stops[0].className, stops: stops.length, reached, before, after: { ink: ink(), paper: paper() },
          pressed, logs, other, reset, every, failing: rows() };""",
        height=TALL,
    )
    assert found["first"] == "skip-link"
    assert found["reached"] == found["stops"] > 15
    assert found["before"]["kinds"] == ["linear", "linear"]
    assert found["pressed"] == ["true", "true"]
    assert found["logs"] == ["log", "log"]
    assert found["other"] == [0.1, 0.5]  # panels of an experiment share their clock
    assert found["reset"] is True
    assert found["after"]["ink"] != found["before"]["ink"]
    assert found["after"]["paper"] != found["before"]["paper"]
    assert found["every"] > found["failing"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_window(browse, width):
    found = browse(
        """all('details').forEach(one => { one.open = true; }); await wait(200);
        const wide = all('main *').filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.chart, pre, thead'));
        return { window: innerWidth, page: document.documentElement.scrollWidth, drawn: painted(),
          wide: wide.map(one => one.outerHTML.slice(0, 80)) };""",
        width=width,
        height=TALL,
    )
    assert found["window"] == width
    assert found["page"] <= width
    assert found["wide"] == []
    assert found["drawn"] == 5


def test_the_theory_of_an_unfinished_training_is_no_reason_to_fail():
    short = perform(replace(tiers.GAINS, horizon=0.02, points=3))
    assert all(np.isfinite(panel["levels"][0]["value"]) for panel in charts.picture(short)["panels"])
