"""Consuming by POP: the broker keeps where the group is, and each message is acknowledged by itself
(docs/internals/pop.md). No queues are divided: every member asks every broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection

from broker.client.checks import check_messages, check_seconds
from broker.client.errors import ClientError, Misuse, reading
from broker.client.member import Member
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.progress import QueueProgress
from broker.client.pulling import BACKOFF_S, GRACE_S
from broker.client.records import received
from broker.client.retrying import give_back
from broker.client.routes import Route
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.receipts import (
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    Deliveries,
    Handle,
    retry_topic,
)
from pystore.format.names import RETRY_PREFIX

__all__ = ["PoppedBatch", "Popping", "again_s", "readable"]

log = SafeLogger("broker.client")
_quiet = RateLimitedLogger(log)

#: The least pause before it is looked again whose time is over.
_OVER_S = 0.2
#: Invisible seconds of a message that failed, by its attempt; as the delays of upstream's client.
_AGAIN_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_ROUTES_S = 20.0


class PoppedBatch(QueueProgress):
    """Messages of one answer and one queue; done() acknowledges. handles: of those that are not
    done, by offset. real_topic: the queue's, which may be of a retry topic."""

    __slots__ = ("_ended", "handles", "real_topic")

    def __init__(
        self, queue: MessageQueue, real_topic: str, shown: Callable[[str], str],
        ended: Callable[[PoppedBatch, Handle], None],
    ) -> None:  # fmt: skip
        super().__init__(queue, 0, shown)
        self.real_topic = real_topic
        self.handles: dict[int, Handle] = {}
        self._ended = ended

    def done(self, *offsets: int) -> None:
        for offset in offsets:
            handle = self.handles.pop(offset, None)
            if handle is not None:
                self._ended(self, handle)

    def is_open(self, offset: int) -> bool:
        return offset in self.handles


