"""Mutants of the equations: each coefficient, sign and exponent of every vector field and closed form, changed once.

    coefficient   a product or quotient P, as a whole, becomes 1.1 P;  a number c that stands alone in a sum becomes 1.1 c (0: 0.1)
    sign          a + b becomes a - b, a - b becomes a + b, -a becomes a
    exponent      a whole exponent n becomes n + 1, another e becomes 1.1 e

Changed is the source of one function at a time, so that a mutant is a module with one altered line. Numbers that are sizes, axes, indices
or parts of messages are no coefficients and stay.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import spectral_ode

ROOT = Path(spectral_ode.__file__).parent
BESIDE = ("marchenko_pastur", "features", "quadrature")  # equations that several papers share
SIZES = {"arange", "range", "zeros", "ones", "full", "reshape", "eye", "expand_dims", "moveaxis", "swapaxes", "repeat", "tile", "fold_in"}
SIZES |= {"concatenate", "stack", "transpose", "take_along_axis", "broadcast_to", "BadInput", "require", "round", "split", "fori_loop"}
PLAIN = {"claims", "missing", "landmarks", "from_problem", "accept", "__post_init__"}  # what is asked and shown, no equation


@dataclass(frozen=True)
class Mutant:
    """One change: the module, where in it, what stood there and what stands there now, and the module's new text."""

    module: str
    place: str  # function and line
    kind: str
    before: str
    after: str
    text: str

    @property
    def name(self) -> str:
        """A line for people."""
        return f"{self.module.removeprefix('spectral_ode.')} {self.place}: {self.before} -> {self.after}"


def modules() -> list[str]:
    """The modules that hold equations."""
    found = [path for path in sorted((ROOT / "systems").rglob("*.py")) if not path.stem.endswith("_claims") and path.stem != "__init__"]
    names = [".".join(("spectral_ode", *path.relative_to(ROOT).with_suffix("").parts)) for path in found]
    return names + [f"spectral_ode.{name}" for name in BESIDE]


def source(module: str) -> str:
    """The text of a module."""
    return ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8")


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    text = source(module)
    for function, node, kind, after in _changes(ast.parse(text)):
        before = ast.get_source_segment(text, node) or ""
        changed = _replaced(text, node, f"({after})")
        yield Mutant(module, f"{function}, line {node.lineno}", kind, _short(before), _short(after), changed)


def _short(code: str) -> str:
    return " ".join(code.split())


def _replaced(text: str, node: ast.expr, new: str) -> str:
    """The text with one expression exchanged; columns of the syntax tree count bytes."""
    lines = text.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    raw = text.encode()
    return (raw[:begin] + new.encode() + raw[end:]).decode()


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.expr, str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name not in PLAIN:
                    yield from _statements(f"{node.name}.{inner.name}", inner.body)
        elif isinstance(node, ast.FunctionDef) and node.name not in PLAIN:
            yield from _statements(node.name, node.body)


def _statements(name: str, body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr, str, str]]:
    for statement in body:
        if not isinstance(statement, ast.Raise | ast.Assert):
            yield from ((name, node, kind, after) for node, kind, after in _visit(statement, None))


def _visit(node: ast.AST, parent: ast.AST | None) -> Iterator[tuple[ast.expr, str, str]]:
    """Changes below a node, without those parts that are no arithmetic."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.arguments | ast.Dict) or (
        isinstance(node, ast.Expr) and parent is None
    ):
        return
    if isinstance(node, ast.Call) and (getattr(node.func, "attr", None) or getattr(node.func, "id", "")) in SIZES:
        for argument in node.args:  # arrays inside are arithmetic, bare sizes are not
            if not isinstance(argument, ast.Constant | ast.UnaryOp | ast.Tuple | ast.BinOp):
                yield from _visit(argument, node)
        return
    if isinstance(node, ast.BinOp):
        yield from _arithmetic(node, parent)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node, "sign", ast.unparse(node.operand)
    for field, child in ast.iter_fields(node):
        if field in ("annotation", "returns", "slice", "decorator_list", "ctx") or (isinstance(node, ast.keyword) and _is_size(child)):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.AST):
                yield from _visit(item, node)


def _is_size(value: object) -> bool:
    return isinstance(value, ast.Constant | ast.UnaryOp | ast.Tuple)


def _arithmetic(node: ast.BinOp, parent: ast.AST | None) -> Iterator[tuple[ast.expr, str, str]]:
    product = isinstance(node.op, ast.Mult | ast.Div | ast.MatMult)
    inside = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult | ast.Div | ast.MatMult)
    if product and not inside:
        yield node, "coefficient", f"1.1 * ({ast.unparse(node)})"
    if isinstance(node.op, ast.Add | ast.Sub):
        other = ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
        yield node, "sign", ast.unparse(other)
        for side in (node.left, node.right):
            if isinstance(side, ast.Constant) and isinstance(side.value, int | float):
                yield side, "coefficient", repr(1.1 * side.value if side.value else 0.1)
    if isinstance(node.op, ast.Pow):
        yield node, "exponent", f"({ast.unparse(node.left)}) ** ({_exponent(node.right)})"


def _exponent(node: ast.expr) -> str:
    whole = isinstance(node, ast.Constant) and isinstance(node.value, int)
    return f"({ast.unparse(node)}) + 1" if whole else f"1.1 * ({ast.unparse(node)})"
