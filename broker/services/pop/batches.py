"""One try to pop: which queues are looked at, from where on, and what is found
(docs/internals/pop.md#the-pop; upstream PopMessageProcessor.popMsgFromQueue)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.remoting.receipts import (
    NORMAL,
    ORDER_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Handle,
    retry_topic,
)
from broker.services.config import Config
from broker.services.hotpath import HotPath
from broker.services.names import RETRY
from broker.services.offsets import Offsets, is_young
from broker.services.pop.checkpoints import CheckPoint, CheckPoints
from broker.services.pop.order import OrderTable
from broker.services.pop.records import ReviveLog
from broker.services.topics import Topics
from pystore import Batch, Message, Store
from pystore.errors import StoreError
from pystore.sql92 import WORK_MAX

__all__ = ["Batches", "Delivery", "PopRequest", "Popped", "Taken", "longest_retry_topic"]

_PERCENT = 100
#: Queues of a topic that are looked at in one step of the core, before each of them is.
_MANY = 16
#: How long filters may pass over messages in one try; the rest is for the next one.
_FILTERING_S = 0.01


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What a consumer asks for, checked. queue: -1 for any of the topic. from_min: where a new
    group begins. tags, sql: one filter at most. attempt: names a try of an ordered consumer."""

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
class Taken:
    """A batch of one queue. kind: of its topic, NORMAL or a retry topic's. offsets: of its
    messages. times: how often each
    of an ordered group was popped before, by offset; None: no ordered group."""

    kind: str
    queue: int
    start: int
    messages: Batch
    offsets: Sequence[int]
    times: Mapping[int, int] | None


class Delivery(NamedTuple):
    """One message on its way to a consumer. times: how often it was delivered before."""

    message: Message
    handle: Handle
    times: int


@dataclass(slots=True)
class Popped:
    """What a try found. count, size: messages of all batches, and their bytes. rest: messages that
    are still there. end: of the last record that was put for it. blocked_until: when an ordered
    queue that was passed over may be looked at, 0: none was. more: filters have not yet seen all.
    full: it may not even wait. seen: the end of each queue of the topic that was looked at."""

    pop_ms: int
    invisible_ms: int
    revive_queue: int
    batches: list[Taken] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    size: int = 0
    end: int = 0
    blocked_until: int = 0
    more: bool = False
    full: bool = False
    seen: dict[int, int] = field(default_factory=dict)

    def deliveries(self, broker: str) -> Iterator[Delivery]:
        """Each message with the handle that acknowledges it."""
        for taken in self.batches:
            yield from self.deliveries_of(taken, broker)

    def deliveries_of(self, taken: Taken, broker: str) -> Iterator[Delivery]:
        ordered = taken.times
        for message, offset in zip(taken.messages, taken.offsets, strict=True):
            handle = Handle(
                taken.start, self.pop_ms, self.invisible_ms, self.revive_queue, taken.kind, broker,
                taken.queue, offset,
            )  # fmt: skip
            times = message.reconsume_times if ordered is None else ordered.get(offset, 0)
            yield Delivery(message, handle, times)


def longest_retry_topic(config: Config) -> int:
    """Bytes that the name of a retry topic may have."""
    return 255 if config["autoMessageVersionOnTopicLen"] else 127


