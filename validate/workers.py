"""Problems answered by two processes side by side, reported in the order in which they were asked.

Compiling takes most of the time and one core, so two processes are nearly twice as fast as one. What comes back is plain data. Compiled
programs are forgotten after each problem: those of all together need more memory maps than Linux gives a process.
"""

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import jax

from spectral_ode import runtime, systems
from spectral_ode.problem import Problem
from spectral_ode.run import Terminal
from validate import charts, report, tiers

Answer = tuple[dict[str, Any], dict[str, Any]]  # the report, and what the page draws


def answer(problems: dict[str, Problem], jobs: int, progress: Terminal, claims: tuple[str, ...] = tiers.TIERS) -> Iterator[Answer]:
    """The answer to each problem, in order, judged by the claims of some tiers; one job works in this process."""
    if min(jobs, len(problems)) == 1:
        yield from (work(name, problem, progress, claims) for name, problem in problems.items())
        return
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # jax has threads, which do not survive a fork
    pool = ProcessPoolExecutor(jobs, context, _prepare, (list(systems.__path__),))
    try:
        asked = [pool.submit(work, name, problem, None, claims) for name, problem in problems.items()]
        waiting = dict(enumerate(asked))
        progress.bar("validate", 0.0, f"   0 of {len(asked)} problems")
        for done, _ in enumerate(as_completed(asked), start=1):
            while waiting and waiting[min(waiting)].done():
                yield waiting.pop(min(waiting)).result()
            progress.bar("validate", done / len(asked), f"   {done} of {len(asked)} problems")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()  # nobody waits for it any more


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


def _prepare(folders: list[str]) -> None:
    """A fresh process sets up jax and looks for systems where its parent does."""
    runtime.configure()
    systems.__path__[:] = folders
