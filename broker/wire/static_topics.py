"""Static topics: which queues of which brokers a logical queue consists of, one after the other
(docs/internals/static-topics.md; upstream LogicQueueMappingItem, TopicQueueMappingDetail). The
same JSON stands in bodies, in routes and in config/topicQueueMapping.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from broker.wire.jsonbody import BOOLEAN, INT, LONG, OBJECT, TEXT, JsonMember, Shape, each, required

__all__ = [
    "NOBODY", "QueuePart", "TopicMapping", "check_parts", "find_part", "is_logical", "leaders_of",
    "logical_broker", "parse_mapping", "part_after",
]  # fmt: skip

#: Clients know logical queues by a broker of this name, which nobody is, and the scope.
_PREFIX, _GLOBAL = "__syslo__", "__global__"
#: The broker of a logical queue that nobody leads just now.
NOBODY = "__syslo__none__"
#: Parts of one logical queue: each remapping adds one, and the clean-up takes the oldest away.
PARTS_MAX = 1024
_QUEUE_MAX = 65_535


class QueuePart(NamedTuple):
    """A queue of a broker that is a part of a logical queue. logical: the offset of its first
    message in that; -1: it is not decided yet. start, end: its own offsets; end -1: there is no
    end. began_ms, ended_ms: upstream keeps the fields and does not use them."""

    generation: int
    queue: int
    broker: str
    logical: int
    start: int = 0
    end: int = -1
    began_ms: int = -1
    ended_ms: int = -1

    @property
    def is_decided(self) -> bool:
        return self.logical >= 0

    @property
    def has_end(self) -> bool:
        return self.end > self.start

    @property
    def delta(self) -> int:
        """What is added to an offset of the broker's queue."""
        return self.logical - self.start

    @property
    def last_known(self) -> int:
        """The highest logical offset that the mapping itself tells of."""
        return self.logical + max(0, self.end - self.start)

    def logical_of(self, offset: int) -> int:
        """Returns the logical offset of an offset of the broker's queue."""
        return self.logical + max(0, offset - self.start)

    def offset_of(self, logical: int) -> int:
        """Returns the offset of the broker's queue; it may lie before its start."""
        return logical - self.logical + self.start

    def as_json(self) -> dict[str, Any]:
        return {
            "bname": self.broker, "endOffset": self.end, "gen": self.generation,
            "logicOffset": self.logical, "queueId": self.queue, "startOffset": self.start,
            "timeOfEnd": self.ended_ms, "timeOfStart": self.began_ms,
        }  # fmt: skip


#: The parts of a logical queue, from the oldest to the one that is written to, the leader.
Parts = tuple[QueuePart, ...]


@dataclass(frozen=True, slots=True)
class TopicMapping:
    """What one broker knows of a static topic. queues: by their number, those that it leads or has
    led. epoch: of the change that made it; an older one is not taken."""

    topic: str
    total: int
    broker: str
    epoch: int
    queues: Mapping[int, Parts] = field(default_factory=dict)
    scope: str = _GLOBAL
    dirty: bool = False

    def leads(self, queue: int) -> bool:
        parts = self.queues.get(queue)
        return parts is not None and parts[-1].broker == self.broker

    def led(self) -> list[int]:
        """Returns the logical queues that may be written to at this broker."""
        return [queue for queue in sorted(self.queues) if self.leads(queue)]

    def with_queues(self, queues: Mapping[int, Parts]) -> TopicMapping:
        return replace(self, queues=queues)

    def info(self) -> dict[str, Any]:
        """Returns what is registered: the queues that it leads, and no parts."""
        return {
            "bname": self.broker,
            "currIdMap": {queue: self.queues[queue][-1].queue for queue in self.led()},
            "dirty": self.dirty, "epoch": self.epoch, "scope": self.scope, "topic": self.topic,
            "totalQueues": self.total,
        }  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            "bname": self.broker, "currIdMap": {}, "dirty": self.dirty, "epoch": self.epoch,
            "hostedQueues": {
                queue: [part.as_json() for part in self.queues[queue]]
                for queue in sorted(self.queues)
            },
            "scope": self.scope, "topic": self.topic, "totalQueues": self.total,
        }  # fmt: skip


# ---- reading ----

_PART = Shape(
    gen=JsonMember(INT, 0), queueId=JsonMember(INT, 0), bname=required(TEXT),
    logicOffset=JsonMember(LONG, 0), startOffset=JsonMember(LONG, 0),
    endOffset=JsonMember(LONG, -1), timeOfStart=JsonMember(LONG, -1),
    timeOfEnd=JsonMember(LONG, -1),
)  # fmt: skip
_PARTS = each(_PART, PARTS_MAX)
_MAPPING = Shape(
    topic=required(TEXT), scope=JsonMember(TEXT, _GLOBAL), totalQueues=JsonMember(INT, 0),
    bname=required(TEXT), epoch=JsonMember(LONG, 0), dirty=JsonMember(BOOLEAN, False),
    hostedQueues=JsonMember(OBJECT, {}),
)  # fmt: skip
_INFO = Shape(
    scope=JsonMember(TEXT, _GLOBAL), totalQueues=JsonMember(INT, 0), bname=required(TEXT),
    epoch=JsonMember(LONG, 0), currIdMap=JsonMember(OBJECT, {}),
)  # fmt: skip


