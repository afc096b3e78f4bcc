"""The batches of ordered groups that are out (csrc/pop/poporder.h) as Python sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.hot.core import Core, CoreErrors
from pystore.errors import OutOfMemory
from pystore.native import ffi, lib

__all__ = [
    "DONE", "ORDER_TAG", "STALE", "UNKNOWN", "OrderedBatch", "OrderedBatches", "QueuePlace",
]  # fmt: skip

#: What became of an acknowledgement: the batch that is out does not have this offset; it is over,
#: or was acknowledged so far; it counts.
UNKNOWN: int = lib.PS_ORDER_UNKNOWN
STALE: int = lib.PS_ORDER_STALE
DONE: int = lib.PS_ORDER_DONE
#: Of records of changes (csrc/pop/orderlog.c).
ORDER_TAG = "order"

QueuePlace = tuple[str, str, int]  # topic, group, queue


@dataclass(frozen=True, slots=True)
class OrderedBatch:
    """The batch of one queue as its file has it. `offsets` are ascending. `times` says how often a
    message was popped before this. `visible_ms` is when one comes back that is not acknowledged,
    where that was changed. Bit i of `acked` is for offsets[i]. `used_ms` is when it was last
    popped."""

    attempt: str | None
    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    times: dict[int, int] = field(default_factory=dict)
    visible_ms: dict[int, int] = field(default_factory=dict)
    acked: int = 0
    used_ms: int = 0


class OrderedBatches(CoreErrors):
    """The batches that are out, a table of the core: pops and acknowledgements change it there. It
    lives on the event loop."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self._core = core
        self._key = ffi.new("ps_check_point_key *")
        self._numbers = ffi.new("int64_t[2]")

    def _fill(self, raw: Any, place: QueuePlace, pop_ms: int) -> object:
        """Fills a key; the result must live as long as `raw` is used."""
        topic, group, queue = place
        names = ffi.from_buffer(topic.encode()), ffi.from_buffer(group.encode())
        raw.topic, raw.group = names
        raw.topic_len, raw.group_len = len(names[0]), len(names[1])
        raw.queue_id, raw.pop_ms = queue, pop_ms
        return names

    def put(self, place: QueuePlace, batch: OrderedBatch, *, note: bool = False) -> None:
        """Says that this batch is out; with `note` that is a change of now. Raises: BadArgument,
        OutOfMemory."""
        row, attempt = ffi.new("ps_order_row *"), (batch.attempt or "").encode()
        keep = self._fill(row.key, place, batch.pop_ms), ffi.from_buffer(attempt)
        row.attempt, row.attempt_len = keep[1], len(attempt)
        row.invisible_ms, row.used_ms, row.acked = batch.invisible_ms, batch.used_ms, batch.acked
        row.count = len(batch.offsets)
        for i, offset in enumerate(batch.offsets):
            row.offsets[i], row.times[i] = offset, batch.times.get(offset, 0)
            row.visible_ms[i] = batch.visible_ms.get(offset, -1)
        self._check(lib.ps_core_order_put(self._core.handle, row, note, self._error))
        del keep

    def get(self, place: QueuePlace) -> OrderedBatch | None:
        """Returns the batch that is out, as its file has it; None when none is."""
        row = ffi.new("ps_order_row *")
        keep = self._fill(self._key, place, 0)
        if not lib.ps_core_order_get(self._core.handle, self._key, row):
            return None
        del keep
        each = range(row.count)
        attempt = ffi.unpack(row.attempt, row.attempt_len).decode() if row.attempt_len else None
        return OrderedBatch(
            attempt, row.key.pop_ms, row.invisible_ms,
            tuple(row.offsets[i] for i in each),
            {row.offsets[i]: row.times[i] for i in each if row.times[i]},
            {row.offsets[i]: row.visible_ms[i] for i in each if row.visible_ms[i] >= 0},
            row.acked, row.used_ms,
        )  # fmt: skip

    def find(self, place: QueuePlace, attempt: str | None = None) -> tuple[int, int] | None:
        """Returns the first offset of the batch that is out, and when this attempt may pop the next
        one, 0 for now; None when none is out."""
        named = ffi.from_buffer((attempt or "").encode())
        keep, two = self._fill(self._key, place, 0), self._numbers
        out = lib.ps_core_order_find(
            self._core.handle, self._key, named, len(named), two, two + 1
        )  # fmt: skip
        del keep
        return (two[0], two[1]) if out else None

    def __len__(self) -> int:
        """Returns how many batches are out, by a walk over them."""
        return int(lib.ps_core_order_count(self._core.handle))

    def ack(self, place: QueuePlace, pop_ms: int, offsets: Sequence[int]) -> int:
        """Acknowledges these offsets of the batch that was popped then, and moves the group on.
        Returns the worst of their outcomes."""
        keep, asked = self._fill(self._key, place, pop_ms), ffi.new("int64_t[]", list(offsets))
        what = lib.ps_core_order_ack(self._core.handle, self._key, asked, len(asked))
        del keep
        return int(what)

    def change(self, place: QueuePlace, pop_ms: int, offset: int, visible_ms: int) -> int:
        """Makes one of its messages visible again at that time, and returns the outcome."""
        keep = self._fill(self._key, place, pop_ms)
        what = lib.ps_core_order_change(self._core.handle, self._key, offset, visible_ms)
        del keep
        return int(what)

    def forget(self, topic: str | None = None, group: str | None = None, queue: int = -1) -> None:
        """Forgets the batches of a topic, of a group, of a queue, or of what is given together."""
        names = [None if name is None else name.encode() for name in (group, topic)]
        words = [each for name in names for each in (name or ffi.NULL, len(name or b""))]
        lib.ps_core_order_forget(self._core.handle, *words, queue)

    def expire(self, before_ms: int) -> None:
        """Forgets those that nobody has popped since then."""
        lib.ps_core_order_expire(self._core.handle, before_ms)

    # ---- the file and its journal ----

    @property
    def changes(self) -> int:
        """Returns how often something of it has changed."""
        return int(lib.ps_core_order_changes(self._core.handle))

    def text(self, *, saving: bool) -> bytes:
        """Returns what the file has to say now. With `saving` the journal notes that it is about to
        be saved. Raises: OutOfMemory."""
        raw = ffi.new("uint8_t **")
        size = lib.ps_core_order_text(self._core.handle, saving, raw)
        if size < 0:  # it says no more than this, and what _error has is of another call
            raise OutOfMemory("no memory for the batches of ordered groups")
        return bytes(ffi.buffer(raw[0], size))

    def begin_journal(self, path: Path, crc: int, lines: bytes = b"") -> None:
        """Begins a journal after the file with this CRC-32: it has these lines, and all changes
        since text(). Raises: StoreError; the old one stays."""
        name = os.fsencode(path)
        self._check(
            lib.ps_core_order_journal(
                self._core.handle, name, crc, lines, len(lines), self._error
            )
        )  # fmt: skip

    def end_journal(self) -> None:
        lib.ps_core_order_journal_end(self._core.handle)

    def put_records(self, on: bool) -> None:
        """Says whether changes are records of the log, too."""
        lib.ps_core_order_records(self._core.handle, on)

    @property
    def noted_to(self) -> int:
        """Returns the end, in the log, of the last record of a change; 0: there is none."""
        return int(lib.ps_core_order_end(self._core.handle))

    def journal_failed(self) -> int:
        """Returns the errno of a change that the journal could not note, once; else 0."""
        return int(lib.ps_core_order_failed(self._core.handle))
