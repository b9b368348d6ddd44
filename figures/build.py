"""Figures made where they are missing: computed, judged, drawn and listed, each on its own; one that fails does not lose the others.

Experiments are performed by other processes, side by side, while this one draws. Each is kept by the hash of its problem. A picture is
drawn again when its inputs have changed: problems, versions, width, or the text of the modules that draw it. The record of a figure, with
its verdicts, is its entry in the index.
"""

import ast
import hashlib
import importlib
import inspect
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import figures
from spectral_ode import document, runtime
from spectral_ode.problem import Problem
from spectral_ode.run import Terminal

Work = dict[str, dict[str, Problem]]  # problems of each figure, by name
Record = dict[str, Any]


@dataclass(frozen=True)
class Gallery:
    """Where pictures go and how they are drawn."""

    out: Path
    kind: str  # of file, beside the png that the index shows
    width: str
    _: KW_ONLY
    fast: bool
    jobs: int = 1  # processes that compute side by side; with one of them it is done here, figure by figure

    @property
    def folder(self) -> Path:
        """Of the pictures and the index; the data are the same for every width."""
        return self.out if self.width == "full" else self.out / self.width

    @property
    def tiers(self) -> tuple[str, ...]:
        """Which claims are judged; of a small version only how rungs ended."""
        return () if self.fast else ("run",)

    def place(self, problem: Problem) -> Path:
        """Where an experiment is kept."""
        return self.out / "data" / document.identity(problem)

    def make(self, wanted: list[str], *, fresh: bool) -> list[str]:
        """Make what is missing or changed; the names of figures that failed."""
        runtime.configure()
        import jax

        from figures import index
        from validate import workers

        records, failed = index.read(self.folder), dict[str, str]()
        modules: dict[str, ModuleType] = {}
        work: Work = {}
        inputs: dict[str, str] = {}
        for name in wanted:
            with _aside(name, failed):
                modules[name] = importlib.import_module(f"figures.{name}")
                work[name] = modules[name].problems(self.fast)
                inputs[name] = self.inputs(name, work[name])
        todo = [name for name in inputs if fresh or not self.current(records.get(name), inputs[name])]
        done: set[str] = set()  # problems that need not be performed
        if not fresh:
            done = {document.identity(problem) for name in todo for problem in work[name].values() if self.kept(problem)}
        announce({name: modules[name] for name in todo}, work, done, self.fast)
        needed: dict[str, workers.Kept] = {}
        for name in todo:
            found = {document.identity(problem): (self.place(problem), problem, self.tiers, name) for problem in work[name].values()}
            needed |= {identity: one for identity, one in found.items() if identity not in {*done, *needed}}
        with workers.keeping(needed, self.jobs) as performed:
            for name in todo:
                progress = Terminal(sys.stderr.isatty())
                try:
                    with _aside(name, failed):
                        done |= {identity for identity in map(document.identity, work[name].values()) if performed(identity, progress)}
                        records[name] = self.one(name, modules[name], work[name], done, progress, records.get(name))
                        records[name]["inputs"] = inputs[name]
                finally:
                    progress.close()
                    jax.clear_caches()  # programs of all figures together need more memory maps than Linux gives a process
                if name not in failed:
                    index.write(self.folder, records, fast=self.fast)
        for name, sentence in failed.items():
            records[name] = (index.about(name, modules[name]) if name in modules else {"name": name}) | {"error": sentence}
        index.write(self.folder, records, fast=self.fast)
        unchanged = len(inputs) - len(todo)
        print(f"{self.folder / 'index.html'}: {len(records)} figures{f', {unchanged} of {len(wanted)} unchanged' if unchanged else ''}")
        return list(failed)

    def inputs(self, name: str, problems: dict[str, Problem]) -> str:
        """A hash of everything that a picture depends on."""
        import matplotlib

        from figures import lasso, style

        files = [*(source(each) for each in drawn_with(name)), style.STYLE]
        texts = {file.name: file.read_text(encoding="utf-8") for file in files}
        identities = {key: document.identity(problem) for key, problem in problems.items()}
        versions = runtime.provenance(Problem())["versions"] | {"matplotlib": matplotlib.__version__, "lasso": str(lasso.present())}
        return hashlib.sha256(json.dumps([texts, identities, versions, self.width]).encode()).hexdigest()[:16]

    def current(self, record: Record | None, inputs: str) -> bool:
        """Whether a figure was made from these inputs and all its files are there, also of the kind asked for."""
        if record is None or record.get("inputs") != inputs:
            return False
        wanted = {self.kind} if "png" in record["files"] else set()  # a moving picture has one kind
        return wanted <= set(record["files"]) and all((self.folder / file).exists() for file in record["files"].values())

    def kept(self, problem: Problem) -> bool:
        """Whether this version of the program has kept the problem's experiment, judged."""
        from validate import store

        return store.judged(self.place(problem), problem) is not None

    def one(
        self, name: str, module: ModuleType, problems: dict[str, Problem], done: set[str], progress: Terminal, old: Record | None
    ) -> Record:
        """One figure: experiments that are kept or performed now, the picture, and the record of both."""
        from figures import index
        from validate import store

        experiments, reports = {}, {}
        for key, problem in problems.items():
            place, identity = self.place(problem), document.identity(problem)
            progress.stage(f"{name}: {key}")
            experiment = store.read(place, problem) if identity in done else None
            experiments[key] = experiment or store.keep(place, problem, progress, tiers=self.tiers)
            reports[key] = store.judged(place, problem)
            done.add(identity)
        progress.stage(f"{name}: drawing")
        begun = time.perf_counter()
        kinds = dict.fromkeys(["png", self.kind, *(old or {}).get("files", {})])  # none of another kind is left behind as it was
        files = self.picture(name, module, experiments, list(kinds), progress)
        drawing, computing = time.perf_counter() - begun, sum(sum(report["seconds"].values()) for report in reports.values())
        progress.close()
        print(f"{self.folder / next(iter(files.values()))}: {'(small version) ' if self.fast else ''}{module.CAPTION}")
        flags = (" --fast" if self.fast else "") + (f" --width {self.width}" if self.width != "full" else "")
        return index.about(name, module) | {
            "command": f"python -m figures {name}{flags}",
            "files": files,
            "seconds": {"computing": computing, "drawing": drawing},
            "experiments": {
                key: {"problem": report["name"], "verdicts": relevant(module, experiments[key], report["verdicts"])}
                for key, report in reports.items()
            },
        }

    def picture(self, name: str, module: ModuleType, experiments: dict[str, Any], kinds: list[str], progress: Terminal) -> dict[str, str]:
        """Draw once and write a file of each kind."""
        from figures import style

        self.folder.mkdir(parents=True, exist_ok=True)
        if hasattr(module, "animate"):
            module.animate(experiments, self.folder / f"{name}.gif", lambda share: progress.bar(f"{name}: rendering", share))
            return {"gif": f"{name}.gif"}
        small = {"fast": self.fast} if "fast" in inspect.signature(module.draw).parameters else {}
        style.save(module.draw(experiments, style.WIDTHS[self.width], **small), *(self.folder / f"{name}.{kind}" for kind in kinds))
        return {kind: f"{name}.{kind}" for kind in kinds}


