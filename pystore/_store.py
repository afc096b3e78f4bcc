"""Store and Reader: a RocketMQ message store inside this process.

``Store`` writes (one process at a time), ``Reader`` looks into a store that anybody may be writing.
What both can do is in ``_Base``. Every call that touches the store crosses into C once, with the
GIL let go; see csrc/pystore.h.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pystore import _settings
from pystore._batch import PutBatch
from pystore._columns import column_of, int_array
from pystore._enums import PutStatus
from pystore._errors import BadArgument, NotFound, StoreClosed, StoreError, UsedAfterFork
from pystore._lib import ffi, lib, raise_error, utf8
from pystore._messages import Batch, Message, checked, encode_properties
from pystore._report import RecoveryReport, report_of
from pystore._sql92 import compiled
from pystore.metadata import Metadata, system_topics

if TYPE_CHECKING:
    from pystore._arrow import ArrowStream

__all__ = ["CleanReport", "Info", "PutManyResult", "PutResult", "QueueInfo", "Reader", "Store"]

_FOLLOW_SLICE_MS = 200  # a blocking wait wakes so often that Ctrl-C is felt
_OPEN_POLL_S = 0.05
_FILTERS_KEPT = 100  # compiled SQL92 filters, as many as upstream keeps
_MOST_MESSAGES = 1 << 24  # a read gives at most
_EXPORT_S = 5.0
_EXPORT_PAUSE_S = 0.2
_BATCH_ITEM_MIN = 22  # bytes of an item without body and properties
_LIVE: weakref.WeakSet[_Base] = weakref.WeakSet()


class PutResult(bytes):
    """Where a message went.

    status: PutStatus. queue: its id. queue_offset: place in the queue. physical_offset: byte of the
    log. store_timestamp: ms. size: bytes of the record. Underneath it is the bytes that C filled,
    taken apart when they are asked for, since most callers never look and that costs a put least.
    """

    __slots__ = ()

    def _field(self, i: int) -> int:
        return int(_RESULT.unpack(self)[i])

    @property
    def status(self) -> PutStatus:
        return _STATUS[self._field(0)]

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
        """The offsetMsgId: store host, port and physical offset in hexadecimal (section 2.7)."""
        host: bytes = _RESULT.unpack(self)[7][: self._field(3)]
        return (host + self.physical_offset.to_bytes(8, "big")).hex().upper()

    def _with_status(self, status: PutStatus) -> PutResult:
        return PutResult(_STATUS_FIELD.pack(_STATUS.index(status)) + self[_STATUS_FIELD.size :])

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
    confirmPhyOffset (section 7.1). flush_errno: the sync that failed, 0 while all went well.
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


class _Topic:
    """A topic's handle in C. queues: how many puts that name none take in turn; 0: not yet known to
    the metadata, which hears of a topic only when a message of it is stored."""

    __slots__ = ("handle", "queues", "turn")

    def __init__(self, handle: Any, queues: int) -> None:
        self.handle = handle
        self.queues = queues
        self.turn = itertools.count()


_RESULT = struct.Struct("@iiiiqqq20s")  # the head of ps_put_result
_STATUS_FIELD = struct.Struct("@i")  # its first field


class _Scratch(threading.local):
    """One result struct a thread, so that a put allocates nothing but what it returns.

    put: the struct, and a view on its head, which is what a PutResult is made of.
    """

    def __init__(self) -> None:
        self.out = ffi.new("ps_put_result *")
        self.put = (self.out, memoryview(ffi.buffer(self.out, _RESULT.size)))
        self.options = ffi.new("ps_read_options *")
        self.error = ffi.new("ps_error *")
        self.keep: Any = None
        self.sql: Any = None


Progress = Callable[[str, int, int], None]
_PHASES = ("opening", "queues", "index", "log", "done")


def _watch(opening: Callable[[Any], Any], progress: Progress | None) -> Any:
    """Runs `opening` in a thread while this one reports progress and can be interrupted."""
    shared = ffi.new("ps_progress *")
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(opening(shared)), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_OPEN_POLL_S)
            if progress is not None:
                progress(_PHASES[shared.phase], int(shared.done), int(shared.total))
    except BaseException:
        shared.stop = 1
        thread.join()
        if box and box[0] != ffi.NULL:
            lib.ps_store_free(box[0])
        raise
    return box[0]


class _Base:
    """What Store and Reader share: reading, facts, closing."""

    _writable = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        conf: str | os.PathLike[str] | Mapping[str, object] | None,
        progress: Progress | None,
        settings: dict[str, object],
    ) -> None:
        self._handle: Any = None
        self.path = Path(path)
        self.settings = _settings.load(conf, settings)
        raw, keep = _settings.fill(ffi, self.settings, os.fspath(path))
        error = ffi.new("ps_error *")
        report = ffi.new("ps_report *")
        opener = lib.ps_store_open if self._writable else lib.ps_reader_open
        io = self._io()
        if progress is None:
            handle = opener(raw, io, report, ffi.NULL, error)
        else:
            handle = _watch(lambda p: opener(raw, io, report, p, error), progress)
        del keep
        if handle == ffi.NULL:
            raise_error(error)
        self._own = ffi.gc(handle, lib.ps_store_free)
        self._handle = handle
        self._why_closed: Callable[[], Exception] = lambda: StoreClosed(
            f"the store was closed: {self.path}"
        )
        #: What opening it did, see docs/recovery.md.
        self.report: RecoveryReport = report_of(report)
        self._topics: dict[str, _Topic] = {}
        self._tags: dict[str, tuple[Any, int, bytes]] = {}
        self._filters: dict[str, Any] = {}
        self._scratch = _Scratch()
        _LIVE.add(self)

    def _io(self) -> Any:
        """The I/O table; tests override it to make calls fail."""
        return ffi.NULL

    # ---- life ----

    def _live(self) -> Any:
        handle = self._handle
        if handle is None:
            raise self._why_closed()
        return handle

    def _fail(self, error: Any, code: int = 0) -> Any:
        self._live()  # a closed handle says why it is closed
        raise_error(error, code)

    def close(self) -> None:
        """Ends the use of the store; a second call does nothing. Views got before stay valid."""
        handle, self._handle = self._handle, None
        if handle is not None:
            error = ffi.new("ps_error *")
            if lib.ps_store_close(handle, error) < 0:
                raise_error(error)

    def _forget(self) -> None:
        """In the child after a fork: this handle is the parent's."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        ffi.gc(self._own, None)
        lib.ps_store_forget(handle)
        self._why_closed = lambda: UsedAfterFork(
            f"the store was opened by process {os.getppid()}: {self.path}"
        )

    @property
    def closed(self) -> bool:
        return self._handle is None

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else "open"
        return f"<pystore.{type(self).__name__} {self.path} {state}>"

    # ---- facts ----

    def info(self) -> Info:
        """Sizes, ends, counters."""
        raw = ffi.new("ps_info *")
        if lib.ps_store_info(self._live(), raw) < 0:
            raise self._why_closed()
        names = [n for n in Info.__slots__ if n not in ("path", "checkpoint")]
        facts = {n: getattr(raw, n) for n in names}
        for n in ("writable", "disk_full", "sync_flush", "abort_present"):
            facts[n] = bool(facts[n])
        return Info(path=str(self.path), checkpoint=tuple(raw.checkpoint), **facts)

    def queues(self, topic: str | None = None) -> list[QueueInfo]:
        """Every queue of the store, or of a topic, sorted by topic and queue id."""
        handle = self._live()
        room = max(16, lib.ps_store_queues(handle, ffi.NULL, 0))
        while True:
            raw = ffi.new("ps_queue_info[]", room)
            n = lib.ps_store_queues(handle, raw, room)
            if n < 0:
                raise self._why_closed()
            if n <= room:
                break
            room = n
        found = []
        for i in range(n):
            q = raw[i]
            name = ffi.unpack(q.topic, q.topic_len).decode("utf-8", "replace")
            if topic is None or name == topic:
                found.append(
                    QueueInfo(name, q.queue_id, q.min_offset, q.max_offset, q.max_physical)
                )
        return found

    def topics(self) -> list[str]:
        """Names of the topics that have a queue, sorted."""
        return sorted({q.topic for q in self.queues()})

    def refresh(self) -> None:
        """Looks for what another process has written since (a Reader); a Store is always
        current."""
        error = ffi.new("ps_error *")
        if lib.ps_store_refresh(self._live(), error) < 0:
            self._fail(error)

    # ---- reading ----

    def _find_topic(self, topic: str) -> Any:
        """The handle of a topic that is there, or NULL."""
        known = self._topics.get(topic)
        if known is not None:
            return known.handle
        raw = utf8(topic, "the topic")
        return lib.ps_topic_open(self._live(), raw, len(raw), 0, ffi.NULL)

    def _tag_set(self, tags: str) -> tuple[Any, int, bytes]:
        """Hashes and texts of an expression ``A || B``; parsed once."""
        known = self._tags.get(tags)
        if known is None:
            names = [utf8(t, "a tag") for t in (part.strip() for part in tags.split("||")) if t]
            if not names or b"*" in names:
                known = (ffi.NULL, 0, b"")
            else:
                codes = sorted(lib.ps_java_hash(0, n, len(n)) for n in names)
                hashes = ffi.new("int32_t[]", codes)
                known = (hashes, len(names), b"\0".join(names))
            self._tags[tags] = known
        return known

    def _filter(self, tags: str | None, sql: str) -> Any:
        """The compiled expression; the last ones are kept."""
        if tags is not None:
            raise BadArgument("tags and sql are two filters: give one of them")
        known = self._filters.get(sql)
        if known is None:
            known = compiled(sql)
            if len(self._filters) >= _FILTERS_KEPT:
                self._filters = {}
            self._filters[sql] = known
        return known

    def _options(
        self, tags: str | None, sql: str | None, max_messages: int, max_bytes: int | None
    ) -> Any:
        """This thread's options, set for one call."""
        if not 1 <= max_messages <= _MOST_MESSAGES:
            raise BadArgument(f"max_messages {max_messages} is not between 1 and {_MOST_MESSAGES}")
        scratch = self._scratch
        o = scratch.options
        o.max_messages = max_messages
        o.max_bytes = max_bytes or 0
        o.tag_count = o.transfer_limits = o.check_crc = 0
        o.sql = scratch.sql = ffi.NULL if sql is None else self._filter(tags, sql)
        if tags is not None:
            hashes, count, texts = self._tag_set(tags)
            if count:
                o.tag_hashes, o.tag_count = hashes, count
                o.tag_texts_len = len(texts)
                o.tag_texts = scratch.keep = ffi.from_buffer("char[]", texts)
        return o

    def read(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int | None = None,
        tags: str | None = None,
        sql: str | None = None,
        transfer_limits: bool = False,
    ) -> Batch:
        """Messages of a queue from `offset` on (section 10; upstream ``getMessage``).

        max_bytes: of the records, 128 MiB when None; the first message always comes. tags: an
        expression ``A || B``, compared by hash, then by text. sql: an SQL92 filter on properties
        instead, ``a > 3 AND region = 'EU'`` (docs/sql92.md). transfer_limits: also stop where the
        broker would (32 messages or 256 KiB from memory, 8 or 64 KiB from disk).
        A Reader sees what was there at its last ``refresh()``.

        Never raises for a place without messages: look at ``batch.status`` and go on at
        ``batch.next_offset``. Raises: StoreClosed, BadArgument, ExpressionIllegal.
        """
        o = self._options(tags, sql, max_messages, max_bytes)
        o.transfer_limits = transfer_limits
        error = self._scratch.error
        handle = self._live()
        batch = lib.ps_read(handle, self._find_topic(topic), queue, offset, o, error)
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)

    def log(
        self,
        offset: int | None = None,
        *,
        max_messages: int = 1024,
        max_bytes: int | None = None,
        check_crc: bool = False,
    ) -> Batch:
        """Records as they lie in the log, from the record at byte `offset` (None: the first).

        ``batch.outcome`` is 0 while there may be more at ``batch.next_offset``, -1 at the end of
        the log, else the ``ps_rec_outcome`` of a place that holds no whole record.
        """
        o = self._options(None, None, max_messages, max_bytes)
        o.check_crc = check_crc
        error = ffi.new("ps_error *")
        handle = self._live()
        at = self.info().log_min if offset is None else offset
        batch = lib.ps_log_read(handle, at, o, error)
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)

    def messages(self, *, check_crc: bool = False) -> Iterator[Message]:
        """Every message of the log, oldest first.

        Raises: RecordDamaged, with its place, where no whole record stands.
        """
        at: int | None = None
        while True:
            batch = self.log(at, check_crc=check_crc)
            yield from batch
            at = batch.next_offset
            if batch.outcome == -1:
                return
            if batch.outcome > 0:
                self.message(at)

    def message(self, offset: int) -> Message:
        """The message at byte `offset` of the log, its body's CRC checked.

        Raises: NotFound beyond the log, RecordDamaged where no whole record starts.
        """
        error = ffi.new("ps_error *")
        batch = lib.ps_message_at(self._live(), offset, error)
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)[0]

    def message_by_id(self, message_id: str) -> Message:
        """The message of an offsetMsgId (32 or 56 hexadecimal digits, section 2.7)."""
        try:
            raw = bytes.fromhex(message_id)
        except ValueError:
            raw = b""
        if len(raw) not in (16, 28):
            raise BadArgument(f"'{message_id}' is no offset message id: 32 or 56 hex digits")
        return self.message(int.from_bytes(raw[-8:], "big"))

    def query(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int = (1 << 63) - 1,
        max_messages: int = 0,
    ) -> Batch:
        """Messages that carry `key` in KEYS or as UNIQ_KEY, through the index files.

        begin, end: store times in ms, inclusive. max_messages: the newest so many; 0: all. Unlike
        upstream, which returns whatever has the same hash, the key itself is compared.
        """
        name, wanted = utf8(topic, "the topic"), utf8(key, "the key")
        error = ffi.new("ps_error *")
        batch = lib.ps_query(
            self._live(), name, len(name), wanted, len(wanted), begin, end, max_messages, error
        )
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)

    def units(
        self, topic: str, queue: int, offset: int = 0, count: int = 4096
    ) -> list[tuple[int, int, int]]:
        """Raw consume queue units from `offset`: (physical offset, size, tags code) each."""
        handle = self._live()
        places = ffi.new("int64_t[]", count)
        sizes = ffi.new("int32_t[]", count)
        tags = ffi.new("int64_t[]", count)
        n = lib.ps_queue_units(
            handle, self._find_topic(topic), queue, offset, count, places, sizes, tags
        )
        if n < 0:
            raise NotFound(f"the store has no queue {topic}/{queue}")
        return list(
            zip(ffi.unpack(places, n), ffi.unpack(sizes, n), ffi.unpack(tags, n), strict=True)
        )

    def offset_at(self, topic: str, queue: int, timestamp: int, *, upper: bool = False) -> int:
        """Queue offset at a store time in ms: the first message at or after it, or with `upper` the
        last at or before it; kept within the queue (section 4, "Time lookup").

        Raises: NotFound when there is no such queue.
        """
        error = ffi.new("ps_error *")
        at: int = lib.ps_offset_at(
            self._live(), self._find_topic(topic), queue, timestamp, upper, error
        )
        if at < 0:
            if error.code == 0 or error.where[0] == b"\0":
                raise NotFound(f"the store has no queue {topic}/{queue}")
            self._fail(error)
        return at

    def range(self, topic: str, queue: int) -> tuple[int, int]:
        """(min, max) offset of a queue; (0, 0) when it does not exist."""
        low, high = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.ps_queue_range(self._live(), self._find_topic(topic), queue, low, high)
        return int(low[0]), int(high[0])

    # ---- following ----

    def _follow_step(
        self, topic: str, queue: int, offset: int, tags: str | None, sql: str | None
    ) -> Batch:
        batch = self.read(topic, queue, offset, max_messages=256, tags=tags, sql=sql)
        if batch.next_offset == offset and not batch:
            handle = self._find_topic(topic)
            if handle == ffi.NULL:
                time.sleep(_FOLLOW_SLICE_MS / 1000)
                self.refresh()
            else:
                lib.ps_wait_message(self._live(), handle, queue, offset, _FOLLOW_SLICE_MS)
        return batch

    def follow(
        self,
        topic: str,
        queue: int,
        offset: int | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[Message]:
        """Messages as they come, waiting for more at the end.

        offset: where to begin; None: what comes from now on. tags, sql: as ``read``. timeout:
        seconds without a message after which it ends; None: never. Messages that were deleted
        meanwhile are stepped over.
        """
        at = self.range(topic, queue)[1] if offset is None else offset
        idle_since = time.monotonic()
        while True:
            batch = self._follow_step(topic, queue, at, tags, sql)
            yield from batch
            if batch or batch.next_offset != at:
                idle_since = time.monotonic()
            elif timeout is not None and time.monotonic() - idle_since >= timeout:
                return
            at = max(batch.next_offset, 0)

    async def follow_async(
        self,
        topic: str,
        queue: int,
        offset: int | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Message]:
        """``follow`` for asyncio: the waiting is done in a worker thread."""
        at = self.range(topic, queue)[1] if offset is None else offset
        idle_since = time.monotonic()
        while True:
            batch = await asyncio.to_thread(self._follow_step, topic, queue, at, tags, sql)
            for message in batch:
                yield message
            if batch or batch.next_offset != at:
                idle_since = time.monotonic()
            elif timeout is not None and time.monotonic() - idle_since >= timeout:
                return
            at = max(batch.next_offset, 0)

    # ---- Arrow ----

    def arrow(
        self, topic: str | None = None, queue: int | None = None, **options: Any
    ) -> ArrowStream:
        """An Arrow stream over a queue, a topic or the whole log; see ``pystore.ArrowStream``."""
        from pystore._arrow import ArrowStream

        return ArrowStream(self, topic, queue, **options)


class Reader(_Base):
    """A store opened for reading: no lock, nothing written, whoever else has it open.

    path: the folder that holds ``commitlog``. conf, settings: as for ``pystore.open``; sizes are
    taken from the files. It shows the store as recovery would leave it, and what was written later
    after ``refresh()``.

    Raises: NotAStore, Forbidden, FileSizeMismatch, MissingSegment, BadArgument.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        progress: Progress | None = None,
        **settings: object,
    ) -> None:
        super().__init__(path, conf, progress, settings)
        self._metadata: Metadata | None = None

    @property
    def metadata(self) -> Metadata:
        """Topics, groups and offsets as the folder's metadata says; read-only."""
        self._live()
        if self._metadata is None:
            self._metadata = Metadata(self.path, readonly=True)
        return self._metadata

    def close(self) -> None:
        if self._metadata is not None:
            self._metadata.close()
            self._metadata = None
        super().close()


class Store(_Base):
    """A store opened for writing; made by ``pystore.open``."""

    _writable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        progress: Progress | None = None,
        **settings: object,
    ) -> None:
        super().__init__(path, conf, progress, settings)
        try:
            self.metadata: Metadata = Metadata(self.path, self.settings)
            self.metadata.ensure_system_topics(self.settings)
            self._settle_found()
        except BaseException:
            super().close()
            raise
        self._sync_flush = self.settings["flushDiskType"] == "SYNC_FLUSH"
        self._topic_lock = threading.Lock()
        self._flush_queue = _FlushQueue(self)
        self._exporter = _Exporter(self.metadata)

    # ---- putting ----

    def _topic(self, topic: str) -> _Topic:
        """The topic's entry, made in the store when it is new."""
        with self._topic_lock:
            known = self._topics.get(topic)
            if known is None:
                raw = utf8(topic, "the topic")
                error = ffi.new("ps_error *")
                handle = lib.ps_topic_open(self._live(), raw, len(raw), 1, error)
                if handle == ffi.NULL:
                    self._fail(error)
                config = self.metadata.topics.get(topic)
                known = _Topic(handle, 0 if config is None else config.write_queue_nums)
                self._topics[topic] = known
            return known

    def _settle(self, topic: str, queue: int) -> None:
        """After a message was stored: the metadata learns of a new topic or queue."""
        with self._topic_lock:
            config = self.metadata.ensure_topic(topic, queue)
            self._topics[topic].queues = max(1, config.write_queue_nums)
        self._exporter.changed()

    def _turn(self, entry: _Topic) -> int:
        return next(entry.turn) % (entry.queues or int(self.settings["defaultTopicQueueNums"]))

    def _settle_found(self) -> None:
        """At open: topics that the log has and the metadata lacks, as a crash may leave them."""
        for q in self.queues():
            config = self.metadata.topics.get(q.topic)
            if config is None or config.write_queue_nums <= q.queue:
                self.metadata.ensure_topic(q.topic, q.queue)

    def put(
        self,
        topic: str,
        body: bytes | str,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        flag: int = 0,
        wait: bool = True,
        delay_level: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        born_timestamp: int = 0,
        born_host: str | None = None,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Stores one message; returns where it is. Give what follows the body by name.

        topic: letters, digits, ``%|_-``, at most 127 bytes. body: bytes, any buffer, or text as
        UTF-8, at most maxMessageSize bytes. keys: one, several in a list, or several in one text
        separated by spaces. queue: None takes them in turn. flag: the user's own number.
        wait: False is upstream's ``WAIT=false``: do not wait for the sync. delay_level: 1 to the
        last level; the message goes to SCHEDULE_TOPIC_XXXX as upstream stores it (section 2.6).
        born_timestamp: ms; 0: now. born_host: "address:port" of the producer.

        With flushDiskType=SYNC_FLUSH it returns when the disk has the message, or with status
        FLUSH_DISK_TIMEOUT (the message is stored). With ASYNC_FLUSH it returns at once.

        Raises: MessageIllegal and its kinds (nothing is stored), DiskFull, NotWriteable,
        CreateMappedFileFailed (nothing is stored), FlushFailed (stored, not known to be on the
        disk), StoreClosed, UsedAfterFork.
        """
        # The arguments are not keyword-only, and the plain message has a call of its own, since
        # either would cost a tenth of the whole put.
        if type(body) is not bytes:
            body = _buffer(body)
        if (
            delay_level
            or sys_flag
            or reconsume_times
            or born_timestamp
            or born_host
            or (prepared_transaction_offset)
        ):
            return self._put_message(
                topic, body, tags, keys, properties, queue, flag, wait, delay_level, sys_flag,
                reconsume_times, born_timestamp, born_host, prepared_transaction_offset,
            )  # fmt: skip
        try:
            entry = self._topics[topic]
        except KeyError:
            entry = self._topic(topic)
        if queue is None:
            queue = self._turn(entry)
        out, head = self._scratch.put
        if tags is None and keys is None and properties is None and wait and not flag:
            rc = _put_plain(entry.handle, queue, body, len(body), out)
        else:
            encoded = _properties(tags, keys, properties, wait)
            rc = _put(
                entry.handle, queue, flag, body, len(body), encoded, len(encoded),
                1 if wait else 0, out,
            )  # fmt: skip
        if rc < 0:
            self._fail(out.error, rc)
        if queue >= entry.queues:
            self._settle(topic, queue)
        return PutResult(head)

    def _put_message(
        self,
        topic: str,
        body: bytes | str,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        flag: int = 0,
        wait: bool = True,
        delay_level: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        born_timestamp: int = 0,
        born_host: str | None = None,
        prepared_transaction_offset: int = 0,
        *,
        block: bool = True,
    ) -> PutResult:
        """A message with anything that one may carry. block: wait for the sync here."""
        encoded = _properties(tags, keys, properties, wait)
        if delay_level:
            topic, queue, encoded = self._delayed(topic, queue, encoded, delay_level)
        entry = self._topic(topic)
        if queue is None:
            queue = self._turn(entry)
        m = self._message(body, encoded, queue, born_host)
        m.flag, m.sys_flag, m.reconsume_times = flag, sys_flag, reconsume_times
        m.born_timestamp = born_timestamp
        m.prepared_transaction_offset = prepared_transaction_offset
        m.wait = wait and block
        out, head = self._scratch.put
        rc = lib.ps_put_message(self._live(), entry.handle, m, out)
        if rc < 0:
            self._fail(out.error, rc)
        if queue >= entry.queues:
            self._settle(topic, queue)
        return PutResult(head)

    def _delayed(
        self, topic: str, queue: int | None, encoded: bytes, level: int
    ) -> tuple[str, int, bytes]:
        """Where upstream keeps a delayed message until its time (section 2.6)."""
        highest = len(self.settings.delay_levels_ms)
        if level < 0:
            raise BadArgument(f"delay_level {level} is negative")
        level = min(level, highest)
        real = 0 if queue is None else queue
        self._topic(topic)
        extra = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(real)}
        return "SCHEDULE_TOPIC_XXXX", level - 1, encoded + encode_properties(extra)

    def _message(self, body: bytes | str, encoded: bytes, queue: int, host: str | None) -> Any:
        """A ``ps_message`` whose buffers this thread keeps until its next one."""
        raw_body = body if type(body) is bytes else _buffer(body)
        m = ffi.new("ps_message *")
        self._scratch.keep = buffers = (ffi.from_buffer(raw_body), ffi.from_buffer(encoded))
        m.body, m.body_len = buffers[0], len(raw_body)
        m.properties, m.properties_len = buffers[1], len(encoded)
        m.queue_id = queue
        if host is not None:
            raw = _settings.host_bytes(host)
            ffi.memmove(m.born_host, raw, len(raw))
            m.born_host_len = len(raw)
        return m

    def put_many(
        self,
        topic: str,
        bodies: Any,
        *,
        tags: Any = None,
        keys: Any = None,
        properties: Any = None,
        queue: int | None = None,
        queues: Any = None,
        flag: int = 0,
        wait: bool = True,
        born_timestamps: Any = None,
    ) -> PutManyResult:
        """Stores many messages in one crossing into C.

        bodies: a list of bytes or str; an Arrow binary or string array (not copied); or
        ``(data, offsets)``, any byte buffer with an int32 or int64 buffer of one offset more than
        there are messages (numpy, array, memoryview; not copied).
        tags, keys: one text for all, or a column like bodies (keys separated by spaces).
        properties: one mapping for all, a list of mappings, or a column of encoded properties.
        queue: all to this one; queues: an int32 array, one a message; neither: in turn.
        born_timestamps: int64 ms, one a message; None: now.

        All messages are checked before the first is stored; on an error nothing is stored, except
        DiskFull and CreateMappedFileFailed, which may come in the middle (``error.offset`` is then
        how many were stored), and FlushFailed.
        """
        many, keep = self._many(bodies, tags, keys, properties, flag, wait, born_timestamps)
        n = many.count
        placed = ffi.new("int64_t[]", 2 * n)
        many.queue_offsets, many.physical_offsets = placed, placed + n
        entry = self._topic(topic)
        highest = queue or 0
        if queues is not None:
            ids = int_array(queues, "i", n, "queues")
            keep.append(ids)
            many.queue_ids = ffi.cast("int32_t *", ffi.from_buffer(ids))
            highest = max(memoryview(ids).cast("B").cast("i"), default=0)
        elif queue is not None:
            many.queue_first, many.queue_count = queue, 1
        else:
            many.queue_count = entry.queues or int(self.settings["defaultTopicQueueNums"])
        out, stored = self._scratch.out, ffi.new("int64_t *")
        rc = lib.ps_put_many_messages(self._live(), entry.handle, many, stored, out)
        if rc < 0:
            if stored[0]:
                out.error.offset = stored[0]
            self._fail(out.error, rc)
        if n and highest >= entry.queues:
            self._settle(topic, highest)
        del keep
        both = memoryview(ffi.buffer(placed, 16 * n)).toreadonly()
        both = both.cast("q") if n else memoryview(b"").cast("q")
        end = out.physical_offset + out.size if n else 0
        return PutManyResult(_STATUS[out.status if n else 0], n, both[:n], both[n:], end)

    def _many(
        self, bodies: Any, tags: Any, keys: Any, properties: Any, flag: int, wait: bool, born: Any
    ) -> tuple[Any, list[Any]]:
        many = ffi.new("ps_put_many *")
        columns = {"bodies": column_of(bodies)}
        common = b"" if wait else b"WAIT\x01false\x02"
        for name, value in (("tags", tags), ("keys", keys)):
            if isinstance(value, str):
                common += encode_properties({name.upper(): value})
            elif value is not None:
                columns[name] = column_of(value, name)
        if isinstance(properties, Mapping):
            common += encode_properties(properties)
        elif properties is not None:
            columns["properties"] = column_of(_encoded_column(properties), "properties")
        many.count = n = columns["bodies"].count
        for name, column in columns.items():
            if column.count != n:
                raise BadArgument(f"{name} holds {column.count} values for {n} bodies")
            column.fill(getattr(many, name))
        many.flag, many.wait = flag, wait
        keep: list[Any] = [columns, common, ffi.from_buffer(common)]
        many.common, many.common_len = keep[2], len(common)
        if born is not None:
            keep.append(int_array(born, "q", n, "born_timestamps"))
            many.born_timestamps = ffi.cast("int64_t *", ffi.from_buffer(keep[-1]))
        return many, keep

    def put_batch(
        self,
        topic: str,
        payload: bytes,
        *,
        queue: int = 0,
        properties: Mapping[str, str] | None = None,
        wait: bool = True,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        born_timestamp: int = 0,
        born_host: str | None = None,
        block: bool = True,
    ) -> PutManyResult:
        """Stores the body of a client's batch (section 3): all of it within one file, or nothing.

        properties: the batch's own, added to each message. block: wait for the sync here.
        """
        encoded = _properties(None, None, properties, wait)
        entry = self._topic(topic)
        m = self._message(payload, encoded, queue, born_host)
        m.sys_flag, m.reconsume_times, m.born_timestamp = sys_flag, reconsume_times, born_timestamp
        m.wait = wait and block
        out, count = self._scratch.out, ffi.new("int64_t *")
        placed = ffi.new("int64_t[]", len(payload) // _BATCH_ITEM_MIN + 1)
        rc = lib.ps_put_client_batch(self._live(), entry.handle, m, count, placed, out)
        if rc < 0:
            self._fail(out.error, rc)
        if queue >= entry.queues:
            self._settle(topic, queue)
        n = int(count[0])
        first = out.queue_offset - n + 1
        offsets = memoryview(b"".join(i.to_bytes(8, "little") for i in range(first, first + n)))
        return PutManyResult(
            _STATUS[out.status],
            n,
            offsets.cast("q"),
            memoryview(bytes(ffi.buffer(placed, 8 * n))).cast("q"),
            out.physical_offset + out.size,
        )

    def batch(
        self, topic: str, *, size: int = 1000, queue: int | None = None, wait: bool = True
    ) -> PutBatch:
        """A buffer in front of ``put_many``, for messages that come one by one::

            with store.batch("orders") as batch:
                for order in orders:
                    batch.put(order, tags="paid")

        size: messages that cross into C together. See PutBatch.
        """
        return PutBatch(self, topic, size, queue, wait)

    # ---- delays ----

    def deliver_due(
        self, level: int, offset: int, *, most: int = 512, now_ms: int = 0
    ) -> DueDelivery:
        """Puts messages of a delay level to their topics, from queue offset `offset` of it on, as
        far as they are due. most: messages of this call. now_ms: 0 for the clock.

        Raises: DiskFull and whatever else ``put`` raises; what was delivered before it stays so,
        and ``offset`` of the exception's ``delivery`` says where to go on.
        """
        error, raw = ffi.new("ps_error *"), ffi.new("ps_due *")
        rc = lib.ps_deliver_due(self._live(), level, offset, now_ms, most, raw, error)
        done = DueDelivery(raw.next_offset, raw.next_ms, raw.delivered, raw.skipped, raw.end)
        if rc < 0:
            try:
                self._fail(error)
            except StoreError as failed:
                failed.delivery = done  # type: ignore[attr-defined]
                raise
        return done

    # ---- durability ----

    async def put_async(self, topic: str, body: bytes | str, **options: Any) -> PutResult:
        """``put`` for asyncio: with SYNC_FLUSH the sync is awaited, not blocked on; many awaiting
        puts share one sync. Arguments and errors as ``put``."""
        result = self._put_message(topic, body, **options, block=False)
        if not self._sync_flush or not options.get("wait", True):
            return result
        status = await self.durable(result.physical_offset + result.size)
        return result._with_status(status)

    def wait_flushed(self, offset: int, timeout: float = 5.0) -> bool:
        """Waits until every byte of the log below `offset` is on the disk; False when it took
        longer than `timeout` seconds. Raises: FlushFailed."""
        error = ffi.new("ps_error *")
        rc = lib.ps_wait_flushed(self._live(), offset, int(timeout * 1000), error)
        if rc < 0:
            self._fail(error)
        return bool(rc == 0)

    async def durable(self, offset: int) -> PutStatus:
        """Awaits that every byte of the log below `offset` is on the disk: PUT_OK, or
        FLUSH_DISK_TIMEOUT after syncFlushTimeout. Raises: FlushFailed."""
        return await self._flush_queue.wait(offset)

    def flush(self) -> None:
        """Brings log, queues, index and metadata to the disk. Raises: FlushFailed."""
        error = ffi.new("ps_error *")
        if lib.ps_store_flush(self._live(), error) < 0:
            self._fail(error)
        self.metadata.maybe_export()

    # ---- topics ----

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic: its queues, its row of the metadata and all consumer offsets in it.

        The messages stay in the log, found by offset, id and key, until retention takes them. A
        topic made again counts its queue offsets from 0. After a crash in between the queues are
        there or gone, never half; then delete it again. Readers see it with their next refresh.
        Follows upstream's DefaultMessageStore.deleteTopics; what a restart does differs, see
        docs/recovery.md.

        Raises: NotFound for a topic that is not there, BadArgument for one that the store needs
        itself, ReadOnly, DiskFull, StoreClosed.
        """
        if any(topic == row.name for row in system_topics(self.settings)):
            raise BadArgument(f"{topic} is a topic of the store itself and cannot be deleted")
        if topic not in self.metadata.topics and not self.queues(topic):
            raise NotFound(f"the store has no topic '{topic:.260}'")
        self._delete_queues(topic)
        with self._topic_lock, self.metadata.batch():
            self.metadata.topics.delete(topic)
            self.metadata.offsets.delete(topic=topic)
        self._exporter.changed()

    def _delete_queues(self, topic: str) -> None:
        """The queues alone, for a broker, which keeps topics and offsets by itself."""
        handle, error = self._find_topic(topic), ffi.new("ps_error *")
        if handle == ffi.NULL:
            return
        if lib.ps_topic_delete(self._live(), handle, error) < 0:
            self._fail(error)
        with self._topic_lock:
            if topic in self._topics:
                self._topics[topic].queues = 0  # so that the next put makes its row again

    # ---- retention, closing ----

    def clean(
        self, *, immediate: bool = False, dry_run: bool = False, now_ms: int = 0
    ) -> CleanReport:
        """One round of retention (section 9): deletes expired segments, at most deleteFileBatchMax,
        whatever the hour. immediate: the oldest ones although not expired. dry_run: only counts."""
        raw, error = ffi.new("ps_clean_report *"), ffi.new("ps_error *")
        if lib.ps_store_clean(self._live(), now_ms, 1, immediate, dry_run, raw, error) < 0:
            self._fail(error)
        reasons = ("nothing", "hour", "ratio", "forced", "asked")
        return CleanReport(
            raw.log_files, raw.queue_files, raw.index_files, raw.bytes, raw.log_min,
            raw.disk_percent, bool(raw.disk_full), reasons[raw.why],
        )  # fmt: skip

    def retain(self, settings: _settings.Settings) -> None:
        """Follows the retention of these settings from the next round on: RETENTION of _settings
        names those it takes; the others stay."""
        rules, keep = _settings.fill(ffi, settings, os.fspath(self.path))
        error = ffi.new("ps_error *")
        if lib.ps_store_retain(self._live(), rules, error) < 0:
            self._fail(error)
        del keep
        taken = {name: settings[name] for name in _settings.RETENTION}
        self.settings = self.settings.replaced(**taken)

    def close(self) -> None:
        """Flushes everything, writes the metadata out and ends. A second call does nothing.

        Raises: FlushFailed when something could not be synced; the abort file then stays, so that
        the next open recovers.
        """
        if self._handle is None:
            return
        self._flush_queue.stop()
        self._exporter.stop()
        try:
            super().close()
        finally:
            self.metadata.close()


class _Exporter:
    """Writes changed metadata out to ``config/``: topics and groups soon after they change, offsets
    on upstream's cadence. A thread of its own, so that a put of a new topic does not wait."""

    def __init__(self, metadata: Metadata) -> None:
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=_export_now_and_then,
            args=(weakref.ref(metadata), self._wake, self._stop),
            name="pystore-export",
            daemon=True,
        )
        self._thread.start()

    def changed(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()


def _export_now_and_then(
    ref: weakref.ref[Metadata], wake: threading.Event, stop: threading.Event
) -> None:
    while not stop.is_set():
        if wake.wait(_EXPORT_S):
            wake.clear()
            stop.wait(_EXPORT_PAUSE_S)  # many changes at once become one export
        metadata = ref()
        if metadata is None or stop.is_set():
            return
        try:
            metadata.maybe_export()
        except StoreError:
            continue  # the next round, flush() or close() tries again; close() tells
        finally:
            del metadata


class _FlushQueue:
    """Awaiting puts: one thread waits for the furthest, and resolves all that a sync has served."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._lock = threading.Condition()
        self._waiting: list[tuple[int, asyncio.Future[PutStatus]]] = []
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def wait(self, offset: int) -> PutStatus:
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pystore-flush", daemon=True)
                self._thread.start()
            self._waiting.append((offset, future))
            self._lock.notify()
        return await future

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopped:
                    self._lock.wait()
                if not self._waiting:
                    return
                batch, self._waiting = self._waiting, []
            self._serve(batch)

    def _serve(self, batch: list[tuple[int, asyncio.Future[PutStatus]]]) -> None:
        store = self._store()
        outcome: PutStatus | BaseException
        try:
            if store is None:
                raise StoreClosed("the store was closed")
            timeout = int(store.settings["syncFlushTimeout"]) / 1000
            done = store.wait_flushed(max(offset for offset, _ in batch), timeout)
            outcome = PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT
        except BaseException as e:  # noqa: BLE001  whoever awaits is told, whatever it was
            outcome = e
        for _, future in batch:
            try:
                future.get_loop().call_soon_threadsafe(_resolve, future, outcome)
            except RuntimeError:  # its loop is closed: nobody waits any more
                continue


def _resolve(future: asyncio.Future[PutStatus], outcome: PutStatus | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


_STATUS = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)
_put = lib.ps_put
_put_plain = lib.ps_put_plain


def _buffer(body: Any) -> Any:
    """The bytes of a text, or of anything that has a buffer."""
    if isinstance(body, str):
        return utf8(body, "the body")
    try:
        return bytes(memoryview(body))
    except TypeError:
        raise BadArgument(f"a body is bytes, a buffer or text, not {type(body).__name__}") from None


def _properties(
    tags: str | None,
    keys: str | list[str] | None,
    properties: Mapping[str, str] | None,
    wait: bool,
) -> bytes:
    """TAGS, KEYS, the properties and WAIT=false, encoded; no dict is built on the way."""
    text, pairs = "", 0
    if tags:
        text, pairs = f"TAGS\x01{tags}\x02", 1
    if keys:
        text += f"KEYS\x01{keys if isinstance(keys, str) else ' '.join(keys)}\x02"
        pairs += 1
    if properties:
        text += "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
        pairs += len(properties)
    if not wait:
        text += "WAIT\x01false\x02"
        pairs += 1
    return checked(text, pairs)


def _encoded_column(properties: Any) -> Any:
    if (
        isinstance(properties, list)
        and properties
        and isinstance(properties[0], (Mapping, type(None)))
    ):
        return [encode_properties(p) if p else b"" for p in properties]
    return properties


def _after_fork_in_child() -> None:
    for store in list(_LIVE):
        store._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
