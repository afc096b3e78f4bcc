"""What a task of ``archive`` does: a part of the log, or of a tier's queues, becomes Parquet files,
by topic and day.

It is read once. Each file is read again before the task ends, while it is in the page cache, and
all its columns are compared, by counts and sums of CRCs, with what the scan gave; of bodies the
scan has compared each with the CRC in its record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pystore import errors
from pystore.files import FILE_MODE, make_folders, new_file
from pystore.native import ffi, lib
from spark_ext.jobs.runs import FIELDS
from spark_ext.schema import ColumnLayout
from spark_ext.tasks import task_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.options import ReadOptions
    from spark_ext.plan import Part

__all__ = ["ExportContext", "FileSummary", "Sums", "partition_of", "read_sums", "write_part"]

_NAMES = tuple(each.split()[0] for each in FIELDS.split(", "))
_LAYOUT = ColumnLayout(
    ("topic", *_NAMES), (False, *(n in ("tags", "keys") for n in _NAMES)), "json"
)
#: Columns that have a sum in Sums.columns.
_SUMMED = tuple(name for name in _NAMES if name != "body")
_TIMES = ("bornTimestamp", "storeTimestamp")
_DAY_MS = 86_400_000
#: A body's CRC as a record has it.
_BODY_MASK = 0x7FFFFFFF
_WHOLE_MASK = 0xFFFFFFFF
#: What a task holds in memory before it becomes row groups.
_HELD_BYTES = 32 << 20
#: Files of a task that are open at a time.
_OPEN_MAX = 128
#: Columns whose values repeat. The others are not worth a dictionary.
_REPEATED = ("queueId", "sysFlag", "flag", "reconsumeTimes", "bornHost", "storeHost", "tags",
             "preparedTransactionOffset")  # fmt: skip
#: Columns that are worth a range for each row group.
_RANGED = ("queueId", "queueOffset", "commitLogOffset", "bornTimestamp", "storeTimestamp")
#: What Spark escapes in the names of partitions (ExternalCatalogUtils.escapePathName), and its name
#: for an empty one.
_ESCAPED = frozenset(map(chr, (*range(1, 32), 127))) | frozenset("\"#%'*/:=?\\{[]^")
_EMPTY = "__HIVE_DEFAULT_PARTITION__"
#: Of the name of a directory.
_NAME_BYTES = 255

Key = tuple[str, str]


@dataclass(slots=True)
class Sums:
    """Sums of records of a topic and day. bytes: of the records. envelopes, bodies: sums of CRCs.
    columns: a sum for each column of the files: of numbers, or of the CRCs of texts. last: by
    queue, place, size, store time in ms and body CRC of its last record."""

    messages: int
    bytes: int
    envelopes: int
    bodies: int
    columns: list[int]
    last: dict[int, tuple[int, ...]]

    def add(self, other: Sums) -> None:
        self.messages += other.messages
        self.bytes += other.bytes
        self.envelopes += other.envelopes
        self.bodies += other.bodies
        self.columns = [a + b for a, b in zip(self.columns, other.columns, strict=True)]
        for queue, last in other.last.items():
            self.last[queue] = max(last, self.last.get(queue, last))

    def of(self, column: str) -> int:
        """Returns the sum of a column of numbers, modulo 2^64."""
        return self.columns[_SUMMED.index(column)] % (1 << 64)


@dataclass(frozen=True, slots=True)
class FileSummary:
    """A file of one topic and day, compared. path: relative to the folder of its task."""

    topic: str
    day: str
    path: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class ExportContext:
    """What every task begins with. folder: each makes one of its own in it."""

    options: ReadOptions
    folder: Path


def write_part(shared: ExportContext, numbered: tuple[int, Part]) -> tuple[Path, list[FileSummary]]:
    """Writes a part. Returns the folder of this attempt, and the files in it: what a
    discarded attempt still writes is in a folder that nobody looks at.

    numbered: the part and its number, for the names of files. Raises: SourceError; StoreIOError for
    a file that does not hold what was written; OSError.
    """
    from spark_ext.batch import read_part

    number, part = numbered
    folder = shared.folder / f"{number}-{task_ids()[1]}"
    files = _Files(folder, number)
    try:
        for batch in read_part(part, _LAYOUT, shared.options):
            for key, rows in _by_topic_and_day(batch):
                files.add(key, rows)
        return folder, files.finish()
    except BaseException:
        files.abandon()
        # Another attempt may need the room.
        shutil.rmtree(folder, ignore_errors=True)
        raise


# ---- rows ----


def _by_topic_and_day(batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Returns the rows of each topic and day, in order, as the files have them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {name: batch.column(name) for name in _NAMES}
    for name in _TIMES:
        columns[name] = pc.divide(columns[name].cast(pa.int64()), 1000)
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(_NAMES))
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    days = columns["storeTimestamp"].to_numpy() // _DAY_MS
    first = int(days.min())
    span = int(days.max()) - first + 1
    keys = topics.indices.to_numpy().astype("int64") * span + (days - first)
    order = np.argsort(keys, kind="stable")
    ends = [*(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(keys)]
    start = 0
    for end in ends:
        topic, day = divmod(int(keys[order[start]]), span)
        key = names[topic], str(date(1970, 1, 1) + timedelta(days=first + day))
        yield key, rows if len(ends) == 1 else rows.take(pa.array(order[start:end]))
        start = end


# ---- sums ----


def _crcs(column: Any, mask: int = _WHOLE_MASK) -> int:
    """Returns the sum of the CRCs of a column of texts or bytes; a null counts as an empty one."""
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return 0
    begin = ffi.cast("int32_t *", offsets.address) + column.offset
    return int(lib.ps_crc32_sum(ffi.cast("uint8_t *", data.address), begin, len(column), mask))


def _sum(column: Any) -> int:
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        return int(column.to_numpy().sum(dtype="int64"))
    return _crcs(column) - int(column.null_count)


def _bodies_of_log(rows: pa.RecordBatch) -> int:
    """Returns the sum by the CRCs in the records, each of which the scan has compared; that of an
    empty body says nothing."""
    import numpy as np

    sizes = np.diff(np.frombuffer(rows.column("body").buffers()[1], "int32"))
    offset = rows.column("body").offset
    crcs = rows.column("bodyCRC").to_numpy().astype("int64") & _BODY_MASK
    return int(crcs[sizes[offset : offset + len(crcs)] > 0].sum())


def _sums_of(rows: pa.RecordBatch, bodies: int) -> Sums:
    """Returns the sums of a file. bodies: the sum of their CRCs."""
    columns = [_sum(rows.column(name)) for name in _SUMMED]
    by_name = dict(zip(_SUMMED, columns, strict=True))
    return Sums(
        rows.num_rows, by_name["storeSize"], by_name["envelope"], bodies, columns, _last_of(rows)
    )


def _last_of(rows: pa.RecordBatch) -> dict[int, tuple[int, ...]]:
    """Returns the facts of the last record of each queue, as Sums has them."""
    import numpy as np

    queues = rows.column("queueId").to_numpy()
    order = np.lexsort((rows.column("commitLogOffset").to_numpy(), queues))
    ends = order[np.append(np.flatnonzero(np.diff(queues[order])), len(order) - 1)].tolist()
    facts = ("commitLogOffset", "storeSize", "storeTimestamp", "bodyCRC")
    return {int(queues[at]): tuple(rows.column(name)[at].as_py() for name in facts) for at in ends}


# ---- files ----


class _ParquetFile:
    """Writes a Parquet file, and sums what was given to it."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        make_folders(path.parent, FILE_MODE)
        self.path = path
        self._sums: Sums | None = None
        self._file = new_file(path, FILE_MODE)
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=list(_REPEATED),
            write_statistics=list(_RANGED), store_schema=False,
        )  # fmt: skip

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Writes one row group."""
        import pyarrow as pa

        for rows in batches:
            sums = _sums_of(rows, _bodies_of_log(rows))
            if self._sums is None:
                self._sums = sums
            else:
                self._sums.add(sums)
        table = pa.Table.from_batches(batches)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> Sums:
        """Closes the file and returns its sums. Raises: StoreIOError when the file does not hold
        what was written."""
        self._writer.close()
        self._file.close()
        assert self._sums is not None
        if read_sums(self.path) != self._sums:
            raise errors.StoreIOError("the Parquet file is not what the log holds", str(self.path))
        return self._sums

    def abandon(self) -> None:
        # Whatever is wrong with it is known by now.
        for end in (self._writer.close, self._file.close):
            with contextlib.suppress(Exception):
                end()


def read_sums(path: Path) -> Sums | None:
    """Returns the sums of a Parquet file, all of it read; None of an empty one. Raises:
    StoreIOError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sums: Sums | None = None
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number, columns=list(_NAMES), use_threads=False)
                for rows in table.to_batches():
                    found = _sums_of(rows, _crcs(rows.column("body"), _BODY_MASK))
                    if sums is None:
                        sums = found
                    else:
                        sums.add(found)
    except (pa.ArrowException, OSError) as failed:
        text = f"a Parquet file cannot be read again: {failed}"
        raise errors.StoreIOError(text, str(path)) from None
    return sums


