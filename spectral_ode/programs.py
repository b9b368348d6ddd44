"""Compiled programs kept on disk between processes, each of them whole or not there.

JAX writes a program under its final name: a process beside it may read half of one, and a process that is killed leaves half of one
behind, which all later ones complain about and compile anew. Here it is written aside first and then renamed.
"""

import contextlib
import functools
import os
import tempfile
from pathlib import Path


def keep(folder: Path) -> None:
    """Keep every compiled program in a folder; without a place to write there it is only slower."""
    import jax

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    _written_aside()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@functools.cache
def _written_aside() -> None:
    """Exchange how JAX writes an entry of its cache; it has no setting for that. A JAX that does it elsewhere is left alone."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.lru_cache import _CACHE_SUFFIX, LRUCache

        in_place = LRUCache.put

        def put(self: LRUCache, key: str, value: bytes) -> None:
            path = Path(self.path) / f"{key}{_CACHE_SUFFIX}"
            if self.eviction_enabled or not path.parent.is_dir():  # somebody else's settings: a bounded cache, or not on this machine
                in_place(self, key, value)
            elif not path.exists():
                handle, aside = tempfile.mkstemp(prefix=".", dir=path.parent)
                try:
                    with open(handle, "wb") as file:
                        file.write(value)
                    os.replace(aside, path)
                except BaseException:
                    os.unlink(aside)
                    raise

        LRUCache.put = put
