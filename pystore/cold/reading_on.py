"""The queue that somebody reads on, a few messages at a time: its segments whole, fetched ahead,
each checked by its sum, or each block of it just before it is read, so that most reads need no
request, no look at a manifest and no copy, and bytes come from memory once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from pystore.cold.failures import TierDamaged, TierUnreachable
from pystore.cold.pieces import QueuePiece
from pystore.cold.segment import BLOCK
from pystore.errors import FileSizeMismatch
from pystore.native import ffi, lib, raise_error
from pystore.store._messages import Batch

__all__ = ["ReadingOn"]

#: Reads of other queues after which one that is read on no more gives way.
_OTHERS = 1024
_NOWHERE = "", -1


class ReadingOn:
    """One queue of a reader at a time: memory has room for no more. Any thread may call it; while
    one reads, others hear that there is nothing.

    pieces: of a topic and queue, offsets [start, end). checks: which of its own sums a record of a
    piece is checked by, that being covered or not."""

    def __init__(
        self, pieces: Callable[..., Iterator[QueuePiece]], checks: Callable[[bool | None], int]
    ) -> None:
        self._open = pieces
        self._checks = checks
        self._lock = threading.Lock()
        self._place: tuple[str, int] | None = None
        self._others = 0
        self._pieces: Iterator[QueuePiece] = iter(())
        #: The piece in hand, of offsets [first, end), and where the queue ends.
        self._first = self._end = self._last = 0
        #: What the piece points into; and of that what a batch keeps, which has a file by itself.
        self._memory: Any = None
        self._kept: Any = None
        self._excerpt = ffi.new("ps_excerpt *")
        self._error = ffi.new("ps_error *")

    def begin(self, topic: str, queue: int, offset: int, end: int) -> bool:
        """Begins with a queue, at [offset, end); False: another one is read on, or what was fetched
        lately was wrong."""
        place = topic, queue
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._others += 1
            if self._place not in (None, place) and self._others < _OTHERS:
                return False
            self._let_go(place)
            self._pieces = self._open(topic, queue, start=offset, end=end, sum_later=True)
            self._first = self._end = offset
            self._last = end
            name = topic.encode()
            self._topic = ffi.new("char[]", name)
            raw = self._excerpt
            raw.topic, raw.topic_len, raw.queue_id = self._topic, len(name), queue
        finally:
            self._lock.release()
        return True

    def read(self, place: tuple[str, int], offset: int, most: int, options: Any) -> Batch | None:
        """Returns messages of a queue; None: they are not at hand, and must be read by themselves.
        most: units that are looked at. options: ``ps_read_options *``. Raises: OutOfMemory."""
        if place != self._place or not self._lock.acquire(blocking=False):
            return None
        try:
            if place != self._place:  # it has begun with another one meanwhile
                return None
            if not self._first <= offset < self._end and not self._comes(offset):
                return None
            self._others = 0
            batch = lib.ps_excerpt_read(self._excerpt, offset, most, options, self._error)
            if batch == ffi.NULL and self._error.code != FileSizeMismatch.code:
                raise_error(self._error)
            found = Batch(batch, self._kept) if batch != ffi.NULL else None
            if found is None or found.damaged:  # by itself it may come right
                self._let_go(_NOWHERE)
                return None
            if found.next_offset >= self._last:
                self._let_go(None)
            return found
        finally:
            self._lock.release()

    def _comes(self, offset: int) -> bool:
        """Takes the next piece, where it begins at an offset."""
        if offset != self._end:
            return False
        self._memory = self._kept = None  # its memory is for those that come
        try:
            piece = next(self._pieces, None)
        except (TierDamaged, TierUnreachable):
            self._let_go(_NOWHERE)
            return False
        if piece is None or piece.first != offset:
            self._let_go(None)
            return False
        raw = self._excerpt
        self._first, self._end = piece.first, piece.end
        records, units, sums = (
            ffi.from_buffer("uint8_t[]", each) for each in (piece.records, piece.units, piece.sums)
        )
        raw.records, raw.len, raw.base = records, len(piece.records), piece.base
        raw.units, raw.first, raw.count = units, piece.first, piece.end - piece.first
        raw.sums, raw.block, raw.right = sums if len(piece.sums) else ffi.NULL, BLOCK, 0
        raw.checks = self._checks(piece.covered)
        raw.file = ffi.NULL if piece.file is None else piece.file.handle
        self._memory = records, units, sums, piece.file
        self._kept = records if piece.file is None else None
        return True

    def _let_go(self, place: tuple[str, int] | None) -> None:
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()
        self._pieces = iter(())
        self._memory = self._kept = None
        self._first = self._end = -1
        self._place, self._others = place, 0

    def stop(self) -> None:
        """Ends it: the queues may have other messages than before."""
        with self._lock:
            self._let_go(None)