def _number(key: object) -> int:
    text = str(key)
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _QUEUE_MAX):
        raise ValueError(f"{text!r:.40} is not the number of a queue")
    return int(text)


def _part(row: Mapping[str, Any]) -> QueuePart:
    return QueuePart(
        row["gen"], row["queueId"], row["bname"], row["logicOffset"], row["startOffset"],
        row["endOffset"], row["timeOfStart"], row["timeOfEnd"],
    )  # fmt: skip


def parse_mapping(value: object) -> TopicMapping:
    """Reads a TopicQueueMappingDetail, as JSON has it. Raises: ValueError that says what is
    wrong."""
    row = _MAPPING(value)
    queues: dict[int, Parts] = {}
    for key, listed in row["hostedQueues"].items():
        parts = tuple(map(_part, _PARTS(listed) or ()))
        check_parts(parts)
        if parts:
            queues[_number(key)] = parts
    if not 0 <= row["totalQueues"] <= _QUEUE_MAX:
        raise ValueError(f"totalQueues {row['totalQueues']} is not from 0 to {_QUEUE_MAX}")
    return TopicMapping(
        row["topic"], row["totalQueues"], row["bname"], row["epoch"], queues, row["scope"],
        row["dirty"],
    )  # fmt: skip


def check_parts(parts: Sequence[QueuePart]) -> None:
    """Checks the parts of a logical queue. Raises: ValueError in upstream's words
    (TopicQueueMappingUtils.checkLogicQueueMappingItemOffset)."""
    before: QueuePart | None = None
    for part in parts:
        if part.start < 0 or part.generation < 0 or not 0 <= part.queue <= _QUEUE_MAX:
            raise ValueError("The field is illegal, should not be negative")
        if part.end != -1 and part.end < part.start:
            raise ValueError("The endOffset is smaller than the start offset")
        if before is not None:
            if before.logical < 0:
                raise ValueError("The non-latest item has negative logic offset")
            if before.generation >= part.generation:
                raise ValueError("The gen does not increase monotonically")
            if part.logical != -1 and before.logical >= part.logical:
                raise ValueError("The base logic offset does not increase monotonically")
            if part.logical != -1 and before.last_known >= part.logical:
                raise ValueError("The max logic offset does not increase monotonically")
        before = part


# ---- looking up ----


def find_part(parts: Sequence[QueuePart], logical: int) -> QueuePart | None:
    """Returns the part that has a logical offset, the first one for an offset before all; None:
    none is decided yet."""
    decided = [part for part in parts if part.is_decided]
    for part in reversed(decided):
        if logical >= part.logical:
            return part
    return decided[0] if decided else None


def part_after(parts: Sequence[QueuePart], part: QueuePart) -> QueuePart | None:
    """Returns the part that follows; None: there is none yet, or it is not decided."""
    following = [each for each in parts if each.generation > part.generation]
    return following[0] if following and following[0].is_decided else None


# ---- routes ----


def logical_broker(scope: str) -> str:
    """Returns the broker's name that the logical queues of a scope have
    (TopicQueueMappingUtils.getMockBrokerName)."""
    return _PREFIX + (scope[2:] if scope == _GLOBAL else scope)


def is_logical(broker: str) -> bool:
    """Returns whether a queue of this broker's name is a logical one."""
    return broker.startswith(_PREFIX)


def leaders_of(infos: Iterable[object]) -> dict[tuple[str, int], str]:
    """Returns who leads each logical queue of a topic, NOBODY for one that nobody does. infos: of
    the brokers in its route (topicQueueMappingByBroker; upstream
    ClientMetadata.topicRouteData2EndpointsForStaticTopic). Raises: ValueError."""
    rows = sorted(map(_INFO, infos), key=lambda row: row["epoch"])
    found: dict[tuple[str, int], str] = {}
    for row in rows:  # the newest epoch is the last one, and counts
        broker = logical_broker(row["scope"])
        for key in row["currIdMap"]:
            found[broker, _number(key)] = row["bname"]
    totals: dict[str, int] = {}
    for row in rows:
        if not 0 <= row["totalQueues"] <= _QUEUE_MAX:
            raise ValueError(f"totalQueues {row['totalQueues']} is not from 0 to {_QUEUE_MAX}")
        broker = logical_broker(row["scope"])
        totals[broker] = max(row["totalQueues"], totals.get(broker, 0))
    return {
        (broker, queue): found.get((broker, queue), NOBODY)
        for broker, total in totals.items()
        for queue in range(total)
    }
