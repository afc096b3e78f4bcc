"""What Store and Reader share: reading, facts, closing; and the Reader.

Every call that touches the store crosses into C once, with the GIL let go; see csrc/pystore.h.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pystore.base.closing import ClosedByWith
from pystore.base.store_error import StoreError
from pystore.errors import (
    BadArgument,
    NotFound,
    ReadOnly,
    RecordDamaged,
    StoreClosed,
    UsedAfterFork,
)
from pystore.files.elsewhere import kept_elsewhere
from pystore.filter.sql92 import compiled
from pystore.filter.tags import tag_set
from pystore.format.names import LIGHT_PREFIX
from pystore.metadata import Metadata
from pystore.native import address_of, ffi, lib, raise_error, utf8
from pystore.settings import fill, load
from pystore.store._messages import Batch, Message
from pystore.store._missing import missing
from pystore.store._report import RecoveryReport, report_of
from pystore.store._results import Info, QueueInfo
from pystore.store.arguments import STUMBLES, named_arguments, refuse_wrong_types
from pystore.store.light_queues import LightQueues

if TYPE_CHECKING:
    from pystore.store._arrow import ArrowStream


_log = logging.getLogger("pystore")
_FOLLOW_SLICE_MS = 200  # a blocking wait wakes so often that Ctrl-C is felt
_OPEN_POLL_S = 0.05
_DAMAGE_LINES = 100  # lines about damaged queues that one handle logs
_TAGS_KEPT = 1000  # parsed tag expressions
_FILTERS_KEPT = 100  # compiled SQL92 filters, as many as upstream keeps
_MOST_MESSAGES = 1 << 24  # a read gives at most
#: Names of what a Store can do and a Reader cannot; the module of the Store fills it.
ONLY_OF_STORE: set[str] = set()
_LIVE: weakref.WeakSet[Base] = weakref.WeakSet()


def _lights_of_groups(root: Path, known: Metadata) -> dict[str, int]:
    """Returns light queues that a group has an offset of, with the number of their queues; none
    where none has a folder. A Java broker drops the offsets when it deletes such a queue."""
    folder = root / "consumequeue"
    if not any(folder.glob(f"{LIGHT_PREFIX}*")):
        return {}
    return {each.topic: 1 for each in known.offsets.all() if each.topic.startswith(LIGHT_PREFIX)}


class TopicHandle:
    """A topic's handle in C. queues: how many puts that name none take in turn; 0: not yet known to
    the metadata, which hears of a topic only when a message of it is stored. count: messages that
    its queues ever had: the turn goes on where the last process left it."""

    __slots__ = ("address", "handle", "queues", "turn")

    def __init__(self, handle: Any, queues: int, count: int = 0) -> None:
        self.handle = handle
        self.address = address_of(handle)
        self.queues = queues
        self.turn = itertools.count(count)


class _CallStructs(threading.local):
    """The structs of a call, one of each a thread, so that none is allocated for it."""

    def __init__(self) -> None:
        self.out = ffi.new("ps_put_result *")
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
    opened = False
    try:
        while not opened:  # progress is reported at least once, however quick it was
            thread.join(_OPEN_POLL_S)
            opened = not thread.is_alive()
            if progress is not None:
                progress(_PHASES[shared.phase], int(shared.done), int(shared.total))
    except BaseException:
        shared.stop = 1
        thread.join()
        if box and box[0] != ffi.NULL:
            lib.ps_store_free(box[0])
        raise
    return box[0]


class Base(ClosedByWith):
    """What Store and Reader share: reading, facts, closing."""

    _writable = False
    #: keep_log of ps_conf: the log belongs to another store.
    _keeps_log = False
    #: compare_queues of ps_conf: the log is there to compare queues with.
    _compares_queues = True
    #: queues_before of ps_conf: the folder of the queues that are made again here.
    _queues_before: Path | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        conf: str | os.PathLike[str] | Mapping[str, object] | None,
        progress: Progress | None,
        settings: dict[str, object],
    ) -> None:
        self._handle: Any = None
        self.path = Path(path)
        self.settings = load(conf, settings)
        self._check_settings()
        raw, keep = fill(ffi, self.settings, os.fspath(path))
        raw.keep_log = self._keeps_log
        self._tell_topics(raw, keep)
        if self._queues_before is not None:
            keep.append(ffi.new("char[]", os.fsencode(self._queues_before)))
            raw.queues_before = keep[-1]
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
        self._lights = LightQueues(self)
        #: What opening it did, see docs/recovery.md.
        self.report: RecoveryReport = report_of(report)
        self._topics: dict[str, TopicHandle] = {}
        self._keep_calls()
        _LIVE.add(self)

    def _keep_calls(self) -> None:
        """Makes room for what calls leave for the next ones."""
        self._tags: dict[str, tuple[Any, int, bytes]] = {}
        self._filters: dict[str, Any] = {}
        self._damaged: set[tuple[str, int]] = set()
        self._scratch = _CallStructs()

    def _check_settings(self) -> None:
        """Refuses what has no effect. Raises: BadArgument."""

    def _io(self) -> Any:
        """Returns the I/O table; tests override it to make calls fail."""
        return ffi.NULL

    def _tell_topics(self, raw: Any, keep: list[Any]) -> None:
        """Tells an open that compares the queues with the log which topics there are: the messages
        of others are those of topics that were deleted. A reader whose metadata is damaged shows
        those, too. Raises: RecordDamaged, Forbidden, StoreIOError."""
        raw.compare_queues = self._compares_queues
        root = os.fspath(self.path)
        # Of a path that is too long it says False.
        if not self._compares_queues or not os.path.isdir(root):  # noqa: PTH112
            return
        if lib.ps_queues_are_noted(os.fsencode(root)):
            return
        try:
            with Metadata(root, readonly=True) as found:
                topics = found.topics.list()
                lights = _lights_of_groups(Path(root), found)
        except StoreError:
            if self._writable:
                raise
            return
        known = {each.name: max(each.read_queue_nums, each.write_queue_nums) for each in topics}
        rows = sorted((utf8(name, "the topic"), n) for name, n in (lights | known).items())
        table = ffi.new("ps_topic_row[]", len(rows))
        for at, (name, queues) in enumerate(rows):
            text = ffi.new("char[]", name)
            table[at].name, table[at].len, table[at].queues = text, len(name), queues
            keep.append(text)
        keep.append(table)
        raw.topics, raw.topic_count = table, len(rows)

    # ---- life ----

    def c_handle(self) -> Any:
        """Returns the ``ps_store *`` of the C core, for what calls into it (pystore.native).

        Raises: StoreClosed, UsedAfterFork.
        """
        handle = self._handle
        if handle is None:
            raise self._why_closed()
        return handle

    def _fail(self, error: Any, code: int = 0) -> Any:
        self.c_handle()  # a closed handle says why it is closed
        raise_error(error, code)

    def _fail_queue(self, error: Any, topic: str, queue: int) -> None:
        if error.code == NotFound.code:
            raise self._missing(topic, queue)
        self._fail(error)

    def close(self) -> None:
        """Ends the use of the store; a second call does nothing. Views got before stay valid."""
        handle, self._handle = self._handle, None
        if handle is not None:
            error = ffi.new("ps_error *")
            if lib.ps_store_close(handle, error) < 0:
                raise_error(error)

    def _forget(self) -> None:
        """Drops the handle in the child of a fork: it is the parent's."""
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
        self.c_handle()
        return self

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else "open"
        return f"<pystore.{type(self).__name__} {self.path} {state}>"

    # ---- facts ----

    @property
    def lights(self) -> LightQueues:
        """The light queues, those of lite topics. A Reader looks at their files when it is first
        asked for them. Raises: StoreIOError, StoreClosed."""
        return self._lights

    @property
    def disk_full(self) -> bool:
        """Whether puts are refused, or the dispatcher waits, for lack of disk space. It waits for
        nothing. Raises: StoreClosed."""
        full = lib.ps_store_disk_full(self.c_handle())
        if full < 0:
            raise self._why_closed()
        return bool(full)

    def info(self) -> Info:
        """Returns sizes, ends and counters."""
        raw = ffi.new("ps_info *")
        if lib.ps_store_info(self.c_handle(), raw) < 0:
            raise self._why_closed()
        names = [n for n in Info.__slots__ if n not in ("path", "checkpoint")]
        facts = {n: getattr(raw, n) for n in names}
        for n in ("writable", "disk_full", "sync_flush", "abort_present"):
            facts[n] = bool(facts[n])
        return Info(path=str(self.path), checkpoint=tuple(raw.checkpoint), **facts)

    @named_arguments
    def queues(self, topic: str | None = None) -> list[QueueInfo]:
        """Returns every queue of the store, or of a topic, sorted by topic and queue id."""
        if topic is not None:
            utf8(topic, "the topic")
        handle = self.c_handle()
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
        """Returns the names of the topics that have a queue, sorted."""
        return sorted({q.topic for q in self.queues()})

    def refresh(self) -> None:
        """Looks for what another process has written since (a Reader); a Store is always
        current."""
        error = ffi.new("ps_error *")
        if lib.ps_store_refresh(self.c_handle(), error) < 0:
            self._fail(error)

    # ---- reading ----

    def _find_topic(self, topic: str) -> Any:
        """Returns the handle of a topic that is there, or NULL."""
        known = self._topics.get(topic)
        if known is not None:
            return known.handle
        raw = utf8(topic, "the topic")
        return lib.ps_topic_open(self.c_handle(), raw, len(raw), 0, ffi.NULL)

    def _missing(self, topic: str, queue: int | None = None) -> NotFound:
        """Makes the error for a topic or queue that is not there; it names the nearest topic."""
        queues: dict[str, list[int]] = {}
        for each in self.queues():
            queues.setdefault(each.topic, []).append(each.queue)
        return missing(topic, queue, queues)

    def _tag_set(self, tags: str) -> tuple[Any, int, bytes]:
        """Returns hashes and texts of an expression ``A || B``, which is parsed once."""
        known = self._tags.get(tags)
        if known is None:
            known = tag_set(tags)
            if len(self._tags) >= _TAGS_KEPT:
                self._tags = {}
            self._tags[tags] = known
        return known

    def _filter(self, tags: str | None, sql: str) -> Any:
        """Returns the compiled expression; the last ones are kept."""
        if tags is not None:
            raise BadArgument("give either tags or sql, not both")
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
        """Returns this thread's options, set for one call."""
        if not 1 <= max_messages <= _MOST_MESSAGES:
            raise BadArgument(f"max_messages {max_messages} is not between 1 and {_MOST_MESSAGES}")
        scratch = self._scratch
        o = scratch.options
        o.max_messages = max_messages
        o.max_bytes = max_bytes or 0
        o.tag_count = o.transfer_limits = o.check_crc = 0
        o.work_left = ffi.NULL
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
        filter_work: int = 0,
    ) -> Batch:
        """Returns messages of a queue from `offset` on (docs/internals/format.md#reading-a-queue;
        upstream ``getMessage``).

        max_bytes: of the records, 128 MiB when None; the first message always comes. tags: an
        expression ``A || B``, compared by hash, then by text. sql: an SQL92 filter on properties
        instead, ``a > 3 AND region = 'EU'`` (docs/sql92.md). transfer_limits: also stop where the
        broker would (32 messages or 256 KiB from memory, 8 or 64 KiB from disk).
        filter_work: what sql may look at, in bytes, before the read ends; 0: any.
        A Reader sees what was there at its last ``refresh()``.

        Never raises for a place without messages: look at ``batch.status`` and go on at
        ``batch.next_offset``. A message that is damaged, or that says it is of another queue or
        offset, is passed over alone: ``batch.damaged`` counts it and a warning is logged.

        Raises: StoreClosed, BadArgument, ExpressionIllegal.
        """
        o = self._options(tags, sql, max_messages, max_bytes)
        o.transfer_limits = transfer_limits
        left = ffi.new("int64_t *", filter_work) if filter_work else ffi.NULL
        o.work_left = left
        error = self._scratch.error
        handle = self.c_handle()
        try:
            raw = lib.ps_read(handle, self._find_topic(topic), queue, offset, o, error)
        except STUMBLES:
            refuse_wrong_types(Base.read, (self, topic, queue, offset), {})
            raise
        if raw == ffi.NULL:
            self._fail(error)
        o.work_left = ffi.NULL  # `left` ends with this call
        batch = Batch(raw)
        if batch.damaged:
            self._log_damage(topic, queue, batch)
        return batch

    def _log_damage(self, topic: str, queue: int, batch: Batch) -> None:
        """Logs one line for each queue: a consumer that comes back to the place need not repeat
        it."""
        if (topic, queue) not in self._damaged and len(self._damaged) < _DAMAGE_LINES:
            self._damaged.add((topic, queue))
            _log.warning(
                "%s: skipped %d damaged message(s) of queue %s/%d, the first at offset %d;"
                " info().damaged_reads counts them",
                self.path, batch.damaged, topic, queue, batch.first_damaged,
            )  # fmt: skip

    @named_arguments
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
        handle = self.c_handle()
        at = self.info().log_min if offset is None else offset
        batch = lib.ps_log_read(handle, at, o, error)
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)

    def messages(self, *, check_crc: bool = False) -> Iterator[Message]:
        """Yields every message of the log, oldest first.

        Raises: RecordDamaged, with its place, where no whole record stands.
        """
        for batch in self._log_batches(check_crc=check_crc):
            yield from batch

    def _log_batches(self, at: int | None = None, **options: Any) -> Iterator[Batch]:
        """Yields the records of the log from the one at a byte on, as ``log`` does. Raises:
        RecordDamaged, with its place, where no whole record stands."""
        while True:
            batch = self.log(at, **options)
            yield batch
            at = batch.next_offset
            if batch.outcome > 0:
                self.message(at)  # raises with the right words
                raise RecordDamaged("no valid record at this offset", offset=at)
            if batch.outcome:
                return

    @named_arguments
    def message(self, offset: int) -> Message:
        """Returns the message at byte `offset` of the log, its body's CRC checked.

        Raises: NotFound beyond the log, RecordDamaged where no whole record starts.
        """
        error = ffi.new("ps_error *")
        batch = lib.ps_message_at(self.c_handle(), offset, error)
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)[0]

    @named_arguments
    def message_by_id(self, message_id: str) -> Message:
        """Returns the message of an offsetMsgId (32 or 56 hexadecimal digits,
        docs/internals/format.md#identifiers)."""
        try:
            raw = bytes.fromhex(message_id)
        except ValueError:
            raw = b""
        if len(raw) not in (16, 28):
            raise BadArgument(f"'{message_id}' is not an offset message id (32 or 56 hex digits)")
        return self.message(int.from_bytes(raw[-8:], "big"))

    @named_arguments
    def query(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int = (1 << 63) - 1,
        max_messages: int = 0,
        tags: bool = False,
    ) -> Batch:
        """Returns messages that carry `key` in KEYS or as UNIQ_KEY, or, with `tags`, as their tags,
        through the index files; these lead to tags where ``indexTagsEnable`` is set, or RocketMQ
        5.5.0 has written them.

        begin, end: store times in ms, inclusive. max_messages: the newest so many; 0: all. Unlike
        upstream, which returns whatever has the same hash, the key itself is compared.
        """
        name, wanted = utf8(topic, "the topic"), utf8(key, "the key")
        error = ffi.new("ps_error *")
        batch = lib.ps_query(
            self.c_handle(), name, len(name), wanted, len(wanted), tags, begin, end, max_messages,
            error,
        )  # fmt: skip
        if batch == ffi.NULL:
            self._fail(error)
        return Batch(batch)

    @named_arguments
    def units(
        self, topic: str, queue: int, offset: int = 0, count: int = 4096
    ) -> list[tuple[int, int, int]]:
        """Returns raw consume queue units from `offset`: (physical offset, size, tags code) each.

        Raises: NotFound when there is no such queue, FileSizeMismatch when its file was cut off.
        """
        handle = self.c_handle()
        places = ffi.new("int64_t[]", count)
        sizes = ffi.new("int32_t[]", count)
        tags = ffi.new("int64_t[]", count)
        error = ffi.new("ps_error *")
        n = lib.ps_queue_units(
            handle, self._find_topic(topic), queue, offset, count, places, sizes, tags, error
        )
        if n < 0:
            self._fail_queue(error, topic, queue)
        return list(
            zip(ffi.unpack(places, n), ffi.unpack(sizes, n), ffi.unpack(tags, n), strict=True)
        )

    @named_arguments
    def offset_at(self, topic: str, queue: int, timestamp: int, *, upper: bool = False) -> int:
        """Returns the queue offset at a store time in ms: the first message at or after it, or with
        `upper` the last at or before it; kept within the queue
        (docs/internals/format.md#consume-queue).

        Raises: NotFound when there is no such queue, FileSizeMismatch when a file was cut off.
        """
        error = ffi.new("ps_error *")
        at: int = lib.ps_offset_at(
            self.c_handle(), self._find_topic(topic), queue, timestamp, upper, error
        )
        if at < 0:
            self._fail_queue(error, topic, queue)
        return at

    @named_arguments
    def range(self, topic: str, queue: int) -> tuple[int, int]:
        """Returns the (min, max) offset of a queue, (0, 0) when it does not exist. A light queue is
        number 0 of its name."""
        if queue == 0 and topic.startswith(LIGHT_PREFIX) and self.lights.is_on:
            return self.lights.range(topic) or (0, 0)
        low, high = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.ps_queue_range(self.c_handle(), self._find_topic(topic), queue, low, high)
        return int(low[0]), int(high[0])

    def span(self, topic: str, queue: int) -> tuple[int, int]:
        """Returns the (min, max) offset of a queue together with what of it is in the cold tier
        that a broker has put below it, (0, 0) when it does not exist. Of a light queue, nothing
        is there."""
        if topic.startswith(LIGHT_PREFIX):
            return self.range(topic, queue)
        low, high = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.ps_queue_span(self.c_handle(), self._find_topic(topic), queue, low, high)
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
                lib.ps_wait_message(self.c_handle(), handle, queue, offset, _FOLLOW_SLICE_MS)
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
        """Yields messages as they come, waiting for more at the end.

        offset: where to begin; None: what comes from now on. tags, sql: as ``read``. timeout:
        seconds without a message after which it ends; None: never. Messages that were deleted
        meanwhile are stepped over.
        """
        for batch in self._follow_batches(topic, queue, offset, tags, sql, timeout):
            yield from batch

    def _follow_batches(
        self, topic: str, queue: int, offset: int | None, tags: str | None, sql: str | None,
        timeout: float | None,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yields what each wait brought, nothing perhaps."""
        at = self.range(topic, queue)[1] if offset is None else offset
        idle_since = time.monotonic()
        while True:
            batch = self._follow_step(topic, queue, at, tags, sql)
            yield batch
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
        """Yields messages as ``follow`` does, for asyncio: the waiting is done in a worker
        thread."""
        import asyncio

        batches = self._follow_batches(topic, queue, offset, tags, sql, timeout)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            for message in batch:
                yield message

    # ---- Arrow ----

    @named_arguments
    def arrow(
        self, topic: str | None = None, queue: int | None = None, **options: Any
    ) -> ArrowStream:
        """Returns an Arrow stream over a queue, a topic or the whole log; see
        ``pystore.ArrowStream``."""
        from pystore.store._arrow import ArrowStream

        return ArrowStream(self, topic, queue, **options)


def _of_cold(module: str, name: str) -> Any:
    """Returns a name of the cold tier, which builds on this and is loaded where it is asked for."""
    return getattr(importlib.import_module(f"pystore.cold.{module}"), name)


def is_elsewhere(path: object) -> bool:
    """Says whether a path is a cold tier's: an address, or a folder that holds one."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if ":/" in text and _of_cold("objects", "is_address")(text):
        return True
    folder = Path(text)
    try:
        if (folder / "commitlog").is_dir() or not folder.is_dir():
            return False
    except OSError:  # the open says so
        return False
    return bool(_of_cold("tier", "is_tier")(folder))


class ReaderCannotWrite(ReadOnly, AttributeError):
    """A Reader was asked for what only a Store can do."""


class Reader(Base):
    """A store opened for reading: no lock, nothing written, whoever else has it open.

    path: the folder that holds ``commitlog``; or the folder or address of a cold tier, such as
    ``s3://bucket/cold`` (docs/cold.md), which gives a ``pystore.cold.reader.ColdReader``. conf,
    settings: as for ``pystore.open``; sizes are taken from the files. It shows the store as
    recovery would leave it, and what was written later after ``refresh()``.

    Raises: NotAStore, Forbidden, FileSizeMismatch, MissingSegment, BadArgument.
    """

    #: Whether it reads a cold tier: then it is a ``pystore.cold.reader.ColdReader``.
    is_cold = False

    def timed(
        self, topic: str, queue: int, start: int, end: int, time_min: int, time_max: int
    ) -> tuple[int, int]:
        """Returns the part of offsets [start, end) outside of which nothing was stored within
        [time_min, time_max] ms, as far as that is known without a search: a tier's manifests know
        it."""
        return start, end

    def __new__(cls, path: str | os.PathLike[str] = "", *_: object, **__: object) -> Self:
        if cls is Reader and is_elsewhere(path):
            made: Self = object.__new__(_of_cold("reader", "ColdReader"))
            return made
        return object.__new__(cls)

    @named_arguments
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
        with contextlib.suppress(StoreError):  # who reads what is forbidden here is told so
            for found in kept_elsewhere(self.path):
                _log.warning("%s: Apache's broker keeps %s, which is not read: %s",
                             found.folder, found.what, found.next_step)  # fmt: skip

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuses names that a reader lacks. Raises: ReaderCannotWrite for what only a Store
            has, AttributeError."""
            if name in ONLY_OF_STORE:
                raise ReaderCannotWrite(f"a Reader has no {name}()", str(self.path))
            raise AttributeError(f"'Reader' object has no attribute '{name}'")

    @property
    def lights(self) -> LightQueues:
        if not self._lights.is_on and (self.path / "lightqueue").is_dir():
            self._lights.begin()
        return self._lights

    @property
    def metadata(self) -> Metadata:
        """Topics, groups and offsets as the folder's metadata says; read-only."""
        self.c_handle()
        if self._metadata is None:
            self._metadata = Metadata(self.path, readonly=True)
        return self._metadata

    def view(self) -> int:
        """Returns which ``refresh()`` the reader shows, counted from 1, while a further one would
        find nothing new; 0 when it may find something. The answer costs some microseconds, however
        many queues there are. Raises: StoreClosed."""
        number = int(lib.ps_store_view(self.c_handle()))
        if number < 0:
            raise self._why_closed()
        return number

    def close(self) -> None:
        if self._metadata is not None:
            self._metadata.close()
            self._metadata = None
        super().close()


def _after_fork_in_child() -> None:
    for store in list(_LIVE):
        store._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
