"""The theory page of a paper: the docstrings of its modules with their formulas typeset, and the claims of its systems as tables."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import notation

from spectral_ode import document, systems
from spectral_ode.claims import Claim
from spectral_ode.problem import Problem
from spectral_ode.system import AbstractSystem
from validate.check import claims_of
from validate.experiment import Experiment
from validate.tiers import EVERY

HOME = Path(systems.__file__).parent
NOTE = "<!-- Made by docs/generate.py from the docstrings and claims in {source}; edit those. -->"
SPAN = re.compile(r"(`[^`]+`|\$[^$]+\$)")
SLOW = {"run": "", "validate": " Measured by `python -m validate` only.", "full": " Measured by `python -m validate --full` only."}


def papers() -> list[str]:
    """The papers that live in the package: files and folders of `spectral_ode/systems`."""
    found = [path for path in HOME.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if not path.name.startswith("_"))


def measured(system: AbstractSystem, problem: Problem) -> list[Claim]:
    """Every claim that `validate.check` measures on a problem, in any tier."""
    return claims_of(Experiment(problem, system, {}, {}), EVERY)


def page(paper: str) -> str:
    """The whole page."""
    docstrings = modules(paper)
    first = docstrings.pop("") if "" in docstrings else next(iter(docstrings.values()))
    title, _, rest = first.partition(". ")
    entries = [entry for entry in systems.entries() if entry.name.startswith(f"{paper}.")]
    listed = "\n".join(f"- [`{entry.name}`](#claims-of-{slug(entry.name)}): {entry.title}" for entry in entries)
    sections = [f"## {name}\n\n{markdown(text, docstrings)}" for name, text in docstrings.items()]
    source = f"spectral_ode/systems/{paper}"
    head = f"# {title}\n\n{NOTE.format(source=source)}\n\n{markdown(rest, docstrings)}\n\nSystems, with their claims:\n\n{listed}"
    return "\n\n".join([head, *sections, *(table(entry.name) for entry in entries)]) + "\n"


def modules(paper: str) -> dict[str, str]:
    """Docstrings of a paper's modules in the order in which its own docstring names them; its own comes first, under no name."""
    if not (HOME / paper).is_dir():
        return {paper: _docstring(HOME / f"{paper}.py")}
    own = _docstring(HOME / paper / "__init__.py")
    # A module of claims has nothing but the tables below to say.
    found = [path.stem for path in sorted((HOME / paper).glob("*.py")) if not path.stem.endswith("_claims") and path.stem != "__init__"]
    found.sort(key=lambda name: own.find(f"`{name}`") if f"`{name}`" in own else len(own))
    return {"": own} | {name: _docstring(HOME / paper / f"{name}.py") for name in found}


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def markdown(docstring: str, sections: dict[str, str]) -> str:
    """A docstring as Markdown: indented blocks and dollar signs hold formulas, names of other modules lead to their sections."""
    parts = []
    for block in re.split(r"\n\s*\n", docstring.strip("\n")):
        if block.startswith("    "):
            parts.append(f"```math\n{notation.display(block)}\n```")
        else:
            parts.append("".join(_span(part, sections) for part in SPAN.split(block)))
    return "\n\n".join(parts)


def _span(part: str, sections: dict[str, str]) -> str:
    if part.startswith("$") and len(part) > 1:
        return f"$`{notation.latex(' '.join(part[1:-1].split()))}`$"
    if part.startswith("`"):
        return f"[{part}](#{slug(part[1:-1])})" if part[1:-1] in sections else part
    return plain(part)


def plain(text: str) -> str:
    """Text in which nothing is taken for Markdown."""
    return re.sub(r"[*|<>\\]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", text)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def example(name: str) -> tuple[str, Problem]:
    """The preset that shows a system best: its headline, or its first; or else one of the same paper, with the system exchanged."""
    presets = {preset: document.load(preset) for preset in document.preset_names()}
    own = [preset for preset, problem in presets.items() if problem.system == name]
    near = [preset for preset, problem in presets.items() if problem.system.partition(".")[0] == name.partition(".")[0]]
    chosen = min(own or near, key=lambda preset: not presets[preset].headline)
    words = f"`{chosen}`" if own else f"`{chosen} --system {name}`"
    return words, replace(presets[chosen], system=name)


def table(name: str) -> str:
    """The claims of a system, with bounds for its example."""
    words, problem = example(name)
    system = systems.load(name).from_problem(problem)
    rows = [_row(claim) for claim in measured(system, problem)]
    gaps = system.missing(problem)
    without = "".join(f" There is no {system.labels[rung]} here: {plain(why)}." for rung, why in gaps.items())
    head = "| claim | exactness | place | bound | reason for the bound |\n|---|---|---|---|---|"
    return f"## Claims of {name}\n\nBounds for the preset {words}.{without}\n\n" + "\n".join([head, *rows])


def _row(claim: Claim) -> str:
    beyond = f". Not judged here: {claim.beyond}" if claim.beyond else ""
    cells = [claim.name, claim.exactness, claim.place, f"{claim.bound:.2g}", f"{claim.reason}{beyond}."]
    return f"| {' | '.join(map(plain, cells))}{SLOW[claim.tier]} |"
