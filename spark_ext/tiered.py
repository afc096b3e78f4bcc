"""A store and its cold tier as one: each queue from the tier's first message to the store's newest.

An offset that both have is read in the store. Retention goes on meanwhile: which of the two has an
offset is asked again by each plan, and by each task as it comes there (batch.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from pystore import QueueInfo
from pystore.cold.push import continues
from pystore.cold.tier import Tier
from spark_ext.errors import SourceError

if TYPE_CHECKING:
    import pystore
    from pystore.cold.reader import ColdReader

__all__ = ["Side", "TieredReader", "check_seams", "is_tiered", "sides"]

#: A reader of a store or of a tier, and offsets [start, end) that are read there.
Side = tuple["pystore.Reader", int, int]
#: The tier is listed once in so many seconds. In between its segments may have become more, which
#: the store has as well, or fewer, whose objects stay for a day.
LISTED_S = 60.0


class TieredReader:
    """Both readers. What is not said here is the store's: its log, its units, its settings."""

    def __init__(self, hot: pystore.Reader, cold: ColdReader) -> None:
        self.hot = hot
        self.cold = cold
        self._list_at = time.monotonic() + LISTED_S
        #: Queues whose seam is sound: what the tier ended with, and the store began with, then.
        self._sound: dict[tuple[str, int], tuple[int, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hot, name)

    def refresh(self) -> None:
        """Looks for what is new in the store, and now and then in the tier: at once where the store
        has let go what the tier did not have before."""
        self.hot.refresh()
        if time.monotonic() >= self._list_at or any(map(self._gap, self._sound)):
            self.cold.refresh()
            self._list_at = time.monotonic() + LISTED_S
            self.hot.refresh()  # a tier is never ahead of a store that is looked at after it

    def _gap(self, queue: tuple[str, int]) -> bool:
        """Says whether the store has let go more of a queue, and the tier is not known to have it.
        A gap that stays is looked into once."""
        end, low = self._sound[queue]
        return end < self.hot.range(*queue)[0] != low

    def topics(self) -> list[str]:
        return sorted({*self.hot.topics(), *(topic for topic, _ in self.cold.tier.queues())})

    def queues(self, topic: str | None = None) -> list[QueueInfo]:
        """Returns every queue of either, from its first to its last message."""
        found = {(q.topic, q.queue): q for q in self.hot.queues(topic)}
        for old in self.cold.queues(topic):
            key = old.topic, old.queue
            new = found.get(key)
            if old.min_offset < old.max_offset and (new is None or old.min_offset < new.min_offset):
                end = old.max_offset if new is None else max(new.min_offset, new.max_offset)
                found[key] = QueueInfo(*key, old.min_offset, end, -1)
        return [found[key] for key in sorted(found)]

    def range(self, topic: str, queue: int) -> tuple[int, int]:
        low, high = self.hot.range(topic, queue)
        first, last = self.cold.range(topic, queue)
        if first >= last:
            return low, high
        return (first, last) if high == 0 else (min(first, low), high)

    def sides(self, topic: str, queue: int, start: int, end: int) -> list[Side]:
        """Returns where offsets [start, end) are read: those that the store no longer has in the
        tier."""
        low, high = self.hot.range(topic, queue)
        middle = end if high == 0 else min(max(start, low), end)
        parts: list[Side] = [(self.cold, start, middle), (self.hot, middle, end)]
        return [part for part in parts if part[1] < part[2]] or [(self.hot, start, end)]

    def read(self, topic: str, queue: int, offset: int, **more: Any) -> pystore.Batch:
        return self.sides(topic, queue, offset, offset + 1)[0][0].read(topic, queue, offset, **more)

    def offset_at(self, topic: str, queue: int, timestamp: int) -> int:
        """Returns the first offset stored at or after `timestamp`, in ms."""
        side, start, end = self.sides(topic, queue, *self.range(topic, queue))[0]
        if side is self.cold:
            found = self.cold.offset_at(topic, queue, timestamp)
            if start <= found < end:
                return found
        return self.hot.offset_at(topic, queue, timestamp)

    def query(self, topic: str, key: str) -> list[pystore.Message]:
        """Returns the messages with a key, the store's where both have one."""
        found = self.hot.query(topic, key)
        there = {(m.queue, m.queue_offset) for m in found}
        old = self.cold.query(topic, key) if self.cold.queues(topic) else []
        return [*(m for m in old if (m.queue, m.queue_offset) not in there), *found]

    def check_seam(self, topic: str, queue: int) -> None:
        """Checks that the tier has the beginning of this queue, and not of one that had its name
        before. Raises: SourceError."""
        end = self.cold.range(topic, queue)[1]
        low, high = self.hot.range(topic, queue)
        if self._sound.get((topic, queue), (-1, -1))[0] != end:
            if 0 < high < end:
                self.hot.refresh()  # it was opened before the tier was listed
                low, high = self.hot.range(topic, queue)
            if high and not self._goes_on(topic, queue, end, low, high):
                raise SourceError(
                    f"{topic}/{queue} of {self.hot.path} is not the queue that {self.cold.address}"
                    f" has up to offset {end}: its topic was deleted and made again, or that is"
                    " another store's tier; leave out option tier, or name other topics"
                )
        self._sound[topic, queue] = end, low

    def _goes_on(self, topic: str, queue: int, end: int, low: int, high: int) -> bool:
        tier = self.cold.tier
        if isinstance(tier, Tier):
            here = QueueInfo(topic, queue, low, high, -1)
            return continues(self.hot, tier.manifest(topic, queue), here)
        if not low < end <= high:
            return end <= high
        ours, theirs = (
            [(m.store_timestamp, m.body_crc) for m in reader.read(topic, queue, end - 1)[:1]]
            for reader in (self.hot, self.cold)
        )
        return not ours or ours == theirs

    def close(self) -> None:
        """Closes the store's reader; the tier's is others' too."""
        self.hot.close()


def is_tiered(reader: object) -> TypeGuard[TieredReader]:
    """Says whether a reader is of a store and its tier."""
    return isinstance(reader, TieredReader)


def sides(reader: pystore.Reader, topic: str, queue: int, start: int, end: int) -> list[Side]:
    """Returns which readers have offsets [start, end) of a queue, in order; at least one."""
    if is_tiered(reader):
        return reader.sides(topic, queue, start, end)
    return [(reader, start, end)]


def check_seams(reader: pystore.Reader, queues: Iterable[tuple[str, int]]) -> None:
    """Checks that queues, topic and number of each, go on in the store where they end in its tier.
    Raises: SourceError."""
    if is_tiered(reader):
        for topic, queue in queues:
            reader.check_seam(topic, queue)
