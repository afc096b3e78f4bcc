"""Records of the tier for an Arrow stream, which reads them as the core's scan reads a log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from pystore.files.mapped import MappedFile
from pystore.format.records import Buffer

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


class PieceRecords:
    """The records of pieces of a tier, each time from the first one on. topics: only theirs; none:
    all. There is one piece in memory, and what is fetched ahead."""

    def __init__(self, pieces: Callable[[], Iterator[_Records]], topics: Collection[str]) -> None:
        self._pieces, self._topics = pieces, topics

    def __iter__(self) -> Iterator[tuple[Buffer, MappedFile | None]]:
        for piece in self._pieces():
            if not self._topics or piece.topic in self._topics:
                yield piece.records, piece.file
            del piece  # its memory is for the next one
