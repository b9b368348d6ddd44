"""Folders that are whole or not there."""

import shutil
import tempfile
from pathlib import Path


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
