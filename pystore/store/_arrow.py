"""The store as an Arrow stream: filled in C, one memcpy a body, no Python object a message.

``ArrowStream`` has ``__arrow_c_stream__`` (the Arrow PyCapsule interface), so pyarrow, Polars,
DuckDB and everything else that speaks it takes it as it is; none of them is imported here.
"""

from __future__ import annotations

import _thread
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pystore.errors import BadArgument, NotFound
from pystore.files.mapped import MappedFile
from pystore.filter.sql92 import compiled
from pystore.filter.tags import tag_set
from pystore.format.compression import inflate
from pystore.format.records import Buffer
from pystore.native import _put, ffi, lib, raise_error, utf8
from pystore.store._results import Info

__all__ = ["COLUMNS", "ArrowStream", "GivenRecords", "ScanStats", "survive_truncation"]

_FAR = (1 << 63) - 1


class GivenRecords(NamedTuple):
    """Records that follow each other. file: that they lie in, if any. sums: the CRC-32 of each
    `block` bytes of them, and of the rest, by which they are looked at before a row of theirs is
    given; empty: they are believed. name: theirs, for errors."""

    records: Buffer
    file: MappedFile | None = None
    sums: Buffer = b""
    block: int = 0
    name: str = ""


#: Every column: its name, its number in C, whether it can be null. Types: csrc/pystore.h, PS_COL_*.
COLUMNS: dict[str, tuple[int, bool]] = {
    "topic": (lib.PS_COL_TOPIC, False),
    "brokerName": (lib.PS_COL_BROKER_NAME, False),
    "queueId": (lib.PS_COL_QUEUE_ID, False),
    "queueOffset": (lib.PS_COL_QUEUE_OFFSET, False),
    "body": (lib.PS_COL_BODY, False),
    "tags": (lib.PS_COL_TAGS, True),
    "keys": (lib.PS_COL_KEYS, True),
    "properties": (lib.PS_COL_PROPERTIES, False),
    "flag": (lib.PS_COL_FLAG, False),
    "bornTimestamp": (lib.PS_COL_BORN_TIMESTAMP, False),
    "storeTimestamp": (lib.PS_COL_STORE_TIMESTAMP, False),
    "sysFlag": (lib.PS_COL_SYS_FLAG, False),
    "bornHost": (lib.PS_COL_BORN_HOST, False),
    "storeHost": (lib.PS_COL_STORE_HOST, False),
    "reconsumeTimes": (lib.PS_COL_RECONSUME_TIMES, False),
    "bodyCRC": (lib.PS_COL_BODY_CRC, False),
    "storeSize": (lib.PS_COL_STORE_SIZE, False),
    "commitLogOffset": (lib.PS_COL_COMMIT_LOG_OFFSET, False),
    "msgId": (lib.PS_COL_MSG_ID, False),
    "preparedTransactionOffset": (lib.PS_COL_PREPARED_TRANSACTION_OFFSET, False),
    "envelope": (lib.PS_COL_ENVELOPE, False),
    "liteTopic": (lib.PS_COL_LITE_TOPIC, True),
}

_DEFAULT = ("topic", "queueId", "queueOffset", "tags", "keys", "storeTimestamp", "body")


@ffi.callback(  # type: ignore[untyped-decorator,unused-ignore]
    "int64_t(void *, int32_t, const uint8_t *, int64_t, uint8_t *, int64_t)", error=-1
)
def _inflate(arg: Any, kind: int, data: Any, size: int, out: Any, room: int) -> int:
    """Inflates a compressed body with Python's libraries; C asks for the few that there are."""
    try:
        full = inflate(kind, ffi.buffer(data, size))
    except Exception:  # noqa: BLE001 whatever a decompressor raises, C hears "the bytes are bad"
        return -1
    if len(full) <= room:
        ffi.memmove(out, full, len(full))
    return len(full)


class _Feed:
    """Records for a stream, piece by piece. It lives as long as the stream does in C."""

    def __init__(self, pieces: Iterable[Buffer | GivenRecords]) -> None:
        self._pieces = iter(pieces)
        self._held: Any = None
        self.handle = ffi.new_handle(self)

    def next(self, out: Any, why: Any, room: int) -> int:
        """Takes the next piece, as ``ps_more_records`` asks for it."""
        self._held = None  # its memory is for the next piece
        try:
            for piece in self._pieces:
                given = piece if isinstance(piece, GivenRecords) else GivenRecords(piece)
                if len(given.records):
                    return self._give(given, out)
        except BaseException as failed:  # noqa: BLE001 C hears of it, and its reader from C
            if isinstance(failed, KeyboardInterrupt):
                _thread.interrupt_main()
            text = f"{failed}".encode()[: room - 1] + b"\0"
            ffi.memmove(why, text, len(text))
            return -1
        return 0

    def _give(self, given: GivenRecords, out: Any) -> int:
        """Says where records lie; returns how many bytes they have."""
        records = ffi.from_buffer("uint8_t[]", given.records)
        sums = ffi.from_buffer("uint8_t[]", given.sums)
        name = ffi.new("char[]", given.name.encode())
        self._held = records, sums, name, given.file
        out.records, out.name = records, name
        if len(sums):
            out.sums, out.block = sums, given.block
        if given.file is not None:
            out.file = given.file.handle
        return len(records)


