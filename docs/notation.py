r"""The notation of our docstrings, turned into LaTeX: one source is read plainly in the editor and typeset on the pages.

    lam_d, mu_i^h, A*_d, w_init, e^{-lam t}    scripts take a word, a number, a sign, or a group in braces or parentheses
    sum_{d in S}, int_0^inf, sqrt(D), k.G q    Greek letters, sums, roots and functions by name; a dot between symbols is a product
    dv_i/dt = g v^2 - lam C v^5                a displayed derivative becomes a fraction; every other slash stays what it is
    <A, B>, |k|^2, yhat, w2, +-, ->, <<        brackets touch what they hold, comparisons have spaces; letter and digit: a subscript
    [[a, b], [c, d]]                           a matrix of two rows

In prose, notation stands between dollar signs. An indented block is displayed: one row per line, and a gap of four spaces or more
begins another row. A word that is not a symbol is text. Nothing is guessed about meaning: symbols keep their order, and no
parenthesis is dropped but those of a root, an exponent and an index.
"""

import re

LETTERS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
GREEK = {name: f"\\{name}" for name in LETTERS.split()} | {"lam": r"\lambda", "sig": r"\sigma", "eps": r"\varepsilon"}
NAMED = {"sum": r"\sum", "prod": r"\prod", "int": r"\int", "intint": r"\iint", "inf": r"\infty", "in": r"\in", "grad": r"\nabla"}
SYMBOLS = GREEK | NAMED | {name: f"\\{name}" for name in ("ln", "log", "exp", "sinh", "cosh", "tanh", "arctan", "min", "max", "sup")}
FUNCTIONS = ("tr", "diag", "vec")  # without a name of their own in LaTeX
SIGNS = {
    "...": r"\dots",
    "..": r", \dots, ",
    "<=": r"\le",
    ">=": r"\ge",
    "<<": r"\ll",
    ">>": r"\gg",
    "!=": r"\ne",
    "->": r"\to",
    "+-": r"\pm",
    "~": r"\sim",
    "<": r"\lt",
    ">": r"\gt",
    "{": r"\lbrace",
    "}": r"\rbrace",
}
TOKEN = re.compile(r"\s+|2F1|[A-Za-z]{3,}:(?=\s)|\d+(?:\.\d+)?(?:e[+-]?\d+)?|[A-Za-z]+|\.\.\.|\.\.|<=|>=|<<|>>|!=|->|\+-|.")
MATRIX = re.compile(r"\[\[([^\[\]]*)\], \[([^\[\]]*)\]\]")
DERIVATIVE = re.compile(r"(?<![A-Za-z0-9_^])(d[A-Za-z]*(?:_\w+|_\{[^}]*\})?(?:\^\w+)?)/(d[A-Za-z]+(?:_\w+)?)")


def latex(text: str, *, stacked: bool = False) -> str:
    """A formula in our notation as LaTeX, without delimiters; `stacked`: derivatives as fractions."""
    if found := MATRIX.search(text):
        rows = r" \\ ".join(" & ".join(map(latex, row.split(", "))) for row in found.groups())
        matrix = rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}"
        return f"{latex(text[: found.start()], stacked=stacked)} {matrix} {latex(text[found.end() :], stacked=stacked)}".strip()
    parts, end = [], 0
    for found in DERIVATIVE.finditer(text) if stacked else ():
        top, bottom = (_line(side).strip() for side in found.groups())
        parts += [_line(text[end : found.start()]), rf"\frac{{{top}}}{{{bottom}}} "]
        end = found.end()
    made = re.sub(r" {2,}", " ", "".join([*parts, _line(text[end:])])).strip()
    return re.sub(r" (?=[_^,;)])", "", made)


