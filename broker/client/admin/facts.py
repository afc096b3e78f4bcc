"""What an administrator is told, read from the bodies of answers. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.client.errors import Misuse
from broker.wire.mqjson import MessageQueue
from pystore.meta.configfiles import TopicConfig

__all__ = [
    "BrokerFacts",
    "BrokerPlace",
    "ConnectedClient",
    "GroupMembers",
    "OffsetMove",
    "QueueEnds",
    "QueueLag",
    "TierFigures",
    "TopicFacts",
    "letters_of",
    "perm_of",
    "producer_in",
    "tier_figures",
    "whole_of",
]

#: No figure of a broker has more digits.
_DIGITS = 20

#: Letters of a permission, and upstream's bits.
_PERMS = {"r": 4, "w": 2, "x": 1}


def perm_of(letters: str) -> int:
    """Reads ``rw``, ``r``, ``w``, with ``x`` for inherit, or a number. Raises: Misuse."""
    if letters.isdigit() and 0 <= int(letters) <= 7:
        return int(letters)
    if not letters or set(letters) - set(_PERMS):
        raise Misuse(f"the permission is {letters!r}; write rw, r or w")
    return sum(_PERMS[letter] for letter in set(letters))


def letters_of(perm: int) -> str:
    """Returns ``rw`` and the like; ``-`` for nothing."""
    return "".join(letter for letter, bit in _PERMS.items() if perm & bit) or "-"


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A broker as a name server knows it. id: 0 is the master."""

    cluster: str
    name: str
    id: int
    address: str


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What a broker says of itself (request 28).

    started_ms: ms since 1970. put_rate, get_rate: messages a second, of the last 10 s. puts, gets:
    since midnight. disk_used: 0 to 1, of the disk with the commit log. log_min, log_max: where the
    log begins and ends, bytes. undispatched: bytes that no queue shows yet. entries: all of the
    answer, under upstream's names.
    """

    address: str
    version: str
    started_ms: int
    put_rate: float
    get_rate: float
    puts: int
    gets: int
    disk_used: float
    log_min: int
    log_max: int
    undispatched: int
    entries: Mapping[str, str] = field(repr=False)


def whole_of(text: str) -> int:
    """Returns the number that a broker has sent; 0 for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else 0


def _span_of(text: str) -> float:
    """Returns the seconds that a broker has sent; 0 for any other text."""
    try:
        span = float(text)
    except ValueError:
        return 0.0
    return span if 0 <= span < math.inf else 0.0


class TierFigures(NamedTuple):
    """What a broker says of its cold tier. behind, written: bytes. late_s: age of the oldest
    message that is not there."""

    behind: int
    late_s: float
    written: int
    problem: str


