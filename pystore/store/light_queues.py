"""Light queues of an open store: those of lite topics, which share files (csrc/light/light.h)."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from pystore.native import ffi, lib, raise_error, utf8

__all__ = ["LightPlace", "LightQueue", "LightQueues", "LightRecord", "names_in"]

#: Bytes of records that one read gives at most, but for one that is longer.
_READ_BYTES = 512 << 10
#: Messages that one read gives at most.
_READ_MAX = 64
_NEWS_BYTES = 64 << 10
#: Of names of queues that have expired, that one call gives.
_EXPIRED_BYTES = 16 << 10


class LightRecord(NamedTuple):
    """A message of a light queue. `raw` is the whole record, empty for one that is damaged."""

    offset: int
    physical_offset: int
    store_timestamp: int
    raw: bytes


class LightPlace(NamedTuple):
    """A unit of a light queue, and its offset in it; `size` is the record's."""

    offset: int
    physical_offset: int
    size: int
    tags_code: int


class LightQueue(NamedTuple):
    """A light queue: the offsets that may be read are from `low` to before `high`; `last_ms` is the
    store time of its last message, 0 when it is not known."""

    name: str
    low: int
    high: int
    last_ms: int


def names_in(data: bytes) -> list[str]:
    """Returns the names of light queues that the core gave, each after its length, on any
    thread."""
    at, found = 0, list[str]()
    while at < len(data):
        end = at + 1 + data[at]
        found.append(data[at + 1 : end].decode("utf-8", "replace"))
        at = end
    return found


