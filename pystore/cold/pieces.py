"""Pieces of a tier's queues, and their records for an Arrow stream, which reads them as the core's
scan reads a log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from pystore.cold.segment import BLOCK, choose_units
from pystore.files.mapped import MappedFile
from pystore.format.units import UNIT
from pystore.store._arrow import GivenRecords

__all__ = ["OF_A_LOG", "PieceRecords", "QueuePiece"]

#: Options of a scan of a log that have no sense here.
OF_A_LOG = ("topics", "committed_only", "skip_damaged")


class QueuePiece(NamedTuple):
    """Records of a queue that follow each other, offsets [first, end), and their units. base: what
    units call the first byte. file: that the records lie in, its bytes called alike; None: they are
    in memory. sums: of each BLOCK of them, for who reads them, who looks at these before it
    believes one; empty: they are right. name: of what they lie in. covered: whether sums of their
    segment tell that they are as they were written out."""

    topic: str
    queue: int
    first: int
    end: int
    base: int
    records: memoryview
    units: memoryview
    file: MappedFile | None
    sums: memoryview = memoryview(b"")
    name: str = ""
    covered: bool = False

    def cut(self, first: int, end: int) -> QueuePiece:
        """Returns the part of it within offsets [first, end), which is not empty."""
        first, end = max(first, self.first), min(end, self.end)
        units = self.units[(first - self.first) * UNIT.size : (end - self.first) * UNIT.size]
        reach = choose_units(units)
        records = self.records[reach.low - self.base : reach.high - self.base]
        return self._replace(first=first, end=end, base=reach.low, records=records, units=units)


class PieceRecords:
    """The records of pieces of a tier, each time from the first one on. topics: only theirs; none:
    all. There is one piece in memory, and what is fetched ahead."""

    def __init__(self, pieces: Callable[[], Iterator[QueuePiece]], topics: Collection[str]) -> None:
        self._pieces, self._topics = pieces, topics

    def __iter__(self) -> Iterator[GivenRecords]:
        for piece in self._pieces():
            if not self._topics or piece.topic in self._topics:
                yield GivenRecords(piece.records, piece.file, piece.sums, BLOCK, piece.name)
            del piece  # its memory is for the next one