class Popping:
    """Takes the place of a rebalancer: one request waits at each broker of each topic."""

    def __init__(self, consumer: Member, *, by_hand: bool) -> None:
        """Makes it for a consumer. by_hand: no handler takes its messages."""
        self._consumer, self._by_hand = consumer, by_hand
        self._polls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._acks: set[asyncio.Task[None]] = set()
        #: Messages that are here and not done, and who waits until they are fewer.
        self._open = 0
        self._room = asyncio.Event()
        #: Batches of theirs, and until when (loop time) those are ours.
        self._held: dict[PoppedBatch, float] = {}

    # ---- as a rebalancer ----

    async def start(self) -> None:
        """Asks for all topics that are subscribed to, and goes on with their routes."""
        await self._look()
        if self._keeper is None:
            self._keeper = self._consumer.network.spawn(self._keep())

    def soon(self) -> None:
        self._due.set()

    async def stop(self) -> None:
        """Stops asking. Messages that were handed out and are not done come back to the group by
        themselves."""
        tasks = [*self._polls.values(), *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._polls, self._keeper = {}, None

    async def unlock(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Waits for the acknowledgements that are under way."""
        if self._acks:
            await asyncio.wait(self._acks)

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROUTES_S):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._look()
            except ClientError as failed:
                log.info("%s has no routes; will retry: %s", self._consumer.network.name, failed)

    async def _look(self) -> None:
        """Keeps one task for each topic and broker, and none for those that are gone."""
        consumer, wanted = self._consumer, set()
        for topic in [each for each in consumer.subscriptions if not each.startswith(RETRY_PREFIX)]:
            route = await consumer.network.route(topic)
            wanted |= {(topic, broker) for broker in readable(route)}
        for place in self._polls.keys() - wanted:
            self._polls.pop(place).cancel()
        asked = {place for place, task in self._polls.items() if not task.done()}
        for place in wanted - asked:
            self._polls[place] = consumer.network.spawn(self._ask(*place))

    # ---- popping ----

    async def _ask(self, topic: str, broker: str) -> None:
        pause_s = BACKOFF_S[0]
        while topic in self._consumer.subscriptions:
            await self._wait_for_room()
            try:
                answer = await self._pop(topic, broker)
                if answer.code == ResponseCode.SUCCESS:
                    messages = self._received(topic, broker, answer)
            except ClientError as failed:
                group = self._consumer.group
                kind = group, topic, type(failed)
                _quiet.warning(kind, "%s cannot pop %s; will retry: %s", group, topic, failed)
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(pause_s * 2, BACKOFF_S[1])
                continue
            pause_s = BACKOFF_S[0]
            if answer.code == ResponseCode.SUCCESS:
                self._open += len(messages)
                until = self._now() + self._consumer.settings.invisible_s
                self._held |= {
                    batch: until for m in messages if isinstance(batch := m.progress, PoppedBatch)
                }
                self._consumer.arrived(messages)
            elif answer.code == ResponseCode.POLLING_FULL:
                await asyncio.sleep(BACKOFF_S[0])

    async def _wait_for_room(self) -> None:
        """Waits until fewer messages are open than one pop brings, or the first time is over."""
        while self._open >= self._consumer.settings.pull_batch:
            self._room.clear()
            pause = max(min(self._held.values(), default=0.0) - self._now(), _OVER_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._room.wait()
            self._let_go()

    def _let_go(self) -> None:
        """Counts no more what was taken, not done, and comes again since its time is over: whoever
        leaves messages to come again would get none at all. What waits here for a taker, or for a
        handler, is for him."""
        now = self._now()
        if not self._by_hand or not any(until <= now for until in self._held.values()):
            return
        waiting = self._consumer.ready.batches()
        for batch in [b for b, until in self._held.items() if until <= now and b not in waiting]:
            self._open -= len(batch.handles)
            del self._held[batch]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _ends(self, batch: PoppedBatch) -> None:
        """Counts a message of a batch that is done."""
        if batch in self._held:
            self._open -= 1
            self._room.set()
            if not batch.handles:
                del self._held[batch]

    async def _pop(self, topic: str, broker: str) -> Command:
        """Sends one pop and returns its answer. Raises: ClientError."""
        consumer = self._consumer
        settings, wanted = consumer.settings, consumer.subscriptions[topic]
        fields = {
            "consumerGroup": consumer.group, "topic": topic, "queueId": -1,
            "maxMsgNums": min(settings.pull_batch, 32),
            "invisibleTime": int(settings.invisible_s * 1000),
            "pollTime": int(settings.poll_wait_s * 1000), "bornTime": time.time_ns() // 1_000_000,
            "initMode": 0 if settings.start == "first" else 1, "expType": wanted.kind,
            "exp": wanted.expression, "order": False, "bname": broker,
        }  # fmt: skip
        return await consumer.network.request(
            consumer.broker_of(MessageQueue(topic, broker, 0)), RequestCode.POP_MESSAGE, fields,
            fine=(0, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT),
            timeout=settings.poll_wait_s + GRACE_S,
        )  # fmt: skip

    def _received(self, topic: str, broker: str, answer: Command) -> list[ReceivedMessage]:
        """Returns the messages of an answer, each with its batch. Raises: BadAnswer, also for one
        that does not say which deliveries they are."""
        consumer, said = self._consumer, answer.ext
        tags = consumer.subscriptions[topic].tags
        wanted = None if tags is None else frozenset(tag.encode() for tag in tags)
        kinds = (RETRY_V1, RETRY_V2)
        known = {topic, *(retry_topic(consumer.group, topic, kind) for kind in kinds)}
        batches: dict[tuple[str, int], PoppedBatch] = {}
        nowhere = PoppedBatch(MessageQueue(topic, broker, -1), topic, consumer.shown, self._done)
        with reading(f"a pop of {topic}", consumer.broker_of(nowhere.queue)):
            messages = received(bytes(answer.body), nowhere, None)
            deliveries = Deliveries(said, broker)
            for message in messages:
                if message.stored_topic not in known and not topic.startswith("%LMQ%"):
                    raise ValueError(
                        f"{topic} was asked for, and a message is of {message.stored_topic!r:.300}"
                    )
                handle = deliveries.handle(
                    message.head.queue, message.queue_offset, message.properties.get("POP_CK")
                )
                place = handle.retry, handle.queue
                if place not in batches:
                    real = topic
                    if handle.retry != NORMAL:
                        real = retry_topic(consumer.group, topic, handle.retry)
                    queue = MessageQueue(topic, broker, handle.queue)
                    batches[place] = PoppedBatch(queue, real, consumer.shown, self._done)
                message.progress = batches[place]
                batches[place].handles[message.queue_offset] = handle
        found = []
        for message in messages:
            # Brokers compare hashes of tags, which may collide: such a message is not for us.
            if wanted is not None and (message.tags or "").encode() not in wanted:
                message.progress.done(message.queue_offset)
            else:
                found.append(message)
        return found

    # ---- what becomes of a message ----

    def _done(self, batch: PoppedBatch, handle: Handle) -> None:
        self._ends(batch)
        task = self._consumer.network.spawn(self._ack(batch, handle))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    def _delivery(self, batch: PoppedBatch, handle: Handle) -> dict[str, object]:
        return {
            "consumerGroup": self._consumer.group, "topic": batch.real_topic,
            "queueId": handle.queue, "offset": handle.offset, "extraInfo": handle.text,
            "bname": batch.queue.broker,
        }  # fmt: skip

    async def _ack(self, batch: PoppedBatch, handle: Handle) -> None:
        fields = self._delivery(batch, handle)
        try:
            await self._consumer.network.request(
                self._consumer.broker_of(batch.queue), RequestCode.ACK_MESSAGE, fields
            )
        except ClientError as failed:
            log.warning("Cannot acknowledge %s; it comes again: %s", handle.text, failed)

    async def extend(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Keeps the message with us for so long from now on. Raises: Misuse, ClientError."""
        check_messages("extend()", [message])
        check_seconds("invisible_s", invisible_s, more_than_0=True)
        batch = message.progress
        handle = batch.handles.get(message.queue_offset) if isinstance(batch, PoppedBatch) else None
        if not isinstance(batch, PoppedBatch) or handle is None:
            raise Misuse(f"{message} is done already, or was not popped")
        fields = self._delivery(batch, handle) | {"invisibleTime": int(invisible_s * 1000)}
        address = self._consumer.broker_of(batch.queue)
        answer = await self._consumer.network.request(
            address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields
        )
        if message.queue_offset not in batch.handles:
            return  # it was acknowledged meanwhile, by the old handle
        with reading(f"an extension of {message}", address):
            if batch in self._held:
                self._held[batch] = max(self._held[batch], self._now() + invisible_s)
            batch.handles[message.queue_offset] = handle._replace(
                start=handle.offset, pop_ms=int(answer.ext["popTime"]),
                invisible_ms=int(answer.ext["invisibleTime"]),
                revive_queue=int(answer.ext["reviveQid"]),
            )  # fmt: skip

    async def nack(self, message: ReceivedMessage, delay_level: int) -> None:
        """Has the message delivered again, to any member: after the delay of the level, by its
        attempt when that is 0. A dead letter when it came too often, or for -1. Raises: Misuse,
        ClientError."""
        batch = message.progress
        if not isinstance(batch, PoppedBatch) or not batch.is_open(message.queue_offset):
            return
        if delay_level < 0 or message.head.reconsume_times >= self._consumer.settings.retries:
            await give_back(self._consumer, message, -1)
            batch.done(message.queue_offset)
            return
        await self.extend(message, again_s(delay_level, message.head.reconsume_times))
        if batch.handles.pop(message.queue_offset, None) is not None:
            self._ends(batch)


def readable(route: Route) -> set[str]:
    """Returns the brokers that have queues to read."""
    return {queue.broker for queue in route.held}


def again_s(delay_level: int, times: int) -> float:
    """Returns after how many seconds a message that failed comes again: by the level, or by how
    often it failed before when that is 0."""
    step = delay_level - 3 if delay_level else times
    return _AGAIN_S[max(0, min(step, len(_AGAIN_S) - 1))]
