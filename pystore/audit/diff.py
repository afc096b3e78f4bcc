"""What one of two stores has and the other has not: by place in the queues, and by content."""

from __future__ import annotations

import os
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pystore._messages import Message
from pystore._reading import Reader

__all__ = ["Difference", "OffsetRange", "diff"]

_Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Consecutive queue offsets of one queue, from `start` up to but not including `end`."""

    topic: str
    queue: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Difference:
    """What :func:`diff` found; `a` and `b` name the two stores.

    `only_in_a` and `only_in_b` are messages at queue offsets where the other store has none. For
    `changed` both have a message there, of other content. `content_only_in_a` and
    `content_only_in_b` are messages whose content the other store has nowhere in that topic, or
    fewer times. Content means body CRC and UNIQ_KEY. `records_a` and `records_b` count those that
    were compared."""

    a: str
    b: str
    records_a: int = 0
    records_b: int = 0
    only_in_a: list[OffsetRange] = field(default_factory=list)
    only_in_b: list[OffsetRange] = field(default_factory=list)
    changed: list[OffsetRange] = field(default_factory=list)
    content_only_in_a: list[OffsetRange] = field(default_factory=list)
    content_only_in_b: list[OffsetRange] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Returns whether both hold the same messages at the same queue offsets."""
        return not (self.only_in_a or self.only_in_b or self.changed)

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        return {**asdict(self), "same": self.same}


class _Contents:
    """Takes 16 bytes a message: queue offset and a number for its content, queue by queue."""

    def __init__(self) -> None:
        self.offsets: dict[_Queue, array[int]] = {}
        self.marks: dict[_Queue, array[int]] = {}
        self.records = 0

    def add(self, m: Message) -> None:
        queue = (m.topic, m.queue)
        if queue not in self.offsets:
            self.offsets[queue], self.marks[queue] = array("q"), array("Q")
        self.offsets[queue].append(m.queue_offset)
        self.marks[queue].append(_mark(m))
        self.records += 1

    def of(self, queue: _Queue) -> dict[int, int]:
        """Returns content by queue offset."""
        return dict(zip(self.offsets.get(queue, ()), self.marks.get(queue, ()), strict=True))

    def counts(self, topic: str) -> Counter[int]:
        """Returns how often each content is in a topic."""
        found: Counter[int] = Counter()
        for (name, _), marks in self.marks.items():
            if name == topic:
                found.update(marks)
        return found


def _mark(m: Message) -> int:
    """Returns 64 bits of body CRC and UNIQ_KEY. The CRC is computed, since that of a record may be
    damaged."""
    key = m.uniq_key
    return zlib.crc32(m.raw_body) << 32 | (zlib.crc32(key.encode()) if key else 0)


def _ranges(queue: _Queue, offsets: list[int]) -> Iterator[OffsetRange]:
    """Returns sorted offsets as ranges."""
    start = 0
    for i in range(1, len(offsets) + 1):
        if i == len(offsets) or offsets[i] != offsets[i - 1] + 1:
            yield OffsetRange(*queue, offsets[start], offsets[i - 1] + 1)
            start = i


def _excess(mine: _Contents, other: _Contents) -> Iterator[OffsetRange]:
    """Returns the messages whose content the other lacks; of several alike, the last in queue
    order."""
    for topic in sorted({name for name, _ in mine.offsets}):
        more = mine.counts(topic) - other.counts(topic)
        if not more:
            continue
        for queue in sorted((q for q in mine.offsets if q[0] == topic), reverse=True):
            lacking = []
            for offset, mark in sorted(mine.of(queue).items(), reverse=True):
                if more[mark] > 0:
                    more[mark] -= 1
                    lacking.append(offset)
            yield from _ranges(queue, lacking[::-1])


def _read(
    path: str | os.PathLike[str],
    conf: str | os.PathLike[str] | None,
    topics: frozenset[str],
    progress: Callable[[str, int, int], None] | None,
    settings: dict[str, Any],
) -> _Contents:
    found = _Contents()
    with Reader(path, conf, **settings) as reader:
        info = reader.info()
        for m in reader.messages():
            if not topics or m.topic in topics:
                found.add(m)
            if progress is not None:
                progress(str(path), m.physical_offset - info.log_min, info.log_max - info.log_min)
    return found


def diff(
    a: str | os.PathLike[str], b: str | os.PathLike[str],
    conf: str | os.PathLike[str] | None = None, *, topics: frozenset[str] = frozenset(),
    progress: Callable[[str, int, int], None] | None = None, **settings: Any,
) -> Difference:  # fmt: skip
    """Compares the messages in the logs of two stores; both may be live, and neither changes.

    `topics` limits it to these; empty means all. `progress` gets the path of the store that is
    read, the bytes done and the bytes in all. It takes 16 bytes of memory a message, and some
    hundred for each of the largest topic. Raises: NotAStore, RecordDamaged, StoreIOError."""
    mine = _read(a, conf, topics, progress, settings)
    other = _read(b, conf, topics, progress, settings)
    result = Difference(str(Path(a)), str(Path(b)), mine.records, other.records)
    for queue in sorted(mine.offsets.keys() | other.offsets.keys()):
        in_a, in_b = mine.of(queue), other.of(queue)
        result.only_in_a += _ranges(queue, sorted(in_a.keys() - in_b.keys()))
        result.only_in_b += _ranges(queue, sorted(in_b.keys() - in_a.keys()))
        both = sorted(in_a.keys() & in_b.keys())
        result.changed += _ranges(queue, [at for at in both if in_a[at] != in_b[at]])
    result.content_only_in_a = sorted(_excess(mine, other), key=_place)
    result.content_only_in_b = sorted(_excess(other, mine), key=_place)
    return result


def _place(r: OffsetRange) -> tuple[str, int, int]:
    return (r.topic, r.queue, r.start)
