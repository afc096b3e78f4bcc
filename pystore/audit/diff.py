"""What one of two stores has and the other has not: by place in the queues, and by content."""

from __future__ import annotations

import os
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pystore.store._messages import Message
from pystore.store._reading import Reader

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
    `changed` both have a message there, of another body, flag or properties. `content_only_in_a`
    and `content_only_in_b` are messages whose content the other store has nowhere in that topic, or
    fewer times. Content means body CRC and UNIQ_KEY. `records_a` and `records_b` count those that
    were compared. `parts_at` is the first byte of the logs, from where both have one on, at which
    they do not hold the same message; None when there is none."""

    a: str
    b: str
    records_a: int = 0
    records_b: int = 0
    only_in_a: list[OffsetRange] = field(default_factory=list)
    only_in_b: list[OffsetRange] = field(default_factory=list)
    changed: list[OffsetRange] = field(default_factory=list)
    content_only_in_a: list[OffsetRange] = field(default_factory=list)
    content_only_in_b: list[OffsetRange] = field(default_factory=list)
    parts_at: int | None = None

    @property
    def same(self) -> bool:
        """Returns whether both hold the same messages at the same queue offsets."""
        return not (self.only_in_a or self.only_in_b or self.changed)

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        return {**asdict(self), "same": self.same}


class _Contents:
    """Takes 40 bytes a message: queue offset, a number for its content and one for all that a
    client said of it, queue by queue; place and number in the order of the log."""

    def __init__(self) -> None:
        self.offsets: dict[_Queue, array[int]] = {}
        self.marks: dict[_Queue, array[int]] = {}
        self.wholes: dict[_Queue, array[int]] = {}
        self.places, self.row = array("q"), array("Q")
        self.records = 0

    def add(self, m: Message) -> None:
        queue = (m.topic, m.queue)
        if queue not in self.offsets:
            self.offsets[queue], self.marks[queue] = array("q"), array("Q")
            self.wholes[queue] = array("Q")
        whole = _whole(m)
        self.offsets[queue].append(m.queue_offset)
        self.marks[queue].append(_mark(m))
        self.wholes[queue].append(whole)
        self.places.append(m.physical_offset)
        self.row.append(whole)
        self.records += 1

    def all_of(self, queue: _Queue) -> dict[int, int]:
        """Returns the number for all of a message by queue offset."""
        return dict(zip(self.offsets.get(queue, ()), self.wholes.get(queue, ()), strict=True))

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


def _whole(m: Message) -> int:
    """Returns 64 bits of body, flag, properties, topic and queue: what does not depend on where and
    when a broker stored it."""
    said = zlib.crc32(f"{m.topic}/{m.queue}/{m.flag}".encode("utf-8", "surrogatepass"))
    return zlib.crc32(m.raw_body) << 32 | zlib.crc32(m.raw_properties, said)


def _parting(a: _Contents, b: _Contents) -> int | None:
    """Returns the first byte from which on the logs differ, of what both still have."""
    if not a.places or not b.places:
        return next(iter(a.places or b.places), None)
    begin = max(a.places[0], b.places[0])
    i, j = bisect_left(a.places, begin), bisect_left(b.places, begin)
    while i < len(a.places) and j < len(b.places):
        if a.places[i] != b.places[j] or a.row[i] != b.row[j]:
            return min(a.places[i], b.places[j])
        i, j = i + 1, j + 1
    return next(iter(a.places[i : i + 1] or b.places[j : j + 1]), None)


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
    read, the bytes done and the bytes in all. It takes 40 bytes of memory a message, and some
    hundred for each of the largest topic. Raises: NotAStore, RecordDamaged, StoreIOError."""
    mine = _read(a, conf, topics, progress, settings)
    other = _read(b, conf, topics, progress, settings)
    result = Difference(str(Path(a)), str(Path(b)), mine.records, other.records)
    for queue in sorted(mine.offsets.keys() | other.offsets.keys()):
        in_a, in_b = mine.all_of(queue), other.all_of(queue)
        result.only_in_a += _ranges(queue, sorted(in_a.keys() - in_b.keys()))
        result.only_in_b += _ranges(queue, sorted(in_b.keys() - in_a.keys()))
        both = sorted(in_a.keys() & in_b.keys())
        result.changed += _ranges(queue, [at for at in both if in_a[at] != in_b[at]])
    result.parts_at = _parting(mine, other)
    result.content_only_in_a = sorted(_excess(mine, other), key=_place)
    result.content_only_in_b = sorted(_excess(other, mine), key=_place)
    return result


def _place(r: OffsetRange) -> tuple[str, int, int]:
    return (r.topic, r.queue, r.start)
