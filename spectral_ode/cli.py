"""The command line: `python -m spectral_ode run | list`. Parsing needs no jax; the work is imported when there is work.

Exit code 0: every verdict holds; 1: one does not, or a solve failed; 2: bad input, told in one sentence.
"""

import argparse
import json
import os
import sys
import typing
from typing import NoReturn

from spectral_ode import document, systems
from spectral_ode.document import nearest
from spectral_ode.problem import BadInput, Problem

DESCRIPTION = "One problem, answered twice: the reduced ODEs of a paper and the trained network, overlaid and checked."


class _Parser(argparse.ArgumentParser):
    """argparse with one-sentence errors, a hint at the nearest flag, and no abbreviations."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    try:
        return _dispatch([word for word in words if word != "--debug"])
    except BadInput as error:
        if debug:
            raise
        print(f"spectral_ode: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nspectral_ode: interrupted; nothing half-written was left behind", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    parser = _parser()
    if words and not words[0].startswith("-") and words[0] not in ("run", "list"):
        raise BadInput(f"unknown command {words[0]!r}; {nearest(words[0], ['run', 'list'])}")
    options, unknown = parser.parse_known_args([_normal(word) for word in words])
    if unknown:
        known = [flag for action in _actions(parser, options.command) for flag in action.option_strings if flag.startswith("--")]
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        if not wrong.startswith("-"):
            raise BadInput(f"{wrong!r} is one word too many" + ("; presets go before the flags" if options.command == "run" else ""))
        raise BadInput(f"unknown flag {wrong}; {nearest(wrong, known)}")
    if options.command == "list":
        return _list()
    if options.command == "run":
        return _run(options)
    parser.print_help()
    return 0


def _normal(word: str) -> str:
    """--training.learning_rate and --training.learning-rate are one flag."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _actions(parser: argparse.ArgumentParser, command: str | None) -> list[argparse.Action]:
    if command is None:
        return parser._actions
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices[command]._actions


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m spectral_ode", description=DESCRIPTION, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar="{run,list}")
    commands.add_parser("list", help="systems and presets, one line each", allow_abbrev=False)
    run = commands.add_parser(
        "run",
        help="integrate, train, overlay and judge",
        allow_abbrev=False,
        usage="python -m spectral_ode run [PRESET ...] [--out FOLDER] [--seed INT] [--json] [--FIELD VALUE ...]",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        description="Integrate the reduced ODEs and the exact population flow, train the full model, overlay them and judge the claims. "
        "Any field of the problem can be set by its flag; the defaults shown are those of a problem without a preset.",
    )
    run.add_argument(
        "presets", nargs="*", metavar="PRESET", help="presets by name or problems as .toml files (default: the headline experiments)"
    )
    run.add_argument("--out", metavar="FOLDER", default="runs", help="folder that receives one folder per run (default: runs)")
    run.add_argument("--seed", metavar="INT", help="all four seeds at once")
    run.add_argument("--dtype", metavar="TYPE", help="float type of the training, the same as --training.dtype")
    run.add_argument("--json", action="store_true", help="print the report as JSON and nothing else")
    run.add_argument("--quiet", action="store_true", help="print nothing but errors")
    run.add_argument("--dry-run", action="store_true", help="print the resolved problem as TOML and stop")
    run.add_argument("--debug", action="store_true", help="show the traceback of an error")
    group = run.add_argument_group("fields of the problem")
    for leaf in document.leaves():
        if leaf.name not in document.DESCRIPTIVE:
            default = ",".join(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
            shown = f"{leaf.doc} (default: {default})" if leaf.default is not None else leaf.doc
            group.add_argument(
                _normal(f"--{leaf.name}"), dest=leaf.name, metavar=_metavar(leaf), help=shown.replace("%", "%%"), default=None
            )
    return parser


def _metavar(leaf: document.Field) -> str:
    if typing.get_origin(leaf.type) is typing.Literal:
        return "|".join(typing.get_args(leaf.type))
    words = {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false", float | None: "FLOAT"}
    return words.get(leaf.type, "LIST")


def _list() -> int:
    print("systems")
    for entry in systems.entries():
        print(f"  {entry.name:<18} {entry.title} [{entry.paper}]")
    print("presets")
    for name in document.preset_names():
        problem = document.load(name)
        mark = "*" if problem.headline else " "
        print(f"{mark} {name:<18} {problem.title} [{problem.reference}]")
    print("* runs when no preset is named")
    return 0


def _problems(options: argparse.Namespace) -> list[tuple[str, Problem]]:
    given = {leaf.name: value for leaf in document.leaves() if (value := getattr(options, leaf.name, None)) is not None}
    if options.seed is not None:
        given |= {f"seed.{name}": options.seed for name in ("start", "task", "data", "noise")} | {
            k: v for k, v in given.items() if k.startswith("seed.")
        }
    if options.dtype is not None:
        given["training.dtype"] = options.dtype
    chosen = []
    for source in options.presets or document.headlines():
        problem = document.override(document.load(source), given)
        systems.check(problem.system)
        name = source if source in document.preset_names() else problem.system
        chosen.append((name, problem))
    return chosen


def _run(options: argparse.Namespace) -> int:
    problems = _problems(options)
    if options.dry_run:
        for _, problem in problems:
            print(document.to_toml(problem), end="")
        return 0
    from spectral_ode import run, runtime  # heavy from here on: only when there is work

    run.writable(options.out)
    runtime.configure()
    talk = not (options.quiet or options.json)
    reports = []
    for name, problem in problems:
        reports.append(run.carry_out(name, problem, options.out, talk=talk))
    if options.json:
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=1))
    return 0 if all(report["ok"] for report in reports) else 1