def tier_figures(entries: Mapping[str, str]) -> TierFigures | None:
    """Returns them from the entries of a broker; None of one without a tier."""
    if "tieredBehindBytes" not in entries:
        return None
    return TierFigures(
        whole_of(entries["tieredBehindBytes"]), _span_of(entries.get("tieredBehindSeconds", "")),
        whole_of(entries.get("tieredWrittenBytes", "")), entries.get("tieredProblem", ""),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The messages of one queue: from min_offset on, before max_offset. last_ms: when the last one
    was stored, ms since 1970; 0 for none."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_ms: int

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic on all its brokers. configs: by broker name, as each broker has it. queues: of all of
    them."""

    name: str
    configs: Mapping[str, TopicConfig]
    queues: tuple[QueueEnds, ...]

    @property
    def messages(self) -> int:
        """How many messages its queues hold."""
        return sum(each.count for each in self.queues)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is with one queue. committed: the next offset that it consumes. end: where
    the queue ends. last_ms: when the last message consumed was stored, ms since 1970; 0: unknown.
    in_flight: messages handed out and not acknowledged, where the broker says so."""

    group: str
    queue: MessageQueue
    committed: int
    end: int
    last_ms: int
    in_flight: int

    @property
    def behind(self) -> int:
        """Messages that the group has not consumed."""
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A producer or consumer that a broker hears. version: upstream's number of it."""

    id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Who consumes for a group. kind: CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull) or
    CONSUME_POP. model: CLUSTERING or BROADCASTING. subscriptions: expression by topic."""

    group: str
    kind: str
    model: str
    start: str
    clients: tuple[ConnectedClient, ...]
    subscriptions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """What a reset does to one queue. before: None where the group had no offset."""

    queue: MessageQueue
    before: int | None
    after: int


def _number(table: Mapping[str, Any], name: str) -> int:
    """Returns a number that may be missing, or a text, as 4.9 has them all."""
    try:
        return int(float(table.get(name) or 0))
    except ValueError:
        return 0


def _first_rate(table: Mapping[str, Any], *names: str) -> float:
    """Returns the first of the rates of 10 s, 1 min and 10 min; upstream spelled one name in two
    ways."""
    for name in names:
        words = str(table.get(name) or "").split()
        if words:
            return float(words[0])
    return 0.0


def broker_facts(address: str, table: Mapping[str, Any]) -> BrokerFacts:
    """Reads the facts of a broker. table: of the answer. Raises: ValueError, TypeError for what
    cannot be read."""
    puts = _number(table, "msgPutTotalTodayNow") - _number(table, "msgPutTotalTodayMorning")
    gets = _number(table, "msgGetTotalTodayNow") - _number(table, "msgGetTotalTodayMorning")
    return BrokerFacts(
        address,
        str(table.get("brokerVersionDesc", "")),
        _number(table, "bootTimestamp"),
        _first_rate(table, "putTps"),
        _first_rate(table, "getTransferredTps", "getTransferedTps"),
        puts,
        gets,
        float(table.get("commitLogDiskRatio") or 0.0),
        _number(table, "commitLogMinOffset"),
        _number(table, "commitLogMaxOffset"),
        _number(table, "dispatchBehindBytes"),
        {str(name): str(value) for name, value in sorted(table.items())},
    )


def queue_ends(body: Mapping[str, Any]) -> list[QueueEnds]:
    """Reads the answer to GET_TOPIC_STATS_INFO. Raises: what reading ends with
    (errors.UNREADABLE)."""
    return [
        QueueEnds(
            queue, int(ends["minOffset"]), int(ends["maxOffset"]), int(ends["lastUpdateTimestamp"])
        )
        for queue, ends in sorted((body.get("offsetTable") or {}).items())
    ]


def queue_lags(group: str, body: Mapping[str, Any]) -> list[QueueLag]:
    """Reads the answer to GET_CONSUME_STATS. Raises: what reading ends with (errors.UNREADABLE)."""
    found = []
    for queue, said in sorted((body.get("offsetTable") or {}).items()):
        # Of a static topic, -1 says that nothing is committed.
        committed, end = max(0, int(said["consumerOffset"])), int(said["brokerOffset"])
        flight = max(0, int(said.get("pullOffset") or committed) - committed)
        found.append(
            QueueLag(group, queue, committed, end, int(said.get("lastTimestamp") or 0), flight)
        )
    return found


def connected(body: Mapping[str, Any]) -> tuple[ConnectedClient, ...]:
    """Reads the connections of a group. Raises: what reading ends with (errors.UNREADABLE)."""
    return tuple(
        ConnectedClient(
            str(each["clientId"]), str(each["clientAddr"]), str(each.get("language", "")),
            int(each.get("version") or 0),
        )
        for each in sorted(body.get("connectionSet") or (), key=lambda c: str(c["clientId"]))
    )  # fmt: skip


def producer_in(row: Mapping[str, Any]) -> ConnectedClient:
    """Reads the answer to GET_ALL_PRODUCER_INFO, which writes Java's text of an address:
    ``/127.0.0.1:51000``. Raises: what reading ends with (errors.UNREADABLE)."""
    return ConnectedClient(
        str(row["clientId"]), str(row.get("remoteIP", "")).removeprefix("/"),
        str(row.get("language", "")), int(row.get("version") or 0),
    )  # fmt: skip
