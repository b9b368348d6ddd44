"""The reference of the public names, read from the text of the files: signatures and docstrings as they are written there."""

import ast
import re
from pathlib import Path

from theory_pages import plain

import figures.__main__ as gallery

ROOT = Path(gallery.__file__).parent.parent
NOTE = "<!-- Made by docs/generate.py from the docstrings of the public names; edit those. -->"
PACKAGES = ("spectral_ode", "simulate", "validate")


def page() -> str:
    """The whole page: the names of each package, then the figures."""
    parts = [f"# API reference\n\n{NOTE}\n\nWhat is public, by package. Everything else may change without notice."]
    for package in PACKAGES:
        parts.append(f"## {package}\n\n{_first(_tree(ROOT / package / '__init__.py'))}")
        parts += [_entry(package, name, home) for name, home in public(package).items()]
    return "\n\n".join([*parts, _figures()]) + "\n"


def public(package: str) -> dict[str, str]:
    """Public names of a package with the modules they live in: those that its `__init__.py` imports as themselves."""
    found = {}
    for node in ast.walk(_tree(ROOT / package / "__init__.py")):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.name: node.module for alias in node.names if alias.asname == alias.name}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _first(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")


def _module(name: str) -> ast.Module:
    path = ROOT / name.replace(".", "/")
    return _tree(path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py")


def _find(name: str, home: str) -> ast.Module | ast.ClassDef | ast.FunctionDef:
    """What a name stands for: a class or function of a module, perhaps one that the module got elsewhere, or a module."""
    for node in _module(home).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return _find(name, node.module)
    return _module(f"{home}.{name}")


def _entry(package: str, name: str, home: str) -> str:
    heading, node = f"### {package}.{name}", _find(name, home)
    if isinstance(node, ast.ClassDef):
        return f"{heading}\n\n{_class(node)}"
    if isinstance(node, ast.FunctionDef):
        return f"{heading}\n\n{_code(_signature(node))}\n\n{_prose(node)}"
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]
    return f"{heading}\n\n{_prose(node)}\n\n" + "\n".join(f"- `{name}.{_signature(item)}`: {_first(item)}" for item in functions)


def _class(node: ast.ClassDef) -> str:
    bases = ", ".join(map(ast.unparse, node.bases))
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]
    lines = [f"class {node.name}({bases})" if bases else f"class {node.name}"]
    lines += [f"    {ast.unparse(item.target)}: {ast.unparse(item.annotation)}{_default(item)}" for item in fields]
    listed = "\n".join(f"- `.{_member(item)}`: {_first(item)}" for item in methods)
    return "\n\n".join(part for part in [_code("\n".join(lines)), _prose(node), listed] if part)


def _default(item: ast.AnnAssign) -> str:
    """The default value; that of a documented field is the first thing it says, and what it is for the second."""
    if item.value is None or "eqx.field" in ast.unparse(item.value):
        return ""
    if isinstance(item.value, ast.Call) and ast.unparse(item.value.func) == "documented":
        default, what = item.value.args
        return f" = {ast.unparse(default)}  # {ast.literal_eval(what)}"
    if isinstance(item.value, ast.Call):
        return f" = {ast.unparse(item.value.keywords[0].value)}()"
    return f" = {ast.unparse(item.value)}"


def _member(node: ast.FunctionDef) -> str:
    """A method with its signature, a property by its name."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    return node.name if {"property", "cached_property"} & set(marks) else _signature(node)


def _signature(node: ast.FunctionDef) -> str:
    inside = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(node.args))
    return f"{node.name}({inside})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _prose(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""


def _code(text: str) -> str:
    """A block of the reference: `pycon` would be run by the test of the documents, `py` is only shown."""
    return f"```py\n{text}\n```"


def _figures() -> str:
    opening = _first(_tree(ROOT / "figures" / "__init__.py"))
    contract = (ast.get_docstring(_tree(ROOT / "figures" / "__main__.py")) or "").partition("A figure is a module ")[2]
    rows = [f"| `{name}` | {_caption(name)} |" for name in gallery.names()]
    head = f"## figures\n\n{opening} Each is drawn by `python -m figures NAME` and is a module\n{contract}"
    return "\n".join([head, "", "| name | what it shows |", "|---|---|", *rows])


def _caption(name: str) -> str:
    """The first sentence of a figure's caption."""
    for node in _tree(ROOT / "figures" / f"{name}.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CAPTION":
            return plain(re.split(r"(?<=\.) (?=[A-Z(])", ast.literal_eval(node.value))[0])
    raise LookupError(f"figures/{name}.py has no CAPTION")
