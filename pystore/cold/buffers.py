"""Memory for whole objects that is used again: to have the system bring in new pages costs four
times what reading into them does (docs/adr/010-cold-tier.md)."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque

from pystore.errors import OutOfMemory
from pystore.native import ffi

__all__ = ["BufferPool"]

#: What is smaller comes from the allocator, which keeps such memory by itself.
_LEAST = 1 << 18
#: Buffers are multiples of it, so that objects of about one size fit into each other's.
_STEP = 1 << 20
#: Buffers that nobody uses and that are kept all the same, and the largest of them.
_SPARE, _LARGEST = 2, 32 << 20


class BufferPool:
    """Buffers of which each comes back when nothing points into it any more. Any thread may take
    one."""

    def __init__(self) -> None:
        self._spare: deque[mmap.mmap] = deque()  # no lock: the collector gives back, too

    def take(self, size: int) -> memoryview:
        """Returns `size` bytes to write to, whatever is in them. Raises: OutOfMemory."""
        if size < _LEAST:
            return memoryview(bytearray(size))
        raw = None
        with contextlib.suppress(IndexError):
            raw = self._spare.pop()
        if raw is None or len(raw) < size:
            raw = _new(-(-size // _STEP) * _STEP)
        return self._lent(raw, size)

    def _lent(self, raw: mmap.mmap, size: int) -> memoryview:
        # The destructor holds the memory, each slice of the view the pointer.
        pointer = ffi.cast("uint8_t *", ffi.from_buffer(raw))
        kept = ffi.gc(pointer, lambda _: self._give(raw))
        return memoryview(ffi.buffer(kept, size))

    def _give(self, raw: mmap.mmap) -> None:
        if len(self._spare) < _SPARE and len(raw) <= _LARGEST:
            self._spare.append(raw)


def _new(size: int) -> mmap.mmap:
    """Returns new memory, not of the allocator, whose arenas would keep what was given back."""
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as failed:
        raise OutOfMemory(f"no memory for {size} bytes of an object") from failed
