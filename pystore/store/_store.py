"""Store: a RocketMQ message store inside this process, opened for writing by one process at a time.

What it shares with a Reader is in _reading.py. Every call that touches the store crosses into C
once, with the GIL let go; see csrc/pystore.h.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pystore.base.enums import PutStatus
from pystore.base.store_error import StoreError, make
from pystore.errors import BadArgument, DiskFull, MessageIllegal, TopicIllegal
from pystore.files.elsewhere import refuse_kept_elsewhere
from pystore.files.notes import tombstones_of
from pystore.format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pystore.format.properties import checked, encode_properties, joined, pair
from pystore.metadata import Metadata, system_topics
from pystore.native import _put, address_of, ffi, lib, utf8
from pystore.settings import host_bytes, refuse_unserved
from pystore.store._background import Exporter, FlushQueue
from pystore.store._batch import PutBatch
from pystore.store._columns import column_of, int_array
from pystore.store._reading import ONLY_OF_STORE, Base, Progress, TopicHandle
from pystore.store._report import Action, ReportItem
from pystore.store._results import (
    STATUS,
    CleanReport,
    PutManyResult,
    PutResult,
)
from pystore.store.arguments import STUMBLES, named_arguments, refuse_wrong_types
from pystore.store.reconcile import learn_topics, set_back_progress
from pystore.store.timers import ASKING

__all__ = ["Store"]

_BATCH_ITEM_MIN = 22  # bytes of an item without body and properties


_log = logging.getLogger("pystore")


#: Where messages wait, which name the topic that they are for.
_WAITING = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)


class Store(Base):
    """A store opened for writing; made by ``pystore.open``."""

    _writable = True

    @named_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        progress: Progress | None = None,
        mended: object | None = None,
        **settings: object,
    ) -> None:
        #: The pystore.repair.Repair of an open with paranoidRecovery, else None.
        self.mended = mended
        refuse_kept_elsewhere(Path(path))
        super().__init__(path, conf, progress, settings)
        try:
            self.metadata: Metadata = Metadata(self.path, self.settings)
        except BaseException:
            super().close()
            raise
        try:
            bare = not len(self.metadata.topics)
            self.metadata.ensure_system_topics(self.settings)
            self._note_config()
            self._learn_of_log(bare)
            set_back_progress(self, self.metadata)
        except BaseException:
            self.metadata.close()
            super().close()
            raise
        self._topic_lock = threading.Lock()
        self._flush_queue = FlushQueue(self)
        self._disk_full = False
        self._exporter = Exporter(self.metadata, self._watch_disk)

    def _check_settings(self) -> None:
        refuse_unserved(self.settings)
        if self.settings["paranoidRecovery"] and self.mended is None:
            raise BadArgument("paranoidRecovery is for pystore.open, which checks the log first")

    def _watch_disk(self) -> None:
        """Logs when the disk becomes full and when it has room again. Raises: StoreClosed.

        Called by itself every five seconds and when a message is refused. It never waits, since
        that may be on an event loop.
        """
        full = self.disk_full
        if full == self._disk_full:
            return
        self._disk_full = full
        if full:
            _log.warning("%s: the disk is full; messages are refused until it has room", self.path)
        else:
            _log.warning("%s: the disk has room again; messages are accepted", self.path)

    def _fail(self, error: Any, code: int = 0) -> Any:
        try:
            return super()._fail(error, code)
        except StoreError as failed:
            self._failed(failed)
            raise

    def _failed(self, error: StoreError) -> None:
        """Looks at an error of C before it reaches the caller. Raises: StoreClosed, UsedAfterFork,
        when that is why."""
        self.c_handle()
        if isinstance(error, DiskFull):
            self._watch_disk()

    # ---- putting ----

    def _topic(self, topic: str) -> TopicHandle:
        """Returns the topic's entry, made in the store when it is new."""
        with self._topic_lock:
            known = self._topics.get(topic)
            if known is None:
                handle = self._made(topic)
                config = self.metadata.topics.get(topic)
                queues = 0 if config is None else config.write_queue_nums
                known = TopicHandle(
                    handle, queues, sum(self._count(handle, i) for i in range(queues))
                )
                self._topics[topic] = known
            return known

    def _made(self, topic: str) -> Any:
        """Returns the topic's handle in C; the store has the topic from then on. Raises:
        TopicIllegal, DiskFull, StoreClosed."""
        error, raw = ffi.new("ps_error *"), utf8(topic, "the topic")
        handle = lib.ps_topic_open(self.c_handle(), raw, len(raw), 1, error)
        if handle == ffi.NULL:
            self._fail(error)
        return handle

    def _count(self, handle: Any, queue: int) -> int:
        """Returns how many messages a queue ever had; 0 when there is no such queue."""
        low, high = ffi.new("int64_t *"), ffi.new("int64_t *")
        lib.ps_queue_range(self.c_handle(), handle, queue, low, high)
        return int(high[0])

    def _settle(self, topic: str, queue: int) -> None:
        """Tells the metadata of a new topic or queue, after a message of it was stored."""
        with self._topic_lock:
            config = self.metadata.ensure_topic(topic, queue)
            self._topics[topic].queues = max(1, config.write_queue_nums)
        self._exporter.changed()

    def _turn(self, entry: TopicHandle) -> int:
        return next(entry.turn) % self._queues_of(entry)

    def _turns(self, entry: TopicHandle, count: int) -> array[int]:
        """Returns the queues of so many messages, from the one on whose turn it is."""
        turn, queues = next(entry.turn), self._queues_of(entry)
        entry.turn = itertools.count(turn + count)
        first = turn % queues
        one_round = array("i", [*range(first, queues), *range(first)])
        return (one_round * (count // queues + 1))[:count]

    def _queues_of(self, entry: TopicHandle) -> int:
        return entry.queues or int(self.settings["defaultTopicQueueNums"])

    def _learn_of_log(self, bare: bool) -> None:
        """Makes rows for topics that the log has and the metadata lacks. bare: it had no topic
        at all. Raises: StoreError."""
        learn_topics(self, self.metadata)
        if bare:
            self._settle_pending()

    def _settle_pending(self) -> None:
        """Makes, at an open without any metadata, topics that nothing names but messages which wait
        for their time or their decision. Without a row no pull would reach what is delivered there.
        Those of a topic that was deleted since go nowhere."""
        deleted = self.deletions()
        for q in self.queues():
            offset = q.min_offset
            while q.topic in _WAITING and offset < q.max_offset:
                batch = self.read(q.topic, q.queue, offset, max_messages=4096)
                for message in batch:
                    topic = message.properties.get("REAL_TOPIC", "")
                    queue = message.properties.get("REAL_QID", "0")
                    if message.physical_offset < deleted.get(topic, 0):
                        continue
                    with contextlib.suppress(BadArgument, ValueError):
                        self.metadata.ensure_topic(topic, int(queue))
                if batch.next_offset <= offset:
                    break
                offset = batch.next_offset

    def _note_config(self) -> None:
        """Puts metadata that was not where it should be into the report; the log says what a store
        with messages lacks, too: its broker had written it."""
        found = [
            ReportItem(Action.SKIPPED, 0, 0, -1, event.file, f"{event.action}: {event.why}")
            for event in self.metadata.report
            if event.action != "imported"
        ]
        if self.report.log_max > self.report.log_min:
            for file in self.metadata.lacking:
                _log.warning("%s: config/%s is missing, and the log has messages: it begins empty",
                             self.path, file)  # fmt: skip
                found.append(ReportItem(Action.SKIPPED, 0, 0, -1, file, "missing: it begins empty"))
        self.report = replace(self.report, items=(*self.report.items, *found))

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
        last level of messageDelayLevel, where a broker takes any higher one for the last; the
        message goes to SCHEDULE_TOPIC_XXXX as upstream stores it
        (docs/internals/format.md#delays-and-transactions). A property TIMER_DELIVER_MS,
        TIMER_DELAY_MS or TIMER_DELAY_SEC makes it wait for that time in rmq_sys_wheel_timer. A
        broker over the store delivers both. born_timestamp: ms; 0: now. born_host:
        "address:port" of the producer.

        With flushDiskType=SYNC_FLUSH it returns when the disk has the message, or with status
        FLUSH_DISK_TIMEOUT (the message is stored). With ASYNC_FLUSH it returns at once.

        Raises: MessageIllegal and its kinds (nothing is stored), DiskFull, NotWriteable,
        CreateMappedFileFailed (nothing is stored), FlushFailed (stored, not known to be on the
        disk), StoreClosed, UsedAfterFork.
        """
        # The arguments are not keyword-only, and the plain message has a call of its own, since
        # either would cost a tenth of the whole put.
        try:
            raw = body if type(body) is bytes else _buffer(body)
            if (
                delay_level
                or sys_flag
                or reconsume_times
                or born_timestamp
                or born_host
                or (prepared_transaction_offset)
                or (properties and _asks_time(properties))
            ):
                return self.put_message(
                    topic, body, tags, keys, properties, queue, flag, wait, delay_level, sys_flag,
                    reconsume_times, born_timestamp, born_host, prepared_transaction_offset,
                )  # fmt: skip
            try:
                entry = self._topics[topic]
            except KeyError:
                entry = self._topic(topic)
            if queue is None:
                queue = self._turn(entry)
            try:
                if tags is None and keys is None and properties is None and wait and not flag:
                    result = _put.put(entry.address, queue, raw)
                else:
                    encoded = _properties(tags, keys, properties, wait)
                    result = _put.put(entry.address, queue, raw, encoded, flag, wait)
            except StoreError as error:
                self._failed(error)
                raise
            if queue >= entry.queues:
                self._settle(topic, queue)
            return result
        except STUMBLES:
            refuse_wrong_types(
                Store.put, (self, topic, body, tags, keys, properties, queue, flag, wait), {}
            )
            raise

    @named_arguments
    def put_message(
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
        as_stored: bool = False,
    ) -> PutResult:
        """Puts as ``put`` does, for a caller that waits for the sync elsewhere, such as a broker.

        block: wait for the sync here. as_stored: it was in a log before, and belongs where it was
        there, whatever time its properties ask for. Everything else as ``put``, errors included.
        """
        if delay_level:
            self._check_level(delay_level)
        if properties and "INNER_NUM" in properties and not as_stored:
            raise MessageIllegal("the store keeps no batch in one record: leave INNER_NUM out")
        encoded = _properties(tags, keys, properties, wait)
        entry = self._topic(topic)
        if queue is None:
            queue = self._turn(entry)
        m = self._message(body, encoded, queue, born_host)
        m.flag, m.sys_flag, m.reconsume_times = flag, sys_flag, reconsume_times
        m.born_timestamp, m.delay_level = born_timestamp, delay_level
        m.prepared_transaction_offset = prepared_transaction_offset
        m.timed = not as_stored and _asks_time(properties)
        m.wait = wait and block
        out = self._scratch.out
        rc = lib.ps_put_message(self.c_handle(), entry.handle, m, out)
        if rc < 0:
            self._fail(out.error, rc)
        if delay_level:
            topic, queue = SCHEDULE_TOPIC, out.queue_id
            entry = self._topic(topic)
        if queue >= entry.queues:
            self._settle(topic, queue)
        return PutResult(
            out.status, out.size, out.queue_id, out.queue_offset, out.physical_offset,
            out.store_timestamp, ffi.buffer(out.store_host)[: out.store_host_len],
        )  # fmt: skip

    def _check_level(self, level: int) -> None:
        """Checks a delay level. Raises: BadArgument for a level that messageDelayLevel does not
        have."""
        last = len(self.settings.delay_levels_ms)
        if not 0 < level <= last:
            raise BadArgument(f"delay_level {level}: messageDelayLevel has levels 1 to {last}")

    def _message(self, body: bytes | str, encoded: bytes, queue: int, host: str | None) -> Any:
        """Makes a ``ps_message`` whose buffers this thread keeps until its next one."""
        raw_body = body if type(body) is bytes else _buffer(body)
        m = ffi.new("ps_message *")
        self._scratch.keep = buffers = (ffi.from_buffer(raw_body), ffi.from_buffer(encoded))
        m.body, m.body_len = buffers[0], len(raw_body)
        m.properties, m.properties_len = buffers[1], len(encoded)
        m.queue_id = queue
        if host is not None:
            raw = host_bytes(host)
            ffi.memmove(m.born_host, raw, len(raw))
            m.born_host_len = len(raw)
        return m

    @named_arguments
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
        flags: Any = None,
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
        flag: of all; flags: an int32 array, one a message.
        born_timestamps: int64 ms, one a message; None: now.
        A message that asks for a time to come (TIMER_DELIVER_MS and its kin) is refused as
        TimerIllegal: put it alone.

        All messages are checked before the first is stored; on an error nothing is stored, except
        DiskFull and CreateMappedFileFailed, which may come in the middle (``error.offset`` is then
        how many were stored), and FlushFailed.
        """
        many, keep = self._many(bodies, tags, keys, properties, flag, wait, born_timestamps)
        n = many.count
        placed = ffi.new("int64_t[]", 2 * n)
        many.queue_offsets, many.physical_offsets = placed, placed + n
        entry = self._topic(topic)
        if flags is not None:
            keep.append(int_array(flags, "i", n, "flags"))
            many.flags = ffi.cast("int32_t *", ffi.from_buffer(keep[-1]))
        highest = queue or 0
        if queues is not None:
            ids = int_array(queues, "i", n, "queues")
            keep.append(ids)
            many.queue_ids = ffi.cast("int32_t *", ffi.from_buffer(ids))
            highest = max(memoryview(ids).cast("B").cast("i"), default=0)
        elif queue is not None:
            many.queue_first, many.queue_count = queue, 1
        else:
            keep.append(self._turns(entry, n))
            many.queue_ids = ffi.cast("int32_t *", ffi.from_buffer(keep[-1]))
        out, stored = self._scratch.out, ffi.new("int64_t *")
        rc = lib.ps_put_many_messages(self.c_handle(), entry.handle, many, stored, out)
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
        return PutManyResult(STATUS[out.status if n else 0], n, both[:n], both[n:], end)

    def _many(
        self, bodies: Any, tags: Any, keys: Any, properties: Any, flag: int, wait: bool, born: Any
    ) -> tuple[Any, list[Any]]:
        many = ffi.new("ps_put_many *")
        columns = {"bodies": column_of(bodies)}
        common = b"" if wait else pair("WAIT", "false").encode()
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

    @named_arguments
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
        """Stores the body of a client's batch (docs/internals/format.md#batch): all of it within
        one file, or nothing.

        properties: the batch's own, added to each message. block: wait for the sync here.
        """
        encoded = _properties(None, None, properties, wait)
        entry = self._topic(topic)
        m = self._message(payload, encoded, queue, born_host)
        m.sys_flag, m.reconsume_times, m.born_timestamp = sys_flag, reconsume_times, born_timestamp
        m.wait = wait and block
        out, count = self._scratch.out, ffi.new("int64_t *")
        placed = ffi.new("int64_t[]", len(payload) // _BATCH_ITEM_MIN + 1)
        rc = lib.ps_put_client_batch(self.c_handle(), entry.handle, m, count, placed, out)
        if rc < 0:
            self._fail(out.error, rc)
        if queue >= entry.queues:
            self._settle(topic, queue)
        n = int(count[0])
        first = out.queue_offset - n + 1
        offsets = memoryview(b"".join(i.to_bytes(8, "little") for i in range(first, first + n)))
        return PutManyResult(
            STATUS[out.status],
            n,
            offsets.cast("q"),
            memoryview(bytes(ffi.buffer(placed, 8 * n))).cast("q"),
            out.physical_offset + out.size,
        )

    @named_arguments
    def batch(
        self, topic: str, *, size: int = 1000, queue: int | None = None, wait: bool = True
    ) -> PutBatch:
        """Returns a buffer in front of ``put_many``, for messages that come one by one::

            with store.batch("orders") as batch:
                for order in orders:
                    batch.put(order, tags="paid")

        size: messages that cross into C together. See PutBatch.
        """
        utf8(topic, "the topic")  # stumbles here, and not at a put
        return PutBatch(self.put_many, topic, size, queue, wait)

    # ---- delays ----

    # ---- durability ----

    async def put_async(self, topic: str, body: bytes | str, **options: Any) -> PutResult:
        """Puts as ``put`` does, for asyncio: with SYNC_FLUSH the sync is awaited, not blocked on;
        many awaiting puts share one sync. Arguments and errors as ``put``."""
        result = self.put_message(topic, body, **options, block=False)
        end = result.physical_offset + result.size
        if not options.get("wait", True) or not self.must_wait(end):
            return result
        return result.with_status(await self.durable(end))

    def must_wait(self, offset: int) -> bool:
        """Says whether nobody may be told yet that the log below `offset` is stored: with
        SYNC_FLUSH, while the disk lacks part of it. False for offset 0, which stands for no
        record."""
        return bool(lib.ps_must_wait(self.c_handle(), offset))

    def wait_flushed(self, offset: int, timeout: float = 5.0) -> bool:
        """Waits until every byte of the log below `offset` is on the disk; False when it took
        longer than `timeout` seconds. Raises: FlushFailed."""
        error = ffi.new("ps_error *")
        rc = lib.ps_wait_flushed(self.c_handle(), offset, int(timeout * 1000), error)
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
        if lib.ps_store_flush(self.c_handle(), error) < 0:
            self._fail(error)
        self.metadata.maybe_export()

    # ---- topics ----

    @named_arguments
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
            raise BadArgument(f"{topic} is a system topic and cannot be deleted")
        if topic not in self.metadata.topics and not self.queues(topic):
            raise self._missing(topic)
        self._delete_queues(topic)
        with self._topic_lock, self.metadata.batch():
            self.metadata.topics.delete(topic)
            self.metadata.offsets.delete(topic=topic)
        self._exporter.changed()

    def _delete_queues(self, topic: str) -> None:
        """Deletes the queues alone."""
        error = ffi.new("ps_error *")
        try:  # made when it never had a message: some that wait may be meant for it
            handle = self._made(topic)
        except TopicIllegal:  # no topic may have that name: none has
            return
        if lib.ps_topic_delete(self.c_handle(), handle, error) < 0:
            self._fail(error)
        with self._topic_lock:
            if topic in self._topics:
                self._topics[topic].queues = 0  # so that the next put makes its row again

    def deletions(self) -> dict[str, int]:
        """Returns the topics that were deleted while the log still has records of them, each with
        the offset of the log where that was: none of their records below it counts. Raises:
        OSError."""
        try:
            return dict(tombstones_of((self.path / "deletedTopics").read_bytes()) or ())
        except FileNotFoundError:
            return {}

    # ---- retention, closing ----

    def clean(
        self, *, immediate: bool = False, dry_run: bool = False, now_ms: int = 0
    ) -> CleanReport:
        """Runs one round of retention (docs/internals/format.md#retention): deletes expired
        segments, at most deleteFileBatchMax, whatever the hour. immediate: the oldest ones although
        not expired. dry_run: only counts."""
        raw, error = ffi.new("ps_retention_report *"), ffi.new("ps_error *")
        if lib.ps_store_clean(self.c_handle(), now_ms, 1, immediate, dry_run, raw, error) < 0:
            self._fail(error)
        reasons = ("nothing", "hour", "ratio", "forced", "asked")
        return CleanReport(
            raw.log_files, raw.queue_files, raw.index_files, raw.bytes, raw.log_min,
            raw.disk_percent, bool(raw.disk_full), reasons[raw.why],
        )  # fmt: skip

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


_put.bind(address_of(ffi.addressof(lib, "ps_put")), PutResult, make)


_TIMED = frozenset(ASKING)


def _asks_time(properties: Mapping[str, str] | None) -> bool:
    return bool(properties) and not _TIMED.isdisjoint(properties)  # type: ignore[arg-type]


def _buffer(body: Any) -> Any:
    """Returns the bytes of a text, or of anything that has a buffer."""
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
    """Encodes TAGS, KEYS, the properties and WAIT=false; no dict is built on the way."""
    text, pairs = "", 0
    if tags:
        text, pairs = pair("TAGS", tags), 1
    if keys:
        text += pair("KEYS", keys if isinstance(keys, str) else " ".join(keys))
        pairs += 1
    if properties:
        text += joined(properties)
        pairs += len(properties)
    if not wait:
        text += pair("WAIT", "false")
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


ONLY_OF_STORE.update(name for name in dir(Store) if name[0] != "_" and not hasattr(Base, name))
