"""The batch reader, and what a task does: a partition becomes Arrow batches that C has filled."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pystore.files import FILE_MODE, make_folders, new_file
from spark_ext import schema as columns
from spark_ext.errors import DataLoss, SourceError
from spark_ext.options import ReadOptions
from spark_ext.plan import Part, plan, probe_of
from spark_ext.stores import let_go, open_reader, settle_worker
from spark_ext.tiered import is_tiered

if TYPE_CHECKING:
    import pyarrow as pa

    import pystore
    from pystore.cold.reader import ColdReader

__all__ = ["BatchReader", "read_part"]

FILES_WATCHED = 64
#: A batch of so many rows is worth Spark's while as it is.
ALONE_ROWS = 1024
#: Of a range of at most so many units all are looked up at once.
UNITS_AT_ONCE = 64


class BatchReader(DataSourceReader):
    """Reads what the options say, as it was when the query was planned.

    No ``pushFilters``: Spark 4.1 to 4.3 keep the plan of one filter for another scan of the same
    ``load()`` and so answer wrongly (tests/spark/test_pushdown.py); options filter instead, and
    pushdown.py has the reader for those who want it all the same.
    """

    def __init__(self, options: ReadOptions, layout: columns.ColumnLayout) -> None:
        self.options = options
        self.layout = layout

    def partitions(self) -> Sequence[InputPartition]:
        return list(plan(self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(partition, self.layout, self.options)


def read_part(
    part: InputPartition, layout: columns.ColumnLayout, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of one partition. An empty plan comes as a partition that is not ours."""
    settle_worker()
    if isinstance(part, Part):
        yield from _joined(_part_batches(part, layout, options), options)


