"""`python -m validate --mutate`: does the quick tier notice when an equation is wrong?

Each mutant of `validate.mutants` is tried in a process which imports our modules anew, one of them altered, and judges the quick problems
of its paper, cheap claims first. It is caught by the first claim that fails, by an error, or by not ending in time.
What is not caught is listed with its reason from `survivors.toml`; a survivor without a reason there is a hole in the claims. A mutant
with a reason there is asked the cheap claims alone: that nothing can tell it from the right program has been thought about already.

The processes are forks of one that has imported the libraries, but nothing of ours and nothing that starts a thread of JAX.
"""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import select
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from spectral_ode import run
from spectral_ode.folder import whole
from spectral_ode.problem import BadInput
from validate import mutants
from validate.mutants import Mutant

SECONDS = 600.0  # after which a mutant counts as one that does not end; the right program takes a twentieth of it
BATCH = 20  # mutants of one process: it keeps what it has compiled of the libraries, until memory maps would run out
LIBRARIES = ("jax", "equinox", "diffrax", "optax", "optimistix", "scipy.stats", "scipy.integrate", "scipy.interpolate", "mpmath")
OURS = ("spectral_ode", "simulate", "validate", "figures")
WANTED = 0.95  # share of the mutants that the quick tier has to catch


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the claim that caught it, or nothing and perhaps the known reason."""

    mutant: Mutant
    caught: str
    seconds: float
    reason: str = ""


def command(names: list[str], out: str, *, jobs: int, every: int, cheap: bool, talk: bool) -> bool:
    """Try the mutants of the named modules (or of all), every so many of them; tell, write a report; whether enough were caught.

    `cheap`: only the closed forms and identities are asked.
    """
    chosen = [module for module in mutants.modules() if not names or any(name in module for name in names)]
    if not chosen:
        raise BadInput(f"no module of equations is named {names[0]!r}; there are {', '.join(mutants.modules())}")
    _load_libraries()
    tried = [mutant for module in chosen for mutant in mutants.mutants(module)][::every]
    progress, survivors = run.Terminal(talk and sys.stderr.isatty()), []

    def done(outcome: Outcome) -> None:
        number[0] += 1
        if not outcome.caught:
            survivors.append(outcome)
            if talk:  # what is interrupted has told so far
                progress.close()
                print(f"not caught: {outcome.mutant.name}", flush=True)
        progress.bar("mutants", number[0] / len(tried), f"   {number[0]} of {len(tried)}, {len(survivors)} not caught")

    number = [0]
    try:
        outcomes = trial(tried, workers=jobs, cheap=cheap, done=done)
    finally:
        progress.close()
    share = 1 - len(survivors) / len(tried)
    asked = "closed forms and identities" if cheap else "the quick tier"
    report = {"tried": len(tried), "asked": asked, "caught": share, "wanted": WANTED, "mutants": [_row(outcome) for outcome in outcomes]}
    with whole(Path(out)) as aside:
        (aside / "mutants.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if talk:
        print(table(outcomes))
        print(f"{len(tried) - len(survivors)} of {len(tried)} mutants caught by {asked}, {100 * share:.1f} %; wanted {100 * WANTED:.0f} %")
        print(f"wrote {out}/")
    return share >= WANTED


def _load_libraries() -> None:
    """Import what all processes need, so that each fork has it; nothing here starts a thread of JAX."""
    for name in LIBRARIES:
        importlib.import_module(name)


def _row(outcome: Outcome) -> dict[str, str | float]:
    mutant = outcome.mutant
    words = {"module": mutant.module, "place": mutant.place, "kind": mutant.kind, "before": mutant.before, "after": mutant.after}
    return {**words, "caught by": outcome.caught, "reason": outcome.reason, "seconds": round(outcome.seconds, 1)}


def table(outcomes: list[Outcome]) -> str:
    """Caught mutants per module, then each survivor with its reason."""
    lines = [f"{'module':<44} {'mutants':>8} {'caught':>8}"]
    for module in dict.fromkeys(outcome.mutant.module for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.mutant.module == module]
        lines.append(f"{module:<44} {len(mine):>8} {sum(bool(outcome.caught) for outcome in mine):>8}")
    for outcome in outcomes:
        if not outcome.caught:
            lines.append(f"not caught: {outcome.mutant.name}\n    {outcome.reason or 'NO REASON IS KNOWN: a hole in the claims'}")
    return "\n".join(lines)


def reasons() -> dict[tuple[str, str, str, str], str]:
    """Why known survivors survive, by module, function and code."""
    table = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text(encoding="utf-8"))
    return {(entry["module"], entry["function"], entry["before"], entry["after"]): entry["reason"] for entry in table.get("survivor", [])}


def _key(mutant: Mutant) -> tuple[str, str, str, str]:
    return mutant.module, mutant.place.partition(",")[0], mutant.before, mutant.after


def trial(tried: list[Mutant], *, workers: int, cheap: bool = False, done: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """The outcome of every mutant, in their order; `done` hears of each as it ends."""
    known, found = reasons(), {}
    numbers = list(range(len(tried)))
    waiting = [numbers[first : first + BATCH] for first in numbers[::BATCH]][::-1]
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Worker(waiting.pop(), tried, known, cheap=cheap))
            select.select([worker.pipe for worker in running], [], [], 1.0)
            for worker in list(running):
                for number, caught, seconds in worker.news():
                    mutant = tried[number]
                    reason = "" if caught else known.get(_key(mutant), "")
                    found[number] = Outcome(mutant, caught, seconds, reason)
                    if done:
                        done(found[number])
                if worker.over:
                    running.remove(worker)
                    waiting += [worker.left] if worker.left else []
    finally:
        for worker in running:
            worker.stop()
    return [found[number] for number in sorted(found)]


class _Worker:
    """A process that tries some mutants one after the other and writes a line about each into a pipe."""

    def __init__(self, numbers: list[int], tried: list[Mutant], known: Container[tuple[str, str, str, str]], *, cheap: bool) -> None:
        self.left, self.text, self.begun, self.over = list(numbers), b"", time.monotonic(), False
        self.pipe, writing = os.pipe()
        self.process = os.fork()
        if self.process:
            os.close(writing)
            os.set_blocking(self.pipe, False)
            return
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        caught = ""
        for number in numbers:
            caught = _said(tried[number], caught, cheap=cheap or _key(tried[number]) in known)
            os.write(writing, json.dumps(caught).encode() + b"\n")
        os._exit(0)

    def news(self) -> Iterator[tuple[int, str, float]]:
        """Mutants that are done since last asked: number, what caught it, seconds."""
        try:
            more = os.read(self.pipe, 65_536)
        except BlockingIOError:
            more = None
        self.text += more or b""
        while b"\n" in self.text:
            line, _, self.text = self.text.partition(b"\n")
            yield self.left.pop(0), json.loads(line), self._lap()
        died = more == b""
        if self.left and (died or time.monotonic() - self.begun > SECONDS):
            yield self.left.pop(0), "the process died" if died else "does not end", self._lap()
            self.stop()
        elif died:
            self.stop()

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.pipe)
        self.over = True

    def _lap(self) -> float:
        begun, self.begun = self.begun, time.monotonic()
        return self.begun - begun


def _said(mutant: Mutant, before: str, *, cheap: bool) -> str:
    try:
        return attempt(mutant, before, cheap=cheap)
    except BaseException as error:  # any error at all tells the mutant from the right program
        return f"error: {type(error).__name__}: {error}".partition("\n")[0]


def attempt(mutant: Mutant, before: str = "", *, cheap: bool = False) -> str:
    """The first claim of the quick tier that fails on a mutant, or nothing. Our modules are imported anew, one of them altered.

    The problem that caught the mutant `before` this one is asked first: it most likely catches its neighbor, too.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    gc.collect()
    sys.meta_path[:] = [_Altered(mutant.module, mutant.text), *(finder for finder in sys.meta_path if not isinstance(finder, _Altered))]
    tiers, runtime, staged = (importlib.import_module(name) for name in ("validate.tiers", "spectral_ode.runtime", "validate.staged"))
    runtime.configure()
    import jax

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)  # programs of right modules may be read, but none is kept
    problems = {name: problem for name, problem in tiers.quick().items() if problem.system.startswith(paper(mutant.module))}
    order = sorted(problems, key=lambda name: not before.startswith(f"{name}: "))
    for name, verdict in staged.staged({name: problems[name] for name in order}, staged.CHEAP if cheap else staged.STAGES):
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
