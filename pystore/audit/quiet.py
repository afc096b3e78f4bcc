"""Reading that leaves no trace: a file's time of access stays as it was, if rights allow."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_quietly", "read_quietly"]


def open_quietly(path: Path) -> BinaryIO:
    """Opens a regular file for reading. Raises: OSError, also for anything else than a file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_NOATIME)
    except PermissionError:
        fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a regular file: {path}")
    return open(fd, "rb")


def read_quietly(path: Path, most: int) -> bytes | None:
    """Up to `most` bytes of a file, None when there is none. Raises: OSError."""
    try:
        with open_quietly(path) as file:
            return file.read(most)
    except FileNotFoundError:
        return None
