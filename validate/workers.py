"""Problems answered, or kept for figures, by processes side by side, in the order in which they were asked.

Compiling takes most of the time and one core, so two processes are nearly twice as fast as one. What comes back is plain data. Compiled
programs are forgotten after each problem, or figure: those of all together need more memory maps than Linux gives a process.
"""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any

import jax

from spectral_ode import runtime, systems
from spectral_ode.problem import Problem
from spectral_ode.run import Terminal
from validate import charts, report, store, tiers

Answer = tuple[dict[str, Any], dict[str, Any]]  # the report, and what the page draws
Kept = tuple[Path, Problem, tuple[str, ...], str]  # folder, what is performed, by which claims it is judged, the figure that needs it
DIED = "a process ended before it had an answer, perhaps for want of memory; try --jobs 1"


class Elsewhere(Exception):
    """Trouble in another process, as a sentence."""


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are set up as this one is, and ended when nobody waits for them any more."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # jax has threads, which do not survive a fork
    executor = ProcessPoolExecutor(jobs, context, _prepare, (list(systems.__path__),))
    try:
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which they inherit: an interruption is for this process, which ends them
        try:
            for _ in range(jobs):
                executor.submit(int)  # nothing, but a process begins
        finally:
            signal.signal(signal.SIGINT, heard)
        yield executor
    finally:
        mine = set(multiprocessing.active_children()) - before
        for child in mine:
            child.kill()  # what they write is written aside; other signals can be lost while a process begins
        executor.shutdown(cancel_futures=True)  # its thread waits for the processes: a second one that does may miss their end
        for child in mine:
            child.join()  # once was seen to be there still when that thread was done


def until(wanted: Future, asked: Collection[Future], progress: Terminal, who: str, what: str) -> None:
    """Wait for one of the things that were asked, and show meanwhile how many of them are there."""
    while True:
        done = sum(each.done() for each in asked)
        progress.bar(who, done / len(asked), f"   {done} of {len(asked)} {what}")
        if wanted.done():
            return
        wait([each for each in asked if not each.done()], return_when=FIRST_COMPLETED)


def answer(problems: dict[str, Problem], jobs: int, progress: Terminal, *, full: bool = False) -> Iterator[Answer]:
    """The answer to each problem, in order, by the claims of its tier; one job works in this process."""
    claims = {name: tiers.asked(name, full=full) for name in problems}
    if min(jobs, len(problems)) <= 1:
        yield from (work(name, problem, progress, claims[name]) for name, problem in problems.items())
        return
    with pool(min(jobs, len(problems))) as processes:
        asked = [processes.submit(work, name, problem, None, claims[name]) for name, problem in problems.items()]
        for each in asked:
            until(each, asked, progress, "validate", "problems")
            yield each.result()


def work(name: str, problem: Problem, progress: Terminal | None = None, claims: tuple[str, ...] = tiers.TIERS) -> Answer:
    """Answer and judge one problem."""
    begun, busy = time.perf_counter(), time.process_time()
    experiment, verdicts = tiers.judge(name, problem, progress, tiers=claims)
    summary = report.summarize(name, experiment, verdicts)
    drawn = charts.picture(experiment)
    summary["seconds"]["claims"] = time.perf_counter() - begun - sum(summary["seconds"].values())
    summary["processor seconds"] = time.process_time() - busy
    jax.clear_caches()
    return summary, drawn


@contextmanager
def keeping(asked: dict[str, Kept], jobs: int) -> Iterator[Callable[[str, Terminal], bool]]:
    """Processes keep experiments for figures. Yields what waits for one of them: has it been performed there? With one job none has."""
    if min(jobs, len(asked)) <= 1:
        yield lambda name, progress: False
        return
    try:
        with pool(min(jobs, len(asked))) as processes:
            answers = {name: processes.submit(_keep, *one) for name, one in asked.items()}

            def performed(name: str, progress: Terminal) -> bool:
                if name not in answers:
                    return False
                until(answers[name], answers.values(), progress, "figures", "experiments")
                try:
                    trouble = answers[name].result()
                except BrokenProcessPool:
                    trouble = DIED
                if trouble:
                    raise Elsewhere(trouble)
                return True

            yield performed
    finally:
        for folder, *_ in asked.values():  # a process may have been ended while it wrote
            for half in folder.parent.glob(f".{folder.name}-*"):
                shutil.rmtree(half, ignore_errors=True)


def _keep(folder: Path, problem: Problem, claims: tuple[str, ...], figure: str) -> str:
    """Perform a problem and keep it. Returns what went wrong, in a sentence: not every exception can be sent to another process."""
    _begin(figure)
    try:
        store.keep(folder, problem, tiers=claims)
    except Exception as error:
        return sentence(error)
    return ""


@lru_cache(maxsize=1)
def _begin(figure: str) -> None:
    """Forget compiled programs when another figure begins: experiments of one figure often share them."""
    jax.clear_caches()


def sentence(error: Exception) -> str:
    """What kind of trouble it is, and the first line of what it says."""
    return str(error) if isinstance(error, Elsewhere) else f"{type(error).__name__}: {error}".splitlines()[0]


def _prepare(folders: list[str]) -> None:
    """A fresh process sets up jax and looks for systems where its parent does."""
    Thread(target=_end_with_parent, daemon=True).start()
    runtime.configure()
    systems.__path__[:] = folders


def _end_with_parent() -> None:
    """A parent that was killed cannot end its processes."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
