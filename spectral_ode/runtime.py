"""What an entry point sets before there is work, and what every result records about the machine that made it."""

import functools
import gc
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from spectral_ode import document, programs
from spectral_ode.problem import Problem

PACKAGES = ("spectral-ode", "jax", "jaxlib", "diffrax", "equinox", "optax", "numpy")


def configure(*, cache: bool = True) -> None:
    """float64, and compiled programs kept on disk between processes. For entry points: a command, a script, a notebook.

    Equinox's runtime errors are host callbacks, and a program with callbacks is never kept on disk, so they are turned into NaN
    (before Equinox is imported); results are checked on the host instead.
    """
    # Tracing makes many small objects; to look for cycles among them after every 700 is a tenth of the time of a short process.
    gc.set_threshold(50_000, *gc.get_threshold()[1:])
    if "equinox" not in sys.modules:
        os.environ.setdefault("EQX_ON_ERROR", "nan")
    import jax

    jax.config.update("jax_enable_x64", True)
    if not cache or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    programs.keep(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spectral_ode" / "compiled")


def provenance(problem: Problem) -> dict[str, Any]:
    """Problem, its identity, versions, commit and platform: what a result needs in order to be made again."""
    import jax

    return {
        "problem": document.to_dict(problem),
        "hash": document.identity(problem),
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "commit": _commit(),
        "platform": f"{platform.system()} {platform.machine()}, jax on {jax.default_backend()}",
        "x64": jax.numpy.ones(()).dtype.name == "float64",
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _commit() -> str:
    """The commit of the source tree, with a + if it was changed since; empty outside of one."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return ""
    try:
        ask = lambda *words: subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        return ask("rev-parse", "--short=12", "HEAD") + ("+" if ask("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
