"""`python -m figures [NAME ...]`: build figures into one folder with an index page; results are kept, and a second build takes seconds.

A figure is a module with `problems(fast)` (what to compute, by name), `draw(experiments, width)` (a pure function of what was computed,
`width` in inches), `PAPER` (on which paper it is, and the number of the figure there or "ours"), `CAPTION`, and `SECONDS` (how long the
computation took on two cores, full and fast). `draw` takes `fast`, too, where it computes itself what it draws. A moving picture has
`animate(experiments, path, tell)` instead of `draw`.
"""

import argparse
import pkgutil
import sys
from pathlib import Path

import figures
from spectral_ode import document, flags
from spectral_ode.problem import BadInput
from spectral_ode.run import writable


def names() -> list[str]:
    """Modules that hold a figure, found by their text so that listing imports nothing."""
    found = [Path(str(folder)) / f"{info.name}.py" for folder in figures.__path__ for info in pkgutil.iter_modules([str(folder)])]
    return sorted(path.stem for path in found if "\ndef problems(" in path.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Build the named figures, or all; exit code 0 all there, 1 one failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m figures", description="Build the figures of the papers.", allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"figures to build (default: all): {', '.join(names())}")
    parser.add_argument("--out", default="figures/out", help="folder of the pictures and their index.html (default: figures/out)")
    parser.add_argument("--format", default="png", choices=("png", "pdf", "svg"), help="a second file beside the png (default: none)")
    parser.add_argument(
        "--width", default="full", choices=("full", "column"), help="6.75 inches, or 3.25 in a folder column/ of their own (default: full)"
    )
    parser.add_argument("--fast", action="store_true", help="small versions, in a folder fast/ of their own: to see that everything works")
    parser.add_argument("--fresh", action="store_true", help="compute and draw again even if results are kept")
    parser.add_argument("--jobs", metavar="INT", default="2", help="processes that compute side by side (default: 2)")
    options = parser.parse_args(arguments)
    try:
        jobs = flags.jobs(options.jobs)
        for name in options.names:
            if name not in names():
                raise BadInput(f"unknown figure {name!r}; {document.nearest(name, names())}")
        writable(options.out)
        from figures import build

        out = Path(options.out) / "fast" if options.fast else Path(options.out)
        gallery = build.Gallery(out, options.format, options.width, fast=options.fast, jobs=jobs)
        failed = gallery.make(options.names or names(), fresh=options.fresh)
    except BadInput as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nfigures: interrupted; what was finished is kept, nothing half-written was left behind", file=sys.stderr)
        return 130
    if failed:
        print(f"figures: {', '.join(failed)} failed, as told above; the others are there", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
