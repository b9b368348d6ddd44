"""Other processes: a fresh one of our own that answers once, and one of the authors' code that sleeps between requests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def begin(module: str, *words: str, **environment: str) -> tuple[Any, str]:
    """A process of `python -m benchmarks.module words`, and the first line that it says."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    process: Any = subprocess.Popen(command, cwd=ROOT, env=_settings() | environment, stdout=subprocess.PIPE, text=True)
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{module} {words[0]} has stopped; what it said is above")
    return process, line


def fresh(module: str, *words: str, **environment: str) -> Any:
    """The number that it says, as JSON."""
    process, line = begin(module, *words, **environment)
    process.communicate()
    return json.loads(line)


def _settings() -> dict[str, str]:
    """The environment without a say on where compiled programs are kept or how many devices there are."""
    return {name: value for name, value in os.environ.items() if name not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")}


class Served:
    """`serve` of one of our modules under another Python: a line of JSON for a line of JSON."""

    def __init__(self, python: str, module: str, *words: str) -> None:
        command = [python, "-m", f"benchmarks.{module}", "serve", *words]
        self.process: Any = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.threads = self._answer()  # what it says first

    def ask(self, *words: Any) -> Any:
        """The answer to a request."""
        print(json.dumps(words), file=self.process.stdin, flush=True)
        return self._answer()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # nothing more is asked: it ends

    def _answer(self) -> Any:
        if not (line := self.process.stdout.readline()):
            raise RuntimeError("the authors' code has stopped; what it said is above")
        return json.loads(line)
