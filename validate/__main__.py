"""`python -m validate [PRESET ...]`: measure every claim on every rung, also the slow ones, and say which one is broken.

Without a name: the quick tier, a small problem for every system. Exit code 0: every claim holds or says why it was skipped; 1: one does not
hold; 2: bad input, told in one sentence.
"""

import argparse
import itertools
import json
import os
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from spectral_ode import flags, run, runtime
from spectral_ode.document import nearest
from spectral_ode.folder import whole
from spectral_ode.problem import BadInput

FILES = ("report.html", "report.json")
OUT = "runs/validate"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        return _validate(_options(sys.argv[1:] if arguments is None else arguments))
    except BadInput as error:
        print(f"validate: {error}", file=sys.stderr)
        return 2
    except BrokenProcessPool:
        from validate import workers

        print(f"validate: {workers.DIED}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nvalidate: interrupted; nothing half-written was left behind", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _options(words: list[str]) -> argparse.Namespace:
    parser = flags.Parser(prog="python -m validate", description="Measure every claim of every system, rung by rung.", allow_abbrev=False)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="systems, presets or problems as .toml files (default: a small problem for every system)"
    )
    parser.add_argument("--full", action="store_true", help="also every preset at its full size, about an hour on two cores")
    parser.add_argument("--mutate", action="store_true", help="break each equation once: does the quick tier notice? Names: modules")
    parser.add_argument("--every", metavar="INT", default="1", help="with --mutate: try only every so many mutants (default: 1)")
    parser.add_argument(
        "--cheap", action="store_true", help="with --mutate: ask only closed forms and identities, which takes seconds for each"
    )
    parser.add_argument("--out", metavar="FOLDER", default=OUT, help=f"folder of the reports (default: {OUT})")
    parser.add_argument("--jobs", metavar="INT", default="2", help="processes that work side by side (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON and nothing else")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    options, unknown = parser.parse_known_args(words)
    if unknown:
        raise BadInput(f"unknown flag {unknown[0]}; {nearest(unknown[0], flags.of_command(parser, None))}")
    options.jobs = flags.jobs(options.jobs)
    if not (options.every.isdecimal() and int(options.every) >= 1):
        raise BadInput(f"--every is {options.every!r}, but it must be a whole number of at least 1")
    if options.full and options.mutate:
        raise BadInput("--full and --mutate are two commands; give one of them")
    if options.cheap and not options.mutate:
        raise BadInput("--cheap goes with --mutate; give both, or leave it out")
    if options.full and options.names:
        raise BadInput("--full answers every problem there is; leave out the names, or --full")
    return options


def _validate(options: argparse.Namespace) -> int:
    talk = not (options.quiet or options.json)
    if options.mutate:
        return _mutate(options, talk=talk)
    _free(options.out)
    runtime.configure()
    from validate import page, report, tiers

    begun = time.perf_counter()
    problems = tiers.chosen(options.names) if options.names else tiers.full() if options.full else tiers.quick()
    tiers.admitted(problems)
    reports, pictures = _answers(problems, options.jobs, talk=talk, full=options.full)
    tier = "named" if options.names else "full" if options.full else "quick"
    summary = report.whole(reports, tier=tier, skipped=tiers.APART if options.full else {}, seconds=time.perf_counter() - begun)
    with whole(Path(options.out)) as aside:
        (aside / "report.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        (aside / "report.html").write_text(page.validation(summary, pictures), encoding="utf-8")
    if options.json:
        print(json.dumps(summary, indent=1))
    elif not options.quiet:
        print(f"{report.tally(summary['counts'])}; {report.closing(summary)}\nwrote {options.out}/ ({', '.join(FILES)})")
    if not summary["ok"]:
        print(f"validate: {report.broken(summary)}", file=sys.stderr)
    return 0 if summary["ok"] else 1


def _mutate(options: argparse.Namespace, *, talk: bool) -> int:
    from validate import mutate

    out = options.out if options.out != OUT else f"{OUT}-mutants"
    run.writable(out)
    asked = {"jobs": options.jobs, "every": int(options.every), "cheap": options.cheap}
    enough = mutate.command(options.names, out, **asked, talk=talk)
    if not enough:
        print(
            f"validate: fewer than {100 * mutate.WANTED:.0f} % of the mutants were caught; {out}/mutants.json lists them", file=sys.stderr
        )
    return 0 if enough else 1


def _free(out: str) -> None:
    """Raise `BadInput` unless the folder can be written and holds nothing but an older report, which will be replaced."""
    run.writable(out)
    others = sorted({path.name for path in Path(out).glob("*")} - set(FILES))
    if others:
        raise BadInput(f"the output folder {out} holds other things ({others[0]}), which would be lost; choose another with --out")


def _answers(problems: dict[str, Any], jobs: int, *, talk: bool, full: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every problem answered; tables are printed as they come. The full tier also tries random and hostile input."""
    from validate import inputs, report, workers

    progress, color = run.Terminal(talk and sys.stderr.isatty()), sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    reports, pictures = [], []
    try:
        answers = workers.answer(problems, jobs, progress, full=full)
        tell = lambda name, count: progress.stage(f"{name}: case {count}")
        for one, picture in itertools.chain(answers, (inputs.answer(progress=tell) for _ in range(int(full)))):
            progress.close()
            if talk:
                print(report.table(one, color=color), end="\n\n", flush=True)
            reports.append(one)
            pictures.append(picture)
    finally:
        progress.close()
    return reports, pictures


if __name__ == "__main__":
    sys.exit(main())
