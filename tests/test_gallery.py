"""The gallery: every figure listed with its verdicts, nothing made twice, one that fails does not lose the others."""

import importlib
import json
import re
from html.parser import HTMLParser

import pytest
from drawn import GOOD, PROBLEM, listed
from matplotlib.text import Text
from small import SMALL

import figures.__main__ as gallery
from figures import build, chen2024_fig4, chen2024_fig5, index, style
from validate import store

REPRODUCED = {
    "arXiv:2501.16265": {"Figure 1", "Figure 3", "Figure 4", "Figure 5", "Figure 6", "Figure 11", "Figure 12", "Figure 14"},
    "arXiv:2402.19442": {"Figure 1", "Figure 3", "Figure 4", "Figure 5"},
    "arXiv:2408.04532": {"after Figure 1b; ours", "Figure 1c and 1d"},
}


@pytest.mark.parametrize("name", gallery.names())
def test_a_figure_says_what_it_is(name):
    module = importlib.import_module(f"figures.{name}")
    record = index.about(name, module)
    assert record["paper"] in index.PAPERS
    assert re.fullmatch(r"Figure \d+|Figure 1c and 1d|(after Figure 1b; )?ours", record["number"])
    assert len(record["caption"]) > 100
    assert record["title"].endswith(".")
    full, fast = module.SECONDS
    assert 0 < fast <= full


