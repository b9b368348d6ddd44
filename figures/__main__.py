"""`python -m figures [NAME ...]`: draw figures from their presets; results are kept, so that drawing again takes seconds."""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import figures
from spectral_ode import document, runtime
from spectral_ode.problem import BadInput


def names() -> list[str]:
    """Modules that hold a figure: those with PRESETS, found by their text so that listing imports nothing."""
    folder = Path(figures.__path__[0])
    found = [info.name for info in pkgutil.iter_modules(figures.__path__)]
    return [name for name in found if "\nPRESETS = " in (folder / f"{name}.py").read_text(encoding="utf-8")]


def main(arguments: list[str] | None = None) -> int:
    """Draw the named figures, or all."""
    parser = argparse.ArgumentParser(prog="python -m figures", description="Draw the figures of the papers.", allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"figures to draw (default: all): {', '.join(names())}")
    parser.add_argument("--out", default="figures/out", help="folder of the pictures (default: figures/out)")
    parser.add_argument("--format", default="png", choices=("png", "pdf", "svg"), help="file format (default: png)")
    parser.add_argument("--fresh", action="store_true", help="compute again even if results are kept")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            if name not in names():
                raise BadInput(f"unknown figure {name!r}; {document.nearest(name, names())}")
        for name in options.names or names():
            _figure(name, Path(options.out), options.format, fresh=options.fresh)
    except BadInput as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    return 0


def _figure(name: str, out: Path, kind: str, *, fresh: bool) -> None:
    runtime.configure()
    from figures import style
    from validate import store

    module = importlib.import_module(f"figures.{name}")
    experiments = []
    for preset in module.PRESETS:
        problem = document.load(preset)
        folder = out / "data" / f"{preset}-{document.identity(problem)}"
        if fresh or (experiment := store.read(folder, problem)) is None:
            print(f"{name}: computing {preset} (about a minute on two cores)", file=sys.stderr)
            experiment = store.keep(folder, problem)
        experiments.append(experiment)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.{kind}"
    style.save(module.draw(*experiments), path)
    print(f"{path}: {module.CAPTION}")


if __name__ == "__main__":
    sys.exit(main())
