"""The revive topic: check points and acknowledgements as records of the log, and what they tell
after a start (docs/internals/pop.md#recovery; upstream PopReviveService)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.hot.check_points import BATCH_MAX, NAME_MAX, CheckPoint, CheckPoints, Key
from broker.hot.ordered import ORDER_TAG
from broker.loop.safe_log import SafeLogger
from broker.wire.jsonbody import INT, LONG, TEXT, JsonMember, Shape, listed, required
from pystore import Message, Store
from pystore.errors import StoreError
from pystore.format.names import REVIVE_PREFIX
from pystore.store import hosting
from pystore.store.timers import Timers

__all__ = ["AckRecord", "CheckPointScan", "ReviveLog", "read_record", "revive_topic"]

log = SafeLogger("broker.pop")

_BATCH = 256


def revive_topic(cluster: str) -> str:
    return REVIVE_PREFIX + cluster


_NUMBER = JsonMember(LONG, -1)
_QUEUE_MAX = 65535
_LONG_MAX = (1 << 63) - 1


class AckRecord(NamedTuple):
    """What an acknowledgement's record says; `key` is that of its check point."""

    key: Key
    offsets: tuple[int, ...]


# ---- records ----

_CK = Shape(
    t=required(TEXT), c=required(TEXT), q=JsonMember(INT, 0), so=_NUMBER, pt=_NUMBER, it=_NUMBER,
    n=JsonMember(INT, 0), d=listed(INT, BATCH_MAX), bm=JsonMember(INT, 0),
)  # fmt: skip
_ACK = Shape(
    t=TEXT, topic=TEXT, c=TEXT, consumerGroup=TEXT, q=JsonMember(INT), queueId=JsonMember(INT),
    so=JsonMember(LONG), startOffset=JsonMember(LONG), ao=JsonMember(LONG),
    ackOffset=JsonMember(LONG),
    pt=JsonMember(LONG), popTime=JsonMember(LONG), aol=listed(LONG), ackOffsetList=listed(LONG),
)  # fmt: skip
_LONG_NAMES = {
    "t": "topic", "c": "consumerGroup", "q": "queueId", "so": "startOffset", "ao": "ackOffset",
    "pt": "popTime", "aol": "ackOffsetList",
}  # fmt: skip


def _parse_ck(body: bytes, revive_queue: int) -> CheckPoint:
    """Reads a check point. Raises: ValueError for a malformed body."""
    said = _CK.loads(body)
    count = said["n"]
    if min(said["so"], said["pt"], said["it"], said["q"]) < 0 or not 0 < count <= BATCH_MAX:
        raise ValueError("a number of the check point is out of its range")
    if not all(0 < len(said[name].encode()) <= NAME_MAX for name in ("t", "c")):
        raise ValueError("a name of the check point is empty or too long")
    if said["q"] > _QUEUE_MAX or not 0 <= revive_queue <= _QUEUE_MAX:
        raise ValueError("a queue of the check point is out of its range")
    distances = said["d"] or range(count)
    if list(distances) != sorted(set(distances)) or distances[0] < 0:
        raise ValueError("the offsets of the check point do not ascend")
    if max(said["so"] + distances[-1], said["pt"] + said["it"]) > _LONG_MAX:
        raise ValueError("a number of the check point is out of its range")
    found = CheckPoint(
        said["t"], said["c"], said["q"], said["so"], said["pt"], said["it"], revive_queue,
        tuple(said["so"] + each for each in distances),
    )  # fmt: skip
    found.acked = said["bm"] & (1 << len(found.offsets)) - 1
    return found


def _named_by(message: Message) -> Key | None:
    """Returns the key that the UNIQ_KEY of a check point's record says, which is quicker to read
    than the body, or None when it is not of the form that brokers write: topic, queue, offset,
    group, pop time, broker and ``ck`` with an @ between."""
    parts = message.properties.get("UNIQ_KEY", "").split("@")
    if len(parts) != 7 or parts[6] != "ck":
        return None
    try:
        return Key(parts[0], parts[3], int(parts[1]), int(parts[2]), int(parts[4]))
    except ValueError:
        return None


def _parse_ack(body: bytes) -> AckRecord:
    """Reads an acknowledgement. Raises: ValueError for a malformed body."""
    raw = _ACK.loads(body)
    said = {
        short: raw[long] if raw[short] in (None, ()) else raw[short]
        for short, long in _LONG_NAMES.items()
    }
    if any(said[name] is None for name in ("t", "c", "q", "so", "pt")):
        raise ValueError("the acknowledgement does not name its check point")
    offsets = tuple(said["aol"]) or ((said["ao"],) if said["ao"] is not None else ())
    key = Key(said["t"], said["c"], said["q"], said["so"], said["pt"])
    return AckRecord(key, offsets)


def read_record(tag: str, body: bytes, revive_queue: int) -> CheckPoint | AckRecord:
    """Reads a record by its tag. Raises: ValueError for a malformed one."""
    if tag not in ("ck", "ack", "bAck"):
        raise ValueError(f"there is no record {tag:.20}")
    return _parse_ck(body, revive_queue) if tag == "ck" else _parse_ack(body)


_BROKER = Shape(bn=TEXT)


def is_of_another(message: Message, body: bytes, broker: str) -> bool:
    """Says whether the record speaks of another broker's messages, whose slave, one of Java's, put
    it here while it acted. What a broker wrote itself is its own whatever its name was then: it was
    born where it was stored. Raises: ValueError for a malformed body."""
    name = _BROKER.loads(body)["bn"]
    return bool(name) and name != broker and message.born_host != message.store_host


