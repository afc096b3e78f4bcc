"""What comes to a lite consumer and what becomes of it: pops, acknowledgements, redeliveries.

A broker hands out a batch of each lite topic, and the next when all of it is acknowledged or its
time is over. Acknowledgements go out in order: Apache 5.5.0 forgets after a restart which batch is
open, and then skips everything before an acknowledged message.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from broker.client.errors import BrokerRefused, ClientError, RequestTimeout, Unreachable, reading
from broker.client.lite import lite_place, times_before
from broker.client.member import Worker
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.popping import again_s
from broker.client.progress import QueueProgress
from broker.client.pulling import BACKOFF_S, GRACE_S
from broker.client.ready import ReadyMessages
from broker.client.records import received
from broker.client.retrying import republish
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.receipts import NORMAL, ORDER_QUEUE, Handle

__all__ = ["LaneMessages", "LiteDelivery", "LitePopping", "LiteWorker"]

log = SafeLogger("broker.client")
_quiet = RateLimitedLogger(log)

#: Pauses before further attempts to acknowledge: else the lite topic waits for its time to be over.
_ACK_PAUSES_S = (0.2, 1.0, 3.0)
#: Messages that one answer may have.
POP_MAX = 32
#: Of a handle: the queue of a lite topic.
_QUEUE = 0


class LiteDelivery(QueueProgress):
    """Messages of one answer and one lite topic. handles: of those that are not acknowledged, by
    offset. done() acknowledges once everything before is done, too."""

    __slots__ = ("_ended", "_finished", "handles", "last_ack", "lite_topic", "touched")

    def __init__(
        self, queue: MessageQueue, lite_topic: str, shown: Callable[[str], str],
        ended: Callable[[LiteDelivery, Handle], None],
    ) -> None:  # fmt: skip
        super().__init__(queue, 0, shown)
        self.lite_topic = lite_topic
        self.handles: dict[int, Handle] = {}
        #: When a message of it was last done (seconds of the monotonic clock).
        self.touched = time.monotonic()
        #: The acknowledgement that the next one waits for.
        self.last_ack: asyncio.Task[None] | None = None
        self._finished: set[int] = set()
        self._ended = ended

    def done(self, *offsets: int) -> None:
        self._finished.update(offset for offset in offsets if offset in self.handles)
        self.touched = time.monotonic()
        while self.handles and (first := next(iter(self.handles))) in self._finished:
            self._finished.discard(first)
            self._ended(self, self.handles.pop(first))

    def is_open(self, offset: int) -> bool:
        return offset in self.handles and offset not in self._finished

    def forget(self, offsets: Iterable[int]) -> list[Handle]:
        """Takes messages out that others will get; their handles."""
        self._finished.difference_update(offsets)
        return [self.handles.pop(offset) for offset in offsets if offset in self.handles]


class LaneMessages(ReadyMessages):
    """Ready messages for handlers: of each lite topic one is handed out, and the next when that is
    settled."""

    def __init__(self) -> None:
        super().__init__()
        #: What follows in each lite topic of which a message waits or is in hand.
        self._lanes: dict[str, deque[ReceivedMessage]] = {}

    def add(self, messages: Iterable[ReceivedMessage]) -> None:
        first = []
        for message in messages:
            lane = self._lanes.get(_lane_of(message))
            if lane is None:
                self._lanes[_lane_of(message)] = deque()
                first.append(message)
            else:
                lane.append(message)
        super().add(first)

    def settled(self, lite_topic: str) -> None:
        """Lets the next message of a lite topic follow the one that was in hand."""
        lane = self._lanes.get(lite_topic)
        if lane:
            super().add([lane.popleft()])
        else:
            self._lanes.pop(lite_topic, None)

    def drop(self, progress: QueueProgress) -> list[ReceivedMessage]:
        heads = super().drop(progress)
        name = progress.lite_topic if isinstance(progress, LiteDelivery) else ""
        lane = self._lanes.get(name, deque())
        dropped = heads + [m for m in lane if m.progress is progress]
        if name in self._lanes:
            self._lanes[name] = deque(m for m in lane if m.progress is not progress)
        if heads:
            self.settled(name)
        return dropped

    def clear(self) -> None:
        super().clear()
        self._lanes.clear()


def _lane_of(message: ReceivedMessage) -> str:
    batch = message.progress
    assert isinstance(batch, LiteDelivery)
    return batch.lite_topic


class LiteWorker(Worker, Protocol):
    """What popping needs of a lite consumer."""

    topic: str

    def wants(self, lite_topic: str) -> bool:
        """Says whether messages of this lite topic are for this consumer."""

    def settled(self, lite_topic: str) -> None:
        """Takes note that a message that was in hand is done, or goes back."""


class LitePopping:
    """Keeps one request waiting at each broker, and the batches that are here."""

    def __init__(self, consumer: LiteWorker) -> None:
        self._consumer = consumer
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._acks: set[asyncio.Task[None]] = set()
        self._batches: set[LiteDelivery] = set()
        #: How often a message went back unhandled, behind one that failed: no failure of its own.
        self._carried: dict[tuple[str, int], int] = {}
        self._room = asyncio.Event()

    @property
    def _open(self) -> int:
        return sum(len(batch.handles) for batch in self._batches)

    # ---- asking ----

    def ask(self, brokers: set[str]) -> None:
        """Keeps one task for each of these brokers, and none for others."""
        for broker in self._asking.keys() - brokers:
            self._asking.pop(broker).cancel()
        asked = {broker for broker, task in self._asking.items() if not task.done()}
        for broker in brokers - asked:
            self._asking[broker] = self._consumer.network.spawn(self._ask(broker))

    async def stop_asking(self) -> None:
        """Ends the requests that wait; what came before stays."""
        tasks, self._asking = list(self._asking.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, broker: str) -> None:
        consumer, pause_s, attempt = self._consumer, BACKOFF_S[0], uuid.uuid4().hex
        while True:
            while (room := consumer.settings.buffer_messages - self._open) <= 0:
                self._room.clear()
                await self._room.wait()
            try:
                answer = await self._pop(broker, room, attempt)
                if answer.code == ResponseCode.SUCCESS:
                    self._arrived(broker, answer)
            except ClientError as failed:
                group = consumer.group
                kind = group, consumer.topic, type(failed)
                _quiet.warning(kind, "%s cannot pop %s; will retry: %s", group, broker, failed)
                if not isinstance(failed, Unreachable | RequestTimeout):
                    attempt = uuid.uuid4().hex
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(pause_s * 2, BACKOFF_S[1])
                continue
            pause_s, attempt = BACKOFF_S[0], uuid.uuid4().hex
            if answer.code == ResponseCode.POLLING_FULL:
                await asyncio.sleep(BACKOFF_S[0])

    async def _pop(self, broker: str, room: int, attempt: str) -> Command:
        """Sends one pop and returns its answer. attempt: a repeated one gets its batch again.
        Raises: ClientError."""
        consumer, settings = self._consumer, self._consumer.settings
        # Without bornTime, which brokers would compare with a clock of their own.
        fields = {
            "clientId": consumer.network.client_id, "consumerGroup": consumer.group,
            "topic": consumer.topic, "maxMsgNum": min(settings.pull_batch, POP_MAX, room),
            "invisibleTime": int(settings.invisible_s * 1000),
            "pollTime": int(settings.poll_wait_s * 1000), "attemptId": attempt, "bname": broker,
        }  # fmt: skip
        return await consumer.network.request(
            consumer.broker_of(self._queue(broker)), RequestCode.POP_LITE_MESSAGE, fields,
            fine=(0, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT),
            timeout=settings.poll_wait_s + GRACE_S,
        )  # fmt: skip

    def _queue(self, broker: str) -> MessageQueue:
        return MessageQueue(self._consumer.topic, broker, _QUEUE)

    def _arrived(self, broker: str, answer: Command) -> None:
        """Takes the messages of an answer. Raises: BadAnswer."""
        consumer, queue, found = self._consumer, self._queue(broker), []
        nowhere = QueueProgress(queue, 0, consumer.shown)
        with reading(f"a pop of {consumer.topic}", consumer.broker_of(queue)):
            pop_ms, invisible_ms = (int(answer.ext[n]) for n in ("popTime", "invisibleTime"))
            messages = received(bytes(answer.body), nowhere, None)
            places: list[tuple[str, int]] = []
            for message in messages:
                try:
                    places.append(
                        lite_place(message.properties, consumer.topic, message.stored_topic)
                    )
                except ValueError as bad:
                    log.warning("%s cannot acknowledge, and skips, %s", consumer.group, bad)
                    places.append(("", message.queue_offset))
            all_times = times_before(answer.ext.get("orderCountInfo", ""), places)
        batches: dict[str, LiteDelivery] = {}
        for message, (name, offset), times in zip(messages, places, all_times, strict=True):
            if not name:
                continue
            if name not in batches:
                batches[name] = LiteDelivery(queue, name, consumer.shown, self._done)
            batch = batches[name]
            # Its number in the light queue is not the one in the record, of the parent's queue.
            placed = ReceivedMessage(message._data, message._rows, message._index, offset, batch)
            times -= self._carried.get((name, offset), 0)
            placed._head = message.head._replace(reconsume_times=max(0, times))
            batch.handles[offset] = Handle(
                0, pop_ms, invisible_ms, ORDER_QUEUE, NORMAL, broker, _QUEUE, offset
            )
            found.append(placed)
        self._batches.update(batches.values())
        consumer.arrived([m for m in found if consumer.wants(_lane_of(m))])
        for name, batch in batches.items():
            if not consumer.wants(name):
                consumer.network.spawn(self._return(batch, []))

    # ---- what becomes of a message ----

    def _delivery(self, batch: LiteDelivery, handle: Handle) -> dict[str, object]:
        return {
            "consumerGroup": self._consumer.group, "topic": self._consumer.topic,
            "queueId": _QUEUE, "offset": handle.offset, "extraInfo": handle.text,
            "liteTopic": batch.lite_topic, "bname": batch.queue.broker,
        }  # fmt: skip

    def _left(self, batch: LiteDelivery) -> None:
        """Takes note that fewer messages are here."""
        if not batch.handles:
            self._batches.discard(batch)
        self._room.set()

    def _done(self, batch: LiteDelivery, handle: Handle) -> None:
        self._carried.pop((batch.lite_topic, handle.offset), None)
        self._left(batch)
        self._consumer.settled(batch.lite_topic)
        task = self._consumer.network.spawn(self._ack(batch, handle, batch.last_ack))
        batch.last_ack = task
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def acknowledged(self) -> None:
        """Waits for the acknowledgements that are under way."""
        if self._acks:
            await asyncio.wait(self._acks)

    async def _ack(
        self, batch: LiteDelivery, handle: Handle, before: asyncio.Task[None] | None
    ) -> None:
        # One after the other: threads of Apache's broker would hand out again what two of them are
        # about to commit.
        if before is not None:
            await asyncio.wait({before})
        fields = self._delivery(batch, handle)
        for pause_s in (*_ACK_PAUSES_S, None):
            try:
                address = self._consumer.broker_of(batch.queue)
                await self._consumer.network.request(address, RequestCode.ACK_MESSAGE, fields)
            except (Unreachable, RequestTimeout) as lost:
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
                    continue
                log.warning("Cannot acknowledge %s; it comes again: %s", handle.text, lost)
            except ClientError as failed:
                log.warning("Cannot acknowledge %s; it comes again: %s", handle.text, failed)
            return

    async def _change(
        self, batch: LiteDelivery, handle: Handle, seconds: float, *, suspend: bool = False
    ) -> None:
        """Has a message come again after so long. suspend: the whole batch, and that does not
        count as a delivery. Raises: ClientError."""
        fields = self._delivery(batch, handle) | {
            "invisibleTime": max(1, int(seconds * 1000)), "suspend": suspend,
        }  # fmt: skip
        await self._consumer.network.request(
            self._consumer.broker_of(batch.queue), RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields
        )

    async def nack(self, message: ReceivedMessage, delay_level: int) -> None:
        """Does what a consumer does with a message that failed: by the level, or its attempt when
        that is 0. Raises: ClientError."""
        times = message.head.reconsume_times
        if delay_level < 0 or times >= self._consumer.settings.retries:
            await self.reject(message)
        else:
            await self.redeliver(message, again_s(delay_level, times))

    async def reject(self, message: ReceivedMessage) -> None:
        """Makes the message a dead letter. Raises: ClientError."""
        batch = message.progress
        if isinstance(batch, LiteDelivery) and batch.is_open(message.queue_offset):
            # Not with CONSUMER_SEND_MSG_BACK: Apache 5.5.0 puts the dead letter that it makes into
            # the lite topic, too, where nobody can acknowledge it.
            await republish(self._consumer, message, 0, dead=True)
            batch.done(message.queue_offset)

    async def redeliver(self, message: ReceivedMessage, seconds: float) -> None:
        """Has the message, and what follows it in its batch, come again. Raises: ClientError."""
        batch = message.progress
        if not isinstance(batch, LiteDelivery) or not batch.is_open(message.queue_offset):
            return
        offset, name = message.queue_offset, batch.lite_topic
        self._drop(batch)
        handles = batch.forget([each for each in batch.handles if each >= offset])
        for handle in handles[1:]:
            place = name, handle.offset
            self._carried[place] = self._carried.get(place, 0) + 1
        self._left(batch)
        self._consumer.settled(name)
        # A batch comes again when the last of it may.
        changes = [self._change(batch, handle, seconds) for handle in handles]
        for failed in await asyncio.gather(*changes, return_exceptions=True):
            if isinstance(failed, BaseException):
                raise failed

    def _drop(self, batch: LiteDelivery) -> list[ReceivedMessage]:
        """Takes the messages of a batch that wait for a taker away."""
        batch.dropped = not isinstance(self._consumer.ready, LaneMessages)
        return self._consumer.ready.drop(batch)

    async def _return(self, batch: LiteDelivery, in_hand: Sequence[int]) -> None:
        """Gives what is here of a batch back at once, but for what is in hand."""
        handles = batch.forget([each for each in batch.handles if each not in in_hand])
        self._left(batch)
        try:
            if handles and not in_hand:
                await self._change(batch, handles[0], 0, suspend=True)
            else:
                for handle in handles:
                    await self._change(batch, handle, 0)
        except ClientError as failed:
            log.info("Cannot return %s; it comes again later: %s", handles[0].text, failed)

    async def release(self, names: Iterable[str]) -> None:
        """Gives back what waits here of these lite topics; what is in hand may still be done."""
        wanted = frozenset(names)
        for batch in [each for each in self._batches if each.lite_topic in wanted]:
            waiting = {message.queue_offset for message in self._drop(batch)}
            await self._return(batch, [each for each in batch.handles if each not in waiting])

    async def release_all(self) -> None:
        """Gives back everything that is not done."""
        for batch in list(self._batches):
            self._drop(batch)
            await self._return(batch, [])

    def _let_go(self, batch: LiteDelivery) -> None:
        """Counts no more a batch that was taken, is not done and comes again: whoever leaves
        messages to come again would get none at all. What waits here for a taker, or for a
        handler, is for him."""
        ready = self._consumer.ready
        if not isinstance(ready, LaneMessages) and batch not in ready.batches():
            self._batches.discard(batch)
            self._room.set()

    async def renew(self) -> None:
        """Keeps what is here ours, again and again: a batch is held as long as its last message
        is. One of which nothing gets done is not kept for ever."""
        settings = self._consumer.settings
        while True:
            await asyncio.sleep(settings.invisible_s / 3)
            for batch in list(self._batches):
                idle_s = time.monotonic() - batch.touched
                if idle_s > settings.handler_timeout_s:
                    if idle_s > settings.handler_timeout_s + settings.invisible_s:
                        self._let_go(batch)
                    continue
                handle = next(reversed(batch.handles.values()), None)
                if handle is None:
                    continue
                try:
                    await self._change(batch, handle, settings.invisible_s)
                except BrokerRefused as gone:
                    log.info("Cannot keep %s; it may come to another: %s", handle.text, gone)
                except ClientError as failed:
                    log.warning("Cannot keep %s; will retry: %s", handle.text, failed)