#: Those of streams that are not released.
_FEEDS: set[_Feed] = set()


@ffi.callback(  # type: ignore[untyped-decorator,unused-ignore]
    "int64_t(void *, ps_given *, char *, int64_t)", error=-1
)
def _more(arg: Any, out: Any, why: Any, room: int) -> int:
    """Gives a stream its next records."""
    feed: _Feed = ffi.from_handle(arg)
    if out == ffi.NULL:
        _FEEDS.discard(feed)
        return 0
    return feed.next(out, why, room)


def survive_truncation() -> None:
    """Installs what keeps the process alive: from now on what reads a file fails, and names it,
    when another process has cut it off; without this the process dies of SIGBUS.

    Installs a handler of that signal, once; opening a store does so, too. A signal that is not of a
    store's file goes to the handler that was there before.

    Raises: StoreIOError.
    """
    error = ffi.new("ps_error *")
    if lib.ps_sigbus_install(error) < 0:
        raise_error(error)


def _check_columns(columns: Sequence[str], properties: str) -> None:
    """Checks the columns of a scan. Raises: BadArgument."""
    if properties not in ("map", "json"):
        raise BadArgument(f"properties is 'map' or 'json', not '{properties}'")
    for name in columns:
        if name not in COLUMNS:
            raise BadArgument(f"unknown column '{name}'; columns: {', '.join(COLUMNS)}")
    for name in columns:
        if columns.count(name) > 1:
            raise BadArgument(f"column '{name}' is given twice")


def _fill_columns(
    scan: Any, columns: Sequence[str], properties: str, nullable: Sequence[bool] | None
) -> None:
    scan.column_count = len(columns)
    for i, name in enumerate(columns):
        number, may_be_null = COLUMNS[name]
        if name == "properties" and properties == "json":
            number = lib.PS_COL_PROPERTIES_JSON
        scan.columns[i] = number
        scan.nullable[i] = may_be_null if nullable is None else nullable[i]


def _new_stats() -> Any:
    raw = lib.ps_scan_stats_new()
    if raw == ffi.NULL:
        raise MemoryError("no memory for a scan")
    return ffi.gc(raw, lib.ps_scan_stats_free)


@dataclass(frozen=True, slots=True)
class ScanStats:
    """What a stream has read so far: rows given, bytes of records, damaged places stepped over (the
    first at byte `first_skipped` of the log, -1 none), batches."""

    rows: int
    bytes: int
    skipped: int
    batches: int
    first_skipped: int


class ScanSource(Protocol):
    """What a stream needs of its store."""

    def c_handle(self) -> Any: ...

    def info(self) -> Info: ...

    def _find_topic(self, topic: str) -> Any: ...

    def _missing(self, topic: str, queue: int | None = None) -> NotFound: ...

    def _filter(self, tags: str | None, sql: str) -> Any: ...

    def _tag_set(self, tags: str) -> tuple[Any, int, bytes]: ...


class _NoStore:
    """Stands in the place of a store when only records are read."""

    def c_handle(self) -> Any:
        return ffi.NULL

    def info(self) -> Info:
        raise BadArgument("records are not a store")

    def _find_topic(self, topic: str) -> Any:
        raise BadArgument(f"records are read whole, not by topic: '{topic}'")

    def _missing(self, topic: str, queue: int | None = None) -> NotFound:
        return NotFound(f"{topic}/{queue}")

    def _filter(self, tags: str | None, sql: str) -> Any:
        if tags is not None:
            raise BadArgument("give either tags or sql, not both")
        return compiled(sql)

    def _tag_set(self, tags: str) -> tuple[Any, int, bytes]:
        return tag_set(tags)


