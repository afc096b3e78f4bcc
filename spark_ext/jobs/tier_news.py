"""What of a cold tier an archive does not have: offsets of its queues, as the manifests say.

A queue is known again by the last message that the archive has of it. One of this name that has
another message there is of a topic that was deleted and made again: all of it is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pystore.cli.verbs import usage
from pystore.cold.ahead import in_order
from pystore.cold.manifest import Manifest
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier
from spark_ext.jobs.runs import QueueReach
from spark_ext.plan import RANGES_MAX

__all__ = ["QueueNews", "packed", "queue_news"]

#: Last messages that are fetched side by side.
_AT_ONCE = 16
#: Of records that a task reads, at most: a task that fails is repeated.
_PART_MAX = 128 << 20


class OffsetPiece(NamedTuple):
    """Offsets [first, end) of a segment, and bytes of its records."""

    first: int
    end: int
    size: int


class QueueNews(NamedTuple):
    """Offsets [start, end) of a queue that no run has. pieces: those of them that are there."""

    topic: str
    queue: int
    start: int
    end: int
    pieces: list[OffsetPiece]

    @property
    def size(self) -> int:
        """Bytes of the segments' records."""
        return sum(piece.size for piece in self.pieces)

    @property
    def missing(self) -> int:
        """How many of the offsets are not there."""
        return self.end - self.start - sum(end - first for first, end, _ in self.pieces)

    @property
    def first_missing(self) -> int:
        at = self.start
        for first, end, _ in self.pieces:
            if first > at:
                break
            at = end
        return at


def queue_news(
    reader: ColdReader, reached: Mapping[tuple[str, int], QueueReach], *, begun: bool
) -> Iterator[QueueNews]:
    """Yields what is new of each queue that has something new. reached: how far the archive has
    them. begun: it has a run.

    Raises: BadArgument for a tier that RocketMQ wrote, and for a queue that is not known again,
    TierDamaged, TierUnreachable."""
    tier = reader.tier
    if not isinstance(tier, Tier):
        raise usage(
            "RocketMQ wrote this tier, which has no manifests",
            "copy it by `pystore cold fetch`, and archive the copy",
        )

    def start_of(manifest: Manifest) -> int:
        known = reached.get((manifest.topic, manifest.queue))
        if known is None:  # the first run begins with what there is
            return 0 if begun else manifest.start
        return _goes_on(reader, manifest, known)

    for manifest, start in in_order(start_of, tier.load_all(), _AT_ONCE):
        if start < manifest.end:
            low = max(start, manifest.start)
            pieces = [OffsetPiece(max(low, row.first), row.end, row.records)
                      for row in tier.rows(manifest, low, manifest.end)]  # fmt: skip
            yield QueueNews(manifest.topic, manifest.queue, start, manifest.end, pieces)


def _goes_on(reader: ColdReader, manifest: Manifest, known: QueueReach) -> int:
    """Returns the first offset of a queue that the archive does not have. Raises: BadArgument where
    nobody can tell, TierDamaged, TierUnreachable."""
    last = known.end - 1
    if (manifest.end, manifest.last_end) == (known.end, known.place + known.size):
        return known.end  # nothing was written out since
    if manifest.start > last:
        return known.end  # what was archived no longer exists
    if last < manifest.end:
        for m in reader.read(manifest.topic, manifest.queue, last, max_messages=1):
            if m.queue_offset == last:
                same = (m.store_timestamp, m.body_crc) == (known.stored_ms, known.crc)
                return known.end if same else 0
    if manifest.times[0] > known.stored_ms:
        return 0
    if manifest.end <= last:  # it was taken away, and is written out again
        return manifest.end
    raise usage(
        f"the archive ends at offset {last} of {manifest.topic}/{manifest.queue}, whose message"
        f" cannot be read: it is not known whether the queue is the same one",
        "see `pystore cold verify`; or name another directory for this tier",
    )


def packed(news: list[QueueNews], goal: int) -> Iterator[tuple[tuple[str, int, int, int], ...]]:
    """Yields ranges for tasks of about `goal` bytes each; a segment is of one task."""
    goal = min(goal, _PART_MAX)
    part: list[tuple[str, int, int, int]] = []
    size = 0
    for each in news:
        for first, end, records in each.pieces:
            if part and (size + records > goal or len(part) == RANGES_MAX):
                yield tuple(part)
                part, size = [], 0
            if part and part[-1][:2] == (each.topic, each.queue) and part[-1][3] == first:
                part[-1] = (*part[-1][:3], end)
            else:
                part.append((each.topic, each.queue, first, end))
            size += records
    if part:
        yield tuple(part)