def test_every_figure_that_can_be_reproduced_is_there():
    found = [importlib.import_module(f"figures.{name}").PAPER.partition(", ") for name in gallery.names()]
    for paper, numbers in REPRODUCED.items():
        assert numbers <= {number for which, _, number in found if which == paper}


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_the_same_data_gives_the_same_bytes(kind, tmp_path):
    paths = [tmp_path / f"{name}.{kind}" for name in ("first", "second")]
    for path in paths:
        style.save(chen2024_fig4.draw({}), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert not re.search(rb"CreationDate|dc:date|ModDate|tIME", first)


@pytest.mark.parametrize("width", style.WIDTHS)
@pytest.mark.parametrize("module", [chen2024_fig4, chen2024_fig5], ids=lambda module: module.__name__)
def test_a_picture_is_as_wide_as_asked_with_readable_text_inside(module, width):
    figure = module.draw({}, style.WIDTHS[width])
    figure.canvas.draw()
    assert figure.get_figwidth() == style.WIDTHS[width]
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    assert len(texts) > 10
    assert min(text.get_fontsize() for text in texts) >= style.SMALL
    inside = figure.bbox.padded(1)
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert inside.contains(label.x0, label.y0)
    assert inside.contains(label.x1, label.y1)


def test_one_column_puts_panels_below_each_other():
    figure, panels = style.grid(style.COLUMN, 1, 3, height=2.0)
    assert [axes.get_subplotspec().rowspan.start for axes in panels] == [0, 1, 2]
    style.plt.close(figure)
    figure, panels = style.grid(style.FULL, 1, 3, height=2.0)
    assert [axes.get_subplotspec().colspan.start for axes in panels] == [0, 1, 2]
    style.plt.close(figure)


def test_labels_that_crowd_are_joined():
    figure, (axes,) = style.grid(style.FULL, 1, 1, height=2.0)
    axes.set_ylim(0, 1)
    style.margin(axes, [(0.9, "0", "k"), (0.21, "7", "k"), (0.2, "8", "k")], joined="$m={}$")
    assert [text.get_text() for text in axes.texts] == [r"$m=7,\,8$", "$m=0$"]
    style.plt.close(figure)


def test_what_is_kept_has_the_same_bytes_each_time(tmp_path):
    for name in ("first", "second"):
        store.keep(tmp_path / name, PROBLEM)
    names = {path.name for path in (tmp_path / "first").glob("*.npz")}
    assert "training.npz" in names
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert store.judged(tmp_path / "first", PROBLEM)["verdicts"]


def test_a_report_of_another_problem_or_version_is_not_used(tmp_path):
    folder = tmp_path / "kept"
    store.keep(folder, PROBLEM)
    assert store.judged(folder, PROBLEM)
    assert store.judged(folder, SMALL) is None
    report = json.loads((folder / "report.json").read_text())
    report["provenance"]["versions"]["jax"] = "0"
    (folder / "report.json").write_text(json.dumps(report))
    assert store.judged(folder, PROBLEM) is None
    (folder / "report.json").write_text("half a rep")
    assert store.judged(folder, PROBLEM) is None


def test_a_second_build_makes_nothing_again(more, tmp_path, capsys, monkeypatch):
    (more / "good.py").write_text(GOOD)
    out = tmp_path / "out"
    assert gallery.main(["good", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "good: will compute a problem (about 1 s on two cores)" in told.err
    record = listed(out)["good"]
    assert record["files"] == {"png": "good.png"}
    assert record["of"] > record["hold"] > 5 or record["of"] == record["hold"] > 5
    assert record["seconds"]["computing"] > 0

    before = (out / "good.png").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(store, "keep", None)
        patch.setattr(store, "read", None)
        assert gallery.main(["good", "--out", str(out)]) == 0
    assert (out / "good.png").stat().st_mtime_ns == before
    assert "1 of 1 unchanged" in capsys.readouterr().out
    assert listed(out)["good"] == record

    with monkeypatch.context() as patch:  # drawn again from what is kept: another kind, another width, another text
        patch.setattr(store, "keep", None)
        assert gallery.main(["good", "--out", str(out), "--format", "svg"]) == 0
        assert listed(out)["good"]["files"] == {"png": "good.png", "svg": "good.svg"}
        assert gallery.main(["good", "--out", str(out), "--width", "column"]) == 0
        assert listed(out / "column")["good"]["command"] == "python -m figures good --width column"
        (more / "good.py").write_text(GOOD + "# and more\n")
        assert gallery.main(["good", "--out", str(out)]) == 0
        assert set(listed(out)["good"]["files"]) == {"png", "svg"}
    assert (out / "good.png").stat().st_mtime_ns > before
    assert not list(out.rglob(".*"))


def test_a_figure_that_fails_does_not_lose_the_others(more, tmp_path, capsys):
    (more / "bad.py").write_text(GOOD.replace("    return figure", '    raise ValueError("there is no such line\\nat all")'))
    (more / "broken.py").write_text("import nothing_of_that_name\n\ndef problems(fast):\n    return {}\n")
    (more / "good.py").write_text(GOOD)
    out = tmp_path / "out"
    assert gallery.main(["bad", "broken", "good", "--out", str(out)]) == 1
    told = capsys.readouterr().err
    assert "bad: failed: ValueError: there is no such line\n" in told
    assert told.endswith("figures: broken, bad failed, as told above; the others are there\n")
    assert "Traceback" not in told
    records = listed(out)
    assert records["bad"]["error"] == "ValueError: there is no such line"
    assert "ModuleNotFoundError" in records["broken"]["error"]
    assert records["good"]["files"] == {"png": "good.png"}
    assert not (out / "bad.png").exists()
    page = (out / "index.html").read_text()
    assert "Not there: ValueError: there is no such line" in page


def test_an_interruption_leaves_nothing_half_written(more, tmp_path, capsys):
    (more / "good.py").write_text(GOOD)
    (more / "long.py").write_text(GOOD.replace("    return figure", "    raise KeyboardInterrupt"))
    out = tmp_path / "out"
    assert gallery.main(["good", "long", "--out", str(out)]) == 130
    assert "nothing half-written" in capsys.readouterr().err
    assert list(listed(out)) == ["good"]
    assert {path.name for path in out.iterdir()} == {"good.png", "index.html", "index.json", "data"}
    assert not list(out.rglob(".*"))


class Tags(HTMLParser):
    """Tags that are open, and what pictures say."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.pictures, self.ids, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        if tag == "img":
            self.pictures.append(found)
        elif tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_sound(more, tmp_path):
    (more / "good.py").write_text(GOOD)
    out = tmp_path / "out"
    assert gallery.main(["good", "chen2024_fig4", "--out", str(out)]) == 0
    page = (out / "index.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    assert {link[1:] for link in tags.links if link.startswith("#")} <= set(tags.ids)
    assert all((out / link).exists() for link in tags.links if not link.startswith("#"))  # and nothing of the network
    assert [picture["src"] for picture in tags.pictures] == ["good.png", "chen2024_fig4.png"]  # in the order of the papers
    assert tags.pictures[0]["alt"] == "A good <figure> & more."
    assert {picture["loading"] for picture in tags.pictures} == {"lazy"}
    assert "What was &lt;computed&gt; &amp; drawn." in page
    assert re.search(r"\d+ of \d+ verdicts hold", page)
    assert "python -m figures good" in page
    assert "No experiment of its own" in page


def test_a_picture_depends_on_what_it_is_drawn_with():
    assert build.drawn_with("zhang2025_fig11") == ["panels", "ranks", "style", "zhang2025_fig11"]
    assert "chen2024_fig4" in build.drawn_with("chen2024_fig5")


def test_figures_come_by_paper_and_number():
    records = [index.about(name, importlib.import_module(f"figures.{name}")) for name in gallery.names()]
    ordered = [record["name"] for record in sorted(records, key=index._order)]
    assert ordered[:3] == ["zhang2025_fig1", "zhang2025_fig3", "zhang2025_fig4"]
    assert ordered.index("zhang2025_fig14") < ordered.index("principal_components") < ordered.index("chen2024_fig1")
    assert ordered[-1] == "sparse_referees"
