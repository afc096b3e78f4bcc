"""The sink that ``restore`` writes to: rows become records at their places in segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["SegmentSink"]


@dataclass
class _SumCommit(WriterCommitMessage):
    """What one task has put."""

    records: int
    checksum: int


class SegmentSink(DataSource):
    """Option path: the folder of the segments, which are there already. Option segmentSize: of each
    in bytes. Option sums: a file that gets count and checksum of what was put, as JSON. Columns:
    commitLogOffset, envelope, body."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-segments"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        given = self.options
        return _Writer(Path(given["path"]), int(given["segmentSize"]), Path(given["sums"]))


class _Writer(DataSourceArrowWriter):
    def __init__(self, log: Path, size: int, sums: Path) -> None:
        self._log = log
        self._size = size
        self._sums = sums

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the parts; a task that runs twice writes the same bytes to the same places."""
        from pystore.repair.segments import put_records

        put = put_records(self._log, self._size, _records(iterator))
        return _SumCommit(put.records, put.checksum)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [each for each in messages if isinstance(each, _SumCommit)]
        total = sum(each.checksum for each in done) & (1 << 64) - 1
        told = {"records": sum(each.records for each in done), "checksum": total}
        self._sums.write_text(json.dumps(told), encoding="ascii")


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes, bytes]]:
    for batch in batches:
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        yield from zip(*columns, strict=True)
