"""What the store answers: where messages went, and facts about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pystore.base.enums import PutStatus
from pystore.native._put import Place

STATUS = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT)


class PutResult(Place):
    """Where a message went.

    status: PutStatus. queue: its id. queue_offset: place in the queue. physical_offset: byte of the
    log. store_timestamp: ms. size: bytes of the record. store_host: as on disk. The numbers are
    kept in C (pystore/native/_put.c), which makes the result of a put.
    """

    __slots__ = ()

    @property
    def status(self) -> PutStatus:
        return STATUS[self.status_code]

    @property
    def message_id(self) -> str:
        """The offsetMsgId: store host, port and physical offset in hexadecimal
        (docs/internals/format.md#identifiers)."""
        return (self.store_host + self.physical_offset.to_bytes(8, "big")).hex().upper()

    def with_status(self, status: PutStatus) -> PutResult:
        """Returns the same place with another status: PUT_OK or FLUSH_DISK_TIMEOUT."""
        return PutResult(STATUS.index(status), *self._key()[1:])

    def _key(self) -> tuple[int, int, int, int, int, int, bytes]:
        return (
            self.status_code, self.size, self.queue, self.queue_offset, self.physical_offset,
            self.store_timestamp, self.store_host,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, PutResult) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return PutResult, self._key()

    def __repr__(self) -> str:
        return (
            f"PutResult({self.status.name}, queue={self.queue}, queue_offset={self.queue_offset},"
            f" physical_offset={self.physical_offset}, size={self.size})"
        )


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
    sync_ns: int
    sync_max_ns: int
    puts: int
    damaged_reads: int
    store_timestamp_min: int
    store_timestamp_max: int
    abort_present: bool
    checkpoint: tuple[int, int, int, int, int]


class DueDelivery(NamedTuple):
    """What one round over a delay level did.

    offset: where the level goes on, in its queue. next_ms: when the message there is due, -1 when
    there is none. skipped: those without readable record or destination, or whose topic was deleted
    meanwhile. end: physical, of the last one delivered, 0 when there was none.
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
