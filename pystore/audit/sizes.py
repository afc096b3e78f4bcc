"""How long the files of one kind are, which nobody wrote down: segments of a log, files of a queue.

Some of them may be cut, too long, missing, or have another's name. One rule for all that guess.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

from pystore.files.sparse import data_ranges
from pystore.format.records import HEAD_LEN, blank_size

__all__ = ["SEGMENT_LEAST", "Piece", "blank_end", "piece_of", "usual_size"]

#: The smallest segment, bytes (mappedFileSizeCommitLog).
SEGMENT_LEAST = 4096
_PAGE = 4096
_MOST = (1 << 31) - 1  # a size is Java's int
_BACK = 8 << 20  # a blank may be as long as the longest message, which it had no room for


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, for :func:`usual_size`, all in bytes. `begin` is its first byte among all, `size` its
    length, and `end` where its content ends. `blank` is where the blank after that says that the
    segment ends, 0 without one. `weight` says how many records speak for its place."""

    begin: int
    size: int
    end: int = 0
    blank: int = 0
    weight: int = 1

    def fits(self, size: int) -> bool:
        """Returns whether it can be one of files of this length."""
        return self.begin % size == 0 and self.end <= size

    def lengths(self) -> list[int]:
        """Returns what it says of the length. A segment always has room for a blank after its last
        record: one that is full without a blank was cut."""
        said = [self.blank] if self.blank else []
        if self.end + HEAD_LEN <= self.size or self.blank == self.size:
            said.append(self.size)
        return said


def usual_size(
    groups: Iterable[Sequence[Piece]], otherwise: int, *, least: int = SEGMENT_LEAST, step: int = 1
) -> int:
    """Returns the length with which most is in its place, and for which most speaks: files, the
    blanks in them, and distances between neighbours; of equals the larger one.

    `groups` are files that follow one another, such as those of one queue. `otherwise` is returned
    when nothing speaks for any length. No file is shorter than `least`, and every length is a
    multiple of `step`."""
    votes: Counter[int] = Counter()
    pieces: list[Piece] = []
    for group in groups:
        ordered = sorted(group, key=lambda piece: piece.begin)
        votes.update(length for piece in ordered for length in piece.lengths())
        votes.update(after.begin - before.begin for before, after in pairwise(ordered))
        pieces += ordered
    for last_resort in (*(piece.size for piece in pieces), math.gcd(*(p.begin for p in pieces))):
        votes[last_resort] += 0
    likely = [(votes[size], size % _PAGE == 0, size) for size in votes
              if least <= size <= _MOST and size % step == 0]  # fmt: skip
    best = sorted(likely, reverse=True)[:16]

    def held(size: int) -> int:
        return sum(piece.weight for piece in pieces if piece.fits(size))

    return max(((held(each[2]), *each) for each in best), default=(otherwise,))[-1]


def blank_end(file: BinaryIO, at: int) -> int:
    """Returns where the blank at `at` of a file says that its segment ends, or 0 when there is
    none."""
    length = blank_size(os.pread(file.fileno(), HEAD_LEN, at)) if at >= 0 else None
    return at + length if length is not None and HEAD_LEN <= length <= _MOST else 0


def piece_of(file: BinaryIO, begin: int) -> Piece:
    """Returns the piece of a segment's bytes alone, without reading its records. Raises:
    OSError."""
    fd = file.fileno()
    size = os.fstat(fd).st_size
    end = max((at + count for at, count in data_ranges(fd, 0, size)), default=0)
    data = os.pread(fd, min(_BACK, end), end - min(_BACK, end)).rstrip(b"\0")
    if data or end <= _BACK:
        end = max(0, end - _BACK) + len(data)
    return Piece(begin, size, end, blank_end(file, end - HEAD_LEN))
