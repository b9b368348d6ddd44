"""`python -m validate --mutate`: does the quick tier notice when an equation is wrong?

Each mutant of `validate.mutants` is tried in a process of its own, which imports the altered module in place of the right one and judges the
quick problems of its paper, cheap claims first. It is caught by the first claim that fails, by an error, or by not ending in time.
What is not caught is listed with its reason from `survivors.toml`; a survivor without a reason there is a hole in the claims.

The processes are forks of one that has imported the libraries, but nothing of ours and nothing that starts a thread of JAX.
"""

import importlib.abc
import importlib.util
import json
import os
import select
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from validate.mutants import Mutant

SECONDS = 600.0  # after which a mutant counts as one that does not end; the right program takes a twentieth of it
WANTED = 0.95  # share of the mutants that the quick tier has to catch


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the claim that caught it, or nothing and perhaps the known reason."""

    mutant: Mutant
    caught: str
    seconds: float
    reason: str = ""


def reasons() -> dict[str, str]:
    """Why known survivors survive, by module, function and code."""
    table = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text(encoding="utf-8"))
    return {_key(entry["module"], entry["before"], entry["after"]): entry["reason"] for entry in table.get("survivor", [])}


def _key(module: str, before: str, after: str) -> str:
    return f"{module}: {before} -> {after}"


def trial(mutants: list[Mutant], *, workers: int, done: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """The outcome of every mutant, in their order; `done` hears of each as it ends."""
    known = reasons()
    waiting, running, found = list(enumerate(mutants))[::-1], {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                number, mutant = waiting.pop()
                running[_fork(mutant)] = number, mutant, time.monotonic()
            for handle, caught in _ended(running):
                number, mutant, begun = running.pop(handle)
                reason = "" if caught else known.get(_key(mutant.module, mutant.before, mutant.after), "")
                found[number] = Outcome(mutant, caught, time.monotonic() - begun, reason)
                if done:
                    done(found[number])
    finally:
        for process, _ in running:
            os.killpg(process, signal.SIGKILL)
    return [found[number] for number in sorted(found)]


def _ended(running: dict) -> Iterator[tuple[tuple[int, int], str]]:
    """Processes that are done, with what they said."""
    ready, _, _ = select.select([pipe for _, pipe in running], [], [], 1.0)
    for handle in list(running):
        process, pipe = handle
        late = time.monotonic() - running[handle][2] > SECONDS
        if pipe in ready or late:
            if late:
                os.killpg(process, signal.SIGKILL)
            with os.fdopen(pipe) as stream:
                said = "" if late else stream.read()
            os.waitpid(process, 0)
            yield handle, json.loads(said) if said else ("does not end" if late else "the process died")


def _fork(mutant: Mutant) -> tuple[int, int]:
    """Start a process that tries a mutant; its number, and the end of a pipe that it writes its verdict to."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    os.setpgid(0, 0)
    os.close(reading)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        said = attempt(mutant)
    except BaseException as error:  # any error at all tells the mutant from the right program
        said = f"error: {type(error).__name__}: {error}".partition("\n")[0]
    os.write(writing, json.dumps(said).encode())
    os._exit(0)


def attempt(mutant: Mutant) -> str:
    """The first claim of the quick tier that fails on a mutant, or nothing. Replaces the module for the rest of this process."""
    sys.meta_path.insert(0, _Altered(mutant.module, mutant.text))
    from spectral_ode import runtime

    runtime.configure()
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)  # programs of right modules may be read, but none is kept
    from validate import tiers
    from validate.check import staged

    for name, problem in tiers.quick(paper(mutant.module)).items():
        for verdict in staged(problem):
            if verdict.ok is False:
                return f"{name}: {verdict.claim}"
    return ""


def paper(module: str) -> str:
    """The folder of the paper that a module belongs to; empty for what papers share."""
    parts = module.split(".")
    return parts[2] if parts[1] == "systems" else ""


class _Altered(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, with another text."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.text, f"<mutant of {self.name}>", "exec"), module.__dict__)
