"""Records of the tier for an Arrow stream, which reads them as the core's scan reads a log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from pystore.cold.segment import BLOCK
from pystore.files.mapped import MappedFile
from pystore.store._arrow import GivenRecords

__all__ = ["OF_A_LOG", "PieceRecords"]

#: Options of a scan of a log that have no sense here.
OF_A_LOG = ("topics", "committed_only", "skip_damaged")


class _Records(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def records(self) -> memoryview: ...

    @property
    def file(self) -> MappedFile | None: ...

    @property
    def sums(self) -> memoryview: ...

    @property
    def name(self) -> str: ...


class PieceRecords:
    """The records of pieces of a tier, each time from the first one on. topics: only theirs; none:
    all. There is one piece in memory, and what is fetched ahead."""

    def __init__(self, pieces: Callable[[], Iterator[_Records]], topics: Collection[str]) -> None:
        self._pieces, self._topics = pieces, topics

    def __iter__(self) -> Iterator[GivenRecords]:
        for piece in self._pieces():
            if not self._topics or piece.topic in self._topics:
                yield GivenRecords(piece.records, piece.file, piece.sums, BLOCK, piece.name)
            del piece  # its memory is for the next one
