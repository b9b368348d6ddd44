"""The documents: every command and snippet in them is run, what they show as output is what comes out, every link leads somewhere.

A page is run from its top to its end, in one namespace and in one folder. Commands are given to the programs' own `main`.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import benchmarks.__main__ as benchmarking
import figures.__main__ as gallery
import validate.__main__ as validation
from spectral_ode import cli, cluster, meeting, systems, weights
from validate import mutate

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "validate/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAINS = {"spectral_ode": cli.main, "validate": validation.main, "figures": gallery.main, "benchmarks": benchmarking.main}

# Commands that run to their end, by how they begin, with what is added to make them short enough for a test. All others are parsed,
# their problems are resolved, checked and reduced, and they are stopped where computing would begin: they take minutes.
THROUGH = {
    "python -m spectral_ode compare": "",
    "python -m spectral_ode replay": "",
    "python -m spectral_ode run one_head.toml": "",
    "python -m spectral_ode sensitivity saddle-to-saddle --of half-1": "",
    "python -m spectral_ode sweep saddle-to-saddle --over start.scale=0.2,0.3,0.4": "",
    "python -m validate one_head.toml": "",
    "python -m spectral_ode run saddle-to-saddle": "--horizon 3000 --points 200",  # two of four drops; only as it stands there, no flags
}
NOT_RUN = {"source .venv/bin/activate"}  # what a shell must do itself
SHOWN = {"py", "math"}  # blocks that are nothing to run: signatures, formulas


class Begun(BaseException):
    """A command has come to where its computing begins."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with the recorded files of the tests, as if it were the repository's."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("spectral_ode.systems.one_head")]:
        del sys.modules[name]


class Ran(NamedTuple):
    """What came of a command; no code: it was stopped where computing begins. `whole`: it ran as it stands."""

    line: str
    output: str
    code: int | None
    whole: bool


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_from_its_top_to_its_end(page, folder, monkeypatch):
    text, names = (ROOT / page).read_text(encoding="utf-8"), {"__name__": "page"}
    ran: Ran | None = None
    for kind, content in BLOCK.findall(text):
        language, _, rest = kind.partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        if language == "text":
            assert ran, f"output without a command: {content}"
            _same(content, ran)
            ran = None
            continue
        _succeeded(ran)
        ran = None
        if title:
            (folder / title[1]).parent.mkdir(exist_ok=True)
            (folder / title[1]).write_text(content, encoding="utf-8")
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(content, page, "exec"), names)
            ran = Ran(content, printed.getvalue(), 0, False)
        elif language == "":
            for line in content.splitlines():
                _succeeded(ran)
                ran = _command(line.partition("#")[0].strip(), monkeypatch)
        else:
            assert language in SHOWN, f"what is a block of {language}?"
    _succeeded(ran)
    for line in set(re.findall(r"`(python -m [^`]+)`", BLOCK.sub("", text))):
        if not re.search(r"\[|\.\.\.|\b[A-Z]{3,}\b", line):  # placeholders
            _succeeded(_command(line, monkeypatch))


def _succeeded(ran: Ran | None) -> None:
    assert ran is None or ran.code in (0, None), f"{ran.line}: {ran.output}"


def _same(shown: str, ran: Ran) -> None:
    """Every line shown is a line that came out. Numbers that were measured may differ; what they are of, and the verdict, may not."""
    came = [line.strip() for line in ran.output.splitlines()]
    assert ran.code is not None, f"output is shown of {ran.line}, which is not run to its end here"
    assert ran.code == (2 if shown.startswith("spectral_ode: ") else 0), ran.output
    for line in shown.splitlines():
        name, *columns = re.split(r"\s{2,}", line.strip())
        found = [other for other in came if other == name or (columns and other.startswith(f"{name}  "))]
        assert found, f"{ran.line} does not say: {line}"
        assert not columns or not ran.whole or found[0].split()[-1] == columns[-1], found[0]


