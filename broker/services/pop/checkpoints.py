"""Check points: batches that were popped and are not yet acknowledged altogether.

The records in the log are upstream's (docs/internals/pop.md#records; PopCheckPoint, AckMsg,
BatchAckMsg); the table of those that are open is derived from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.remoting.jsonbody import INT, LONG, TEXT, Member, Shape, listed, required
from broker.remoting.popped import BATCH_MAX, NAME_MAX, Key, Popped, Row

__all__ = ["Acknowledged", "CheckPoint", "CheckPoints", "parse_ack", "parse_ck"]

_NUMBER = Member(LONG, -1)
_QUEUE_MAX = 65535
_LONG_MAX = (1 << 63) - 1


class CheckPoint:
    """One batch of one queue. offsets: of its messages, ascending. acked: bit i for offsets[i].
    due_ms: when what is not acknowledged comes back; later than its invisible time only after a
    copy could not be written."""

    __slots__ = (
        "acked", "due_ms", "group", "invisible_ms", "offsets", "pop_ms", "queue",
        "revive_queue", "start", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        group: str,
        queue: int,
        start: int,
        pop_ms: int,
        invisible_ms: int,
        revive_queue: int,
        offsets: Sequence[int],
    ) -> None:
        self.topic, self.group, self.queue = topic, group, queue
        self.start, self.pop_ms, self.invisible_ms = start, pop_ms, invisible_ms
        self.revive_queue = revive_queue
        self.offsets = tuple(offsets)
        self.acked = 0
        self.due_ms = pop_ms + invisible_ms

    @property
    def key(self) -> Key:
        return Key(self.topic, self.group, self.queue, self.start, self.pop_ms)

    @property
    def open(self) -> int:
        """How many of its messages are not acknowledged."""
        return len(self.offsets) - self.acked.bit_count()

    def is_open(self, offset: int) -> bool:
        """Whether it is one of its messages, and not acknowledged."""
        offsets = self.offsets
        return offset in offsets and not self.acked >> offsets.index(offset) & 1

    def open_offsets(self) -> list[int]:
        return [each for i, each in enumerate(self.offsets) if not self.acked >> i & 1]

    @property
    def row(self) -> Row:
        return Row(
            self.key, self.revive_queue, self.invisible_ms, self.due_ms, self.acked, self.offsets
        )

    @classmethod
    def of_row(cls, row: Row) -> CheckPoint:
        key = row.key
        made = cls(
            key.topic, key.group, key.queue, key.start, key.pop_ms, row.invisible_ms,
            row.revive_queue, row.offsets,
        )  # fmt: skip
        made.acked, made.due_ms = row.acked, row.due_ms
        return made


class Acknowledged(NamedTuple):
    """What an ack record says. key: of its check point."""

    key: Key
    offsets: tuple[int, ...]


# ---- records ----

_CK = Shape(
    t=required(TEXT), c=required(TEXT), q=Member(INT, 0), so=_NUMBER, pt=_NUMBER, it=_NUMBER,
    n=Member(INT, 0), d=listed(INT, BATCH_MAX), bm=Member(INT, 0),
)  # fmt: skip
_ACK = Shape(
    t=TEXT, topic=TEXT, c=TEXT, consumerGroup=TEXT, q=Member(INT), queueId=Member(INT),
    so=Member(LONG), startOffset=Member(LONG), ao=Member(LONG), ackOffset=Member(LONG),
    pt=Member(LONG), popTime=Member(LONG), aol=listed(LONG), ackOffsetList=listed(LONG),
)  # fmt: skip
_LONG_NAMES = {
    "t": "topic", "c": "consumerGroup", "q": "queueId", "so": "startOffset", "ao": "ackOffset",
    "pt": "popTime", "aol": "ackOffsetList",
}  # fmt: skip


def parse_ck(body: bytes, revive_queue: int) -> CheckPoint:
    """Raises: ValueError for a body that is no check point."""
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
        [said["so"] + each for each in distances],
    )  # fmt: skip
    found.acked = said["bm"] & (1 << len(found.offsets)) - 1
    return found


def parse_ack(body: bytes) -> Acknowledged:
    """Raises: ValueError for a body that is no acknowledgement."""
    raw = _ACK.loads(body)
    said = {
        short: raw[long] if raw[short] in (None, ()) else raw[short]
        for short, long in _LONG_NAMES.items()
    }
    if any(said[name] is None for name in ("t", "c", "q", "so", "pt")):
        raise ValueError("the acknowledgement does not name its check point")
    offsets = tuple(said["aol"]) or ((said["ao"],) if said["ao"] is not None else ())
    key = Key(said["t"], said["c"], said["q"], said["so"], said["pt"])
    return Acknowledged(key, offsets)


# ---- those that are open ----


class CheckPoints:
    """The open ones, by key and by the time when they end: a table of the core, which takes what
    acknowledges them by itself."""

    def __init__(self, table: Popped) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and self._table.find(key) is not None

    def __iter__(self) -> Iterator[CheckPoint]:
        return map(CheckPoint.of_row, self._table.all())

    def get(self, key: Key) -> CheckPoint | None:
        found = self._table.find(key)
        return CheckPoint.of_row(found) if found is not None else None

    def add(self, ck: CheckPoint) -> None:
        """Raises: OutOfMemory."""
        self._table.add(ck.row)

    def ack(self, key: Key, offsets: Sequence[int]) -> int:
        """Those of these offsets that are open are acknowledged, in the log and here; the end of
        the record, 0: none was open. Raises: what putting raises; nothing counts then."""
        return self._table.ack(key, offsets)

    def acknowledge(self, ck: CheckPoint, offsets: Sequence[int]) -> list[int]:
        """Those that were open; the check point ends with its last one. No record is put."""
        bits = self._table.close(ck.key, offsets)
        ck.acked |= bits
        return [each for i, each in enumerate(ck.offsets) if bits >> i & 1]

    def postpone(self, ck: CheckPoint, due_ms: int) -> None:
        """It could not be brought back now."""
        ck.due_ms = due_ms
        self._table.postpone(ck.key, due_ms)

    def next_due(self) -> CheckPoint | None:
        """The one that ends first."""
        found = self._table.next_due()
        return CheckPoint.of_row(found) if found is not None else None

    @property
    def due_ms(self) -> int:
        """When that is; -1: none is open."""
        return self._table.due_ms

    def is_any_stored(self, revive_queue: int, now_ms: int) -> bool:
        """Whether the record of an open one may be in this revive queue by now."""
        return self._table.is_any_stored(revive_queue, now_ms)

    def in_flight(self, topic: str, group: str, queue: int) -> int:
        """Messages that were popped and are neither acknowledged nor back."""
        return self._table.in_flight(topic, group, queue)
