"""One file or folder per paper, found by looking: every final `AbstractSystem` in it is a system named file.class, in lower case.

The list is read from the files' text, so that showing it imports nothing. The environment variable SPECTRAL_ODE_SYSTEMS names further
folders to look in (separated as in PATH), so that a paper can live outside of this package.
"""

import ast
import difflib
import functools
import importlib
import os
import pkgutil
import re
import threading
from pathlib import Path
from typing import NamedTuple

from spectral_ode.problem import BadInput


def elsewhere() -> list[str]:
    """The folders that SPECTRAL_ODE_SYSTEMS names."""
    return [os.path.abspath(folder) for folder in os.environ.get("SPECTRAL_ODE_SYSTEMS", "").split(os.pathsep) if folder]


__path__.extend(elsewhere())


_PARSING = threading.Lock()  # Python 3.11 cannot parse in two threads at once


class Entry(NamedTuple):
    """A system as the list shows it."""

    name: str
    title: str
    paper: str


def entries() -> list[Entry]:
    """All systems, by name: a paper is a file, or a folder of files whose `__init__.py` names the paper and imports the systems."""
    found, taken = [], set()
    for folder, info in ((Path(place), info) for place in __path__ for info in _modules(place)):
        if info.name in taken:
            raise BadInput(f"{folder / info.name} has the name of another paper; rename it")
        taken.add(info.name)
        files = sorted((folder / info.name).glob("*.py")) if info.ispkg else [folder / f"{info.name}.py"]
        trees = [_parse(path) for path in files]
        paper = re.search(r"arXiv:\s*[^\s,;()]+", " ".join(ast.get_docstring(tree) or "" for tree in trees))
        for node in _final([node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]):
            title = (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
            found.append(Entry(f"{info.name}.{node.name.lower()}", title, paper.group().rstrip(",;.") if paper else ""))
    return found


def _modules(folder: str) -> list[pkgutil.ModuleInfo]:
    if not os.path.isdir(folder):
        raise BadInput(f"SPECTRAL_ODE_SYSTEMS names {folder}, which is not a folder; separate several folders by {os.pathsep!r}")
    return [info for info in pkgutil.iter_modules([folder]) if not info.name.startswith("_")]


def _parse(path: Path) -> ast.Module:
    try:
        return _tree(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise BadInput(f"{path}, line {error.lineno}: {error.msg}") from None


@functools.cache
def _tree(text: str) -> ast.Module:
    with _PARSING:
        return ast.parse(text)


def _final(classes: list[ast.ClassDef]) -> list[ast.ClassDef]:
    """The systems among some classes: those under an abstract system that are not abstract themselves."""
    abstract = {"AbstractSystem", "AbstractReduction"}
    under = lambda node: any(isinstance(base, ast.Name) and base.id in abstract for base in node.bases)
    for node in classes * 2:  # a paper may have abstract systems of its own, one under the other
        if under(node) and node.name.startswith("Abstract"):
            abstract.add(node.name)
    return [node for node in classes if under(node) and node.name not in abstract]


def names() -> list[str]:
    """Names of all systems."""
    return [entry.name for entry in entries()]


def load(name: str):
    """The class behind a system's name."""
    check(name)
    module, _, lower = name.partition(".")
    members = vars(importlib.import_module(f"{__name__}.{module}"))
    return next(member for key, member in members.items() if key.lower() == lower and isinstance(member, type))


def check(name: str) -> None:
    """Raise `BadInput` unless there is a system of that name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.0)
        raise BadInput(f"unknown system {name!r}; did you mean {near[0]!r}? `python -m spectral_ode list` shows all")