def _command(line: str, monkeypatch) -> Ran | None:
    """Run a line of a shell block."""
    if not line or line in NOT_RUN:
        return None
    words = shlex.split(line)
    while "=" in words[0] or words[0] == "srun":  # variables and launchers of a shell
        words.pop(0)
    if words[0] == "make":
        assert all(f"\n{word}:" in (ROOT / "Makefile").read_text() for word in words[1:]), line
        return None
    if words[0] == "export":
        monkeypatch.setenv(*words[1].split("=", 1))
        monkeypatch.setattr(systems, "__path__", [*systems.__path__, *systems.elsewhere()])
        return None
    if words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists(), line
        return None
    assert words[:2] == ["python", "-m"], f"what does {line!r} do?"
    words, target = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
    added = next((more for begin, more in THROUGH.items() if line == begin or (not more and line.startswith(begin))), None)
    output, code = _main(words[2], [*words[3:], *(added or "").split()], through=added is not None)
    if target:
        Path(target).write_text(output, encoding="utf-8")
    return Ran(line, output, code, not added)


def _main(program: str, words: list[str], *, through: bool) -> tuple[str, int | None]:
    def begin(*_, **__):
        raise Begun

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.MonkeyPatch.context() as patch:
        if not through:
            patch.setattr(weights, "draw", begin)
            patch.setattr(ProcessPoolExecutor, "__init__", begin)
            patch.setattr(mutate, "trial", begin)
            patch.setattr(meeting, "meet", begin)
            patch.setattr("jax.distributed.initialize", begin)
            patch.setattr(cluster, "_others", [])  # which process a command is
            patch.setattr(benchmarking, "perform", begin)
            for name in set(words) & set(gallery.names()) if program == "figures" else ():
                patch.setattr(f"figures.{name}.draw", begin)  # a figure that needs no experiment
        try:
            code = MAINS[program](words)
        except Begun:
            code = None
        except SystemExit as end:  # --help
            code = int(end.code or 0)
    return out.getvalue(), code


def test_a_wrong_command_a_wrong_snippet_and_a_wrong_output_are_noticed(folder, monkeypatch):
    """The check above, given pages with a mistake."""
    for mistake in (
        "```\npython -m spectral_ode run saddle-to-saddel\n```",
        "```\npython -m figures zhang2025_fig33\n```",
        "```\npython -m spectral_ode lost\n```",
        "```\nmake rum\n```",
        "```\nrm -r x\n```",
        "```python\nimport spectral_ode\nspectral_ode.lode\n```",
        "```\npython -m spectral_ode list\n```\n\n```text\nlinear.seperate\n```",
        "```\npython -m spectral_ode run saddle-to-saddle --start.scal 1\n```\n",
    ):
        (folder / "page.md").write_text(f"# A page\n\n{mistake}\n", encoding="utf-8")
        with pytest.raises((AssertionError, AttributeError)):
            test_a_page_runs_from_its_top_to_its_end(str(folder / "page.md"), folder, monkeypatch)


def test_systems_are_found_in_folders_outside_of_the_package(tmp_path):
    """In a process of its own, as a user has it: the variable is read when the program begins."""
    (code,) = re.findall(r'```python title="my_systems/one_head.py"\n(.*?)```', (ROOT / "docs/add-your-paper.md").read_text(), re.DOTALL)
    for name, text in {"good/one_head.py": code, "bad/half.py": "def", "taken/linear.py": code}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")

    def listed(*folders):
        where = os.environ | {"SPECTRAL_ODE_SYSTEMS": os.pathsep.join(folders), "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-m", "spectral_ode", "list"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=where, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, output = listed("good")
    assert code == 0
    assert re.search(r"^  one_head\.balanced +one head .* \[arXiv:2306\.09927\]$", output, re.MULTILINE)
    for folders, wrong in {("good", "nowhere"): "not a folder", ("bad",): "half.py, line 1", ("taken",): "name of another paper"}.items():
        code, output = listed(*folders)
        assert code == 2
        assert wrong in output
        assert output.count("\n") == 1


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", path.read_text(encoding="utf-8"))):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), target
        assert not anchor or anchor in _anchors(there), target


def test_every_page_is_in_the_navigation_of_the_site():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(f"docs/{file}" for file in listed) == sorted(page for page in PAGES if page.startswith("docs/"))


def test_the_readme_opens_with_the_commands_of_the_makefile():
    commands = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands[:2] == ["run", "test"]
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")
