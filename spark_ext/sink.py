"""Writers: tasks spool their messages, the driver's side puts them into the store.

A store has one writer, so executors never open it. Each task converts its rows and leaves them in a
spool file (Arrow IPC); the commit, in one process beside the driver, opens the store, puts the
files of the tasks that Spark has accepted, in the order of partitions, and closes it. A job that
fails has put nothing, and its spools are deleted. A commit that dies half way is finished once: see
ledger.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pystore.files import FILE_MODE, make_folders, new_file
from pystore.format.names import SCHEDULE_TOPIC
from pystore.format.properties import NAME_END, PROPERTY_END, pair
from spark_ext.errors import SinkError
from spark_ext.ledger import CommitEntry, Ledger, Stamp, stamps_since
from spark_ext.options import WriteOptions
from spark_ext.rows import IGNORED, Stamper, check_schema
from spark_ext.tasks import batch_of_stream, task_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    import pystore

__all__ = ["BatchWriter", "SpoolCommit", "StreamWriter", "finish", "pending"]

_LOCK_POLL_S = 0.1


@dataclass
class SpoolCommit(WriterCommitMessage):
    """What a task tells the commit: its file."""

    job: str
    batch: int
    partition: int
    host: str
    path: str
    rows: int
    bytes: int


def _spool_root(options: WriteOptions) -> Path:
    """Returns a folder beside the store, not in it: a store that is yet to be made must be an empty
    folder."""
    store = Path(options.path)
    return Path(options.spool) if options.spool else store.with_name(store.name + ".spool")


def _spool(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, job: str, batch: int
) -> SpoolCommit:
    """Does the work of a task. On any error its file is gone again: nobody else would know of
    it."""
    import pyarrow as pa

    partition, attempt = task_ids()
    folder = _spool_root(options) / job / str(batch)
    path = folder / f"{partition:06d}-{attempt}-{uuid.uuid4().hex[:8]}.arrow"
    stamper = Stamper(options.topic, options.tags, job, batch, partition)
    try:
        make_folders(folder, FILE_MODE)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(new_file(path, FILE_MODE))
            out = None
            for rows in batches:
                messages = stamper.convert(rows)
                if out is None:
                    out = stack.enter_context(pa.ipc.new_stream(file, messages.schema))
                out.write_batch(messages)
            if out is not None:
                out.close()
            file.flush()
            os.fsync(file.fileno())
    except BaseException as failed:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        if isinstance(failed, OSError):
            raise SinkError(f"cannot write the spool {path}: {failed}") from None
        raise
    size = path.stat().st_size
    return SpoolCommit(job, batch, partition, socket.gethostname(), str(path), stamper.rows, size)


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("rocketmq").mode("append").save(store)``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a store is never overwritten: use .mode('append')")
        check_schema(schema, options.topic)
        _check_copy(options, schema)
        self.options = options
        self.job = options.job or uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SpoolCommit:
        return _spool(iterator, self.options, self.job, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self.options, self.job, 0, _accepted(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _clear(self.options, self.job)


def _check_copy(options: WriteOptions, schema: StructType) -> None:
    """Refuses what Spark makes of an INSERT INTO a view: the view's columns and its options, which
    may as well be a write of messages that were read. Raises: SinkError."""
    places = [name for name in schema.names if name in IGNORED]
    if places and not options.certain and (Path(options.path) / "commitlog").exists():
        raise SinkError(
            f"{options.path} is a store already, and the rows have columns of a read"
            f" ({', '.join(places)}): option copy=true adds them to it, without where they lay;"
            " without the option nothing is written, since an INSERT INTO a view that reads the"
            " store looks the same"
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("rocketmq").option("path", store)``; exactly once per checkpoint."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a store is never overwritten: use outputMode('append')")
        check_schema(schema, options.topic)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SpoolCommit:
        query, batch = batch_of_stream()
        return _spool(iterator, self.options, query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        accepted = _accepted(messages)
        if accepted:
            _commit(self.options, accepted[0].job, batchId, accepted)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for job in {m.job for m in _accepted(messages)}:
            _clear(self.options, job)


def _accepted(messages: Sequence[WriterCommitMessage | None]) -> list[SpoolCommit]:
    return sorted((m for m in messages if isinstance(m, SpoolCommit)), key=lambda m: m.partition)


def _clear(options: WriteOptions, job: str) -> None:
    """Deletes what the tasks of a failed job have left, unless a commit of it is half done."""
    entry = Ledger(Path(options.path)).get(job)
    if entry is None or entry.done:
        _remove_spools(_spool_root(options), job)


def _remove_spools(root: Path, job: str) -> None:
    shutil.rmtree(root / job, ignore_errors=True)
    with contextlib.suppress(OSError):
        root.rmdir()


# ---- the commit ----


def _commit(options: WriteOptions, job: str, batch: int, spools: Sequence[SpoolCommit]) -> None:
    for spool in spools:
        if not Path(spool.path).exists():
            raise SinkError(
                f"the driver cannot see {spool.path}, written by a task on host"
                f" {spool.host}: give option spool, a directory that all hosts share"
            )
    _check_room(options, sum(s.bytes for s in spools))
    rows = sum(s.rows for s in spools)
    with _open(options) as store:
        ledger = Ledger(store.path)
        last = ledger.get(job)
        if last is not None and not last.done:
            # This very batch, or an older one whose driver died: what was begun comes first.
            _finish(store, ledger, last)
            last = ledger.get(job)
        if last is not None and last.batch >= batch:
            print(f"rocketmq: batch {batch} of job {job} is already in the store", file=sys.stderr)
        elif rows:
            paths = tuple(s.path for s in spools)
            entry = CommitEntry(job, batch, False, store.info().log_max, rows, paths)
            ledger.put(entry)
            try:
                _put(store, ledger, entry, options.queues, set())
            except SinkError:
                raise  # begun: finish() puts the rest
            except Exception:
                if store.info().log_max == entry.log_from:  # nothing was put, nothing is to finish
                    _take_back(ledger, job, last)
                raise
            if not options.job and isinstance(batch, int) and batch == 0 and not _streams(job):
                ledger.forget(job)
    _remove_spools(_spool_root(options), job)


def _take_back(ledger: Ledger, job: str, last: CommitEntry | None) -> None:
    if last is not None:
        ledger.put(last)
    else:
        ledger.forget(job)


def _streams(job: str) -> bool:
    """Says whether a job's name is the id of a query, which will come again with its next batch."""
    try:
        return str(uuid.UUID(job)) == job
    except ValueError:
        return False


