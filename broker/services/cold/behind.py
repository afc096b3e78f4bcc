"""What of the store the tier does not have: which queues, up to where they are safe, and from which
byte of the log on it must stay."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from broker.services.cold.handle import TierHandle
from pystore import QueueInfo, Store
from pystore.cold.places import is_kept
from pystore.store import hosting

__all__ = ["Behind", "BehindQueue", "Lack"]


class Lack(NamedTuple):
    """What the tier does not have. bytes: of the log, from the first of it on. oldest_ms: its
    oldest store time; 0: nothing is lacking."""

    bytes: int = 0
    messages: int = 0
    queues: int = 0
    oldest_ms: int = 0


@dataclass(slots=True)
class BehindQueue:
    """A queue of which the tier lacks something. info: as it was when it was safe. since_s: on the
    monotonic clock. record: bytes of its next record, by which the rest is estimated. place: where
    that record begins in the log. at: its queue offset. stored_ms: its store time."""

    info: QueueInfo
    since_s: float
    at: int = -1
    place: int = -1
    record: int = 0
    stored_ms: int = -1

    @property
    def count(self) -> int:
        return self.info.max_offset - self.at

    @property
    def size(self) -> int:
        """Bytes that wait, about."""
        return self.count * self.record


@dataclass(frozen=True, slots=True)
class _QueueEnds:
    """Queues as they were. below: they have every record below this byte of the log. end: none of
    their records goes beyond it."""

    queues: list[QueueInfo]
    below: int
    end: int


class Behind:
    """Knows only what is settled (hosting.is_settled). It belongs to one thread; others may ask for
    out_to."""

    def __init__(self, store: Store, handle: TierHandle, cluster: str, broker: str) -> None:
        self._store, self._handle = store, handle
        self._names = cluster, broker
        #: What was there, and is not settled yet; and what is.
        self._next: _QueueEnds | None = None
        self._settled: _QueueEnds | None = None
        #: Queues that are those of the tier, and up to which offset that was found.
        self._same: dict[tuple[str, int], int] = {}
        self.queues: dict[tuple[str, int], BehindQueue] = {}

    def look(self) -> None:
        """Takes over what has become safe since the last time. Raises: StoreError."""
        if self._next is None:
            below, queues = self._store.info().dispatched, self._store.queues()
            self._next = _QueueEnds(queues, below, self._store.info().log_max)
        if hosting.is_settled(self._store, self._next.end):
            settled, self._next = self._next, None
            self.queues = self._compared(settled)
            self._settled = settled  # last: a border ahead of the queues would lose messages

    def _compared(self, settled: _QueueEnds) -> dict[tuple[str, int], BehindQueue]:
        now_s, found = time.monotonic(), {}
        if len(self._same) > len(settled.queues):  # topics were deleted
            there = {(info.topic, info.queue) for info in settled.queues}
            self._same = {place: end for place, end in self._same.items() if place in there}
        for info in settled.queues:
            if not is_kept(info.topic, *self._names):
                continue
            place = info.topic, info.queue
            behind = self.queues.get(place) or BehindQueue(info, now_s)
            behind.info = info
            if self._find_next(behind):
                found[place] = behind
        return found

    def _find_next(self, behind: BehindQueue) -> bool:
        """Finds the first record that the tier lacks; False: it lacks nothing that is there."""
        info = behind.info
        at = max(self._out_of(info), info.min_offset)
        if at == behind.at:
            return at < info.max_offset
        if behind.at >= 0:
            behind.since_s = time.monotonic()
        while at < info.max_offset:
            batch = self._store.read(info.topic, info.queue, at, max_messages=1)
            if batch:
                first = batch[0]
                behind.at, behind.place = first.queue_offset, first.physical_offset
                behind.record, behind.stored_ms = first.size, first.store_timestamp
                return behind.at < info.max_offset
            if batch.next_offset <= at:
                break
            at = batch.next_offset
        return False

    def _out_of(self, info: QueueInfo) -> int:
        """Returns the queue offset up to which the tier has a queue: nothing of it where the tier
        has another one under that name. Raises: StoreError."""
        place = info.topic, info.queue
        span = self._handle.span(*place)
        if span is None or place in self._handle.damaged:  # what is there is not known
            return 0
        if self._same.get(place) != span.end:
            if not self._handle.is_same(info):
                self._same.pop(place, None)
                return 0
            self._same[place] = span.end
        return span.end

    def took(self, topic: str, queue: int) -> None:
        """Looks at a queue again of which something was written out. Raises: StoreError."""
        behind = self.queues.get((topic, queue))
        if behind is not None and not self._find_next(behind):
            del self.queues[topic, queue]

    @property
    def out_to(self) -> int:
        """The byte of the log up to which everything is out that is to be; 0 while that is not
        known."""
        if self._settled is None or self._handle.looked_s is None:
            return 0
        below = self._settled.below
        return min([below, *(each.place for each in list(self.queues.values()))])

    def lack(self) -> Lack:
        found, end = self.queues.values(), self._store.info().log_max
        return Lack(
            bytes=end - self.out_to,
            messages=sum(each.count for each in found),
            queues=len(found),
            oldest_ms=min((each.stored_ms for each in found), default=0),
        )
