"""Check points: batches that were popped and are not yet acknowledged altogether.

The records in the log are upstream's (docs/internals/pop.md#records; PopCheckPoint, AckMsg,
BatchAckMsg); the table of those that are open is derived from them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from broker.remoting import mqjson
from broker.remoting.jsonbody import INT, LONG, TEXT, Member, Shape, listed, required

__all__ = ["Acknowledged", "CheckPoint", "CheckPoints", "ack_body", "parse_ack", "parse_ck"]

#: Messages of one batch, as upstream limits them.
BATCH_MAX = 32
#: A check point's record is in the revive topic so long before its messages come back.
LEAD_MS = 1000

Key = tuple[str, str, int, int, int]
_NUMBER = Member(LONG, -1)


class CheckPoint:
    """One batch of one queue. offsets: of its messages, ascending. acked: bit i for offsets[i].
    due_ms: when what is not acknowledged comes back; later than its invisible time only after a
    copy could not be written."""

    __slots__ = (
        "_named", "acked", "due_ms", "group", "invisible_ms", "offsets", "pop_ms", "queue",
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
        self._named: bytes | None = None

    @property
    def key(self) -> Key:
        return self.topic, self.group, self.queue, self.start, self.pop_ms

    @property
    def revive_ms(self) -> int:
        return self.pop_ms + self.invisible_ms

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

    def body(self, broker: str) -> bytes:
        """PopCheckPoint as upstream writes it."""
        return mqjson.dumps(
            {
                "bm": 0, "bn": broker, "c": self.group,
                "d": [each - self.start for each in self.offsets], "it": self.invisible_ms,
                "n": len(self.offsets), "pt": self.pop_ms, "q": self.queue,
                "reviveTime": self.revive_ms, "ro": 0, "so": self.start, "t": self.topic,
            }
        )  # fmt: skip

    def named(self, broker: str) -> bytes:
        """The members that all its acknowledgements have, and the end of their object."""
        if self._named is None:
            said = {
                "bn": broker, "c": self.group, "pt": self.pop_ms, "q": self.queue, "so": self.start,
                "t": self.topic,
            }  # fmt: skip
            self._named = mqjson.dumps(said)[1:]
        return self._named

    def unique_key(self, broker: str) -> str:
        return f"{self.topic}@{self.queue}@{self.start}@{self.group}@{self.pop_ms}@{broker}@ck"


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
    distances = said["d"] or range(count)
    if list(distances) != sorted(set(distances)) or distances[0] < 0:
        raise ValueError("the offsets of the check point do not ascend")
    found = CheckPoint(
        said["t"], said["c"], said["q"], said["so"], said["pt"], said["it"], revive_queue,
        [said["so"] + each for each in distances],
    )  # fmt: skip
    found.acked = said["bm"] & (1 << len(found.offsets)) - 1
    return found


def ack_body(ck: CheckPoint, offsets: Sequence[int], broker: str) -> tuple[str, bytes, str]:
    """Tag, body and UNIQ_KEY of the record that acknowledges these."""
    several = len(offsets) > 1
    at = -1 if several else offsets[0]
    all_of_them = b'"aol":%b,' % mqjson.dumps(list(offsets)) if several else b""
    body = b'{"ao":%d,%b%b' % (at, all_of_them, ck.named(broker))
    key = f"{ck.topic}@{ck.queue}@{at}@{ck.group}@{ck.pop_ms}@{broker}@ack"
    return "bAck" if several else "ack", body, key


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
    return Acknowledged((said["t"], said["c"], said["q"], said["so"], said["pt"]), offsets)


# ---- those that are open ----


class CheckPoints:
    """The open ones, by key and by the time when they end."""

    def __init__(self) -> None:
        self._open: dict[Key, CheckPoint] = {}
        #: By revive queue, (due_ms, turn, check point); ended ones are dropped when they come up.
        self._due: dict[int, list[tuple[int, int, CheckPoint]]] = {}
        #: Those that could not be brought back in time.
        self._late: set[CheckPoint] = set()
        self._turn = 0
        self._entries = 0
        #: Messages that were popped and are neither acknowledged nor back, by (topic, group,
        #: queue).
        self.in_flight: Counter[tuple[str, str, int]] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[CheckPoint]:
        return iter(self._open.values())

    def get(self, key: Key) -> CheckPoint | None:
        return self._open.get(key)

    def add(self, ck: CheckPoint) -> None:
        self._open[ck.key] = ck
        self.in_flight[ck.topic, ck.group, ck.queue] += ck.open
        self._push(ck)

    def _push(self, ck: CheckPoint) -> None:
        self._turn += 1
        heapq.heappush(self._due.setdefault(ck.revive_queue, []), (ck.due_ms, self._turn, ck))
        self._entries += 1
        if self._entries > 2 * len(self._open) + 1024:
            self._drop_ended()

    def _drop_ended(self) -> None:
        for queue, heap in self._due.items():
            self._due[queue] = [each for each in heap if self._is_current(each)]
            heapq.heapify(self._due[queue])
        self._entries = sum(map(len, self._due.values()))

    def _is_current(self, entry: tuple[int, int, CheckPoint]) -> bool:
        due_ms, _, ck = entry
        return self._open.get(ck.key) is ck and ck.due_ms == due_ms

    def acknowledge(self, ck: CheckPoint, offsets: Iterable[int]) -> list[int]:
        """Those that were open; the check point ends with its last one."""
        taken = []
        for each in sorted(set(offsets)):
            if ck.is_open(each):
                ck.acked |= 1 << ck.offsets.index(each)
                taken.append(each)
        if taken:
            flight = ck.topic, ck.group, ck.queue
            self.in_flight[flight] -= len(taken)
            if self.in_flight[flight] <= 0:
                del self.in_flight[flight]
        if not ck.open and self._open.get(ck.key) is ck:
            del self._open[ck.key]
            self._late.discard(ck)
        return taken

    def postpone(self, ck: CheckPoint, due_ms: int) -> None:
        """It could not be brought back now."""
        ck.due_ms = due_ms
        self._late.add(ck)
        self._push(ck)

    def _head(self, heap: list[tuple[int, int, CheckPoint]]) -> CheckPoint | None:
        while heap and not self._is_current(heap[0]):
            heapq.heappop(heap)
            self._entries -= 1
        return heap[0][2] if heap else None

    def next_due(self) -> CheckPoint | None:
        """The one that ends first."""
        heads = [ck for heap in self._due.values() if (ck := self._head(heap)) is not None]
        return min(heads, key=lambda ck: ck.due_ms, default=None)

    def is_any_stored(self, revive_queue: int, now_ms: int) -> bool:
        """Whether the record of an open one may be in this revive queue by now."""
        head = self._head(self._due.get(revive_queue, []))
        if head is not None and head.revive_ms - LEAD_MS <= now_ms:
            return True
        return any(ck.revive_queue == revive_queue for ck in self._late)
