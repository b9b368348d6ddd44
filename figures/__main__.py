"""`python -m figures [NAME ...]`: draw figures from their problems; results are kept, so that drawing again takes seconds.

A figure is a module with `problems(fast)` (what to compute, by name), `draw(experiments)` (a pure function of what was computed),
`CAPTION` and `SECONDS` (how long the computation took on two cores, full and fast). A moving picture has `animate(experiments,
path, tell)` instead.
"""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import figures
from spectral_ode import document, runtime
from spectral_ode.problem import BadInput, Problem
from spectral_ode.run import Terminal


def names() -> list[str]:
    """Modules that hold a figure, found by their text so that listing imports nothing."""
    folder = Path(figures.__path__[0])
    found = [info.name for info in pkgutil.iter_modules(figures.__path__)]
    return [name for name in found if "\ndef problems(" in (folder / f"{name}.py").read_text(encoding="utf-8")]


def main(arguments: list[str] | None = None) -> int:
    """Draw the named figures, or all."""
    parser = argparse.ArgumentParser(prog="python -m figures", description="Draw the figures of the papers.", allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"figures to draw (default: all): {', '.join(names())}")
    parser.add_argument("--out", default="figures/out", help="folder of the pictures (default: figures/out)")
    parser.add_argument("--format", default="png", choices=("png", "pdf", "svg"), help="file format (default: png)")
    parser.add_argument("--fast", action="store_true", help="small versions, in a folder fast/ of their own: to see that everything works")
    parser.add_argument("--fresh", action="store_true", help="compute again even if results are kept")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            if name not in names():
                raise BadInput(f"unknown figure {name!r}; {document.nearest(name, names())}")
        out = Path(options.out) / "fast" if options.fast else Path(options.out)
        _draw(options.names or names(), out, options.format, fast=options.fast, fresh=options.fresh)
    except BadInput as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nfigures: interrupted; what was finished is kept, nothing half-written was left behind", file=sys.stderr)
        return 130
    return 0


def _draw(wanted: list[str], out: Path, kind: str, *, fast: bool, fresh: bool) -> None:
    runtime.configure()
    import jax

    from validate import store

    modules = {name: importlib.import_module(f"figures.{name}") for name in wanted}
    work = {name: module.problems(fast) for name, module in modules.items()}
    folders = {document.identity(problem): problem for problems in work.values() for problem in problems.values()}
    place = lambda identity: out / "data" / identity
    kept = {} if fresh else {identity: store.read(place(identity), problem) for identity, problem in folders.items()}
    ready = {identity: experiment for identity, experiment in kept.items() if experiment is not None}
    _announce(modules, work, set(ready), fast)
    for name, module in modules.items():
        progress = Terminal(sys.stderr.isatty())
        try:
            for key, problem in work[name].items():
                identity = document.identity(problem)
                if identity not in ready:
                    progress.stage(key)
                    ready[identity] = store.keep(place(identity), problem, progress)
            progress.stage(f"{name}: drawing")
            experiments = {key: ready[document.identity(problem)] for key, problem in work[name].items()}
            path = _picture(module, experiments, out, name, kind, progress)
        finally:
            progress.close()
            jax.clear_caches()  # programs of one figure: those of all together need more memory maps than Linux gives a process
        print(f"{path}: {'(small version) ' if fast else ''}{module.CAPTION}")


def _announce(modules: dict[str, ModuleType], work: dict[str, dict[str, Problem]], ready: set[str], fast: bool) -> None:
    """What will be computed and how long it takes, before it begins."""
    seconds = 0.0
    for name, module in modules.items():
        todo = [key for key, problem in work[name].items() if document.identity(problem) not in ready]
        ready = ready | {document.identity(work[name][key]) for key in todo}
        if todo:
            about = len(todo) / max(len(work[name]), 1) * module.SECONDS[int(fast)]
            seconds += about
            print(f"{name}: will compute {', '.join(todo)} (about {about:.0f} s on two cores)", file=sys.stderr)
    if seconds:
        print(
            f"in all about {seconds / 60:.1f} minutes on two cores, up to twice that while programs are compiled for the first time",
            file=sys.stderr,
        )


def _picture(module: ModuleType, experiments: dict[str, Any], out: Path, name: str, kind: str, progress: Terminal) -> Path:
    from figures import style

    out.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "animate"):
        path = out / f"{name}.gif"
        module.animate(experiments, path, lambda share: progress.bar(f"{name}: rendering", share))
        return path
    path = out / f"{name}.{kind}"
    style.save(module.draw(experiments), path)
    return path


if __name__ == "__main__":
    sys.exit(main())
