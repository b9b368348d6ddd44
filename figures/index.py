"""The index of a gallery: a page for people, `index.html`, and the same for machines, `index.json`, the memory of what was made."""

import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image

from validate.html import escape, shell

PAPERS = {
    "arXiv:2501.16265": "Linear attention: Zhang, Singh, Latham, Saxe, Training Dynamics of In-Context Learning in Linear Attention",
    "arXiv:2402.19442": "Softmax attention: Chen, Sheen, Wang, Yang, Training Dynamics of Multi-Head Softmax Attention for ICL",
    "arXiv:2408.04532": "Sparse regression: Chen, Zhao, Zou, How Transformers Utilize Multi-Head Attention in In-Context Learning?",
}
OURS = "ours"
WORDS = {True: '<span class="yes">yes</span>', False: '<span class="no">NO</span>', None: '<span class="skip">skipped</span>'}
SMALL = (
    "These are <strong>small versions</strong>: they show that everything works, not how well a claim holds. It is judged only whether "
    "each trajectory came to its end; bounds, and numbers in captions, are for the full sizes, which <code>python -m figures</code> makes."
)


def about(name: str, module: ModuleType) -> dict[str, Any]:
    """What a figure says of itself; the first line of its docstring is what it shows, in words for those who do not see it."""
    paper, _, number = module.PAPER.partition(", ")
    title = (module.__doc__ or name).partition("\n")[0]
    return {"name": name, "paper": paper, "number": number, "title": title, "caption": module.CAPTION}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of figures that are in a folder, by name; empty where there is no index that can be read."""
    try:
        found = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        return {record["name"]: record for record in found["figures"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write(folder: Path, records: dict[str, dict[str, Any]], *, fast: bool) -> None:
    """Both files, each aside and then renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(records.values(), key=_order)
    for record in ordered:
        verdicts = _verdicts(record)
        record |= {"hold": sum(verdict["ok"] is True for verdict in verdicts), "of": len(verdicts)}
    data = {"small": fast, "figures": ordered}
    for name, text in (("index.json", json.dumps(data, indent=1) + "\n"), ("index.html", page(ordered, folder, fast=fast))):
        aside = folder / f".{name}.{os.getpid()}"
        try:
            aside.write_text(text, encoding="utf-8")
            os.replace(aside, folder / name)
        finally:
            aside.unlink(missing_ok=True)


def page(records: list[dict[str, Any]], folder: Path, *, fast: bool) -> str:
    """The page: figures grouped by paper."""
    papers = list(dict.fromkeys(record.get("paper", "") for record in records))
    judged = [verdict for record in records for verdict in _verdicts(record)]
    parts = [f"<p>{len(records)} figures; {_count(judged)}. A line of theory in them is never fitted.</p>"]
    if fast:
        parts.append(f"<p>{SMALL}</p>")
    links = lambda paper: " ".join(
        f'<a href="#{escape(record["name"])}">{escape(_short(record))}</a>' for record in records if record.get("paper", "") == paper
    )
    parts.append('<nav aria-label="Figures"><ul>')
    parts += [f'<li><a href="#{escape(paper)}">{escape(paper or "without a paper")}</a>: {links(paper)}</li>' for paper in papers]
    parts.append("</ul></nav>")
    for paper in papers:
        parts.append(f'<h2 id="{escape(paper)}">{escape(PAPERS.get(paper, paper))} <span class="soft">({escape(paper)})</span></h2>')
        parts += [_figure(record, folder) for record in records if record.get("paper", "") == paper]
    return shell("Figures of spectral_ode" + (", small versions" if fast else ""), "\n".join(parts))


def _figure(record: dict[str, Any], folder: Path) -> str:
    name, place = escape(record["name"]), escape(", ".join(filter(None, (record.get("paper"), record.get("number")))))
    head = f'<article id="{name}" style="margin: 0 0 2.5rem">\n<h3>{escape(record.get("title", record["name"]))}</h3>'
    if "error" in record:
        return f'{head}\n<p class="no">Not there: {escape(record["error"])}</p>\n<p class="soft">{place}</p>\n</article>'
    picture, *others = record["files"].values()
    with Image.open(folder / picture) as image:
        width, height = image.size
    size = f'width="{width}" height="{height}" style="background: #fff; border-radius: 6px"'
    more = "".join(f', <a href="{escape(file)}">{escape(file.rpartition(".")[2])}</a>' for file in others)
    took = record["seconds"]
    computed = f"computed in {_seconds(took['computing'])}, " if record["experiments"] else ""
    return f"""{head}
<a href="{escape(picture)}"><img src="{escape(picture)}" alt="{escape(record["title"])}" loading="lazy" {size}></a>
<p>{escape(record["caption"])}</p>
<p class="soft">{place}; {computed}drawn in {_seconds(took["drawing"])}; <code>{escape(record["command"])}</code>{more}</p>
{_table(record)}
</article>"""


def _table(record: dict[str, Any]) -> str:
    verdicts = _verdicts(record)
    if not verdicts:
        return '<p class="soft">No experiment of its own: what is drawn is computed while drawing.</p>'
    rows = []
    for experiment, found in record["experiments"].items():
        rows.append(
            f'<tr><th colspan="4" scope="colgroup">{escape(experiment)} <span class="soft">{escape(found["problem"])}</span></th></tr>'
        )
        for verdict in found["verdicts"]:
            note = f'<br><span class="soft">{escape(verdict["note"])}</span>' if verdict["note"] and verdict["ok"] is not True else ""
            numbers = "".join(f'<td class="number">{_number(verdict[key])}</td>' for key in ("measured", "bound"))
            rows.append(f"<tr><td>{escape(verdict['claim'])}{note}</td>{numbers}<td>{WORDS[verdict['ok']]}</td></tr>")
    right = ' class="number"'
    heads = f'<th scope="col">claim</th><th scope="col"{right}>measured</th><th scope="col"{right}>bound</th><th scope="col">ok</th>'
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<details><summary>{_count(verdicts)}</summary><div class="wide">{body}</div></details>'


def _verdicts(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [verdict for found in record.get("experiments", {}).values() for verdict in found["verdicts"]]


def _count(verdicts: list[dict[str, Any]]) -> str:
    """How many verdicts hold, in words."""
    hold, fail, skipped = (sum(verdict["ok"] is word for verdict in verdicts) for word in (True, False, None))
    parts = [f'<span class="no">{fail} do not</span>' if fail else "", f"{skipped} skipped" if skipped else ""]
    return ", ".join([f'<span class="yes">{hold} of {len(verdicts)} verdicts hold</span>', *filter(None, parts)])


def _order(record: dict[str, Any]) -> tuple[int, str, bool, int, str]:
    """Papers as listed above, their figures by number, then ours by name."""
    paper, number = record.get("paper", ""), record.get("number", OURS)
    rank = list(PAPERS).index(paper) if paper in PAPERS else len(PAPERS)
    digits = re.search(r"\d+", number)
    return rank, paper, digits is None, int(digits.group()) if digits else 0, record["name"]


def _short(record: dict[str, Any]) -> str:
    number = record.get("number", OURS)
    return record["name"].replace("_", " ") if OURS in number else number


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
