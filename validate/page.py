"""The page of a validation or of a run: what holds, in one look; then every experiment with its overlays, verdicts and provenance.

One file that needs no network, and is not allowed any by its own policy. Plotly is written into it once, after the text, and draws a chart
only when it comes near the window. All words of users are escaped, and data inside a script holds no "<".
"""

import json
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

from validate import report as reporting
from validate.html import escape, shell

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
WORDS = {True: ("yes", "holds"), False: ("no", "FAILS"), None: ("skip", "skipped")}
LADDER = "closed form ↔ reduced ODE ↔ population flow ↔ full-batch descent ↔ stochastic descent"


def validation(summary: dict[str, Any], pictures: list[dict[str, Any]]) -> str:
    """The page of `python -m validate`."""
    reports = summary["reports"]
    told = "".join(f'<p class="soft">{escape(line)}</p>' for line in [*reporting.closing(summary).splitlines(), f"The ladder: {LADDER}"])
    top = _banner(summary["counts"], reports) + told + _contents(reports) + _filter(summary["counts"])
    return _page("Validation", top, reports, pictures)


def experiment(report: dict[str, Any], picture: dict[str, Any]) -> str:
    """The page of one run."""
    return _page(report["name"], _banner(report["counts"], [report]), [report], [picture])


def _page(title: str, top: str, reports: list[dict[str, Any]], pictures: list[dict[str, Any]]) -> str:
    sections = "".join(_experiment(index, *each) for index, each in enumerate(zip(reports, pictures, strict=True)))
    drawn = [{key: picture[key] for key in ("clock", "log", "labels", "time", "panels")} for picture in pictures]
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    scripts = f'<script type="application/json" id="data">{data}</script>\n<script>{get_plotlyjs()}</script>'
    asset = lambda name: resources.files("validate").joinpath(name).read_text(encoding="utf-8")
    head = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<style>{asset("page.css")}</style>\n'
    return shell(title, top + sections + scripts, script=asset("page.js"), head=head)


def _banner(counts: dict[str, int], reports: list[dict[str, Any]]) -> str:
    """The message, visible in five seconds."""
    word = "no" if counts["fail"] else "yes"
    text = f'<p class="banner {word}-banner"><strong>{counts["hold"]} of {sum(counts.values())} claims hold</strong>'
    text += f"<span>{counts['fail']} fail, {counts['skip']} skipped for a condition that is not met</span></p>"
    failed = [(index, one["name"], verdict) for index, one in enumerate(reports) for verdict in one["verdicts"] if verdict["ok"] is False]
    if not failed:
        return text
    entries = "".join(
        f'<li><a href="#e{index}">{escape(name)}</a>: {escape(verdict["claim"])}: {_number(verdict["measured"])}, '
        f"allowed {_number(verdict['bound'])}</li>"
        for index, name, verdict in failed
    )
    return f'{text}<ul class="broken">{entries}</ul>'


def _contents(reports: list[dict[str, Any]]) -> str:
    """The table of contents: one line for each experiment."""
    rows = []
    for index, report in enumerate(reports):
        counts, problem = report["counts"], report["provenance"]["problem"]
        share = "".join(f'<i class="{word}-bar" style="flex-grow:{counts[key]}"></i>' for key, word in KEYS if counts[key])
        cells = [
            f'<a href="#e{index}">{escape(report["name"])}</a><br><span class="soft">{escape(problem["title"])}</span>',
            f'<span class="bar" aria-hidden="true">{share}</span>{escape(reporting.tally(counts))}',
            escape(" ↔ ".join(report["ladder"])),
            escape(_closest(report["verdicts"])),
        ]
        rows.append(_row(zip(COLUMNS, cells, strict=True), report["ok"]))
    return f'<nav aria-label="Experiments">{_table("Experiments", COLUMNS, rows)}</nav>'


KEYS = (("hold", "yes"), ("fail", "no"), ("skip", "skip"))
COLUMNS = ("experiment", "claims", "rungs", "nearest to its bound")


def _closest(verdicts: list[dict[str, Any]]) -> str:
    """The claim that holds by the smallest margin, where there is a margin to speak of."""
    shares = [(one["measured"] / one["bound"], one["claim"]) for one in verdicts if one["ok"] and one["bound"] > 0 and one["measured"]]
    return f"{100 * max(shares)[0]:.0f} %: {max(shares)[1]}" if shares else "-"


