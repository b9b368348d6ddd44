"""A run on several devices and hosts, within a bound of memory, through interruptions: its flags, their checks, and how processes meet.

Every process runs the same command and computes the same numbers; the first one alone writes and prints. Nothing here imports jax before
there is work.
"""

import argparse
import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spectral_ode import document, meeting
from spectral_ode.problem import BadInput, Problem

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
COMPLAINT = 1000  # bytes of a sentence that all processes hear
_others: list[int] = []  # this process's number, if it is not the first
_joined: list[bool] = []  # whether there may be others


@dataclass(frozen=True)
class Scale:
    """What the flags say."""

    microbatch: int | None = None
    memory: int | None = None
    every: float = 5.0
    fresh: bool = False
    distributed: bool = False
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    timeout: int = 60

    def training(self, name: str, problem: Problem, out: str, *, talk: bool, wipe: Callable[[], None]) -> dict[str, Any]:
        """What `simulate.train` is told; `wipe` clears the line of a terminal before a sentence is printed."""
        from simulate.checkpoint import Keeper

        def say(text: str) -> None:
            wipe()
            print(f"spectral_ode: {name}: {text}", file=sys.stderr)

        quiet = lambda text: None
        folder = Path(out) / ".resume" / f"{name}-{document.identity(problem)}"
        keep = Keeper(folder, every=self.every, fresh=self.fresh, warn=say, tell=say if talk else quiet)
        return {"microbatch": self.microbatch, "memory": self.memory, "keep": keep}


def flags(run: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = run.add_argument_group("scale (docs/scale.md)")
    group.add_argument("--fresh", action="store_true", help="begin anew, whatever an interrupted run has left")
    group.add_argument("--save-every", metavar="SECONDS", default="5", help="time between checkpoints of the training (default: 5)")
    group.add_argument("--microbatch", metavar="INT", help="train on so many sequences, contexts or tasks of a batch at a time")
    group.add_argument("--memory", metavar="BYTES", help="the largest microbatch that stays below it on each device, such as 500M or 8G")
    hosts(group)


def hosts(group: Any) -> None:
    """Add the flags by which processes find each other."""
    group.add_argument("--distributed", action="store_true", help="one process per host, as SLURM, Open MPI or a cloud pod started them")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where the first process listens, on a plain cluster")
    group.add_argument("--processes", metavar="INT", help="how many processes there are")
    group.add_argument("--process", metavar="INT", help="which of them this one is, from 0")
    group.add_argument("--timeout", metavar="SECONDS", default="60", help="how long processes wait for each other to begin (default: 60)")


def read(options: argparse.Namespace) -> Scale:
    """The flags, checked; raises `BadInput`."""
    given = lambda name: getattr(options, name, None)
    if given("memory") is not None and given("microbatch") is not None:
        raise BadInput("--memory chooses the microbatch, so that --microbatch cannot be given beside it; leave one of them out")
    three = {name: getattr(options, name) for name in ("coordinator", "processes", "process")}
    if any(value is not None for value in three.values()) and (missing := [f"--{name}" for name, value in three.items() if value is None]):
        raise BadInput(f"--coordinator, --processes and --process go together; give {' and '.join(missing)} too")
    processes, process = _whole("--processes", options.processes, 1), _whole("--process", options.process, 0)
    if processes is not None and process is not None and process >= processes:
        raise BadInput(f"--process is {process}, but {processes} processes are numbered from 0 to {processes - 1}")
    if options.coordinator is not None:
        host, _, port = options.coordinator.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise BadInput(f"--coordinator is {options.coordinator!r}, but it must be HOST:PORT, such as node1:12345")
    try:
        every = float(getattr(options, "save_every", "5"))
    except ValueError:
        every = math.nan
    if not every >= 0:
        raise BadInput(f"--save-every is {options.save_every!r}, but it must be zero or a positive number of seconds")
    return Scale(
        microbatch=_whole("--microbatch", given("microbatch"), 1),
        memory=amount("--memory", given("memory")),
        every=every,
        fresh=options.fresh,
        distributed=options.distributed or processes is not None,
        coordinator=options.coordinator,
        processes=processes,
        process=process,
        timeout=_whole("--timeout", options.timeout, 1) or 1,
    )


def amount(flag: str, text: str | None) -> int | None:
    """Bytes from text such as 500M, 8GB or 2GiB; raises `BadInput`."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,18}(?:\.\d*)?) ?([kmgt]?i?)b?", text.strip().lower())
    if not found or found[2] not in UNITS or not (memory := int(float(found[1]) * UNITS[found[2]])):
        raise BadInput(f"{flag} is {text!r}, but it must be a number of bytes, such as 500M or 8G")
    return memory


def first() -> bool:
    """Whether this process writes and prints."""
    return not _others


def join(scale: Scale) -> None:
    """Meet the other processes, before jax has done anything; raises `BadInput` if they cannot be found."""
    if not scale.distributed:
        return
    if scale.coordinator is not None and scale.processes is not None and scale.process is not None:
        _others[:] = [scale.process] if scale.process else []
        meeting.meet(scale.coordinator, scale.processes, scale.process, scale.timeout)
    from spectral_ode import runtime

    runtime.configure()
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(scale.coordinator, scale.processes, scale.process, initialization_timeout=scale.timeout)
    except ValueError:
        raise BadInput(
            "--distributed found no SLURM, Open MPI or cloud environment; give --coordinator HOST:PORT, --processes and --process"
        ) from None
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"the processes did not meet within {scale.timeout} s ({reason}); start all of them, or raise --timeout") from None
    _others[:] = [jax.process_index()] if jax.process_index() else []
    _joined[:] = [True]


def agree(work: Callable[[], Any]) -> Any:
    """What the first process makes of some work, in all processes; its `BadInput` they all raise. The result must fit into JSON."""
    if not _joined:
        return work()
    from simulate.mesh import from_first

    told: dict[str, Any] = {}
    if first():
        try:
            told = {"result": work()}
        except BadInput as error:
            told = {"error": str(error)}
    with _hushed():
        told = json.loads(from_first(json.dumps(told).encode()))
    if "error" in told:
        raise BadInput(told["error"])
    return told["result"]


def everyone(work: Callable[[], Any]) -> Any:
    """Work of every process, each its own; they wait for each other in the end, and all raise the first `BadInput` of any of them."""
    if not _joined:
        return work()
    from jax.experimental import multihost_utils

    result, said = None, ""
    try:
        result = work()
    except BadInput as error:
        said = str(error)
    line = np.frombuffer(said.encode()[:COMPLAINT].ljust(COMPLAINT), np.uint8)
    with _hushed():
        lines = np.asarray(multihost_utils.process_allgather(line))
    if complaint := next((text for one in lines if (text := one.tobytes().decode(errors="ignore").strip())), ""):
        raise BadInput(complaint)
    return result


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Nothing to stdout, not even by Gloo, which greets there when processes first talk to each other."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _whole(flag: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) < least:
        raise BadInput(f"{flag} is {text!r}, but it must be a whole number of at least {least}")
    return int(text)