@dataclass(slots=True)
class CheckPointScan:
    """What the log says of check points. `open` are those with messages that are not acknowledged,
    and `places` the log offsets of their records. `popped` has the next offset to pop of each
    (group, topic, queue), by the records after `since`. `foreign`: records of other brokers."""

    open: list[CheckPoint] = field(default_factory=list)
    places: dict[Key, int] = field(default_factory=dict)
    popped: dict[tuple[str, str, int], int] = field(default_factory=dict)
    records: int = 0
    unreadable: int = 0
    foreign: int = 0


class ReviveLog:
    """Puts the records of check points, and reads them."""

    def __init__(self, store: Store, topic: str, points: CheckPoints, broker: str) -> None:
        """Takes the check points. points: whose records go to this topic. broker: the name of this
        one."""
        self.topic, self._broker = topic, broker
        self._own_name = b'"bn":"%s"' % broker.encode()
        self._store, self._points = store, points

    @property
    def end(self) -> int:
        """Returns the end of the last record that was put."""
        return self._points.end

    # ---- writing ----

    def open(self, ck: CheckPoint) -> int:
        """Puts the record of a check point, which is open from now on. Returns the end of the
        record in the log, or 0 when there is one with its key. Raises: what putting raises; it is
        not open then."""
        end = self._points.open(ck)
        hosting.learn_queue(self._store, self.topic, ck.revive_queue)
        return end

    # ---- reading ----

    def find(self, timers: Timers, done: Callable[[int], int], since: int) -> CheckPointScan:
        """Returns all that is open. done: the next offset of a revive queue that is not done with.
        since: the log offset up to which offsets of consumers are known to be on the disk.

        Nothing may be delivered meanwhile. Raises: StoreError."""
        found = CheckPointScan()
        points: dict[object, CheckPoint] = {}
        acks: list[AckRecord] = []
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
        if found.foreign:
            log.warning("Passed over %d records of %s: of messages of other brokers, whose slaves"
                        " put them here", found.foreign, self.topic)  # fmt: skip
        return found

    def _take(
        self, message: Message, said: Mapping[str, str], found: CheckPointScan,
        points: dict[object, CheckPoint], acks: list[AckRecord], since: int,
    ) -> None:  # fmt: skip
        """Takes a record. said: its properties."""
        try:
            tag = said.get("TAGS", "")
            if tag not in ("ck", "ack", "bAck"):
                return
            body = bytes(message.body)
            if self._own_name not in body and is_of_another(message, body, self._broker):
                found.foreign += 1
                return
            ck = read_record(tag, body, int(said.get("REAL_QID", message.queue)))
            if isinstance(ck, AckRecord):
                acks.append(ck)
            else:
                points[ck.key] = ck
                place = message.physical_offset
                found.places[ck.key] = min(place, found.places.get(ck.key, place))
                if message.physical_offset >= since:
                    queue = ck.group, ck.topic, ck.queue
                    after = ck.offsets[-1] + 1
                    found.popped[queue] = max(after, found.popped.get(queue, 0))
        except (ValueError, StoreError) as bad:
            if not found.unreadable:
                log.warning("Skipped a record of %s: %s", self.topic, bad)
            found.unreadable += 1

    def _pending(
        self, timers: Timers, done: Callable[[int], int]
    ) -> Iterator[tuple[Message, Mapping[str, str]]]:
        """Yields records that wait for their time, then those whose time has come, with their
        properties, which a message reads again each time."""
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

    def check_points(self, queue: int, offset: int, most: int) -> Iterator[tuple[int, Key]]:
        """Yields the keys of the check points among so many records of one revive queue from an
        offset on, each with the offset of its record. Acknowledgements, of which there are more,
        are passed over by the store."""
        for message in self.records(queue, offset, most, tags="ck"):
            key = _named_by(message) or self._key_of(message)
            if key is not None:
                yield message.queue_offset, key

    def _key_of(self, message: Message) -> Key | None:
        ck = self.checkpoint_of(message)
        return ck.key if ck is not None else None

    def order_changes(self, since: int) -> Iterator[bytes]:
        """Yields what changed of ordered batches, by the records from this place of the log on: the
        core puts them all into queue 0 (csrc/pop/orderlog.c). Raises: StoreError."""
        low, high = self._store.range(self.topic, 0)
        while low < high:
            middle = (low + high) // 2
            if self._store.units(self.topic, 0, middle, 1)[0][0] < since:
                low = middle + 1
            else:
                high = middle
        for message in self.records(0, low, tags=ORDER_TAG):
            yield bytes(message.body)

    def records(
        self, queue: int, offset: int, most: int | None = None, tags: str | None = None
    ) -> Iterator[Message]:
        """Yields the records of one revive queue from an offset on."""
        at, end = offset, self._store.range(self.topic, queue)[1]
        if most is not None:
            end = min(end, offset + most)
        while at < end:
            batch = self._store.read(self.topic, queue, at, max_messages=_BATCH, tags=tags)
            yield from (message for message in batch if message.queue_offset < end)
            if batch.next_offset <= at:
                return
            at = batch.next_offset

    def checkpoint_of(self, message: Message) -> CheckPoint | None:
        """Returns the check point that a record is, or None when it is another one."""
        if message.properties.get("TAGS") != "ck":
            return None
        try:
            return _parse_ck(bytes(message.body), message.queue)
        except (ValueError, StoreError):
            return None

    def range(self, queue: int) -> tuple[int, int]:
        return self._store.range(self.topic, queue)
