"""The sink that ``restore`` writes to: rows become records at their places in segments."""

from __future__ import annotations

from collections.abc import Iterator
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


class SegmentSink(DataSource):
    """Option path: the folder of the segments, which are there already. Option segmentSize: of each
    in bytes. Columns: commitLogOffset, envelope, body."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-segments"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _Writer(Path(self.options["path"]), int(self.options["segmentSize"]))


class _Writer(DataSourceArrowWriter):
    def __init__(self, log: Path, size: int) -> None:
        self._log = log
        self._size = size

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task that runs twice writes the same bytes to the same places."""
        from pystore.repair.segments import put_records

        put_records(self._log, self._size, _records(iterator))
        return WriterCommitMessage()


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, bytes, bytes]]:
    for batch in batches:
        columns = [batch.column(i).to_pylist() for i in range(batch.num_columns)]
        yield from zip(*columns, strict=True)
