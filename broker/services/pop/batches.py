"""What a try to pop has found, as Python sees it; and one try of an ordered group: the core walks
the queues (csrc/remoting/popwalk.c), the order is decided here (docs/internals/pop.md#the-pop)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.hot.popped import CheckPoints
from broker.services.config import Config
from broker.services.pop.order import OrderTable
from broker.services.topics import Topics
from broker.wire.receipts import RETRY_V1, RETRY_V2, Handle
from pystore import Batch, Message
from pystore.native import ffi

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
    before, by offset; None means that the group is not ordered."""

    kind: str
    queue: int
    start: int
    messages: Batch
    offsets: Sequence[int]
    times: Mapping[int, int] | None


class Delivery(NamedTuple):
    """One message on its way to a consumer; `times` says how often it was delivered before."""

    message: Message
    handle: Handle
    times: int


@dataclass(slots=True)
class PopOutcome:
    """What a try found. `count` and `size` are the messages of all batches and their bytes. `rest`
    counts messages that are still there. `end` is the end of the last record that was put for it.
    `blocked_until` is when an ordered queue that was passed over may be looked at, 0 when there was
    none. `more` means that filters have not yet seen all, and `full` that it may not even wait.
    `raw` is the outcome as the core has it."""

    pop_ms: int
    invisible_ms: int
    revive_queue: int
    batches: list[PopBatch] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    size: int = 0
    end: int = 0
    blocked_until: int = 0
    more: bool = False
    full: bool = False
    raw: Any = None

    @classmethod
    def of(cls, raw: Any, blocked_until: int = 0) -> PopOutcome:
        """The outcome that a ``ps_pop_found *`` tells of, without its batches."""
        return cls(
            raw.pop_ms, raw.invisible_ms, raw.revive_queue, count=raw.messages, rest=raw.rest,
            size=raw.bytes, end=raw.end, blocked_until=blocked_until, more=bool(raw.more),
            full=bool(raw.full), raw=raw,
        )  # fmt: skip

    @classmethod
    def without_order(cls, raw: Any) -> PopOutcome:
        """The same, with its batches, for a group that is not ordered."""
        out = cls.of(raw)
        for each in raw.all[0 : raw.count]:
            found = Batch(each.batch)
            out.batches.append(
                PopBatch(str(each.kind), each.queue_id, each.start, found, found.offsets(), None)
            )
        return out

    def seen(self) -> dict[int, int]:
        """Returns the end of each queue of the topic that was looked at; it holds until the next
        try."""
        raw = self.raw
        return dict(enumerate(ffi.unpack(raw.seen, raw.seen_count), raw.seen_first))

    def deliveries(self, broker: str) -> Iterator[Delivery]:
        """Returns each message with the handle that acknowledges it."""
        for taken in self.batches:
            yield from self.deliveries_of(taken, broker)

    def deliveries_of(self, taken: PopBatch, broker: str) -> Iterator[Delivery]:
        ordered = taken.times
        for message, offset in zip(taken.messages, taken.offsets, strict=True):
            handle = Handle(
                taken.start, self.pop_ms, self.invisible_ms, self.revive_queue, taken.kind, broker,
                taken.queue, offset,
            )  # fmt: skip
            times = message.reconsume_times if ordered is None else ordered.get(offset, 0)
            yield Delivery(message, handle, times)


def longest_retry_topic(config: Config) -> int:
    """Returns how many bytes the name of a retry topic may have."""
    return 255 if config["autoMessageVersionOnTopicLen"] else 127


class Batches:
    """Has the core find batches of ordered groups, whose order is kept here."""

    def __init__(
        self, points: CheckPoints, config: Config, topics: Topics, order: OrderTable,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._points, self._config = points, config
        self._topics, self._order = topics, order
        self._now_ms = now_ms

    def pop(self, request: PopRequest) -> PopOutcome:
        """Pops for an ordered group. Raises: StoreError when nothing can be read."""
        blocked, until = self._blocked(request)
        raw = self._points.walk(
            request.topic, request.group, request.queue, most=request.most,
            invisible_ms=request.invisible_ms, from_min=request.from_min,
            filter_by=request.sql or request.tags, sql=request.sql is not None, blocked=blocked,
        )  # fmt: skip
        out = PopOutcome.of(raw, until)
        for each in raw.all[0 : raw.count]:
            found = Batch(each.batch)
            offsets = found.offsets()
            times = self._note(request, each, offsets, out.pop_ms)
            out.batches.append(
                PopBatch(str(each.kind), each.queue_id, each.start, found, offsets, times)
            )
        return out

    def shown(self, popped: PopOutcome, topic: str) -> tuple[dict[str, object], bytes]:
        """Returns the members of an answer that say which messages of an ordered group its records
        are, and the records, for a request of this topic. Raises: OutOfMemory."""
        starts, offsets, body = self._points.show(popped.raw, topic)
        counts = ";".join(each for taken in popped.batches for each in _shown_counts(taken))
        return {
            "startOffsetInfo": starts, "msgOffsetInfo": offsets, "orderCountInfo": counts,
        }, body  # fmt: skip

    # ---- places ----

    def queues(self, topic: str, queue: int) -> Sequence[int]:
        """Returns the queue that was asked for, or all."""
        if queue >= 0:
            return [queue]
        config = self._topics.get(topic)
        return range(config.read_queue_nums if config is not None else 0)

    @property
    def looked_at(self) -> list[str]:
        """Returns the kinds of retry topics through which messages may come back."""
        if not self._config["enableRetryTopicV2"]:
            return [RETRY_V1]
        if not self._config["retrieveMessageFromPopRetryTopicV1"]:
            return [RETRY_V2]
        return [RETRY_V1, RETRY_V2]

    # ---- order ----

    def _blocked(self, request: PopRequest) -> tuple[list[int], int]:
        """Returns the queues whose batch is still out, and when the first of them may be looked at,
        0 when none is blocked."""
        now, first, blocked = self._now_ms(), 0, []
        for queue in self.queues(request.topic, request.queue):
            batch = self._order.get((request.topic, request.group, queue))
            until = batch.blocked_until(request.attempt, now) if batch is not None else 0
            if until:
                first = min(first or until, until)
                blocked.append(queue)
        return blocked, first

    def _note(
        self, request: PopRequest, raw: Any, offsets: Sequence[int], pop_ms: int
    ) -> Mapping[int, int]:
        """Notes that a batch of an ordered queue is out. Returns how often each of its messages was
        popped before."""
        place = request.topic, request.group, raw.queue_id
        batch = self._order.pop(
            place, request.attempt, pop_ms, request.invisible_ms, offsets, self._now_ms()
        )
        self._order.note(place, raw.start)
        return batch.times


def _shown_counts(taken: PopBatch) -> Iterator[str]:
    """Returns how often these messages were popped before."""
    times = taken.times or {}
    counts = [(each, times.get(each, 0)) for each in taken.offsets]
    for offset, count in counts:
        if count > 0:
            yield f"{taken.kind} qo{taken.queue}%{offset} {count}"
    yield f"{taken.kind} {taken.queue} {min(count for _, count in counts)}"