def _check_room(options: WriteOptions, size: int) -> None:
    folder = Path(options.path)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < size + (size >> 2):
        raise SinkError(
            f"{free >> 20} MiB are free at {options.path}, too little for {size >> 20} MiB of"
            " messages; nothing was stored"
        )


@contextlib.contextmanager
def _open(options: WriteOptions) -> Iterator[pystore.Store]:
    """Opens the store, when whoever has it open lets go in time."""
    import pystore

    end = time.monotonic() + options.lock_timeout_s
    while True:
        try:
            store = pystore.open(options.path, options.conf or None)
            break
        except pystore.StoreLocked as e:
            if time.monotonic() >= end:
                raise SinkError(
                    f"{e} A write opens the store itself: no broker or other program may have it"
                    " open for writing; nothing was stored"
                ) from e
            time.sleep(_LOCK_POLL_S)
    with store:
        yield store


def _put(
    store: pystore.Store, ledger: Ledger, entry: CommitEntry, queues: int, present: set[Stamp]
) -> None:
    """Puts the spools of an entry, without the rows that are there, and writes down that it is
    done."""
    import pyarrow as pa

    import pystore

    done, turns = len(present), _Turns(store)
    try:
        for path in entry.spools:
            partition = int(Path(path).name.split("-")[0])
            if Path(path).stat().st_size == 0:
                continue
            with pa.OSFile(path) as file, pa.ipc.open_stream(file) as batches:
                for batch in batches:
                    done += _put_batch(store, batch, partition, queues, present, turns)
        store.flush()
    except (pystore.StoreError, OSError, pa.ArrowException) as e:
        raise SinkError(
            f"the commit of job {entry.job} stopped with {done} of {entry.rows} messages in the"
            f" store: {e}; spark_ext.sink.finish('{store.path}') stores the rest, once"
        ) from e
    ledger.put(entry._replace(done=True, spools=()))


class _Turns:
    """Which queue of a topic is next for rows that name none: batches go on where the one before
    ended. What a topic has taken so far says where that was, so nothing has to be remembered."""

    def __init__(self, store: pystore.Store) -> None:
        self._store = store
        self._next: dict[str, int] = {}

    def take(self, topic: str, rows: int) -> int:
        """Returns the turn of the first of these rows."""
        if topic not in self._next:
            there = [*self._store.queues(topic), *self._store.queues(SCHEDULE_TOPIC)]
            self._next[topic] = sum(q.max_offset for q in there)
        first = self._next[topic]
        self._next[topic] += rows
        return first