class Batches:
    """Finds batches, and keeps a check point or the order of each before it is handed out."""

    def __init__(
        self,
        store: Store,
        core: HotPath,
        config: Config,
        topics: Topics,
        offsets: Offsets,
        points: CheckPoints,
        order: OrderTable,
        log: ReviveLog,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._core, self._config = store, core, config
        self._topics, self._offsets = topics, offsets
        self._points, self._order, self._log = points, order, log
        self._now_ms = now_ms
        self._turn = 0
        self.random = random.Random()

    def pop(self, request: PopRequest) -> Popped:
        """Raises: StoreError when no check point can be kept; nothing is handed out then."""
        luck = self.random.randrange(_PERCENT)
        self._turn += 1
        revive = ORDER_QUEUE if request.order else self._turn % self._config["reviveQueueNum"]
        out = Popped(self._now_ms(), request.invisible_ms, revive)
        retry_first = luck < self._config["popFromRetryProbability"]
        if retry_first:
            self._retry(request, luck, out)
        for queue in self._worth(request, request.topic, request.queue, luck, NORMAL, out):
            self._queue(request, request.topic, queue, NORMAL, out)
        if not retry_first and out.count < request.most:
            self._retry(request, luck, out)
        return out

    def queues(self, topic: str, queue: int, luck: int) -> list[int]:
        """The one that was asked for, or all, from another one on each time."""
        if queue >= 0:
            return [queue]
        config = self._topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        return [(luck + i) % count for i in range(count)]

    def _worth(
        self, request: PopRequest, topic: str, queue: int, luck: int, kind: str, out: Popped
    ) -> Iterator[int]:
        """The same without those of many queues that have nothing for the group, or nothing more
        that is wanted: of these it only notes what there is."""
        queues = self.queues(topic, queue, luck)
        if request.order or len(queues) < _MANY:
            yield from queues
            return
        most = self._config["maxTransferBytesOnMessageInMemory"]
        rests, ends = self._core.rests(request.group, topic, len(queues))
        if kind == NORMAL:
            out.seen.update(enumerate(ends))
        for each in queues:
            rest = rests[each]
            if rest < 0 or (rest and out.count < request.most and out.size < most and not out.more):
                yield each
            else:
                out.rest += rest

    # ---- retry topics ----

    @property
    def looked_at(self) -> list[str]:
        """Kinds of retry topics that messages may come back through."""
        if not self._config["enableRetryTopicV2"]:
            return [RETRY_V1]
        if not self._config["retrieveMessageFromPopRetryTopicV1"]:
            return [RETRY_V2]
        return [RETRY_V1, RETRY_V2]

    def retry_kinds(self, luck: int) -> list[str]:
        """Only one kind is looked at for one request, since its answer knows one."""
        kinds = self.looked_at
        return [kinds[luck % len(kinds)]]

    def _retry(self, request: PopRequest, luck: int, out: Popped) -> None:
        if request.order or request.topic.startswith(RETRY):
            return
        for kind in self.retry_kinds(luck):
            name = retry_topic(request.group, request.topic, kind)
            for queue in self._worth(request, name, -1, luck, kind, out):
                self._queue(request, name, queue, kind, out)

    # ---- one queue ----

    def position(self, request: PopRequest, topic: str, queue: int) -> int:
        """Where the group goes on; a reset that it was not told of yet takes effect."""
        group = request.group
        target = self._core.take_reset(group, topic, queue)
        if target is not None:
            self._offsets.commit(group, topic, queue, target)
            self._order.forget(topic, group, queue)
        found = self._offsets.get(group, topic, queue)
        if found is not None:
            return found
        first = self.first_offset(request.from_min or topic.startswith(RETRY), topic, queue)
        self._offsets.commit(group, topic, queue, first)
        return first

    def first_offset(self, from_min: bool, topic: str, queue: int) -> int:
        """Where a group begins that was never here. Not from the beginning, it still gets the
        whole of a young queue, and otherwise the last message."""
        low, high = self._store.range(topic, queue)
        if from_min:
            return low
        young = self._config["initPopOffsetByCheckMsgInMem"] and is_young(self._store, topic, queue)
        return 0 if young else max(high - 1, 0)

    def _queue(self, request: PopRequest, topic: str, queue: int, kind: str, out: Popped) -> None:
        position = self.position(request, topic, queue)
        high = self._store.range(topic, queue)[1]
        if kind == NORMAL:
            out.seen[queue] = high
        need = request.most - out.count
        if request.order:
            batch = self._order.get((topic, request.group, queue))
            now = self._now_ms()
            until = batch.blocked_until(request.attempt, now) if batch is not None else 0
            if until:
                out.blocked_until = min(out.blocked_until or until, until)
                return
        elif self._is_over(topic, request.group, queue):
            need = 0
        if need <= 0 or out.size >= self._config["maxTransferBytesOnMessageInMemory"]:
            out.rest += max(high - position, 0)
            return
        if out.more:  # filters have had their time
            out.rest += max(high - position, 0)
            return
        before = position
        found, position = self._read(request, topic, queue, position, need)
        if found:
            self._hand_out(request, topic, queue, kind, position, found, out)
        elif before < found.next_offset < high:
            out.more = True
        out.rest += max(found.max_offset - found.next_offset, 0)

    def _is_over(self, topic: str, group: str, queue: int) -> bool:
        """Whether too many messages of the queue are in the hands of the group."""
        config = self._config
        return bool(
            config["enablePopMessageThreshold"]
            and self._points.in_flight(topic, group, queue) > config["popInflightMessageThreshold"]
        )

    def _read(
        self, request: PopRequest, topic: str, queue: int, position: int, need: int
    ) -> tuple[Batch, int]:
        """Messages, and the offset that they were asked for from: filters and retention may have
        moved the group on."""
        ends = time.monotonic() + _FILTERING_S
        while True:
            found = self._store.read(
                topic, queue, position, max_messages=need, tags=request.tags, sql=request.sql,
                transfer_limits=True, filter_work=WORK_MAX,
            )  # fmt: skip
            if found or found.next_offset == position:
                break
            position = found.next_offset
            self._offsets.commit(request.group, topic, queue, position)
            if position >= found.max_offset or time.monotonic() > ends:
                break
        return found, position

    def _hand_out(
        self, request: PopRequest, topic: str, queue: int, kind: str, start: int, found: Batch,
        out: Popped,
    ) -> None:  # fmt: skip
        """Nothing is handed out before its check point is in the log, and the offset moves after
        it."""
        group, pop_ms = request.group, out.pop_ms
        times: Mapping[int, int] | None = None
        offsets = found.offsets()
        if request.order:
            place = topic, group, queue
            batch = self._order.pop(
                place, request.attempt, pop_ms, request.invisible_ms, offsets, self._now_ms()
            )
            self._offsets.commit(group, topic, queue, start)
            self._order.note(place, start)
            times = batch.times
        else:
            ck = CheckPoint(
                topic, group, queue, start, pop_ms, request.invisible_ms, out.revive_queue, offsets
            )
            if not self._keep(ck, out):
                out.rest += len(offsets)
                return
            self._offsets.commit(group, topic, queue, found.next_offset)
        out.batches.append(Taken(kind, queue, start, found, offsets, times))
        out.count += len(found)
        out.size += found.size

    def _keep(self, ck: CheckPoint, out: Popped) -> bool:
        """Whether its check point is kept. Raises: StoreError, unless something was found before,
        which is handed out."""
        if len(self._points) >= self._config["maxOpenCheckPoints"]:
            out.full = True
            return False
        try:
            end = self._log.open(ck)
        except StoreError:
            if not out.batches:
                raise
            return False
        if not end:
            out.full = True
            return False
        out.end = end
        return True
