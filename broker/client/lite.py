"""Lite topics: their names, which queue and broker has one, where reading begins, and the requests
and answers of their consumers (docs/internals/lite.md). No I/O.

A lite topic is a light queue under a parent topic of type LITE, made by its first message.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from broker.client.checks import OFFSET_MAX, check_count
from broker.client.errors import InvalidMessage, Misuse
from broker.client.message import MessageQueue
from pystore.format.javahash import bucket_of
from pystore.format.properties import MULTI_DISPATCH, MULTI_OFFSET

__all__ = [
    "COMPLETE_ADD", "COMPLETE_REMOVE", "LITE_TOPIC_MAX", "PARTIAL_ADD", "PARTIAL_REMOVE",
    "OffsetOption", "check_lite_topic", "check_lite_topics", "lite_place", "lite_queue",
    "subscription_body", "times_before",
]  # fmt: skip

#: Bytes of a name, and what may be in one (upstream's GrpcValidator; its brokers check nothing).
LITE_TOPIC_MAX = 64
_LEGAL = re.compile(r"[A-Za-z0-9_-]+")
_PREFIX = "%LMQ%$"

#: What a subscription request does (upstream LiteSubscriptionAction).
PARTIAL_ADD, PARTIAL_REMOVE = "PARTIAL_ADD", "PARTIAL_REMOVE"
COMPLETE_ADD, COMPLETE_REMOVE = "COMPLETE_ADD", "COMPLETE_REMOVE"


def check_lite_topic(name: object, error: type[Exception] = InvalidMessage) -> None:
    """Checks the name of a lite topic. Raises: `error`."""
    if not isinstance(name, str):
        raise error(f"the lite topic is {type(name).__name__}; pass its name as text")
    if not _LEGAL.fullmatch(name):
        raise error(
            f"the lite topic {name[:80]!r} is blank or holds other characters than letters, digits,"
            " - and _; rename it"
        )
    if len(name) > LITE_TOPIC_MAX:
        raise error(f"the lite topic has {len(name)} characters, {LITE_TOPIC_MAX} are allowed")


def check_lite_topics(names: object) -> list[str]:
    """Returns one name or several, as a list without repeats. Raises: Misuse."""
    if isinstance(names, str):
        check_lite_topic(names, Misuse)
        return [names]
    if not isinstance(names, Iterable) or isinstance(names, bytes | Mapping):
        raise Misuse(f"{names!r:.80} is not a lite topic; pass its name, or a list of names")
    found = list(dict.fromkeys(map(_hashable, names)))
    if not found:
        raise Misuse("no lite topic is named; pass a name, or a list of names")
    for name in found:
        check_lite_topic(name, Misuse)
    return found


def _hashable(name: object) -> str:
    check_lite_topic(name, Misuse)
    return str(name)


# ---- which queue has it ----


def lite_queue(queues: Sequence[MessageQueue], name: str) -> MessageQueue:
    """Returns the queue of the parent that has the messages of a lite topic (upstream
    LiteShardingImpl). queues: all that can be written, in the order of a route."""
    return queues[bucket_of(name, len(queues))]


# ---- where reading begins ----


class OffsetOption:
    """Where a group continues in a lite topic, for ``LiteConsumer.subscribe()``; upstream's
    OffsetOption.

    LAST: where the group is. MIN: at offset 0. MAX: after what is there now. The others are made by
    the methods. It moves the group as a whole, other members included.

    >>> from broker import OffsetOption
    >>> OffsetOption.LAST, OffsetOption.of_offset(17)
    (OffsetOption.LAST, OffsetOption.of_offset(17))
    >>> OffsetOption.of_tail_n(0)
    Traceback (most recent call last):
    broker.client.errors.Misuse: tail_n is 0; it is at least 1 and at most 9223372036854775807
    """

    __slots__ = ("_kind", "_shown", "_value")

    LAST: ClassVar[OffsetOption]
    MIN: ClassVar[OffsetOption]
    MAX: ClassVar[OffsetOption]

    def __init__(self, kind: str, value: int, shown: str) -> None:
        """Makes one of the kinds below; programs take the constants and the methods."""
        self._kind = kind
        self._value = value
        self._shown = shown

    @classmethod
    def of_offset(cls, offset: int) -> OffsetOption:
        """Continues at an offset; one beyond the end becomes the end. Raises: Misuse."""
        check_count("offset", offset, 0)
        return cls("OFFSET", offset, f"of_offset({offset})")

    @classmethod
    def of_tail_n(cls, tail_n: int) -> OffsetOption:
        """Goes so many messages back. Apache 5.5.0 counts from where the group is, and ignores it
        before the first commit. Raises: Misuse."""
        check_count("tail_n", tail_n, 1)
        return cls("TAIL_N", tail_n, f"of_tail_n({tail_n})")

    @classmethod
    def of_timestamp(cls, when: dt.datetime | int) -> OffsetOption:
        """Continues at the first message stored at a time or later: a datetime with a time zone, or
        ms since 1970. Apache 5.5.0 takes it and does nothing. Raises: Misuse."""
        if isinstance(when, dt.datetime):
            if when.tzinfo is None:
                raise Misuse("the timestamp is a datetime without a time zone: give it one, as UTC")
            millis = (when - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
        else:
            millis = when
        check_count("timestamp", millis, 0)
        return cls("TIMESTAMP", millis, f"of_timestamp({millis})")

    def _as_json(self) -> dict[str, object]:
        """Returns its form in a request."""
        return {"type": self._kind, "value": self._value}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetOption) and other._as_json() == self._as_json()

    def __hash__(self) -> int:
        return hash((self._kind, self._value))

    def __repr__(self) -> str:
        return f"OffsetOption.{self._shown}"


OffsetOption.LAST = OffsetOption("POLICY", 0, "LAST")
OffsetOption.MIN = OffsetOption("POLICY", 1, "MIN")
OffsetOption.MAX = OffsetOption("POLICY", 2, "MAX")


# ---- requests and answers ----


def subscription_body(
    action: str, client_id: str, group: str, topic: str, names: Iterable[str],
    option: OffsetOption | None = None, *, version: int | None = None,
) -> bytes:  # fmt: skip
    """Returns the body of LITE_SUBSCRIPTION_CTL. version: ms, so that a broker can tell a late
    request."""
    entry: dict[str, object] = {
        "action": action, "clientId": client_id, "group": group, "topic": topic,
        "liteTopicSet": sorted(names), "version": version or time.time_ns() // 1_000_000,
    }  # fmt: skip
    if option is not None:
        entry["offsetOption"] = option._as_json()
    return json.dumps({"subscriptionSet": [entry]}, separators=(",", ":")).encode()


def lite_place(properties: Mapping[str, str], topic: str, stored: str) -> tuple[str, int]:
    """Returns the lite topic of a message under this parent, and its offset there. stored: the
    topic of its record. Raises: ValueError for a message that names none, or several, or is a dead
    letter, whose offset is that of another: an acknowledgement could hit it."""
    if stored != topic:
        raise ValueError(f"a message of {stored!r:.300} in a lite topic of {topic}")
    names = properties.get(MULTI_DISPATCH, "").split(",")
    offsets = properties.get(MULTI_OFFSET, "").split(",")
    prefix = f"{_PREFIX}{topic}$"
    found = [
        (name.removeprefix(prefix), offset)
        for name, offset in zip(names, offsets, strict=False)
        if name.startswith(prefix)
    ]
    if len(names) != len(offsets) or len(found) != 1:
        raise ValueError(f"a message of {len(found)} lite topics of {topic}: {names!r:.200}")
    name, offset = found[0]
    if not name or not (offset.isascii() and offset.isdigit() and int(offset) <= OFFSET_MAX):
        raise ValueError(f"a message of {topic} at {offset!r:.40} of the lite topic {name!r:.80}")
    return name, int(offset)


def times_before(said: str, places: Sequence[tuple[str, int]]) -> list[int]:
    """Returns how often each message of an answer was delivered before. said: its orderCountInfo.
    places: the lite topic and offset of each, those of one lite topic together.

    A part of that text is ``0``, or ``0 qo0%OFFSET TIMES``. Apache 5.5.0 leaves out the messages
    that are new of a lite topic with one that is not, so that parts must be found by their offsets.
    Raises: ValueError.
    """
    parts = [_times_part(part) for part in said.split(";") if part]
    if len(parts) == len(places) and all(
        part is None or part[0] == place[1] for part, place in zip(parts, places, strict=True)
    ):
        return [part[1] if part is not None else 0 for part in parts]
    found, left = [], list(reversed(parts))
    for start, end in _runs(places):
        times = dict.fromkeys((place[1] for place in places[start:end]), 0)
        if left and left[-1] is None:
            del left[-(end - start) :]
        open_offsets = set(times)
        while left and (part := left[-1]) is not None and part[0] in open_offsets:
            open_offsets.discard(part[0])
            times[part[0]] = part[1]
            left.pop()
        found += [times[place[1]] for place in places[start:end]]
    return found


def _times_part(text: str) -> tuple[int, int] | None:
    """Reads a part of orderCountInfo: offset and times; None: not delivered before."""
    words = text.split(" ")
    if len(words) < 3:
        return None
    return int(words[1].rpartition("%")[2]), int(words[2])


def _runs(places: Sequence[tuple[str, int]]) -> Iterable[tuple[int, int]]:
    """Yields where the messages of each lite topic begin and end."""
    start = 0
    for at in range(1, len(places) + 1):
        if at == len(places) or places[at][0] != places[start][0]:
            yield start, at
            start = at