def _put_batch(
    store: pystore.Store,
    batch: pa.RecordBatch,
    partition: int,
    queues: int,
    present: set[Stamp],
    turns: _Turns,
) -> int:
    """Puts one batch, a topic and delay level at a time, the rows of each in their order; returns
    how many messages that were."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if present:
        keep = [(partition, row) not in present for row in batch.column("row").to_pylist()]
        batch = batch.filter(pa.array(keep, pa.bool_()))
    # A level that is too high counts as the last, as at a broker.
    last = pa.scalar(len(store.settings.delay_levels_ms), pa.int32())
    levels = pc.min_element_wise(batch.column("level"), last)
    batch = batch.set_column(batch.schema.get_field_index("level"), "level", levels)
    put = 0
    for topic in pc.unique(batch.column("topic")).to_pylist():
        of_topic = batch.filter(pc.equal(batch.column("topic"), topic))
        spread = _spread(store, of_topic, topic, queues, turns)
        for level in pc.unique(spread.column("level")).to_pylist():
            put += _put_level(store, spread, topic, level)
    return put


def _spread(
    store: pystore.Store, batch: pa.RecordBatch, topic: str, queues: int, turns: _Turns
) -> pa.RecordBatch:
    """Gives every message a queue: its own, that of its sharding key, or the next in turn."""
    import pyarrow as pa
    import pyarrow.compute as pc

    asked = max(pc.max(batch.column("queue")).as_py(), queues - 1, 0)
    count = max(1, store.metadata.ensure_topic(topic, asked).write_queue_nums)
    shard = pc.abs(batch.column("shard").cast(pa.int64()))  # Java: abs, and 0 for what has none
    shard = pc.if_else(pc.equal(shard, 1 << 31), 0, shard)
    shard = pc.subtract(shard, pc.multiply(pc.divide(shard, count), count)).cast(pa.int32())
    named = pc.greater_equal(batch.column("queue"), 0)
    free = pc.invert(pc.or_(named, pc.is_valid(shard)))
    place = pc.cumulative_sum(free.cast(pa.int64()))  # from 1 on
    rows = place[-1].as_py() if len(place) else 0
    place = pc.add(place, turns.take(topic, rows) - 1)
    turn = pc.subtract(place, pc.multiply(pc.divide(place, count), count)).cast(pa.int32())
    queue = pc.if_else(named, batch.column("queue"), pc.coalesce(shard, turn))
    return batch.set_column(batch.schema.get_field_index("queue"), "queue", queue)


def _put_level(store: pystore.Store, batch: pa.RecordBatch, topic: str, level: int) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    some = batch.filter(pc.equal(batch.column("level"), level))
    properties: Any = some.column("properties")
    queue: Any = some.column("queue")
    target = topic
    if level:
        # Where upstream keeps a delayed message until its time.
        target = SCHEDULE_TOPIC
        real = queue.cast(pa.string()).cast(pa.binary())
        head = pair("DELAY", level) + pair("REAL_TOPIC", topic) + "REAL_QID" + NAME_END
        end = PROPERTY_END.encode()
        properties = pc.binary_join_element_wise(properties, head.encode(), real, end, b"")
        queue = pa.array([level - 1] * some.num_rows, pa.int32())
    now = int(time.time() * 1000)
    store.put_many(
        target,
        some.column("body"),
        properties=properties,
        queues=queue.to_numpy(),
        flags=some.column("flag").to_numpy(),
        born_timestamps=pc.fill_null(some.column("born"), now).to_numpy(),
    )
    return int(some.num_rows)


# ---- after a crash ----


def _finish(store: pystore.Store, ledger: Ledger, entry: CommitEntry) -> int:
    for path in entry.spools:
        if not Path(path).exists():
            raise SinkError(
                f"the commit of job {entry.job} cannot be finished: its spool {path} is gone;"
                f" delete {ledger.folder / (entry.job + '.json')} to discard the rest of it"
            )
    present = stamps_since(store, entry)
    _put(store, ledger, entry, 0, present)
    return entry.rows - len(present)


def pending(path: str | os.PathLike[str]) -> list[CommitEntry]:
    """Returns the commits into a store that have begun and not ended."""
    return [entry for entry in Ledger(Path(path)).all() if not entry.done]


def finish(path: str | os.PathLike[str], conf: str | os.PathLike[str] | None = None) -> int:
    """Puts what is left of such commits, each message once; returns how many that were.

    conf: the ``broker.conf`` or JSON that the write had as option storeConf.
    """
    from spark_ext.options import parse_write

    put = 0
    options = parse_write({"path": os.fspath(path), "storeConf": os.fspath(conf or "")})
    with _open(options) as store:
        ledger = Ledger(store.path)
        for entry in pending(path):
            put += _finish(store, ledger, entry)
            for spool in entry.spools:
                Path(spool).unlink(missing_ok=True)
    return put
