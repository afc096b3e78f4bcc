"""The revive topic: check points and acknowledgements as records of the log, and what they tell
after a start (docs/internals/pop.md#recovery; upstream PopReviveService)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker.remoting.popped import Key, Popped
from broker.remoting.safe_log import SafeLogger
from broker.services.names import REVIVE_PREFIX
from broker.services.pop.checkpoints import (
    Acknowledged,
    CheckPoint,
    parse_ack,
    parse_ck,
)
from pystore import Message, Store
from pystore.errors import StoreError
from pystore.timers import Timers

__all__ = ["REVIVE_GROUP", "Found", "ReviveLog", "revive_topic"]

log = SafeLogger("broker.pop")

#: Whose offsets say how far the revive topic is done with.
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
_BATCH = 256


def revive_topic(cluster: str) -> str:
    return REVIVE_PREFIX + cluster


@dataclass(slots=True)
class Found:
    """What the log says of check points. open: those with messages that are not acknowledged.
    places: where the record of each of them lies in the log. popped: next offset to pop of each
    (group, topic, queue), by the records after `since`."""

    open: list[CheckPoint] = field(default_factory=list)
    places: dict[Key, int] = field(default_factory=dict)
    popped: dict[tuple[str, str, int], int] = field(default_factory=dict)
    records: int = 0
    unreadable: int = 0


class ReviveLog:
    """Puts the records, and reads them."""

    def __init__(self, store: Store, topic: str, popped: Popped) -> None:
        """popped: whose records go to this topic."""
        self.topic = topic
        self._store, self._popped = store, popped

    @property
    def end(self) -> int:
        """Of the last record that was put."""
        return self._popped.end

    # ---- writing ----

    def open(self, ck: CheckPoint) -> int:
        """Puts its record; it is open from now on. The end of the record in the log, 0: there is
        one with its key. Raises: what putting raises; it is not open then."""
        end = self._popped.open(ck.row)
        self._store.learn_queue(self.topic, ck.revive_queue)
        return end

    def put_ack(self, ck: CheckPoint, offsets: Sequence[int]) -> int:
        """The end of its record in the log. Raises: what putting raises."""
        return self._popped.put_ack(ck.row, offsets)

    # ---- reading ----

    def find(self, timers: Timers, done: Callable[[int], int], since: int) -> Found:
        """All that is open. done: the next offset of a revive queue that is not done with. since:
        offset of the log up to which offsets of consumers are known to be on the disk.

        Nothing may be delivered meanwhile. Raises: StoreError.
        """
        found = Found()
        points: dict[object, CheckPoint] = {}
        acks: list[Acknowledged] = []
        for message, said in self._pending(timers, done):
            found.records += 1
            self._take(message, said, found, points, acks, since)
        for ack in acks:
            ck = points.get(ack.key)
            if ck is not None:
                for offset in ack.offsets:
                    if offset in ck.offsets:
                        ck.acked |= 1 << ck.offsets.index(offset)
        found.open = [ck for ck in points.values() if ck.open]
        return found

    def _take(
        self, message: Message, said: Mapping[str, str], found: Found,
        points: dict[object, CheckPoint], acks: list[Acknowledged], since: int,
    ) -> None:  # fmt: skip
        """said: its properties."""
        try:
            if said.get("TAGS") == "ck":
                revive_queue = int(said.get("REAL_QID", message.queue))
                ck = parse_ck(bytes(message.body), revive_queue)
                points[ck.key] = ck
                place = message.physical_offset
                found.places[ck.key] = min(place, found.places.get(ck.key, place))
                if message.physical_offset >= since:
                    queue = ck.group, ck.topic, ck.queue
                    after = ck.offsets[-1] + 1
                    found.popped[queue] = max(after, found.popped.get(queue, 0))
            elif said.get("TAGS") in ("ack", "bAck"):
                acks.append(parse_ack(bytes(message.body)))
        except (ValueError, StoreError) as bad:
            if not found.unreadable:
                log.warning("Skipped a record of %s: %s", self.topic, bad)
            found.unreadable += 1

    def _pending(
        self, timers: Timers, done: Callable[[int], int]
    ) -> Iterator[tuple[Message, Mapping[str, str]]]:
        """Records that wait for their time, then those whose time has come; their properties,
        which a message reads anew each time."""
        while timers.run(most=1, now_ms=1).more:
            pass  # it reads what came after its state was saved; nothing is due in 1970
        for timer in timers.of_pop():  # there may be millions of others
            if timer.physical >= 0:
                message = self._store.message(timer.physical)
                said = message.properties
                if said.get("REAL_TOPIC") == self.topic:
                    yield message, said
        for queue in self._store.queues(self.topic):
            for message in self.records(queue.queue, max(done(queue.queue), queue.min_offset)):
                yield message, message.properties

    def records(self, queue: int, offset: int, most: int | None = None) -> Iterator[Message]:
        """Those of one revive queue from an offset on."""
        at, end = offset, self._store.range(self.topic, queue)[1]
        if most is not None:
            end = min(end, offset + most)
        while at < end:
            batch = self._store.read(self.topic, queue, at, max_messages=_BATCH)
            yield from (message for message in batch if message.queue_offset < end)
            if batch.next_offset <= at:
                return
            at = batch.next_offset

    def checkpoint_of(self, message: Message) -> CheckPoint | None:
        """The check point that a record is; None: it is none."""
        if message.properties.get("TAGS") != "ck":
            return None
        try:
            return parse_ck(bytes(message.body), message.queue)
        except (ValueError, StoreError):
            return None

    def range(self, queue: int) -> tuple[int, int]:
        return self._store.range(self.topic, queue)
