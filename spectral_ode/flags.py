"""The flags of the command line: one parser per command, and a typed flag for every field of a problem. No jax here."""

import argparse
import typing
from typing import NoReturn

from spectral_ode import cluster, document
from spectral_ode.problem import BadInput

DESCRIPTION = "One problem, answered twice: the reduced ODEs of a paper and the trained network, overlaid and checked."
COMMANDS = ("run", "sweep", "sensitivity", "replay", "compare", "list")


class Parser(argparse.ArgumentParser):
    """argparse with one-sentence errors, a hint at the nearest flag, and no abbreviations."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong, instead of ending the program."""
        raise BadInput(message)


def normal(word: str) -> str:
    """--training.learning_rate and --training.learning-rate are one flag."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def jobs(word: str) -> int:
    """How many processes work side by side, or `BadInput`."""
    if not (word.isdecimal() and 1 <= int(word) <= 64):
        raise BadInput(f"--jobs is {word!r}, but it must be a whole number from 1 to 64")
    return int(word)


def of_command(parser: argparse.ArgumentParser, command: str | None) -> list[str]:
    """The long flags of one command."""
    actions = parser._actions
    if command is not None:
        actions = next(action for action in actions if isinstance(action, argparse._SubParsersAction)).choices[command]._actions
    return [flag for action in actions for flag in action.option_strings if flag.startswith("--")]


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="python -m spectral_ode", description=DESCRIPTION, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", metavar=f"{{{','.join(COMMANDS)}}}")
    wide = lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110)

    def command(name: str, short: str, usage: str, description: str) -> argparse.ArgumentParser:
        usage = f"python -m spectral_ode {name} {usage}"
        made = commands.add_parser(name, help=short, allow_abbrev=False, usage=usage, formatter_class=wide, description=description)
        made.add_argument("--out", metavar="FOLDER", default="runs", help="folder that receives the results (default: runs)")
        made.add_argument("--json", action="store_true", help="print the report as JSON and nothing else")
        made.add_argument("--quiet", action="store_true", help="print nothing but errors")
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return made

    _run(
        command(
            "run",
            "integrate, train, overlay and judge",
            "[PRESET ...] [--out FOLDER] [--seed INT] [--json] [--FIELD VALUE ...]",
            "Integrate the reduced ODEs and the exact population flow, train the full model, overlay them and judge the claims. "
            "Any field of the problem can be set by its flag; the defaults shown are those of a problem without a preset.",
        )
    )
    _sweep(
        command(
            "sweep",
            "solve a problem over grids and samples of its fields and over seeds",
            "PRESET --over FIELD=VALUES [--over ...] [--sample N] [--seeds N] [--rung RUNG] [--FIELD VALUE ...]",
            "Solve the theory of a problem (or train it) over a grid of values, random samples and seeds. VALUES are a list a,b,c, or "
            "linspace:a,b,n, logspace:a,b,n, range:first,last,step; or, with --sample, uniform:a,b, loguniform:a,b. A sweep that was "
            "stopped goes on where it was when it is started again.",
        )
    )
    _sensitivity(
        command(
            "sensitivity",
            "derivatives of phase times and observables to the numbers of a problem",
            "PRESET --of NAME --to FIELD [--to ...] [--at TIMES] [--rung RUNG] [--FIELD VALUE ...]",
            "Exact derivatives of a phase time (such as half-2) or of an observable at given times to fields of the problem, through the "
            "solve; --to weights: to all initial weights at once.",
        )
    )
    _replay(
        command(
            "replay",
            "train a recorded run of the authors' script again and compare",
            "FILE.npz [...] [--bound FLOAT] [--dtype TYPE] [--method METHOD] [--out FOLDER] [--json]",
            "Take data, start and loss curve of a recorded run, train the same model from the same start on the same data, overlay the "
            "curves and judge their largest difference.",
        )
    )
    _compare(
        command(
            "compare",
            "overlay a loss curve of any program with the theory",
            "CURVE --problem PRESET [--learning-rate FLOAT] [--step FLOAT] [--column NAME] [--FIELD VALUE ...]",
            "Overlay a loss curve (txt, csv or npz) with the theory of a problem. Rows are --step training steps apart, and a step lasts "
            "as long as the problem's learning rate and units say.",
        )
    )
    commands.add_parser("list", help="systems and presets, one line each", allow_abbrev=False)
    return parser


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "presets", nargs="*", metavar="PRESET", help="presets by name or problems as .toml files (default: the headline experiments)"
    )
    run.add_argument("--seed", metavar="INT", help="all four seeds at once")
    run.add_argument("--dtype", metavar="TYPE", help="float type of the training, the same as --training.dtype")
    run.add_argument("--dry-run", action="store_true", help="print the resolved problem as TOML and stop")
    cluster.flags(run)
    _fields(run)


def _sweep(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("preset", metavar="PRESET", help="preset by name or problem as .toml file")
    sweep.add_argument("--over", metavar="FIELD=VALUES", action="append", default=[], help="an axis; several make a grid")
    sweep.add_argument("--sample", metavar="N", default="0", help="how often the random axes are drawn")
    sweep.add_argument("--sample-seed", metavar="INT", default="0", help="seed of these draws (default: 0)")
    sweep.add_argument("--seeds", metavar="N", default="1", help="seeds of every problem: all four seeds plus 0 to N-1 (default: 1)")
    sweep.add_argument(
        "--rung", metavar="population|reduced|training", help="what is solved (default: the population flow, or else the reduced ODE)"
    )
    sweep.add_argument("--show", metavar="NAME", help="a phase such as half-1, or final-loss, for pictures and fits (default: half-1)")
    sweep.add_argument("--keep", metavar="NAMES", help="observables that are written, comma separated, or all (default: all but matrices)")
    sweep.add_argument("--memory", metavar="BYTES", default="2GB", help="bound on the memory of the process (default: 2GB)")
    sweep.add_argument("--store", metavar="npz|zarr", default="npz", help="files for the observables (default: npz)")
    sweep.add_argument("--dry-run", action="store_true", help="say how many members there are and stop")
    sweep.add_argument("--fresh", action="store_true", help="begin anew, whatever an interrupted sweep has left")
    cluster.hosts(sweep.add_argument_group("hosts (docs/scale.md)"))
    _fields(sweep)


def _sensitivity(sensitivity: argparse.ArgumentParser) -> None:
    sensitivity.add_argument("preset", metavar="PRESET", help="preset by name or problem as .toml file")
    sensitivity.add_argument("--of", metavar="NAME", action="append", required=True, help="a phase, such as half-2, or an observable")
    sensitivity.add_argument("--to", metavar="FIELD", action="append", required=True, help="a field of numbers, or weights")
    sensitivity.add_argument("--at", metavar="TIMES", help="flow times of an observable, comma separated (default: the end)")
    sensitivity.add_argument(
        "--rung", metavar="population|reduced", help="which flow (default: the population flow, or else the reduced ODE)"
    )
    _fields(sensitivity)


def _replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("files", nargs="+", metavar="FILE.npz", help="recorded runs (layout: docs/replay.md)")
    replay.add_argument(
        "--bound", metavar="FLOAT", default="1e-4", help="largest difference of the losses that is the same run (default: 1e-4)"
    )
    replay.add_argument("--dtype", metavar="float32|float64", default="float64", help="float type of the replay (default: float64)")
    replay.add_argument(
        "--method", metavar="auto|moments|gram|attention", default="auto", help="how the loss is evaluated (default: auto, the fastest)"
    )


def _compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("curve", metavar="CURVE", help="txt or csv with one row per record, or npz")
    compare.add_argument("--problem", metavar="PRESET", help="preset by name or problem as .toml file", required=True)
    compare.add_argument("--learning-rate", metavar="FLOAT", help="learning rate of the curve, the same as --training.learning-rate")
    compare.add_argument("--step", metavar="FLOAT", help="training steps from row to row (default: a column step or epoch, or else 1)")
    compare.add_argument(
        "--column", metavar="NAME", help="column, by name or number, or array that holds the loss (default: loss, or the first)"
    )
    _fields(compare)


def _fields(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("fields of the problem")
    for leaf in document.leaves():
        if leaf.name not in document.DESCRIPTIVE:
            default = ",".join(map(str, leaf.default)) if isinstance(leaf.default, tuple) else leaf.default
            shown = f"{leaf.doc} (default: {default})" if leaf.default is not None else leaf.doc
            group.add_argument(
                normal(f"--{leaf.name}"), dest=leaf.name, metavar=_metavar(leaf), help=shown.replace("%", "%%"), default=None
            )


def _metavar(leaf: document.Field) -> str:
    if typing.get_origin(leaf.type) is typing.Literal:
        return "|".join(typing.get_args(leaf.type))
    words = {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false", float | None: "FLOAT"}
    return words.get(leaf.type, "LIST")
