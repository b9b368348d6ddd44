"""`python docs/generate.py [--check]`: write the pages that are made from the code, or say which of them are stale.

One page of theory for each paper (the docstrings of its modules, and the claims of its systems) and the reference of the public names.
They are committed, so that they can be read where they lie; a test makes them again and compares.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # the tree that this file belongs to, not an installed copy

import api_page  # noqa: E402 (behind the path)
import theory_pages  # noqa: E402


def pages() -> dict[str, str]:
    """Every generated page, by its path under docs/."""
    return {f"theory/{paper}.md": theory_pages.page(paper) for paper in theory_pages.papers()} | {"api.md": api_page.page()}


def stale() -> list[str]:
    """Pages that are not what the code says now."""
    kept = lambda path: path.read_text(encoding="utf-8") if path.exists() else ""
    old = [str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs" / "theory").glob("*.md"))]
    made = pages()
    return [name for name, text in made.items() if kept(ROOT / "docs" / name) != text] + [name for name in old if name not in made]


def main(arguments: list[str] | None = None) -> int:
    """Write all pages, or with --check only compare: exit code 1 if one is stale."""
    parser = argparse.ArgumentParser(prog="python docs/generate.py", description="Make the pages that come from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages are stale")
    if parser.parse_args(arguments).check:
        found = stale()
        if found:
            print(f"stale: {', '.join(found)}; run python docs/generate.py", file=sys.stderr)
        return 1 if found else 0
    for name, text in pages().items():
        path = ROOT / "docs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
