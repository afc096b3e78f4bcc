"""The batch reader, and what a task does: a partition becomes Arrow batches that C has filled."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pystore.files import FILE_MODE, make_folders, new_file
from spark_ext import schema as columns
from spark_ext.errors import DataLoss, SourceError
from spark_ext.options import ReadOptions
from spark_ext.plan import Part, plan
from spark_ext.stores import let_go, open_reader, settle_worker

if TYPE_CHECKING:
    import pyarrow as pa

    import pystore

__all__ = ["BatchReader", "read_part"]

FILES_WATCHED = 64


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
    if not isinstance(part, Part):
        return
    counts = _Counts(part)
    try:
        reader = _reader_of(part, options)
        if reader is None:
            yield from _read_broker(part, layout, options, counts)
            return
        if part.log is not None:
            yield from _read_log(reader, part, layout, options, counts)
            return
        for topic, queue, start, end in part.ranges:
            yield from _read_queue(
                reader, part, (topic, queue, start, end), layout, options, counts
            )
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
        wanted = PullRange(part.broker, where, probe, lost)
        probe = None  # it is that of the first range
        for chunk in records(options.network, wanted, options.batch_bytes):
            stream = pystore.ArrowStream(
                None, None, None, records=chunk, broker_name=part.broker,
                **_settings(layout, options),
            )  # fmt: skip
            yield from _batches(stream, (), counts)


def _read_queue(
    reader: pystore.Reader,
    part: Part,
    where: tuple[str, int, int, int],
    layout: columns.ColumnLayout,
    options: ReadOptions,
    counts: _Counts,
) -> Iterator[pa.RecordBatch]:
    topic, queue, start, end = where
    low, high = reader.range(topic, queue)
    if high < end:
        reader.refresh()
        low, high = reader.range(topic, queue)
    if low > start or high < end:
        kept = f"it holds offsets {low} to {high - 1}" if high > low else "it is empty"
        if options.fail_on_loss:
            raise DataLoss(
                f"{topic}/{queue} of {part.path} no longer holds offsets {start} to"
                f" {end - 1}: {kept}; failOnDataLoss=false reads the rest"
            )
        missing = (end - start) - max(0, min(end, high) - max(start, low))
        counts.add(missing, -1)
        start, end = max(start, low), min(end, high)
    if start >= end:
        return
    files = _files_of(reader, topic, queue, start, end)
    stream = reader.arrow(
        topic, queue, start=start, end=end, broker_name=part.broker, **_settings(layout, options)
    )
    yield from _batches(stream, files, counts)


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
    size = info.commitlog_file_size
    files = _segments(reader, start - start % size, end, size)
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
    stream: pystore.ArrowStream, files: Sequence[tuple[Path, int]], counts: _Counts
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
    try:
        units = reader.units(topic, queue, start, 1)
        if not units:
            reader.refresh()
            units = reader.units(topic, queue, start, 1)
    except LookupError:
        units = []
    if units and units[0][:2] != part.probe:
        raise SourceError(
            f"on host {socket.gethostname()}: {part.path} is not the store that was planned: offset"
            f" {start} of {topic}/{queue} lies at byte {units[0][0]}, not {part.probe[0]}"
        )


def _files_of(
    reader: pystore.Reader, topic: str, queue: int, start: int, end: int
) -> list[tuple[Path, int]]:
    """Returns the segments between the first and the last record of a range, with the size each
    must have."""
    size = reader.info().commitlog_file_size
    first, last = reader.units(topic, queue, start, 1), reader.units(topic, queue, end - 1, 1)
    if not first or not last:
        return []
    return _segments(reader, first[0][0] - first[0][0] % size, last[0][0] + 1, size)


def _segments(reader: pystore.Reader, start: int, end: int, size: int) -> list[tuple[Path, int]]:
    folders = reader.settings.commitlog_dirs(reader.path)
    names = [f"{base:020d}" for base in range(start, end, size)[:FILES_WATCHED]]
    if len(folders) == 1:
        return [(folders[0] / name, size) for name in names]
    return [(folder / name, size) for name in names for folder in folders]


def _check_whole(files: Sequence[tuple[Path, int]]) -> None:
    """Checks files after each batch: what a file that was cut off held last is zeros in its
    mapping, and could pass for a body. A deleted file stays readable while it is mapped."""
    for path, size in files:
        with contextlib.suppress(OSError):
            found = path.stat().st_size
            if found < size and path.is_file():
                raise DataLoss(
                    f"on host {socket.gethostname()}: {path} was truncated to {found} bytes while"
                    f" it was read; expected {size}"
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