class _Files:
    """The files of one part, a few open at a time."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._open: dict[Key, _ParquetFile] = {}
        self._waiting: dict[Key, list[pa.RecordBatch]] = {}
        self._held = 0
        self._made = 0
        self._done: list[FileSummary] = []

    def add(self, key: Key, rows: pa.RecordBatch) -> None:
        self._waiting.setdefault(key, []).append(rows)
        self._held += rows.nbytes
        if self._held >= _HELD_BYTES:
            self._write()

    def finish(self) -> list[FileSummary]:
        self._write()
        self._close()
        return self._done

    def abandon(self) -> None:
        for file in self._open.values():
            file.abandon()

    def _write(self) -> None:
        for key, batches in self._waiting.items():
            if key not in self._open:
                if len(self._open) == _OPEN_MAX:
                    self._close()
                path = self._folder / _path_of(key, self._number, self._made)
                self._made += 1
                self._open[key] = _ParquetFile(path, batches[0].schema)
            self._open[key].write(batches)
        self._waiting, self._held = {}, 0

    def _close(self) -> None:
        while self._open:
            key = next(iter(self._open))
            sums = self._open[key].close()
            path = os.path.relpath(self._open.pop(key).path, self._folder)
            self._done.append(FileSummary(*key, path, sums))


def _path_of(key: Key, number: int, made: int) -> Path:
    topic, day = _escaped(partition_of(key[0])), _escaped(key[1])
    return Path(f"topic={topic or _EMPTY}") / f"day={day}" / f"part-{number:05d}-{made:05d}.parquet"


def _escaped(word: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in word)


def _fits(topic: str) -> bool:
    return len(f"topic={_escaped(topic)}".encode()) <= _NAME_BYTES


def partition_of(topic: str) -> str:
    """Returns the topic as the name of its directory says it: itself, unless that name were too
    long."""
    if _fits(topic):
        return topic
    mark = f"~{hashlib.sha256(topic.encode()).hexdigest()[:16]}"
    kept = topic
    while not _fits(kept + mark):
        kept = kept[:-1]
    return kept + mark
