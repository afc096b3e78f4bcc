"""The log of a folder, byte by byte: also where no store can be opened. Read-only, without
mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pystore.files.quiet import open_quietly
from pystore.format.records import HEAD_LEN, MAGIC_HEAD, blank_size, check_record, record_at
from pystore.native import lib

__all__ = ["RawLog", "RawSegment"]

_NAME = re.compile(r"[0-9]{20}")
_PIECE = 1 << 20
#: How far a search for the next whole record goes at once.
_SEARCH = 64 << 20


@dataclass(frozen=True, slots=True)
class RawSegment:
    """A file of the log. start: of its first byte in the log, as its name says. size: bytes."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class RawLog:
    """folders: of the commit log."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def segments(self) -> list[RawSegment]:
        """Returns the segments in the order of the log. What is not a segment is left out. Raises:
        OSError."""
        found = [
            RawSegment(path, int(path.name), path.stat().st_size)
            for folder in self._folders if folder.is_dir()
            for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file()
        ]  # fmt: skip
        return sorted(found, key=lambda each: each.start)

    @contextmanager
    def _open(self, offset: int) -> Iterator[tuple[int, RawSegment] | None]:
        """Opens the file that has this byte. Returns its descriptor; None: none has it."""
        for segment in self.segments():
            if segment.start <= offset < segment.end:
                with open_quietly(segment.path) as file:
                    yield file.fileno(), segment
                return
        yield None

    def bytes_at(self, offset: int, count: int) -> bytes:
        """Returns bytes of the log: fewer at the end of a file, none outside of all files. Raises:
        OSError."""
        with self._open(offset) as found:
            if found is None:
                return b""
            fd, segment = found
            return os.pread(fd, count, offset - segment.start)

    def record_at(self, offset: int) -> bytes | None:
        """Returns the whole record at a place; its sums are not looked at. Raises: OSError."""
        with self._open(offset) as found:
            if found is None:
                return None
            fd, segment = found
            record = record_at(fd, offset - segment.start)
            return None if record is None else record[0]

    def blank_at(self, offset: int) -> int | None:
        """Returns the bytes that the blank record at a place closes; None: none stands there.
        Raises: OSError."""
        found: int | None = blank_size(self.bytes_at(offset, HEAD_LEN).ljust(HEAD_LEN, b"\0"))
        return found

    def next_record(self, offset: int) -> int | None:
        """Returns where the first whole record at a place or after it begins, searched for so far;
        None: none was found. Raises: OSError."""
        left = _SEARCH
        for segment in self.segments():
            if segment.end <= offset or left <= 0:
                continue
            start = max(offset, segment.start) - segment.start
            found = self._search(segment, start, min(segment.size, start + left))
            if found is not None:
                return segment.start + found
            left -= segment.size - start
        return None

    def _search(self, segment: RawSegment, start: int, end: int) -> int | None:
        keep = lib.PS_AT_MAGIC + len(MAGIC_HEAD) - 1  # a magic may lie across two pieces
        with open_quietly(segment.path) as file:
            fd, at = file.fileno(), start
            while at < end:
                piece = os.pread(fd, _PIECE + keep, at)
                where = piece.find(MAGIC_HEAD, lib.PS_AT_MAGIC)
                while where >= 0:
                    begin = at + where - int(lib.PS_AT_MAGIC)
                    record = record_at(fd, begin)
                    if record is not None and check_record(record[0]) is not None:
                        return begin
                    where = piece.find(MAGIC_HEAD, where + 1)
                at += _PIECE
        return None