class LightQueues:
    """The light queues of a store. `owner` has the ``ps_store *``: a Store."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._two = ffi.new("int64_t[2]")
        self._rows = ffi.new("ps_light_record[]", _READ_MAX)

    # Room is made by whoever needs it: most stores and readers have no light queues.

    @cached_property
    def _room(self) -> Any:
        return ffi.new("uint8_t[]", _READ_BYTES)

    @cached_property
    def _news(self) -> Any:
        return ffi.new("uint8_t[]", _NEWS_BYTES)

    def begin(self) -> None:
        """Serves light queues from now on; a second call does nothing. What their files lack is
        read from the log first, all of it when there are none. Raises: StoreIOError, DiskFull,
        StoreClosed."""
        error = ffi.new("ps_error *")
        if lib.ps_lights_begin(self._owner.c_handle(), error) < 0:
            raise_error(error)

    @property
    def is_on(self) -> bool:
        """Whether they are served."""
        return self.count >= 0

    @property
    def count(self) -> int:
        """How many there are; -1: they are not served."""
        return int(lib.ps_lights_count(self._owner.c_handle()))

    def below(self, head: str) -> int:
        """Returns how many begin with `head`, `%LMQ%$TOPIC$`: the lite topics of a topic."""
        raw = utf8(head, "the queues")
        return int(lib.ps_lights_below(self._owner.c_handle(), raw, len(raw)))

    @property
    def skipped(self) -> int:
        """Names in records that can be no queue's, such as one with a slash, since the open."""
        return int(lib.ps_lights_skipped(self._owner.c_handle()))

    def range(self, name: str) -> tuple[int, int] | None:
        """Returns the offsets that may be read, from the first to before the second; None: there is
        no such queue."""
        raw, two = utf8(name, "the queue"), self._two
        found = lib.ps_lights_range(self._owner.c_handle(), raw, len(raw), two, two + 1)
        return (two[0], two[1]) if found else None

    def suspects(self, blocks: bytes) -> bytes:
        """Drops from blocks of consumer offsets (pystore/format/offset_blocks.py) those of light
        queues, while they are served, that are not past the end."""
        kept = bytearray(blocks)
        at = ffi.from_buffer("uint8_t[]", kept, require_writable=True)
        size = lib.ps_lights_beyond(self._owner.c_handle(), at, len(kept))
        return bytes(ffi.buffer(at, size))

    def last_ms(self, name: str) -> int:
        """Returns the store time of the queue's last message, in ms; 0: it is not known."""
        raw = utf8(name, "the queue")
        return int(lib.ps_lights_last_ms(self._owner.c_handle(), raw, len(raw)))

    def ms_from(self, name: str, offset: int) -> int:
        """Returns the store time of the first message from `offset` on, in ms; 0: there is none
        whose time is known."""
        raw = utf8(name, "the queue")
        return int(lib.ps_lights_ms_from(self._owner.c_handle(), raw, len(raw), offset))

    def read(self, name: str, offset: int, count: int) -> list[LightRecord]:
        """Returns messages from `offset` on, at most 64, ascending. Raises: StoreIOError,
        RecordDamaged for a unit that cannot be read."""
        raw, rows = utf8(name, "the queue"), self._rows
        room, size = self._room, _READ_BYTES
        error, need = ffi.new("ps_error *"), ffi.new("int64_t *")
        while True:
            n = lib.ps_lights_read(
                self._owner.c_handle(), raw, len(raw), offset, rows, min(count, _READ_MAX), room,
                size, need, error,
            )  # fmt: skip
            if n < 0:
                raise_error(error, n)
            if n or not need[0]:
                break
            size = need[0]
            room = ffi.new("uint8_t[]", size)
        found, at = [], 0
        for i in range(n):
            row = rows[i]
            data = bytes(ffi.buffer(room + at, row.size))
            found.append(LightRecord(row.offset, row.physical, row.store_ms, data))
            at += row.size
        return found

    def places(self, name: str, offset: int) -> list[LightPlace]:
        """Returns units from `offset` on, at most 64, ascending, without a look at their records.
        Raises: StoreIOError."""
        raw, rows = utf8(name, "the queue"), ffi.new("ps_light_place[]", _READ_MAX)
        error = ffi.new("ps_error *")
        n = lib.ps_lights_places(
            self._owner.c_handle(), raw, len(raw), offset, rows, _READ_MAX, error
        )
        if n < 0:
            raise_error(error, n)
        return [LightPlace(r.offset, r.physical, r.size, r.tags_code) for r in rows[0:n]]

    def some(self, begin: int, count: int = 512) -> tuple[list[LightQueue], int]:
        """Returns queues in the order of their birth, `count` at most, from number `begin` on, and
        the number to go on with; that is -1 at the end."""
        rows = ffi.new("ps_light_row[]", count)
        n = lib.ps_lights_list(self._owner.c_handle(), begin, rows, count)
        found = [
            LightQueue(
                ffi.unpack(rows[i].name, rows[i].len).decode("utf-8", "replace"), rows[i].low,
                rows[i].high, rows[i].last_ms,
            )
            for i in range(n)
        ]  # fmt: skip
        return found, int(rows[n - 1].number) + 1 if n == count else -1

    def delete(self, name: str) -> bool:
        """Deletes a queue; a message to the name then begins a new one, at offset 0. Its messages
        stay in the log. Returns whether there was one. Raises: StoreIOError, DiskFull."""
        raw, error = utf8(name, "the queue"), ffi.new("ps_error *")
        code = lib.ps_lights_delete(self._owner.c_handle(), raw, len(raw), 0, error)
        if code < 0:
            raise_error(error)
        return bool(code)

    def make_room(self) -> None:
        """Writes what many deletions are to leave in the files, so that none of the next few has
        to while it holds up others. Raises: StoreIOError, DiskFull."""
        error = ffi.new("ps_error *")
        if lib.ps_lights_make_room(self._owner.c_handle(), error) < 0:
            raise_error(error)

    def expired(self, head: str, now_ms: int, age_ms: int) -> list[str]:
        """Returns names of queues that begin with `head`, `%LMQ%$TOPIC$`, and whose last message
        is older than age_ms at now_ms: some, those with the oldest ones first."""
        raw, room = utf8(head, "the queues"), ffi.new("uint8_t[]", _EXPIRED_BYTES)
        size = lib.ps_lights_expired(
            self._owner.c_handle(), raw, len(raw), now_ms, age_ms, room, _EXPIRED_BYTES
        )
        return names_in(bytes(ffi.buffer(room, size)))

    # ---- news ----

    def listen(self, fd: int) -> None:
        """Has an eventfd become readable when queues get messages; -1: none any more."""
        lib.ps_lights_listen(self._owner.c_handle(), fd)

    def news(self) -> list[str]:
        """Takes the names of queues that got messages since they were taken last: some of them;
        empty when there are no more."""
        size = lib.ps_lights_news(self._owner.c_handle(), self._news, _NEWS_BYTES)
        return names_in(bytes(ffi.buffer(self._news, size)))