class ArrowStream:
    """Messages of a queue, a topic or the whole log as Arrow record batches.

    topic, queue: both given: that queue, by queue offsets. topic alone: its messages in the order
    of the log, without those of a life that was deleted. Neither: the whole log, which has these,
    too. start, end: queue offsets, or bytes of the log; [start,
    end). columns: names out of ``pystore.COLUMNS``, in the order wanted. tags: ``A || B``, compared
    as text. sql: an SQL92 filter on properties instead (docs/sql92.md). store_time: (from, to) in
    ms, inclusive; None for an open side. topics: several, for a log range. properties: ``map``
    (map<string, string>) or ``json``. nullable: overrides which columns the schema calls nullable.
    decompress: inflate compressed bodies. check_crc: verify each body. skip_damaged: step over what
    cannot be read and count it, instead of failing. committed_only: leave out prepared and rolled
    back messages. batch_rows, batch_bytes: the size of a batch. records: whole records one after
    the other, such as a pull brings, or pieces of such records, of any queues; they are read in the
    place of a store, which is None then. A piece is let go of when the next one is taken.

    Each ``__arrow_c_stream__`` call starts from the beginning. Reading lets go of the GIL.

    Raises: BadArgument, ExpressionIllegal, NotFound for a topic or queue that is not there. While
    it is read, the consumer raises its own error (pyarrow: OSError) with our sentence.
    """

    def __init__(
        self,
        store: ScanSource | None,
        topic: str | None,
        queue: int | None,
        *,
        records: bytes | Iterable[Buffer | GivenRecords] | None = None,
        start: int = 0,
        end: int = _FAR,
        columns: Sequence[str] = _DEFAULT,
        tags: str | None = None,
        sql: str | None = None,
        store_time: tuple[int | None, int | None] = (None, None),
        topics: Sequence[str] = (),
        properties: str = "map",
        nullable: Sequence[bool] | None = None,
        decompress: bool = True,
        check_crc: bool = False,
        skip_damaged: bool = False,
        committed_only: bool = False,
        broker_name: str = "broker-a",
        batch_rows: int = 8192,
        batch_bytes: int = 4 << 20,
    ) -> None:
        if (store is None) != (records is not None):
            raise BadArgument("give either a store or records")
        if queue is not None and topic is None:
            raise BadArgument("queue given without a topic")
        _check_columns(columns, properties)
        self._store: ScanSource = store if store is not None else _NoStore()
        self._keep: list[Any] = []
        self._stats = _new_stats()
        s = self._scan = ffi.new("ps_scan *")
        _fill_columns(s, columns, properties, nullable)
        s.from_at, s.to_at = start, end
        s.store_time_min = 0 if store_time[0] is None else store_time[0]
        s.store_time_max = _FAR if store_time[1] is None else store_time[1]
        s.queue_filter = -1
        s.batch_rows, s.batch_bytes = batch_rows, batch_bytes
        s.check_crc, s.skip_damaged = check_crc, skip_damaged
        s.committed_only = committed_only
        broker = utf8(broker_name, "broker_name")
        s.broker_name, s.broker_name_len = self._text(broker), len(broker)
        if decompress:
            s.inflate = _inflate
        if sql is not None:
            s.sql = self._sql = self._store._filter(tags, sql)
        self._records = (records,) if isinstance(records, bytes) else records
        if records is not None:
            s.more = _more
        self._choose(topic, queue, topics, tags)

    def _text(self, raw: bytes) -> Any:
        kept = ffi.new("char[]", raw)
        self._keep.append(kept)
        return kept

    def _choose(
        self, topic: str | None, queue: int | None, topics: Sequence[str], tags: str | None
    ) -> None:
        s = self._scan
        names = [utf8(t, "a topic") for t in ([topic] if topic is not None else topics)]
        if topic is not None and queue is not None:
            handle = self._store._find_topic(topic)
            low, high = ffi.new("int64_t *"), ffi.new("int64_t *")
            live = self._store.c_handle()
            if handle == ffi.NULL or lib.ps_queue_range(live, handle, queue, low, high) < 0:
                raise self._store._missing(topic, queue)
            s.topic, s.queue_id = handle, queue
            s.from_at = max(s.from_at, low[0])
        elif names:
            for name in names:
                if self._store._find_topic(name.decode()) == ffi.NULL:
                    raise self._store._missing(name.decode())
            joined = b"\0".join(names)
            s.topics, s.topics_len, s.topic_count = self._text(joined), len(joined), len(names)
        if s.topic == ffi.NULL and self._records is None:
            s.from_at = max(s.from_at, self._store.info().log_min)
        _, count, texts = self._store._tag_set(tags) if tags is not None else (None, 0, b"")
        if count:
            s.tags, s.tags_len, s.tag_count = self._text(texts), len(texts), count

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a capsule with a fresh ``ArrowArrayStream``. requested_schema: not needed, since
        the columns were chosen before."""
        capsule, address = _put.new_stream()
        error = ffi.new("ps_error *")
        self._stats = _new_stats()
        scan, feed = ffi.new("ps_scan *", self._scan[0]), None
        if self._records is not None:
            feed = _Feed(self._records)
            scan.more_arg = feed.handle
        struct = ffi.cast("void *", address)
        rc = lib.ps_scan_open(self._store.c_handle(), scan, struct, self._stats, error)
        if rc < 0:
            raise_error(error)
        if feed is not None:
            _FEEDS.add(feed)
        return capsule

    @property
    def stats(self) -> ScanStats:
        """The counts of the stream that was asked for last."""
        s = self._stats
        return ScanStats(s.rows, s.bytes, s.skipped, s.batches, s.first_skipped)
