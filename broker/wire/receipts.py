"""Receipt handles and names of POP (docs/internals/pop.md#handles; upstream ExtraInfoUtil,
KeyBuilder)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pystore.format.names import RETRY_PREFIX

__all__ = [
    "NORMAL",
    "ORDER_QUEUE",
    "RETRY_V1",
    "RETRY_V2",
    "Deliveries",
    "Handle",
    "is_retry_of",
    "retry_topic",
]

#: What a handle says of the topic: the one that was asked for, or its retry topic.
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
#: Stands for the revive queue where no check point is kept: ordered consumption.
ORDER_QUEUE = 999

_FIELDS = 8
_LONGEST = 1024


class Handle(NamedTuple):
    """One delivery of one message, as its consumer names it: POP_CK, extraInfo.

    `start` is the offset at which the batch began, `pop_ms` the time when it was popped, and
    `retry` one of NORMAL, RETRY_V1 and RETRY_V2."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue: int
    offset: int

    @property
    def text(self) -> str:
        return " ".join(map(str, self))

    @property
    def is_order(self) -> bool:
        return self.revive_queue == ORDER_QUEUE

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Reads a receipt handle. What follows the eighth field is a proxy's own: Apache's in
        cluster mode adds the log offset and leaves it there when it acknowledges. Raises:
        ValueError that says what is wrong."""
        if len(text) > _LONGEST:
            raise ValueError(f"the receipt handle is longer than {_LONGEST} characters")
        parts = text.split(" ")
        if len(parts) < _FIELDS:
            raise ValueError(f"the receipt handle has {len(parts)} fields, fewer than {_FIELDS}")
        start, pop_ms, invisible_ms, revive, retry, broker, queue, offset = parts[:_FIELDS]
        if retry not in (NORMAL, RETRY_V1, RETRY_V2):
            raise ValueError("the receipt handle names no kind of topic")
        numbers = (start, pop_ms, invisible_ms, revive, queue, offset)
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in numbers):
            raise ValueError("the receipt handle has a field that is not a number")
        return cls(
            int(start), int(pop_ms), int(invisible_ms), int(revive), retry, broker, int(queue),
            int(offset),
        )  # fmt: skip


class Deliveries:
    """Tells which deliveries the messages of an answer to POP_MESSAGE are. `said` are its fields,
    and `broker` is the one that answered. Raises: KeyError, ValueError for fields that do not say
    it."""

    def __init__(self, said: Mapping[str, str], broker: str) -> None:
        self._broker = broker
        self._pop_ms, self._invisible_ms, self._revive_queue = (
            int(said[name]) for name in ("popTime", "invisibleTime", "reviveQid")
        )
        self._starts = {
            (kind, int(queue)): int(start)
            for kind, queue, start in _parts(said.get("startOffsetInfo", ""))
        }
        self._times = {
            (kind, place): int(times)
            for kind, place, times in _parts(said.get("orderCountInfo", ""))
        }

    def handle(self, queue: int, offset: int, given: str | None, kind: str = NORMAL) -> Handle:
        """Returns the handle of a message. given: its POP_CK, which one of a retry topic brings.
        Raises: KeyError, ValueError."""
        if given:
            return Handle.parse(given)
        return Handle(
            self._starts[kind, queue], self._pop_ms, self._invisible_ms, self._revive_queue, kind,
            self._broker, queue, offset,
        )  # fmt: skip

    def times(self, handle: Handle) -> int:
        """Returns how often a message of an ordered group was popped before."""
        return self._times.get((handle.retry, f"qo{handle.queue}%{handle.offset}"), 0)


def _parts(text: str) -> Iterable[list[str]]:
    return (part.split(" ") for part in text.split(";") if part)


def retry_topic(group: str, topic: str, kind: str) -> str:
    """Returns the topic through which messages of `topic` come back to `group`."""
    return f"{RETRY_PREFIX}{group}{'+' if kind == RETRY_V2 else '_'}{topic}"


def is_retry_of(name: str, group: str) -> str | None:
    """Returns the topic whose messages this retry topic brings back to the group, or None when it
    is not such a topic."""
    for sign in "+_":
        prefix = f"{RETRY_PREFIX}{group}{sign}"
        if name.startswith(prefix) and len(name) > len(prefix):
            return name[len(prefix) :]
    return None
