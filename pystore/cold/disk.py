"""Blocks of the tier on the local disk: a file without a name, so that it is gone with the process,
in slots of a block each."""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from collections import OrderedDict
from pathlib import Path

__all__ = ["DiskBlocks"]

Place = tuple[str, int]


class DiskBlocks:
    """A bounded number of blocks. What was asked for twice stays the longer for it: who reads all
    of a topic once does not drive out what others read again.

    Any thread may call it. A disk that fails costs what is kept, and nobody hears of it but the
    tier, which is asked again."""

    def __init__(self, folder: Path, room: int, block: int) -> None:
        """Makes the file. room: bytes at most, fewer than a block: none. Raises: OSError."""
        self._block, self._slots = block, room // block
        self._lock = threading.Lock()
        #: Slot, bytes and CRC-32 of each block, the one that goes first first.
        self._once: OrderedDict[Place, tuple[int, int, int]] = OrderedDict()
        self._often: OrderedDict[Place, tuple[int, int, int]] = OrderedDict()
        self._free: list[int] = []
        self._used = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # close() is below
        #: Blocks that were found, that gave way to others, and calls that failed.
        self.hits = self.evictions = self.failures = 0

    def get(self, place: Place) -> bytes | None:
        """Returns a block, or None: it is not kept, or was wrong."""
        with self._lock:
            held = self._once.pop(place, None) or self._often.pop(place, None)
            if held is None:
                return None
            slot, size, crc = held
            # Under the lock, or the slot, or the file itself, might be another one's by then.
            data = self._read(slot, size)
            if len(data) != size or zlib.crc32(data) != crc:
                self.failures += 1
                self._free.append(slot)
                return None
            self.hits += 1
            self._often[place] = held
            if len(self._often) > self._slots * 4 // 5:
                self._once.update([self._often.popitem(last=False)])
            return data

    def _read(self, slot: int, size: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), size, slot * self._block)
        except OSError:
            return b""

    def put(self, place: Place, data: bytes) -> None:
        """Keeps a block, if there is room on the disk."""
        with self._lock:
            kept = place in self._once or place in self._often
            if kept or not 0 < len(data) <= self._block or self._slots == 0:
                return
            slot = self._take_slot()
            try:
                written = os.pwrite(self._file.fileno(), data, slot * self._block)
            except OSError:
                written = 0
            if written == len(data):
                self._once[place] = slot, len(data), zlib.crc32(data)
            else:
                self.failures += 1
                self._free.append(slot)

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used < self._slots:
            self._used += 1
            return self._used - 1
        oldest = self._once or self._often
        self.evictions += 1
        return oldest.popitem(last=False)[1][0]

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        with self._lock:
            return sum(
                size for blocks in (self._once, self._often) for _, size, _ in blocks.values()
            )

    def forget(self, key: str) -> None:
        """Drops the blocks of an object."""
        with self._lock:
            for blocks in (self._once, self._often):
                for place in [place for place in blocks if place[0] == key]:
                    self._free.append(blocks.pop(place)[0])

    def close(self) -> None:
        with self._lock:
            self._once.clear()
            self._often.clear()
            self._slots = 0
            self._file.close()