def _filter(counts: dict[str, int]) -> str:
    """Buttons that leave only the verdicts of one kind."""
    choices = [("all", f"all {sum(counts.values())}"), ("no", f"{counts['fail']} that fail"), ("skip", f"{counts['skip']} skipped")]
    buttons = "".join(
        f'<button type="button" data-show="{key}" aria-pressed="{str(key == "all").lower()}">{text}</button> ' for key, text in choices
    )
    return f'<p class="controls" role="group" aria-label="Which verdicts to show">show verdicts: {buttons}</p>'


def _experiment(index: int, report: dict[str, Any], picture: dict[str, Any]) -> str:
    """One experiment: charts, verdicts, provenance."""
    problem = report["provenance"]["problem"]
    charts = "".join(
        f'<figure aria-label="{escape(panel["summary"])}"><figcaption>{escape(panel["title"])}</figcaption>'
        f'<div class="chart" data-experiment="{index}" data-panel="{number}"></div>'
        f"<details><summary>in words</summary><p>{escape(panel['summary'])}</p></details></figure>"
        for number, panel in enumerate(picture["panels"])
    )
    keys = "".join(f'<span class="key {rung}-key">{escape(label)}</span>' for rung, label in picture["labels"].items())
    controls = "".join(
        f'<button type="button" data-axis="{axis}" data-experiment="{index}" aria-pressed="{on}">{escape(text)}</button> '
        for axis, text, on in (("x", f"log {picture['clock']}", "false"), ("y", "log values", "true" if picture["log"] else "false"))
    )
    controls += f'<button type="button" data-reset="{index}">reset zoom</button>'
    return (
        f'<section id="e{index}"><h2>{escape(report["name"])}</h2><p>{escape(problem["title"])} '
        f'<span class="soft">{escape(problem["reference"])}</span></p>'
        f'<p class="keys">{keys}<span class="key level-key">levels and drop times of the theory</span></p>'
        f'<p class="controls" role="group" aria-label="Axes of {escape(report["name"])}">{controls}</p><div class="charts">{charts}</div>'
        f"{_verdicts(report)}{_provenance(report, picture)}</section>"
    )


def _verdicts(report: dict[str, Any]) -> str:
    columns = ("verdict", "claim", "measured", "bound", "where and how exact", "why this bound")
    rows = []
    for verdict in report["verdicts"]:
        css, word = WORDS[verdict["ok"]]
        claim = escape(verdict["claim"]) + (f'<br><span class="soft">{escape(verdict["note"])}</span>' if verdict["note"] else "")
        where = ", ".join(text for text in (verdict["place"], verdict["exactness"]) if text)
        cells = (f'<span class="{css}">{word}</span>', claim, _number(verdict["measured"]), _number(verdict["bound"]))
        rows.append(_row(zip(columns, (*cells, escape(where), escape(verdict["reason"])), strict=True), verdict["ok"]))
    return _table(f"Claims about {report['name']}: {reporting.tally(report['counts'])}", columns, rows)


def _provenance(report: dict[str, Any], picture: dict[str, Any]) -> str:
    origin = report["provenance"]
    entries = {
        "problem": origin["hash"],
        "commit": origin["commit"] or "unknown",
        "platform": origin["platform"],
        "versions": ", ".join(f"{name} {version}" for name, version in origin["versions"].items()),
        "seconds": ", ".join(f"{name} {seconds:.1f}" for name, seconds in report["seconds"].items()),
        "processor seconds": f"{report['processor seconds']:.1f}" if "processor seconds" in report else "not counted",
        "rungs left out": "; ".join(f"{rung}: {reason}" for rung, reason in report["missing"].items()) or "none",
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries.items())
    return (
        f'<details class="origin"><summary>Where this comes from, and the problem as TOML</summary><dl>{listed}</dl>'
        f'<pre tabindex="0">{escape(picture["toml"])}</pre></details>'
    )


def _table(caption: str, columns: tuple[str, ...], rows: list[str]) -> str:
    heads = "".join(f'<th role="columnheader" scope="col">{column}</th>' for column in columns)
    return (
        f'<table role="table"><caption>{escape(caption)}</caption><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )


def _row(cells: Any, ok: bool | None) -> str:
    """A row of ready cells; on a phone each becomes a line with the column's name before it."""
    css = lambda column: ' class="number"' if column in ("measured", "bound") else ""
    made = "".join(f'<td role="cell" data-label="{column}"{css(column)}><div>{cell}</div></td>' for column, cell in cells)
    return f'<tr role="row" class="verdict is-{WORDS[ok][0]}">{made}</tr>'


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
