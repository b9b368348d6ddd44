"""The command line: `python -m spectral_ode run | sweep | sensitivity | replay | compare | list`.

Parsing needs no jax; the work is imported when there is work.

Exit code 0: every verdict holds (or none could be given, and why is said); 1: one does not, or a solve failed; 2: bad input, told in one
sentence.
"""

import argparse
import json
import math
import os
import sys
import typing
from collections.abc import Iterable
from typing import Any

from spectral_ode import cluster, document, flags, systems
from spectral_ode.document import nearest
from spectral_ode.problem import BadInput, Problem, Training


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    try:
        return _dispatch([word for word in words if word != "--debug"])
    except BadInput as error:
        if debug:
            raise
        if cluster.first():
            print(f"spectral_ode: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nspectral_ode: interrupted; nothing half-written was left behind", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    parser = flags.parser()
    if words and not words[0].startswith("-") and words[0] not in flags.COMMANDS:
        raise BadInput(f"unknown command {words[0]!r}; {nearest(words[0], list(flags.COMMANDS))}")
    options, unknown = parser.parse_known_args([flags.normal(word) for word in words])
    if unknown:
        known = flags.of_command(parser, options.command)
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        if not wrong.startswith("-"):
            raise BadInput(f"{wrong!r} is one word too many" + ("; presets go before the flags" if options.command == "run" else ""))
        raise BadInput(f"unknown flag {wrong}; {nearest(wrong, known)}")
    commands = {"list": _list, "run": _run, "sweep": _sweep, "sensitivity": _sensitivity, "replay": _replay, "compare": _compare}
    if options.command in commands:
        return commands[options.command](options)
    parser.print_help()
    return 0


def _list(_: argparse.Namespace) -> int:
    names = document.preset_names()
    width = max(len(name) for name in [*names, *systems.names()])
    print("systems")
    for entry in systems.entries():
        print(f"  {entry.name:<{width}} {entry.title} [{entry.paper}]")
    print("presets")
    for name in names:
        problem = document.load(name)
        mark = "*" if problem.headline else " "
        print(f"{mark} {name:<{width}} {problem.title} [{problem.reference}]")
    print("* runs when no preset is named")
    return 0


def _problem(source: str, options: argparse.Namespace, **changes: str | None) -> tuple[str, Problem]:
    """A preset or file with the fields that flags set; `changes` are further fields, if they are given."""
    given = {leaf.name: value for leaf in document.leaves() if (value := getattr(options, leaf.name, None)) is not None}
    given = {name.replace("__", "."): value for name, value in changes.items() if value is not None} | given
    problem = document.override(document.load(source), given)
    systems.check(problem.system)
    return source if source in document.preset_names() else problem.system, problem


def _run(options: argparse.Namespace) -> int:
    seeds = {f"seed__{name}": options.seed for name in ("start", "task", "data", "noise")}
    sources = options.presets or document.headlines()
    problems = [_problem(source, options, training__dtype=options.dtype, **seeds) for source in sources]
    scale = cluster.read(options)
    if options.dry_run:
        for _, problem in problems:
            print(document.to_toml(problem), end="")
        return 0
    from spectral_ode import run  # heavy from here on: only when there is work

    cluster.join(scale)
    talk = _begin(options)
    for _, problem in problems:
        systems.load(problem.system).from_problem(problem)  # a mistake in the last problem is told before the first one is worked on
    return _answer(options, (run.carry_out(name, problem, options.out, talk=talk, scale=scale) for name, problem in problems))


def _sweep(options: argparse.Namespace) -> int:
    name, problem = _problem(options.preset, options)
    from spectral_ode.sweeps import axes

    counts = {flag: _count(f"--{flag}", getattr(options, flag.replace("-", "_"))) for flag in ("sample", "sample-seed", "seeds")}
    if options.rung:
        _choice("--rung", options.rung, ("population", "reduced", "training"))
    _choice("--store", options.store, ("npz", "zarr"))
    scale = cluster.read(options)
    problem = document.override(problem, {"runs": 1})
    over = tuple(axes.axis(problem, text) for text in options.over)
    sampled = counts["sample"] or (0 if any(axis.law for axis in over) else 1)
    plan = axes.Plan(problem, over, sampled, counts["sample-seed"], counts["seeds"])
    if options.dry_run:
        print(f"{plan.size} members")
        return 0
    cluster.join(scale)
    talk = _begin(options)
    from spectral_ode.sweeps import command

    assert scale.memory is not None
    request = command.Request(options.rung, options.keep, options.show, scale.memory, options.store == "zarr", scale.fresh)
    return _answer(options, [command.carry_out(name, plan, request, options.out, talk=talk).summary])


def _sensitivity(options: argparse.Namespace) -> int:
    name, problem = _problem(options.preset, options)
    if options.rung:
        _choice("--rung", options.rung, ("population", "reduced"))
    at = None if options.at is None else tuple(_number("--at", part) for part in options.at.split(","))
    to = tuple(dict.fromkeys(field.replace("-", "_") for field in options.to))
    talk = _begin(options)
    from spectral_ode import differentiate

    return _answer(
        options, [differentiate.carry_out(name, problem, tuple(options.of), to, options.out, at=at, rung=options.rung, talk=talk)]
    )


def _replay(options: argparse.Namespace) -> int:
    bound = _number("--bound", options.bound)
    for name in ("dtype", "method"):
        _choice(f"--{name}", getattr(options, name), typing.get_args(typing.get_type_hints(Training)[name]))
    for path in options.files:
        if not os.path.isfile(path):
            raise BadInput(f"there is no file {path}")
    from spectral_ode import replay

    talk = _begin(options)
    replay.readable(options.files)
    settings: dict[str, Any] = {"bound": bound, "dtype": options.dtype, "method": options.method, "talk": talk}
    return _answer(options, (replay.carry_out(path, options.out, **settings) for path in options.files))


def _compare(options: argparse.Namespace) -> int:
    name, problem = _problem(options.problem, options, training__learning_rate=options.learning_rate)
    step = None if options.step is None else _number("--step", options.step)
    from spectral_ode import compare, curve

    curve.read(options.curve, options.column, step)  # a mistake is told before anything heavy begins
    talk = _begin(options)
    report = compare.carry_out(name, problem, options.curve, options.out, column=options.column, step=step, talk=talk)
    return _answer(options, [report | {"ok": True}])


def _begin(options: argparse.Namespace) -> bool:
    """Check the output folder, set up jax, and say whether to talk."""
    from spectral_ode import run, runtime

    if "jax" not in sys.modules:
        run.writable(options.out)  # a mistake is told before anything heavy begins
    runtime.configure()
    cluster.agree(lambda: run.writable(options.out))
    return cluster.first() and not (options.quiet or options.json)


def _answer(options: argparse.Namespace, made: Iterable[dict[str, Any]]) -> int:
    reports = list(made)
    if options.json and cluster.first():
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=1))
    return 1 if any(report["ok"] is False for report in reports) else 0


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise BadInput(f"{flag} is {text!r}, but it must be a positive number")
    return value


def _count(flag: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise BadInput(f"{flag} is {text!r}, but it must be a whole number")
    return int(text)


def _choice(flag: str, word: str, allowed: tuple[str, ...]) -> None:
    if word not in allowed:
        raise BadInput(f"{flag} is {word!r}, but it must be one of {', '.join(allowed)}")
