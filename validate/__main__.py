"""`python -m validate [PRESET ...]`: measure every claim, also the slow ones, and say which one is broken."""

import argparse
import sys

from spectral_ode import document, runtime
from spectral_ode.problem import BadInput


def main(arguments: list[str] | None = None) -> int:
    """Validate the named presets, or the headline ones; exit code 0 all hold, 1 one does not, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m validate", description="Measure every claim of every system.", allow_abbrev=False)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="presets or .toml files (default: the headline experiments)")
    options = parser.parse_args(arguments)
    try:
        problems = [(source, document.load(source)) for source in options.presets or document.headlines()]
    except BadInput as error:
        print(f"validate: {error}", file=sys.stderr)
        return 2
    runtime.configure()
    from validate import check, perform, report

    broken = []
    for name, problem in problems:
        experiment = perform(problem)
        verdicts = check(experiment, tiers=("run", "validate"))
        print(report.table(report.summarize(name, experiment, verdicts)))
        broken += [f"{name}: {verdict.claim}" for verdict in verdicts if verdict.ok is False]
    if broken:
        print(f"validate: broken: {'; '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