def display(block: str) -> str:
    """An indented block as LaTeX: rows below each other, a line that is indented further is moved in."""
    lines = [line for line in block.splitlines() if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    rows = []
    for line in lines:
        first, *others = re.split(r" {4,}", line.strip())
        rows += [(r"\qquad " if line[margin] == " " else "") + latex(first, stacked=True)]
        rows += [latex(other, stacked=True) for other in others]
    if len(rows) == 1:
        return rows[0]
    return "\n".join([r"\begin{align*}", *(f"& {row} \\\\" for row in rows[:-1]), f"& {rows[-1]}", r"\end{align*}"])


def _line(text: str) -> str:
    """Everything but derivatives."""
    tokens, made, index = TOKEN.findall(text), [], 0
    while index < len(tokens):
        piece, index = _piece(tokens, index)
        made.append(piece)
    return _joined(made)


def _joined(made: list[str]) -> str:
    """Pieces in a row; words that follow each other are one text, with the blanks around it inside."""
    text = "".join(made)
    text = re.sub(r"(?<=\})  ?(?=\\text\{)", " ", text)
    while (merged := re.sub(r"\\text\{([^{}]*)\} \\text\{([^{}]*)\}", r"\\text{\1 \2}", text)) != text:
        text = merged
    text = re.sub(r"(?<=\S) \\text\{", r" \\text{ ", text)
    return re.sub(r"(\\text\{[^{}]*)\}(?= \S)", r"\1 }", text)


def _piece(tokens: list[str], index: int) -> tuple[str, int]:
    """LaTeX of what begins at a token, and where it ends."""
    token = tokens[index]
    before = tokens[index - 1] if index else " "
    after = tokens[index + 1] if index + 1 < len(tokens) else " "
    touching = before[-1].isalnum() or before in ")]}'*"
    if token.isspace():
        return (r" \quad " if len(token) > 1 and after != "=" else " "), index + 1
    if token in "_^":
        return _script(tokens, index)
    if token == "sqrt":
        inside, end = _operand(tokens, index + 1)
        return rf"\sqrt{{{inside}}}", end
    if token == "2F1":
        return "{}_2F_1", index + 1
    if token.endswith(":") and len(token) > 1:
        return rf"\text{{{token}}}", index + 1
    if token.isalpha():
        return _word(token, before, after), index + 1
    if token == "." and touching and (after.isalpha() or after == "("):
        return r" \cdot ", index + 1
    if token == "*":
        return (r"^{\ast}" if touching else r" \cdot "), index + 1
    if token == "<" and not after.isspace() and _closes(tokens, index):
        return r"\langle ", index + 1
    if token == ">" and not before.isspace() and before != "-" and "<" in tokens[:index]:
        return r"\rangle ", index + 1
    if token[0].isdigit() and len(before) == 1 and before.isalpha() and index:
        return f"_{{{token}}}", index + 1
    return (f"{SIGNS[token]} " if token in SIGNS else token), index + 1


def _closes(tokens: list[str], index: int) -> bool:
    """Whether a bracket < has its >: one that touches what it closes."""
    return any(token == ">" and not tokens[place - 1].isspace() for place, token in enumerate(tokens) if place > index)


def _word(word: str, before: str, after: str) -> str:
    if len(word) == 1:
        return word
    if word in SYMBOLS:
        return f"{SYMBOLS[word]} "
    if word in FUNCTIONS:
        return rf"\operatorname{{{word}}} "
    if word[1:] == "hat" and word not in ("that", "what"):
        return rf"\hat{{{word[0]}}}"
    if word[0] == "d" and (len(word) == 2 or word[1:] in GREEK or word[1:] == "Loss"):
        return f"d {_word(word[1:], before, '_')}"
    if after in ("_", "^", "(", "*", "'"):  # a quantity with a name
        return rf"\mathrm{{{word}}}"
    return rf"\text{{{word}}}"


def _script(tokens: list[str], index: int) -> tuple[str, int]:
    """An index or an exponent."""
    mark, following = tokens[index], tokens[index + 1]
    if following in "{(":
        inside, end = _operand(tokens, index + 1)
        return f"{mark}{{{inside}}}", end
    if following.isalpha():
        return f"{mark}{{{_index(following)}}}", index + 2
    if following == "-":
        return f"{mark}{{-{tokens[index + 2]}}}", index + 3
    return f"{mark}{{{SIGNS.get(following, following).replace('*', chr(92) + 'ast').strip()}}}", index + 2


def _index(word: str) -> str:
    """A word as an index: a Greek letter, one or two letters in a row, or a name."""
    if word in GREEK or word in NAMED:
        return SYMBOLS[word]
    return word if len(word) <= 2 else rf"\mathrm{{{word}}}"


def _operand(tokens: list[str], index: int) -> tuple[str, int]:
    """The group that begins here, without its brackets, or the next word or number."""
    if tokens[index].isspace():
        index += 1
    pairs = {"(": ")", "{": "}"}
    if tokens[index] not in pairs:
        return _piece(tokens, index)[0].strip(), index + 1
    opening, closing, depth = tokens[index], pairs[tokens[index]], 0
    for end in range(index, len(tokens)):
        depth += (tokens[end] == opening) - (tokens[end] == closing)
        if depth == 0:
            return latex("".join(tokens[index + 1 : end])), end + 1
    raise ValueError(f"a bracket is not closed in {''.join(tokens)!r}")