def _joined(batches: Iterator[pa.RecordBatch], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Makes one batch of many small ones, as short queues give: each costs Spark as much as a
    thousand rows. A batch that comes alone is not copied."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = batch.get_total_buffer_size()
        full = rows + batch.num_rows > options.batch_rows or size + more > options.batch_bytes
        if held and full:
            yield _one(pa.Table.from_batches(held))
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + more
        if batch.num_rows >= ALONE_ROWS and len(held) == 1:
            yield held.pop()
            rows = size = 0
    if held:
        yield _one(pa.Table.from_batches(held))


def _one(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _part_batches(
    part: Part, layout: columns.ColumnLayout, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    counts = _Counts(part)
    try:
        reader = _reader_of(part, options)
        if reader is None:
            yield from _read_broker(part, layout, options, counts)
            return
        if part.log is not None:
            yield from _read_log(reader, part, layout, options, counts)
            return
        if is_tiered(reader):
            both = _LogFiles(reader.hot), _LogFiles(reader.cold)
            for where in part.ranges:
                yield from _read_tiered(*both, part, where, layout, options, counts)
            return
        log = _LogFiles(reader)
        for where in part.ranges:
            yield from _read_queue(log, part, where, layout, options, counts)
    finally:
        let_go(part.path, options.settings_of(part.path))
        counts.tell(options.report)


def _reader_of(part: Part, options: ReadOptions) -> pystore.Reader | None:
    """Opens the planned store. None: this host does not see it, and pulls. Raises: SourceError."""
    try:
        reader = open_reader(part.path, options.settings_of(part.path))
        if part.log is None:
            _compare(reader, part)
    except SourceError:
        if options.network is None:
            raise
        return None
    return reader


# ---- scanning ----


def _read_broker(
    part: Part, layout: columns.ColumnLayout, options: ReadOptions, counts: _Counts
) -> Iterator[pa.RecordBatch]:
    import pystore
    from spark_ext.pull import PullRange, records

    assert options.network is not None
    lost = None if options.fail_on_loss else lambda count: counts.add(count, -1)
    probe = part.probe
    for where in part.ranges:
        wanted = PullRange(part.broker, *where, probe, lost)
        probe = None  # it is that of the first range
        for chunk in records(options.network, wanted, options.batch_bytes):
            stream = pystore.ArrowStream(
                None, None, None, records=chunk, broker_name=part.broker,
                **_settings(layout, options),
            )  # fmt: skip
            yield from _batches(stream, (), counts)


def _read_queue(
    log: _LogFiles,
    part: Part,
    where: tuple[str, int, int, int],
    layout: columns.ColumnLayout,
    options: ReadOptions,
    counts: _Counts,
) -> Iterator[pa.RecordBatch]:
    topic, queue, start, end = where
    reader = log.reader
    cold = cast("ColdReader", reader) if reader.is_cold else None
    name = f"{topic}/{queue} of {part.path if cold is None else cold.address}"
    low, high = reader.range(topic, queue)
    if high < end:
        reader.refresh()
        low, high = reader.range(topic, queue)
    if low > start or high < end:
        kept = f"it holds offsets {low} to {high - 1}" if high > low else "it is empty"
        if options.fail_on_loss:
            raise DataLoss(
                f"{name} no longer holds offsets {start} to {end - 1}: {kept};"
                " failOnDataLoss=false reads the rest"
            )
        missing = (end - start) - max(0, min(end, high) - max(start, low))
        counts.add(missing, -1)
        start, end = max(start, low), min(end, high)
    if start >= end:
        return
    holes = 0 if cold is None else cold.holes(topic, queue, start, end)
    if holes and options.fail_on_loss:
        raise DataLoss(
            f"{name} lacks {holes} of the offsets {start} to {end - 1}, which were lost before they"
            " were written out; failOnDataLoss=false reads the rest"
        )
    counts.add(holes, -1)
    files = log.of_range(topic, queue, start, end)
    settings = _settings(layout, options)
    settings["batch_rows"] = min(options.batch_rows, end - start)  # room for no more than there is
    stream = reader.arrow(topic, queue, start=start, end=end, broker_name=part.broker, **settings)
    yield from _batches(stream, files, counts)


def _read_tiered(
    hot: _LogFiles,
    cold: _LogFiles,
    part: Part,
    where: tuple[str, int, int, int],
    layout: columns.ColumnLayout,
    options: ReadOptions,
    counts: _Counts,
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a range of a store with a tier: what retention has taken, or takes
    while the range is read, comes from the tier."""
    topic, queue, at, end = where
    numbered, dropped = _numbered(layout)
    # What is missing is looked for in the tier before it may be skipped as damage.
    strict = options._replace(fail_on_loss=True)
    while at < end:
        if hot.reader.range(topic, queue)[1] < end:
            hot.reader.refresh()
        low = min(max(at, hot.reader.range(topic, queue)[0]), end)
        if at < low or hot.reader.range(topic, queue)[1] <= at:
            low = low if at < low else end
            yield from _read_queue(cold, part, (topic, queue, at, low), layout, options, counts)
            at = low
            continue
        try:
            rest = topic, queue, at, end
            for batch in _read_queue(hot, part, rest, numbered, strict, counts):
                at = batch.column("queueOffset")[-1].as_py() + 1
                yield batch.remove_column(batch.num_columns - 1) if dropped else batch
            return
        except DataLoss:
            hot.reader.refresh()
            if hot.reader.range(topic, queue)[0] > at:
                continue
            if options.fail_on_loss:
                raise
        rest = topic, queue, at, end
        yield from _read_queue(hot, part, rest, layout, options, counts)
        return


def _numbered(layout: columns.ColumnLayout) -> tuple[columns.ColumnLayout, bool]:
    """Returns the layout with the column queueOffset, and whether it is one more, the last."""
    name = "queueOffset"
    if name in layout.names:
        return layout, False
    names, nullable = (*layout.names, name), (*layout.nullable, False)
    return layout._replace(names=names, nullable=nullable), True


def _read_log(
    reader: pystore.Reader,
    part: Part,
    layout: columns.ColumnLayout,
    options: ReadOptions,
    counts: _Counts,
) -> Iterator[pa.RecordBatch]:
    start, end = part.log or (0, 0)
    info = reader.info()
    if info.log_max < end:
        reader.refresh()
        info = reader.info()
    if info.log_min > start or info.log_max < end:
        if options.fail_on_loss:
            raise DataLoss(
                f"the log of {part.path} no longer holds bytes {start} to {end}: it holds"
                f" {info.log_min} to {info.log_max}; failOnDataLoss=false reads the rest"
            )
        counts.add(1, start)
        start, end = max(start, info.log_min), min(end, info.log_max)
    files = _LogFiles(reader).between(start, end)
    stream = reader.arrow(
        start=start,
        end=end,
        topics=part.topics,
        committed_only=options.transactions == "committed",
        broker_name=part.broker,
        **_settings(layout, options),
    )
    yield from _batches(stream, files, counts)


def _settings(layout: columns.ColumnLayout, options: ReadOptions) -> dict[str, Any]:
    return {
        "columns": layout.names,
        "nullable": layout.nullable,
        "properties": layout.properties,
        "tags": options.tags or None,
        "sql": options.sql or None,
        "store_time": (options.time_min, options.time_max),
        "decompress": options.decompress,
        "check_crc": options.check_crc,
        "skip_damaged": not options.fail_on_loss,
        "batch_rows": options.batch_rows,
        "batch_bytes": options.batch_bytes,
    }


def _batches(
    stream: pystore.ArrowStream, files: Sequence[tuple[str, int]], counts: _Counts
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a stream; what C says about damage becomes one sentence."""
    import pyarrow as pa

    source = pa.RecordBatchReader.from_stream(stream)
    try:
        while True:
            try:
                batch = source.read_next_batch()
            except StopIteration:
                return
            except (OSError, pa.ArrowException) as e:
                _check_whole(files)
                raise DataLoss(
                    f"on host {socket.gethostname()}: {e};"
                    " failOnDataLoss=false skips unreadable messages"
                ) from None
            _check_whole(files)
            yield batch
    finally:
        stats = stream.stats
        if stats.skipped:
            counts.add(stats.skipped, stats.first_skipped)
        source.close()


# ---- the same store, whole ----


def _compare(reader: pystore.Reader, part: Part) -> None:
    """Checks that the first record lies where the plan saw it: else this host shows another
    store."""
    if part.probe is None:
        return
    topic, queue, start, _ = part.ranges[0]
    found = probe_of(reader, topic, queue, start)
    if found is None:
        reader.refresh()
        found = probe_of(reader, topic, queue, start)
    if found is not None and found != part.probe:
        raise SourceError(
            f"on host {socket.gethostname()}: {part.path} is not the store that was planned: offset"
            f" {start} of {topic}/{queue} lies at byte {found[0]}, not {part.probe[0]}"
        )


class _LogFiles:
    """The segments that a part is read from, with the size that each must have."""

    def __init__(self, reader: pystore.Reader) -> None:
        self.reader = reader
        self._size = 0 if reader.is_cold else reader.info().commitlog_file_size
        self._folders = [str(f) for f in reader.settings.commitlog_dirs(reader.path)]

    def of_range(self, topic: str, queue: int, start: int, end: int) -> list[tuple[str, int]]:
        """Returns those between the first and the last record of a range; none of a cold tier,
        which checks what it fetches by itself."""
        if self.reader.is_cold:
            return []
        units = self.reader.units
        if end - start <= UNITS_AT_ONCE:
            places = [unit[0] for unit in units(topic, queue, start, end - start)]
        else:
            edges = (units(topic, queue, at, 1) for at in (start, end - 1))
            places = [unit[0] for found in edges for unit in found]
        return self.between(min(places), max(places) + 1) if places else []

    def between(self, start: int, end: int) -> list[tuple[str, int]]:
        bases = range(start - start % self._size, end, self._size)[:FILES_WATCHED]
        return [(f"{folder}/{base:020d}", self._size) for base in bases for folder in self._folders]


def _check_whole(files: Sequence[tuple[str, int]]) -> None:
    """Checks files after each batch: what a file that was cut off held last is zeros in its
    mapping, and could pass for a body. A deleted file stays readable while it is mapped."""
    for path, size in files:
        with contextlib.suppress(OSError):
            found = os.stat(path)  # noqa: PTH116 - twenty thousand of them, for as many queues
            if found.st_size < size and stat.S_ISREG(found.st_mode):
                raise DataLoss(
                    f"on host {socket.gethostname()}: {path} was truncated to {found.st_size} bytes"
                    f" while it was read; expected {size}"
                )


class _Counts:
    """What a task stepped over. Spark has no metrics for readers: it goes to the worker's log, and
    with option damageReport into a file a task."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.skipped = 0
        self.first = -1

    def add(self, skipped: int, first: int) -> None:
        self.skipped += skipped
        self.first = first if self.first < 0 else self.first

    def tell(self, folder: str) -> None:
        if not self.skipped:
            return
        where = f", the first at byte {self.first} of the log" if self.first >= 0 else ""
        print(
            f"rocketmq: {self.part!r}: skipped {self.skipped} damaged or missing messages{where}",
            file=sys.stderr,
        )
        if not folder:
            return
        from pyspark import TaskContext

        context = TaskContext.get()
        names = (
            (context.stageId(), context.partitionId(), context.taskAttemptId())
            if context
            else (0, 0, 0)
        )
        fact = {
            "store": self.part.path,
            "ranges": self.part.ranges,
            "log": self.part.log,
            "skipped": self.skipped,
            "firstSkipped": self.first,
        }
        target = Path(folder)
        make_folders(target, FILE_MODE)
        report = target / f"{names[0]}-{names[1]}-{names[2]}.json"
        with new_file(report, FILE_MODE) as file:
            file.write(json.dumps(fact).encode())
