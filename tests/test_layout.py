"""The tree itself: imports go one way, files are short, the wheel works from any folder, figures are pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import figures.__main__ as gallery
from figures import overlay, style

ROOT = Path(__file__).parent.parent
LAYERS = ["spectral_ode", "simulate", "validate", "figures"]
FILES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
# The commands are the top of the program; they import upward, inside functions only.
COMMANDS = {"spectral_ode/run.py", "spectral_ode/replay.py", "spectral_ode/compare.py"}
COMMANDS |= {"spectral_ode/sweeps/command.py", "spectral_ode/sweeps/perform.py", "spectral_ode/sweeps/layout.py", "spectral_ode/cluster.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    layer = LAYERS.index(path.relative_to(ROOT).parts[0])
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    for node in ast.walk(tree):
        modules = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for module in modules:
            above = module.split(".")[0] in LAYERS[layer + 1 :]
            lazily = str(path.relative_to(ROOT)) in COMMANDS and node not in top
            assert not above or lazily, f"{path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_one_idea_long_and_open_with_what_they_are(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 300


def test_the_wheel_works_from_any_folder(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), wheel], check=True, capture_output=True
    )
    run = lambda *words: subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(target), "PATH": ""}
    )
    listed = run("-m", "spectral_ode", "list")
    assert "saddle-to-saddle" in listed.stdout, listed.stderr
    where = run("-c", "import figures.style, spectral_ode; print(figures.style.STYLE.exists(), figures.style.__file__)")
    assert where.stdout.startswith("True"), where.stderr
    assert str(target) in where.stdout


def test_figures_are_found_and_unknown_ones_are_answered(capsys):
    assert {f"zhang2025_fig{number}" for number in (1, 3, 4, 5, 6, 11, 12, 14)} | {"saddle_movie"} <= set(gallery.names())
    assert gallery.main(["zhang2025_fig33"]) == 2
    assert capsys.readouterr().err == "figures: unknown figure 'zhang2025_fig33'; did you mean 'zhang2025_fig3'?\n"


def test_figures_are_pure_and_byte_stable(tmp_path):
    from dataclasses import replace

    from small import SMALL

    from figures import zhang2025_fig3
    from validate import perform

    experiment = perform(replace(SMALL, runs=2))
    figure = lambda experiment: zhang2025_fig3.draw({"zhang2025-fig3": experiment})
    for name, draw in (("overlay", overlay.draw), ("figure", figure)):
        paths = [tmp_path / f"{name}{index}.png" for index in range(2)]
        for path in paths:
            style.save(draw(experiment), path)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].stat().st_size > 20_000
