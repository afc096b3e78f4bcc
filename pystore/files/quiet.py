"""Reading that leaves no trace: a file's time of access stays as it was, if rights allow."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["copy_quietly", "memory_file", "open_quietly", "read_quietly"]

_PIECE = 1 << 20


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
    """Returns the bytes of a file, None when there is none. Raises: OSError, also for more than
    `most`."""
    try:
        with open_quietly(path) as file:
            _check_size(file, path, most)
            return file.read(most)
    except FileNotFoundError:
        return None


def _check_size(file: BinaryIO, path: Path, most: int) -> None:
    size = os.fstat(file.fileno()).st_size
    if size > most:
        raise OSError(errno.EFBIG, f"{size} bytes, and {most} at most are read", str(path))


@contextlib.contextmanager
def memory_file() -> Iterator[tuple[BinaryIO, Path]]:
    """Opens a file in memory, and a path of this process that leads to it: for what wants a path.
    It needs no rights on any folder, and nothing of it stays when the process is killed.

    Raises: OSError.
    """
    with open(os.memfd_create("pystore"), "w+b") as file:
        yield file, Path(f"/proc/self/fd/{file.fileno()}")


def copy_quietly(path: Path, into: BinaryIO, most: int, head: int = 0) -> bool:
    """Makes `into` a copy of a file, zeros left out. Whether its first `head` bytes were the same
    afterwards. Raises: OSError, also for more than `most` bytes."""
    with open_quietly(path) as source:
        _check_size(source, path, most)
        before = source.read(head)
        into.seek(0)
        into.truncate()
        source.seek(0)
        while piece := source.read(_PIECE):
            if piece.count(0) == len(piece):
                into.seek(len(piece), os.SEEK_CUR)
            else:
                into.write(piece)
        into.truncate()
        into.flush()
        source.seek(0)
        return source.read(head) == before