def relevant(module: ModuleType, experiment: Any, verdicts: list[Record]) -> list[Record]:
    """Verdicts on what is drawn: a figure that does not draw its training, and keeps it short, says WITHOUT = "training"."""
    without = getattr(module, "WITHOUT", "")
    rungs = lambda claim: [getattr(claim, part, None) for part in ("rung", "first", "second")]
    about = {claim.name: rungs(claim) for claim in experiment.system.claims(experiment.problem)}
    return [verdict for verdict in verdicts if without not in about.get(verdict["claim"], [verdict["claim"].partition(":")[0]])]


@contextmanager
def _aside(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Trouble of one figure, whatever it is, is told in a sentence and noted."""
    try:
        yield
    except Exception as error:
        from validate import workers

        failed[name] = workers.sentence(error)
        print(f"\r{name}: failed: {failed[name]}", file=sys.stderr)


def source(name: str) -> Path:
    """The file of a module of this package."""
    return next(path for folder in figures.__path__ if (path := Path(str(folder)) / f"{name}.py").exists())


def drawn_with(name: str) -> list[str]:
    """A module and the modules of this package that it imports, and so on."""
    found, todo = [], [name]
    while todo:
        found.append(name := todo.pop())
        for node in ast.walk(ast.parse(source(name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "figures":
                _, _, below = (node.module or "").partition(".")
                todo += [each for each in ([below] if below else [alias.name for alias in node.names]) if each not in [*found, *todo]]
    return sorted(found)


def announce(modules: dict[str, ModuleType], work: Work, ready: set[str], fast: bool) -> None:
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
