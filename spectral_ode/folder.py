"""Files and folders that are whole or not there, and that one process writes at a time."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without file locks: two runs of one problem into one folder are not told apart
    fcntl = None

LOCKS: dict[Path, int] = {}  # folders that this process holds, until they are released or it ends


class whole:
    """A folder that appears under its name only when everything in it has been written, in place of an older one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Path:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.aside = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=self.folder.parent))
        self.aside.chmod(0o755)
        return self.aside

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            old = self.aside.with_name(self.aside.name + "-old")
            if self.folder.exists():
                self.folder.rename(old)
            self.aside.rename(self.folder)
            shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(self.aside, ignore_errors=True)


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name to write a file to; it takes the place of `path` when it is whole and on the disk, and is gone otherwise."""
    other = path.with_name(f".{path.name}")
    try:
        yield other
        with open(other, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(other, path)
    finally:
        other.unlink(missing_ok=True)


def hold(folder: Path) -> None:
    """Take a folder for this process alone; raises an `OSError` if another one has it."""
    if fcntl is None or (place := folder.resolve()) in LOCKS:
        return
    lock = os.open(place, os.O_RDONLY)  # the folder itself: no file is left behind
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise OSError(errno.EBUSY, "another run is using it") from None
    except OSError:  # a file system without locks
        os.close(lock)
        return
    LOCKS[place] = lock


def release(folder: Path) -> None:
    """Give a folder back."""
    if (lock := LOCKS.pop(folder.resolve(), None)) is not None:
        os.close(lock)
