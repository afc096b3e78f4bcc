"""Copies of files that keep their holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pystore.files import new_file

__all__ = ["copy_range", "data_ranges"]

_PIECE = 1 << 20


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields position and length of the data between holes within [start, end). Raises: OSError."""
    at = start
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as failed:
            if failed.errno != errno.ENXIO:  # which says that nothing follows
                raise
            return
        if at >= end:
            return
        stop = min(os.lseek(fd, at, os.SEEK_HOLE), end)
        yield at, stop - at
        at = stop


def copy_range(file: BinaryIO, start: int, end: int, into: Path, mode: int) -> None:
    """Writes bytes [start, end) of a file as a file of their own, holes left out, on the disk.
    mode: of that file, less the umask."""
    with new_file(into, mode) as out:
        out.truncate(end - start)
        for at, count in data_ranges(file.fileno(), start, end):
            for piece in range(at, at + count, _PIECE):
                data = os.pread(file.fileno(), min(_PIECE, at + count - piece), piece)
                os.pwrite(out.fileno(), data, piece - start)
        os.fsync(out.fileno())
