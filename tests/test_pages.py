"""Pages made from the code: they are not stale, their formulas say what the docstrings say, and the site builds without network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402 (behind the path)
import notation  # noqa: E402
import theory_pages  # noqa: E402

from spectral_ode import systems  # noqa: E402

DOCSTRINGS = {f"{paper}/{name}": text for paper in theory_pages.papers() for name, text in theory_pages.modules(paper).items()}
FORMULAS = [
    ("lam_d^2 sig_d", r"\lambda_{d}^{2} \sigma_{d}"),
    ("A*_d = g_d / (C_d lam_d)", r"A^{\ast}_{d} = g_{d} / (C_{d} \lambda_{d})"),
    ("k_ir^T G q_ir", "k_{ir}^{T} G q_{ir}"),
    ("sum_{d in S} gain_d", r"\sum_{d \in S} \mathrm{gain}_{d}"),
    ("v* = (lam c)^(-1/3)", r"v^{\ast} = (\lambda c)^{-1/3}"),
    ("e^{-t e^{sqrt(v) x}}", r"e^{-t e^{\sqrt{v} x}}"),
    ("arctan((2s+1)/sqrt 3)/sqrt 3", r"\arctan ((2s+1)/\sqrt{3})/\sqrt{3}"),
    ("<U_i, G> < 1", r"\langle U_{i}, G\rangle \lt 1"),
    ("prod_{i<k} (n + 2i)", r"\prod_{i\lt k} (n + 2i)"),
    ("yhat = beta^T A x_q", r"\hat{y} = \beta^{T} A x_{q}"),
    ("w2^T W1 z, k.G q, 0.15 x", r"w_{2}^{T} W_{1} z, k \cdot G q, 0.15 x"),
    ("r = 1..R, S = {1, 2}, ...", r"r = 1, \dots, R, S = \lbrace 1, 2\rbrace, \dots"),
    ("x -> -inf, e^kappa << L, +-1", r"x \to -\infty, e^{\kappa} \ll L, \pm 1"),
    ("w_init, t_half, lam_max", r"w_{\mathrm{init}}, t_{\mathrm{half}}, \lambda_{\mathrm{max}}"),
    ("conserved: o^2 and k^2", r"\text{conserved: } o^{2} \text{ and } k^{2}"),
    ("l such that m", r"l \text{ such that } m"),
    ("[[P, Q], [1, 2 y]]", r"\begin{pmatrix} P & Q \\ 1 & 2 y \end{pmatrix}"),
    ("dW/dt", "d W/d t"),
    ("C_{v_h v_g}, E_{2 tau}[r^2], [x]_+", r"C_{v_{h} v_{g}}, E_{2 \tau}[r^{2}], [x]_{+}"),
]


@pytest.mark.parametrize(("text", "latex"), FORMULAS)
def test_notation_becomes_latex(text, latex):
    assert notation.latex(text) == latex


def test_a_displayed_block_has_a_row_per_line_and_per_gap_and_stacks_derivatives():
    block = "    dv_i/dt = <U_i, G>,    dU/dt = G\n      + (1/2) d/dtheta L"
    assert notation.display(block).splitlines() == [
        r"\begin{align*}",
        r"& \frac{d v_{i}}{d t} = \langle U_{i}, G\rangle, \\",
        r"& \frac{d U}{d t} = G \\",
        r"& \qquad + (1/2) \frac{d}{d \theta} L",
        r"\end{align*}",
    ]
    assert notation.display("    a = b") == "a = b"


def test_an_open_bracket_is_noticed():
    with pytest.raises(ValueError, match="not closed"):
        notation.latex("e^{-x")


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_formulas_of_a_docstring_are_marked_and_can_be_typeset(name):
    convert = pytest.importorskip("latex2mathml.converter", reason="formulas of the site are made by latex2mathml").convert
    page = theory_pages.markdown(DOCSTRINGS[name], {})
    for latex in re.findall(r"\$`(.+?)`\$", page) + re.findall(r"^```math\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL):
        made = ElementTree.fromstring(convert(latex))
        words = ["".join(text.itertext()) for text in made.iter("{http://www.w3.org/1998/Math/MathML}mtext")]
        assert not any("\\" in word or "_" in word for word in words), latex
    blocks = [block for block in re.split(r"\n\s*\n", DOCSTRINGS[name]) if not block.startswith("    ")]
    prose = re.sub(r"`[^`]+`|\$[^$]+\$", "", "\n".join(blocks))
    unmarked = [word for word in re.findall(r"\S*[\^*_]\S*", prose) if word not in ("2^D", "tests/test_expectations.py.")]
    assert not unmarked, "formulas stand between dollar signs"


def test_pages_are_what_the_code_says_now():
    assert generate.stale() == [], "run python docs/generate.py"


def test_a_changed_docstring_or_claim_makes_a_page_stale(monkeypatch):
    before = theory_pages.page("sparse")
    monkeypatch.setattr(theory_pages, "_docstring", lambda path: "Another title. With $lam_d$ in it.")
    assert r"$`\lambda_{d}`$" in theory_pages.page("sparse") != before
    monkeypatch.undo()
    monkeypatch.setattr(theory_pages, "measured", lambda system, problem: list(system.claims(problem))[:1])
    assert theory_pages.page("sparse") != before


def test_every_system_has_its_claims_on_a_page():
    pages = "".join((ROOT / "docs/theory" / f"{paper}.md").read_text(encoding="utf-8") for paper in theory_pages.papers())
    for name in systems.names():
        words, problem = theory_pages.example(name)
        claims = theory_pages.measured(systems.load(name).from_problem(problem), problem)
        section = pages.partition(f"## Claims of {name}\n")[2].partition("\n## ")[0]
        assert words in section
        assert section.count("\n| ") - 1 == len(claims) > 0


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("zensical", reason="the site is built by zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    words = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path / "docs")}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 15
    for path, text in pages.items():
        assert not re.search(r'<(?:script|img|iframe|source)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//', text), path
        assert "$`" not in text, path
    assert pages[tmp_path / "site/theory/linear.html"].count("<math") > 100
