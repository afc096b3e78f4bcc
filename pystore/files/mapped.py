"""Whole files in memory as they lie on the disk: mapped, and guarded against who cuts them off."""

from __future__ import annotations

import os
from typing import Any

from pystore.native import ffi, lib, raise_error, view_of

__all__ = ["MappedFile"]


class MappedFile:
    """The first bytes of an open file, mapped for reading; the descriptor may be closed.

    handle: ``ps_mapfile *``, which C asks whether the file is whole still. view: its bytes, which
    keep the mapping. Where another process has cut the file off, they are zeros."""

    __slots__ = ("handle", "view")

    def __init__(self, fd: int, path: str | os.PathLike[str], size: int, base: int = 0) -> None:
        """Maps it. size: bytes, at least one. base: what the first of them is called in C. Raises:
        StoreIOError, OutOfMemory."""
        segment, error = ffi.new("ps_segment_view *"), ffi.new("ps_error *")
        raw = lib.ps_file_map(fd, os.fsencode(path), base, size, segment, error)
        if raw == ffi.NULL:
            raise_error(error)
        self.handle: Any = ffi.gc(raw, lib.ps_mapfile_unref)
        self.view: memoryview = view_of(self.handle, segment)

    @property
    def at_hand(self) -> bool:
        """Whether all of it is in memory, most likely, so that reading waits for no disk."""
        return bool(lib.ps_mapfile_at_hand(self.handle))

    def read_whole(self) -> None:
        """Says that all of it will be read: the system then keeps it in large pages."""
        lib.ps_mapfile_read_whole(self.handle)
