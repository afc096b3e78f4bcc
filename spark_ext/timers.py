"""Messages that wait for their time, as rows: option timers=pending.

The driver asks the core for the timers that wait and hands each task some of them, as offsets of
the timer topic's queue. So the rows are those of one moment, whatever is delivered before the tasks
run. A task reads these records as it reads any queue, and says of each when it is due and where it
goes.
"""

from __future__ import annotations

import json
import re
import socket
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from spark_ext import schema as columns
from spark_ext.batch import BatchReader, read_part
from spark_ext.errors import SourceError
from spark_ext.options import ReadOptions
from spark_ext.plan import Part, broker_names, check_sql
from spark_ext.stores import open_reader

if TYPE_CHECKING:
    import pyarrow as pa

    import pystore

__all__ = ["TimerPart", "TimerReader", "plan_timers", "read_timers"]

#: Of one task: their offsets and times travel with it.
TIMERS_MAX = 16_384
#: Records that do not wait and are read all the same, since a new range costs more.
GAP = 64
#: What a record says about where it goes.
_PLACE = ("REAL_TOPIC", "REAL_QID")


class TimerPart(InputPartition):
    """Timers of one task. packed: see :func:`_pack`. probe: place and size of the first record."""

    def __init__(
        self, path: str, broker: str, packed: bytes, probe: tuple[int, int] | None
    ) -> None:
        self.path = path
        self.broker = broker
        self.packed = packed
        self.probe = probe

    def __reduce__(self) -> Any:
        return TimerPart, (self.path, self.broker, self.packed, self.probe)


