"""Idempotent produce: the messages that the C core remembers (csrc/remoting/dedup.h).

The core looks at the sends it serves itself; those that come up to Python ask here, by the same
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.remoting.hot import Core
from pystore.native import ffi, lib, raise_error

__all__ = ["Dedup", "DedupState", "First"]


class First(NamedTuple):
    """The message that a send repeats: its place in the log and its queue, and the queue that was
    asked for. end: where its record ends."""

    physical_offset: int
    queue_offset: int
    end: int
    queue: int


class DedupState(NamedTuple):
    """window: messages that may be remembered. remembered: that are. bytes: of memory. repeats:
    messages that were not stored again, since the start."""

    window: int
    remembered: int
    bytes: int
    repeats: int


class Dedup:
    """All of it happens on the thread of the core."""

    def __init__(self, core: Core, window: int, key: str) -> None:
        """window: messages to be remembered. key: the property that names a message.

        Raises: BadArgument, OutOfMemory.
        """
        self.key = key
        self._core = core
        self._error = ffi.new("ps_error *")
        self._first = ffi.new("ps_first *")
        code = lib.ps_core_dedup_set(core.handle, window, key.encode(), self._error)
        if code < 0:
            raise_error(self._error[0], code)

    def build(self) -> None:
        """Remembers what the end of the log holds; before the first send. Raises: StoreClosed."""
        code = lib.ps_core_dedup_build(self._core.handle, self._error)
        if code < 0:
            raise_error(self._error[0], code)

    def find(self, topic: str, key: str) -> First | None:
        """The message of the topic that has this key, None when none is remembered."""
        name, text, first = topic.encode(), key.encode(), self._first
        found = lib.ps_core_dedup_find(self._core.handle, name, len(name), text, len(text), first)
        return _first(first) if found else None

    def add(self, topic: str, key: str, physical_offset: int) -> None:
        name, text = topic.encode(), key.encode()
        lib.ps_core_dedup_add(self._core.handle, name, len(name), text, len(text), physical_offset)

    def find_batch(self, topic: str, body: bytes) -> list[First]:
        """The messages that those of a client's batch repeat; empty unless all of them do."""
        name, room = topic.encode(), len(body) // _ITEM_MIN + 1
        rows = ffi.new("ps_first[]", room)
        count = lib.ps_core_dedup_find_batch(
            self._core.handle, name, len(name), body, len(body), rows, room
        )
        return [_first(rows[i]) for i in range(count)]

    def add_batch(self, topic: str, body: bytes, physical_offsets: Sequence[int]) -> None:
        name = topic.encode()
        lib.ps_core_dedup_add_batch(
            self._core.handle, name, len(name), body, len(body), list(physical_offsets),
            len(physical_offsets),
        )  # fmt: skip

    def state(self) -> DedupState:
        raw = ffi.new("ps_dedup_state *")
        lib.ps_core_dedup_get_state(self._core.handle, raw)
        return DedupState(raw.window, raw.remembered, raw.bytes, raw.repeats)


#: Bytes of the smallest item of a batch: its head of five numbers and a length.
_ITEM_MIN = 22


def _first(row: Any) -> First:
    end = row.physical_offset + row.size
    return First(row.physical_offset, row.queue_offset, end, row.queue_id)
