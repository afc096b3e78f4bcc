"""The tier as Arrow: segments become record batches one after the other, by the core's scan of
records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pystore.store._arrow import ArrowStream, ScanStats

__all__ = ["ColdStream"]

_FAR = (1 << 63) - 1
#: Options of a scan of a log that have no sense here.
_OF_A_LOG = ("topics", "committed_only", "skip_damaged")


class _Records(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def records(self) -> memoryview: ...


class PieceSource(Protocol):
    """What a stream needs of its reader."""

    @property
    def pieces(self) -> Callable[..., Iterator[_Records]]: ...


class ColdStream:
    """Messages of a queue, a topic or everything as an Arrow stream; options as those of
    ``pystore.ArrowStream``. start, end: queue offsets. Segments outside of `store_time` are not
    fetched. Needs pyarrow."""

    def __init__(
        self, reader: PieceSource, topic: str | None, queue: int | None, *, start: int = 0,
        end: int = _FAR, store_time: tuple[int | None, int | None] = (None, None), **options: Any,
    ) -> None:  # fmt: skip
        low, high = store_time
        self._reader = reader
        self._range: dict[str, Any] = {
            "topic": topic, "queue": queue, "start": start, "end": end,
            "time_min": low or 0, "time_max": _FAR if high is None else high,
        }  # fmt: skip
        self._topics = set(options.get("topics", ()))
        for name in _OF_A_LOG:
            options.pop(name, None)
        self._options = {"store_time": store_time, **options}
        self._rows = self._bytes = self._count = 0
        self._stream(b"")  # refuses wrong options at once

    def _stream(self, records: Any) -> ArrowStream:
        return ArrowStream(None, None, None, records=records, **self._options)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a capsule with a fresh ``ArrowArrayStream``."""
        import pyarrow as pa

        schema = pa.RecordBatchReader.from_stream(self._stream(b"")).schema
        self._rows = self._bytes = self._count = 0
        made = pa.RecordBatchReader.from_batches(schema, self._batches(pa))
        return made.__arrow_c_stream__(requested_schema)

    def _batches(self, pa: Any) -> Iterator[Any]:
        for piece in self._reader.pieces(**self._range):
            if self._topics and piece.topic not in self._topics:
                continue
            for batch in pa.RecordBatchReader.from_stream(self._stream(piece.records)):
                self._rows += batch.num_rows
                self._count += 1
                yield batch
            self._bytes += len(piece.records)
            del piece  # its memory is for the next one

    @property
    def stats(self) -> ScanStats:
        """The counts of the stream that was asked for last."""
        return ScanStats(self._rows, self._bytes, 0, self._count, -1)
