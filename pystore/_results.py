"""What the store answers: where messages went, and facts about it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from pystore._enums import PutStatus

RESULT = struct.Struct("@iiiiqqq20s")  # the head of ps_put_result
_STATUS_FIELD = struct.Struct("@i")  # its first field
STATUS = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)


class PutResult(bytes):
    """Where a message went.

    status: PutStatus. queue: its id. queue_offset: place in the queue. physical_offset: byte of the
    log. store_timestamp: ms. size: bytes of the record. Underneath it is the bytes that C filled,
    taken apart when they are asked for, since most callers never look and that costs a put least.
    """

    __slots__ = ()

    def _field(self, i: int) -> int:
        return int(RESULT.unpack(self)[i])

    @property
    def status(self) -> PutStatus:
        return STATUS[self._field(0)]

    @property
    def size(self) -> int:
        return self._field(1)

    @property
    def queue(self) -> int:
        return self._field(2)

    @property
    def queue_offset(self) -> int:
        return self._field(4)

    @property
    def physical_offset(self) -> int:
        return self._field(5)

    @property
    def store_timestamp(self) -> int:
        return self._field(6)

    @property
    def message_id(self) -> str:
        """The offsetMsgId: store host, port and physical offset in hexadecimal
        (docs/internals/format.md#identifiers)."""
        host: bytes = RESULT.unpack(self)[7][: self._field(3)]
        return (host + self.physical_offset.to_bytes(8, "big")).hex().upper()

    def with_status(self, status: PutStatus) -> PutResult:
        """The same place with another status: PUT_OK or FLUSH_DISK_TIMEOUT."""
        return PutResult(_STATUS_FIELD.pack(STATUS.index(status)) + self[_STATUS_FIELD.size :])

    def __repr__(self) -> str:
        return (
            f"PutResult({self.status.name}, queue={self.queue}, queue_offset={self.queue_offset},"
            f" physical_offset={self.physical_offset}, size={self.size})"
        )

    __str__ = __repr__  # that of bytes would show what it is made of


class PutManyResult(NamedTuple):
    """Where many messages went: memoryviews of int64, one number a message, in the order given.

    last_physical_end: everything up to there must be on the disk for all of them to be durable.
    """

    status: PutStatus
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    queue_offsets: memoryview
    physical_offsets: memoryview
    last_physical_end: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue: offsets ``[min_offset, max_offset)`` are readable."""

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    max_physical: int

    def __len__(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class Info:
    """Facts of an open store; sizes and offsets in bytes, times in ms. -1: there is none.

    checkpoint: physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp, masterFlushedOffset,
    confirmPhyOffset (docs/internals/format.md#checkpoint). flush_errno: the sync that failed, 0
    while all went well. damaged_reads: damaged messages that reads of queues passed over since the
    store was opened.
    """

    path: str
    writable: bool
    log_min: int
    log_max: int
    log_flushed: int
    dispatched: int
    commitlog_file_size: int
    consumequeue_file_size: int
    index_slots: int
    index_entries: int
    log_files: int
    index_files: int
    index_used: int
    topics: int
    queues: int
    disk_full: bool
    sync_flush: bool
    flush_errno: int
    fsyncs: int
    puts: int
    damaged_reads: int
    store_timestamp_min: int
    store_timestamp_max: int
    abort_present: bool
    checkpoint: tuple[int, int, int, int, int]


class DueDelivery(NamedTuple):
    """What one round over a delay level did.

    offset: where the level goes on, in its queue. next_ms: when the message there is due, -1 when
    there is none. skipped: those without readable record or destination. end: physical, of the last
    one delivered, 0 when there was none.
    """

    offset: int
    next_ms: int
    delivered: int
    skipped: int
    end: int


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What a round of retention deleted, or would delete: counts of files, bytes of log freed.

    reason: ``nothing``, ``hour``, ``ratio``, ``forced`` or ``asked``.
    """

    log_files: int
    queue_files: int
    index_files: int
    bytes: int
    log_min: int
    disk_percent: int
    disk_full: bool
    reason: str