class TimerReader(BatchReader):
    """Reads, as a batch, what waited when the query was planned."""

    def partitions(self) -> Sequence[InputPartition]:
        return plan_timers(self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_timers(partition, self.layout, self.options)


# ---- planning ----


class _Waiting(NamedTuple):
    """Timers in order of their offsets. due: ms."""

    offsets: pa.Int64Array
    due: pa.Int64Array
    record_bytes: int


def plan_timers(options: ReadOptions) -> list[TimerPart]:
    """Makes the partitions of a read of what waits. Raises: BadOption, SourceError."""
    parts: list[TimerPart] = []
    least = -(-options.min_partitions // len(options.paths))
    for path, broker in zip(options.paths, broker_names(options), strict=True):
        reader = open_reader(path, options.settings_of(path), fresh=True)
        check_sql(options, reader)
        waiting = _waiting(reader)
        count = len(waiting.offsets)
        most = min(
            TIMERS_MAX,
            options.max_records,
            max(1, options.max_bytes // waiting.record_bytes),
            max(1, -(-count // least)),
        )
        for at in range(0, count, most):
            parts.append(_part(reader, path, broker, waiting, at, most))
    return parts


def _waiting(reader: pystore.Reader) -> _Waiting:
    """Returns the timers that wait. Raises: SourceError."""
    import pyarrow as pa

    import pystore
    from pystore.store.timers import Timers

    offsets, due, size = array("q"), array("q"), 0
    try:
        timers = Timers(reader)
        try:
            for timer in timers.each():
                offsets.append(timer.offset)
                due.append(timer.due_ms)
                size += timer.size
        finally:
            timers.close()
    except pystore.StoreError as e:
        raise SourceError(f"on host {socket.gethostname()}: {e}") from e
    table = pa.table({"offset": _int64(offsets), "due": _int64(due)}).sort_by("offset")
    found = [table.column(name).combine_chunks() for name in ("offset", "due")]
    return _Waiting(found[0], found[1], max(1, size // max(1, len(offsets))))


def _int64(values: array[int]) -> pa.Int64Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _part(
    reader: pystore.Reader, path: str, broker: str, waiting: _Waiting, at: int, most: int
) -> TimerPart:
    from pystore.format.names import TIMER_TOPIC

    offsets, due = waiting.offsets.slice(at, most), waiting.due.slice(at, most)
    try:
        units = reader.units(TIMER_TOPIC, 0, offsets[0].as_py(), 1)
    except LookupError:
        units = []
    return TimerPart(path, broker, _pack(offsets, due), units[0][:2] if units else None)


def _pack(offsets: pa.Int64Array, due: pa.Int64Array) -> bytes:
    """Packs both columns, 8 bytes a value, compressed: the worker has this machine's byte order."""
    raw = array("q", offsets.to_pylist() + due.to_pylist())
    return zlib.compress(raw.tobytes(), 1)


def _unpack(packed: bytes) -> tuple[pa.Int64Array, pa.Int64Array]:
    values = _int64(array("q", zlib.decompress(packed)))
    half = len(values) // 2
    return values.slice(0, half), values.slice(half)


# ---- what a task does ----


def read_timers(
    part: InputPartition, layout: columns.ColumnLayout, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of one partition. An empty plan comes as a partition that is not ours."""
    from pystore.format.names import TIMER_TOPIC

    if not isinstance(part, TimerPart):
        return
    offsets, due = _unpack(part.packed)
    ranges = tuple((TIMER_TOPIC, 0, a, b) for a, b in _runs(offsets.to_pylist()))
    shape = _Shape(layout, options)
    whole = Part(part.path, part.broker, ranges, part.probe)
    for batch in read_part(whole, shape.stored, options):
        rows = shape.rows(batch, offsets, due)
        if rows.num_rows:
            yield rows


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Returns ranges [from, to) that hold these offsets, in order, and few others."""
    first = last = offsets[0]
    for offset in offsets:
        if offset - last > GAP:
            yield first, last + 1
            first = offset
        last = offset
    yield first, last + 1


class _Shape:
    """Makes, of rows of the timer topic, rows of what waits. stored: the columns that are read."""

    def __init__(self, layout: columns.ColumnLayout, options: ReadOptions) -> None:
        self._layout = layout
        self._wants = _topic_filter(options)
        asked = dict(zip(layout.names, layout.nullable, strict=True))
        self._placed = self._wants is not None or bool({"topic", "queueId"} & asked.keys())
        read = {n: null for n, null in asked.items() if n not in columns.OF_TIMERS}
        read.setdefault("queueOffset", False)
        properties = layout.properties
        if self._placed and "properties" not in asked:
            read["properties"], properties = False, "map"
        self.stored = columns.ColumnLayout(tuple(read), tuple(read.values()), properties)

    def rows(
        self, batch: pa.RecordBatch, offsets: pa.Int64Array, due: pa.Int64Array
    ) -> pa.RecordBatch:
        """Returns those of a batch that wait, in the columns of the query."""
        import pyarrow as pa
        import pyarrow.compute as pc

        at = pc.index_in(batch.column("queueOffset"), value_set=offsets)
        kept = pc.is_valid(at)
        place = _places(batch.column("properties")) if self._placed else None
        if place is not None and self._wants is not None:
            names = [n for n in place[0].unique().to_pylist() if self._wants(n)]
            kept = pc.and_(kept, pc.is_in(place[0], value_set=pa.array(names, pa.string())))
        made = {name: batch.column(name) for name in self.stored.names}
        if place is not None:
            made["topic"], made["queueId"] = place
        made["deliverTime"] = pc.multiply(due.take(at), 1000).cast(pa.timestamp("us", "UTC"))
        fields = [
            pa.field(name, made[name].type, null)
            for name, null in zip(self._layout.names, self._layout.nullable, strict=True)
        ]
        arrays = [made[field.name].filter(kept) for field in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _topic_filter(options: ReadOptions) -> Callable[[str], bool] | None:
    """Returns which destinations the options ask for; None for all."""
    if options.topics:
        return lambda name: name in options.topics
    if options.pattern:
        pattern = re.compile(options.pattern)
        return lambda name: pattern.fullmatch(name) is not None
    return None


def _places(properties: Any) -> tuple[pa.Array, pa.Array]:
    """Returns topic and queue that the messages go to; "" and -1 where a record says none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_map(properties.type):
        topic, queue = (pc.map_lookup(properties, pa.scalar(n), "first") for n in _PLACE)
    else:
        said = [json.loads(text) for text in properties.to_pylist()]
        topic, queue = (pa.array([each.get(n) for each in said], pa.string()) for n in _PLACE)
    number = pc.fill_null(pc.match_substring_regex(queue, "^[0-9]{1,9}$"), False)
    queue = pc.if_else(number, queue, "-1").cast(pa.int32())
    return pc.fill_null(topic, ""), queue
