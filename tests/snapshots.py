"""The folder of a store that is open, as kill -9 leaves it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

__all__ = ["snapshot"]


def snapshot(source: Path, target: Path) -> Path:
    """Copies a folder to one that is not there. All of it is of one moment: while the jobs of a
    broker replace a file beside the copy, it begins again. Raises: OSError."""
    while True:
        before, failed = _state_of(source), None
        try:
            shutil.copytree(source, target)
        except shutil.Error as some:  # a file that was listed may be gone
            failed = some
        if _state_of(source) == before:
            if failed is not None:
                raise failed
            return target
        shutil.rmtree(target)


def _state_of(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Which file or folder each name is, its size and when it changed."""
    found = {}
    for at, folders, files in os.walk(folder):  # passes over a folder that goes meanwhile
        for path in (Path(at, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):
                of = path.lstat()
                found[path] = of.st_ino, of.st_size, of.st_mtime_ns
    return found
