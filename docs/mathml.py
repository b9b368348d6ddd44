"""A Markdown extension for the site: formulas become MathML when it is built, so that no script and no network is needed to read them.

The syntax is GitHub's own, which renders the same files: a fence named math, and $`...`$ inside a line.
"""

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

FENCE = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
INLINE = r"\$`(.+?)`\$"
NAME = re.compile(r"(<mi>(?:ln|log|exp|sinh|min|max)</mi>)(?=<mi>)")


class Displayed(Preprocessor):
    """Fences named math; a wide one scrolls by itself."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines with formulas taken out."""
        wrapped = lambda found: f'<div class="math" tabindex="0">{mathml(found[1], "block")}</div>'
        return FENCE.sub(lambda found: self.md.htmlStash.store(wrapped(found)), "\n".join(lines)).split("\n")


class Inline(InlineProcessor):
    """Formulas in a line."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        """The formula behind a match."""
        return self.md.htmlStash.store(mathml(m[1], "inline")), m.start(0), m.end(0)


class Formulas(Extension):
    """Both."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Before fences of code (25) and before code in a line (190)."""
        md.preprocessors.register(Displayed(md), "displayed formulas", 27)
        md.inlinePatterns.register(Inline(INLINE, md), "formulas in a line", 195)


def mathml(latex: str, display: str) -> str:
    """LaTeX as MathML, with the blank that belongs between the name of a function and a letter."""
    return NAME.sub(r'\1<mspace width="0.17em"/>', convert(latex, display=display))


def makeExtension(**settings: Any) -> Formulas:
    """What Markdown calls."""
    return Formulas(**settings)
