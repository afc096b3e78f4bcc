"""What a consumer asks for, and what a walk of the core (csrc/pop/popwalk.c) has found, as
Python sees them (docs/internals/pop.md#the-pop)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.services.config import Config
from broker.services.topics import Topics
from broker.wire.receipts import RETRY_V1, RETRY_V2, Handle
from pystore import Batch, Message

__all__ = ["Batches", "Delivery", "PopBatch", "PopOutcome", "PopRequest", "longest_retry_topic"]


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What a consumer asks for, checked. `queue` -1 stands for any of the topic. `from_min` says
    where a new group begins. `tags` and `sql` are one filter at most. `attempt` names a try of an
    ordered consumer."""

    topic: str
    group: str
    queue: int
    most: int
    invisible_ms: int
    from_min: bool = True
    tags: str | None = None
    sql: str | None = None
    order: bool = False
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class PopBatch:
    """A batch of one queue. `kind` is that of its topic, NORMAL or a retry topic's. `offsets` are
    those of its messages. `times` says how often each message of an ordered group was popped
    before; None means that the group is not ordered."""

    kind: str
    queue: int
    start: int
    messages: Batch
    offsets: Sequence[int]
    times: Sequence[int] | None


class Delivery(NamedTuple):
    """One message on its way to a consumer; `times` says how often it was delivered before."""

    message: Message
    handle: Handle
    times: int


@dataclass(slots=True)
class PopOutcome:
    """What a try found. `count` and `size` are the messages of all batches and their bytes. `rest`
    counts messages that are still there. `end` is the end of the last record that was put for it.
    `full` means that it may not even wait."""

    pop_ms: int
    invisible_ms: int
    revive_queue: int
    batches: list[PopBatch] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    size: int = 0
    end: int = 0
    full: bool = False

    @classmethod
    def of(cls, raw: Any) -> PopOutcome:
        """Returns the outcome that a ``ps_pop_found *`` tells of."""
        out = cls(
            raw.pop_ms, raw.invisible_ms, raw.revive_queue, count=raw.messages, rest=raw.rest,
            size=raw.bytes, end=raw.end, full=bool(raw.full),
        )  # fmt: skip
        at = 0
        for each in raw.all[0 : raw.count]:
            found = Batch(each.batch)
            offsets = found.offsets()
            times = list(raw.times[at : at + len(offsets)]) if raw.ordered else None
            at += len(offsets)
            out.batches.append(
                PopBatch(str(each.kind), each.queue_id, each.start, found, offsets, times)
            )
        return out

    def deliveries(self, broker: str) -> Iterator[Delivery]:
        """Returns each message with the handle that acknowledges it."""
        for taken in self.batches:
            ordered = taken.times
            for i, (message, offset) in enumerate(zip(taken.messages, taken.offsets, strict=True)):
                handle = Handle(
                    taken.start, self.pop_ms, self.invisible_ms, self.revive_queue, taken.kind,
                    broker, taken.queue, offset,
                )  # fmt: skip
                times = message.reconsume_times if ordered is None else ordered[i]
                yield Delivery(message, handle, times)


def longest_retry_topic(config: Config) -> int:
    """Returns how many bytes the name of a retry topic may have."""
    return 255 if config["autoMessageVersionOnTopicLen"] else 127


class Batches:
    """Which queues and retry topics are looked at."""

    def __init__(self, config: Config, topics: Topics) -> None:
        self._config, self._topics = config, topics

    def queues(self, topic: str, queue: int) -> Sequence[int]:
        """Returns the queue that was asked for, or all."""
        if queue >= 0:
            return [queue]
        config = self._topics.get(topic)
        return range(config.read_queue_nums if config is not None else 0)

    @property
    def looked_at(self) -> list[str]:
        """Returns the kinds of retry topics through which messages may come back. Of the second
        kind there may be some from before its setting was turned off."""
        config = self._config
        if config["enableRetryTopicV2"] and not config["retrieveMessageFromPopRetryTopicV1"]:
            return [RETRY_V2]
        return [RETRY_V1, RETRY_V2]
