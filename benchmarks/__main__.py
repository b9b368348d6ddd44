"""All benchmarks, one after the other: `python -m benchmarks [NAME ...]`; a quarter of an hour at most.

Each runs on its own: one that fails leaves a sentence and the rows that it had, and the others go on.
"""

import argparse
import importlib
import os
import sys
import time
import traceback
from pathlib import Path

from benchmarks import page
from benchmarks.measure import Found, Options, Skipped, line

ALL = ("flows", "saddles", "picture", "against_script", "softmax_step", "training", "sparse", "scaling")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def perform(names: list[str], options: Options) -> tuple[dict[str, list[Found]], dict[str, str]]:
    """Everything that was found, and what went wrong."""
    import jax

    found: dict[str, list[Found]] = {}
    troubles: dict[str, str] = {}
    for name in names:
        print(f"{name} (load {os.getloadavg()[0]:.1f})", flush=True)
        begun, rows = time.perf_counter(), found.setdefault(name, [])
        try:
            for one in importlib.import_module(f"benchmarks.{name}").run(options):
                rows.append(one)
                print(f"    {line(one)}", flush=True)
        except Skipped as reason:
            troubles[name] = f"Skipped: {reason}."
        except Exception as error:  # the others go on
            traceback.print_exc()
            troubles[name] = f"**Failed**: {type(error).__name__}: {error}"
        print(f"    {troubles.get(name, 'done')} ({time.perf_counter() - begun:.0f} s)", flush=True)
        jax.clear_caches()
    return found, troubles


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ALL)}; all unless given")
    parser.add_argument("--rounds", type=int, default=5, help="at most so many of each (5)")
    parser.add_argument("--script-linear", metavar="FOLDER", help="the authors' script of linear attention")
    parser.add_argument("--script-softmax", metavar="FOLDER", help="the authors' network of softmax attention")
    parser.add_argument("--python", metavar="PYTHON", help="a Python that has torch, for these two")
    parser.add_argument("--out", type=Path, help="the page (docs/benchmarks.md if all are run in full, else none)")
    parser.add_argument("--json", type=Path, help="all numbers, too")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see whether all of it works")
    told = parser.parse_args(words)
    if unknown := set(told.names) - set(ALL):
        print(f"benchmarks: unknown name {sorted(unknown)[0]!r}; choose some of {', '.join(ALL)}", file=sys.stderr)
        return 2
    import spectral_ode as so

    so.configure(cache=False)
    names, before = told.names or list(ALL), os.getloadavg()[0]
    found, troubles = perform(names, Options(told.rounds, told.small, told.script_linear, told.script_softmax, told.python))
    titles = {name: importlib.import_module(f"benchmarks.{name}").__doc__ or name for name in names}
    where = page.machine(before, os.getloadavg()[0], told.small)
    out = told.out or (None if told.names or told.small else PAGE)
    for path, text in ((out, page.text(found, titles, troubles, where)), (told.json, page.numbers(found, troubles, where))):
        if path is not None:
            page.write(path, text)
            print(f"wrote {path}")
    return 1 if any(text.startswith("**Failed") for text in troubles.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
