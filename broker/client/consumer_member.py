"""One member of a consumer group, behind ``AsyncConsumer``.

How a message goes: a task a queue pulls (``pulling.py``) and puts what came into one deque
(``ready.py``); from there it goes to whoever asks: the iterator, poll(), or the handler's workers
(``handling.py``). Which queues are ours is decided in ``rebalance.py``. What is done, and what may
be committed, is kept by queue in ``progress.py``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from broker.client.allocation import strategy_of
from broker.client.beginnings import Beginnings
from broker.client.broadcast import OffsetFile
from broker.client.checks import OFFSET_MAX, check_count, check_offset, check_queue, check_queues
from broker.client.errors import ClientError, Misuse, reading
from broker.client.group_member import ConsumerGroupMember
from broker.client.handling import (
    ConcurrentHandling,
    Handling,
    OrderlyHandling,
    RetryLater,
)
from broker.client.inquiries import consumer_handlers
from broker.client.instruments import instrumented
from broker.client.member import Changed, ConsumerSettings
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import Network, number_in
from broker.client.options import INNER_PRODUCER, ClientSettings, name_servers
from broker.client.popping import Popping
from broker.client.progress import QueueProgress
from broker.client.pulling import Puller
from broker.client.ready import ReadyMessages
from broker.client.rebalance import Rebalancer
from broker.client.retrying import send_back
from broker.client.routes import Route
from broker.client.sending import RETRY_TOPIC_MAX, check_name, with_namespace
from broker.client.subscription import (
    TopicSubscription,
    consumer_data,
    heartbeat_body,
    parse_topics,
)
from broker.loop.safe_log import SafeLogger
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import Handler, Peer
from pystore.format.names import RETRY_PREFIX

__all__ = ["ConsumerMember"]

log = SafeLogger("broker.client")


class ConsumerMember(ConsumerGroupMember):
    """The subscriptions of a consumer, the queues that are its own, their offsets, and the messages
    that wait. The parts of a consumer see it as ``Member``."""

    def __init__(
        self,
        group: str,
        topics: str | Iterable[str] | Mapping[str, str],
        namesrv: str | Sequence[str] | None,
        client: ClientSettings,
        settings: ConsumerSettings,
        handler: Callable[[ReceivedMessage], object] | None,
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group)."""
        super().__init__(group, client.namespace)
        self.settings = settings
        self.network = Network(
            f"the consumer {group}", name_servers(namesrv, client), client, self._handlers(),
            self._beat,
            masters_only=False, route_changed=lambda topic: self._rebalancer.soon(),
            connected_again=lambda: self._rebalancer.soon(),
        )  # fmt: skip
        self.strategy = strategy_of(settings.strategy)
        self.subscriptions: dict[str, TopicSubscription] = {}
        self.progress: dict[MessageQueue, QueueProgress] = {}
        self.ready = ReadyMessages()
        #: Whether the user has named the queues: nothing is subscribed to then.
        self.assigned_by_user = False
        self.beginnings = Beginnings(self)
        self._pullers: dict[MessageQueue, Puller] = {}
        self.popping = Popping(self, by_hand=handler is None) if settings.mode == "pop" else None
        self._rebalancer: Rebalancer | Popping = self.popping or Rebalancer(self)
        self._started = False
        self._offsets: OffsetFile | None = None
        #: One commit after the other: threads of Apache's broker may take the older one last.
        self._committing = asyncio.Lock()
        #: Topics and brokers that have some offset of this group.
        self._rows: set[tuple[str, str]] = set()
        self._handler, self._tracer = instrumented(handler, client, self.network, self.group)
        self.handling: Handling | None = None
        if self._handler is not None:
            kind = OrderlyHandling if settings.orderly else ConcurrentHandling
            self.handling = kind(self, self._handler)
        elif settings.orderly:
            raise Misuse("orderly needs a handler; a loop over the consumer has an order anyway")
        for topic, expression in parse_topics(topics).items():
            self._add(topic, expression)

    def _add(self, topic: str, expression: str) -> None:
        if not isinstance(topic, str) or not topic.strip():
            raise Misuse("a subscription needs the name of a topic")
        full = with_namespace(topic, self.namespace)
        check_name("topic", full, RETRY_TOPIC_MAX)
        self.subscriptions[full] = TopicSubscription.of(full, expression)
        retry = f"{RETRY_PREFIX}{self.group}"
        if not self.settings.broadcast and retry not in self.subscriptions:
            self.subscriptions[retry] = TopicSubscription.of(retry)

    # ---- life ----

    async def start(self) -> None:
        """Registers with the brokers and divides the queues. Raises: as AsyncConsumer.start()."""
        self.network.start()
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise

    async def _join(self) -> None:
        self._closed_event = asyncio.Event()
        if self.settings.broadcast:
            self._offsets = OffsetFile.of(self.settings.offsets_folder, self.group)
            await asyncio.to_thread(self._offsets.load)
        self._started = True
        for topic in self._wanted_topics():
            route = await self.network.route_soon(topic)
            await self._check_expression(self.subscriptions[topic], route)
        await self.network.beat()
        if self.subscriptions:
            await self._rebalancer.start()
        self.network.spawn(self._keep())
        if self.handling is not None:
            self.handling.start()
        if self._tracer is not None:
            self._tracer.start()

    def _wanted_topics(self) -> list[str]:
        return [topic for topic in self.subscriptions if not topic.startswith(RETRY_PREFIX)]

    async def _check_expression(self, subscription: TopicSubscription, route: Route) -> None:
        """Asks every broker whether it takes an expression in SQL."""
        if subscription.kind == "TAG":
            return
        body = {
            "clientId": self.client_id,
            "group": self.group,
            "subscriptionData": subscription.as_json(),
        }
        for address in sorted(route.addresses(masters_only=True)):
            await self.network.request(
                address, RequestCode.CHECK_CLIENT_CONFIG, None, json.dumps(body).encode()
            )

    async def _wind_up(self) -> ClientError | None:
        """Stops pulling, lets handlers finish, and commits."""
        stuck: ClientError | None = None
        await self._rebalancer.stop()
        self._stop_pullers(list(self._pullers))
        if self.handling is not None:
            stuck = await self.handling.stop(self.settings.stop_timeout_s)
        if self._started:
            await self._commit_last()
            await self._rebalancer.unlock()
            if self._tracer is not None:
                await self._tracer.flush()
        return stuck

    def _let_go(self) -> None:
        for progress in self.progress.values():
            progress.dropped = True

    async def _keep(self) -> None:
        """Commits what is done every auto_commit_s."""
        pause = self.settings.auto_commit_s
        while pause > 0:
            await asyncio.sleep(pause)
            try:
                await self.commit()
            except ClientError as failed:
                log.info("%s cannot commit offsets; will retry: %s", self.network.name, failed)

    # ---- what is subscribed to ----

    async def subscribe(self, topic: str, expression: str) -> None:
        """Adds a topic, or changes what is wanted of it. Raises: as start()."""
        self._subscribed_only("subscribe()")
        self._add(topic, expression)
        if self._started:
            full = with_namespace(topic, self.namespace)
            route = await self.network.route_soon(full)
            await self._check_expression(self.subscriptions[full], route)
            await self.network.beat()
            await self._rebalancer.start()

    async def unsubscribe(self, topic: str) -> None:
        """Leaves a topic: its queues go to other members. Raises: Misuse, BrokerRefused."""
        self._subscribed_only("unsubscribe()")
        full = with_namespace(topic, self.namespace)
        if self.subscriptions.pop(full, None) is None:
            raise Misuse(f"{topic} is not subscribed to; it is one of {self._wanted_topics()}")
        if self._started:
            await self.revoke([q for q in self.progress if q.topic == full])
            await self.network.beat()

    def _subscribed_only(self, what: str) -> None:
        if self.assigned_by_user:
            raise Misuse(f"{what} and assign() exclude each other; use one of them")

    def pulled_only(self, what: str) -> None:
        """Refuses a call that needs queues of one's own. Raises: Misuse with mode="pop"."""
        if self.popping is not None:
            raise Misuse(f'{what} needs queues of one\'s own; with mode="pop" there are none')

    async def assign(self, queues: Iterable[MessageQueue] | Mapping[MessageQueue, int]) -> None:
        """Takes these queues and no others. Raises: as AsyncConsumer.assign()."""
        if self.subscriptions:
            raise Misuse("assign() and topics exclude each other; use one of them")
        wanted = set(check_queues(queues))
        given = dict(queues) if isinstance(queues, Mapping) else {}
        for offset in given.values():
            check_offset("offset", offset)
        self.assigned_by_user = True
        for topic in {queue.topic for queue in wanted}:
            await self.network.route_soon(topic)
        await self.revoke([queue for queue in self.progress if queue not in wanted])
        fresh = sorted(wanted - self.progress.keys())
        await self.take({q: given[q] if q in given else await self.start_offset(q) for q in fresh})

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns the queues of a topic that can be read. Raises: as AsyncConsumer.queues()."""
        full = with_namespace(topic, self.namespace)
        check_name("topic", full, RETRY_TOPIC_MAX)
        if self.network.known_route(full) is None:
            return (await self.network.route_soon(full)).read
        return (await self.network.route(full, fresh=True)).read

    # ---- the queues that are ours ----

    async def take(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begins pulling queues at these offsets."""
        if not offsets or self._stopping:
            return
        for queue, offset in offsets.items():
            self.progress[queue] = progress = QueueProgress(queue, offset, self.shown)
            self._pullers[queue] = Puller(self, progress)
        if self.handling is not None:
            self.handling.assigned([self.progress[queue] for queue in offsets])
        for queue in offsets:
            self._pullers[queue].next()
        await self._tell(self.settings.on_assigned, list(offsets))

    async def revoke(self, queues: Collection[MessageQueue]) -> None:
        """Stops pulling queues, commits what is done of them and lets them go."""
        if not queues:
            return
        self._stop_pullers(queues)
        if self.handling is not None:
            await self.handling.revoked([self.progress[q] for q in queues if q in self.progress])
        await self._tell(self.settings.on_revoked, queues)
        await self._commit_last(queues)
        for queue in queues:
            progress = self.progress.pop(queue, None)
            if progress is not None:
                progress.dropped = True
        self.ready.keep(lambda m: not m.progress.dropped)
        await self._rebalancer.unlock(queues)

    def _stop_pullers(self, queues: Collection[MessageQueue]) -> None:
        for queue in queues:
            puller = self._pullers.pop(queue, None)
            if puller is not None:
                puller.stop()

    async def _tell(self, callback: Changed | None, queues: Collection[MessageQueue]) -> None:
        if callback is None:
            return
        try:
            told = callback(queues)
            if told is not None:
                await told
        except Exception:
            log.exception("Rebalance callback of %s failed", self.network.name)

    # ---- where a queue begins, and how far we are ----

    def broker_of(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """Returns the address of the queue's broker with this id, else of its master, else of any.
        Raises: Unreachable, Misuse."""
        check_queue(queue)
        return super().broker_of(queue, broker_id)

    async def start_offset(self, queue: MessageQueue) -> int:
        """Returns where to begin: at the committed offset, else as `start` says. Raises:
        ClientError."""
        known = await self.committed(queue)
        return known if known is not None else await self._first_offset(queue)

    async def _first_offset(self, queue: MessageQueue) -> int:
        """Returns where a group that has committed nothing begins, as `start` says. Raises:
        ClientError."""
        start = self.settings.start
        retry = queue.topic.startswith(RETRY_PREFIX)
        if start == "first" or (start == "last" and retry):
            return await self.offset(RequestCode.GET_MIN_OFFSET, queue)
        if start == "last":
            return await self.beginnings.last(queue)
        if retry:
            return await self.offset(RequestCode.GET_MAX_OFFSET, queue)
        when = start.timestamp() * 1000 if isinstance(start, dt.datetime) else int(start)
        return await self.offset_at(queue, int(when))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Returns the offset that the group has committed, or None before its first commit. Raises:
        ClientError."""
        self.network.check()
        check_queue(queue)
        if self._offsets is not None:
            return self._offsets.get(queue)
        answer = await self._ask(
            RequestCode.QUERY_CONSUMER_OFFSET, queue, fine=(0, ResponseCode.QUERY_NOT_FOUND),
            consumerGroup=self.group, setZeroIfNotFound=False,
        )  # fmt: skip
        return self._offset_in(answer, queue) if answer.code == 0 else None

    async def _ask(
        self, code: int, queue: MessageQueue, fine: Sequence[int] = (0,), **more: object
    ) -> Command:
        self.network.check()
        check_queue(queue)
        fields = {"topic": queue.topic, "queueId": queue.queue, "bname": queue.broker, **more}
        return await self.network.request(self.broker_of(queue), code, fields, fine=fine)

    def _offset_in(self, answer: Command, queue: MessageQueue) -> int:
        with reading(f"a question for an offset of {queue}", self.broker_of(queue)):
            return number_in(answer, "offset")

    async def offset(self, code: int, queue: MessageQueue, **more: object) -> int:
        """Returns the offset that the broker answers to a request with this code. Raises:
        ClientError."""
        return self._offset_in(await self._ask(code, queue, (0,), **more), queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the offset of the first message stored at that time or later. Raises:
        ClientError."""
        check_count("timestamp_ms", timestamp_ms, -OFFSET_MAX)
        return await self.offset(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=timestamp_ms
        )

    def ours(self, queue: MessageQueue) -> QueueProgress:
        """Returns how far a queue of ours is. Raises: Misuse."""
        self.network.check()
        check_queue(queue)
        progress = self.progress.get(queue)
        if progress is None:
            raise Misuse(f"{queue} is not assigned to this consumer; see its assignment")
        return progress

    def all_of_ours(self, queues: Iterable[MessageQueue] | None) -> list[QueueProgress]:
        """Returns how far these queues are, all of ours by default. Raises: Misuse."""
        self.network.check()
        named = check_queues(queues) if queues is not None else list(self.progress)
        return [self.ours(queue) for queue in named]

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues a queue at an offset; messages of it that wait are dropped. Raises: Misuse."""
        progress = self.ours(queue)
        check_offset("offset", offset)
        self._stop_pullers([queue])
        progress.reset(offset)
        self.ready.keep(lambda m: m.progress is not progress)
        if not self._stopping:
            self._pullers[queue] = Puller(self, progress)
            self._pullers[queue].next()

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Commits what is done now of these queues, all by default. Raises: ClientError."""
        async with self._committing:
            wanted = [
                progress
                for queue, progress in self.progress.items()
                if (queues is None or queue in queues)
                and not progress.dropped
                and progress.commit_offset != progress.committed
            ]
            if wanted:
                await self._commit_these(wanted)

    async def _commit_these(self, wanted: Sequence[QueueProgress]) -> None:
        """Commits the first queue of a topic alone: of two first commits at once Apache's broker
        may keep one (its ConsumerOffsetManager.commitOffset)."""
        if self._offsets is not None:
            told = [(each, each.commit_offset, each.epoch) for each in wanted]
            for progress, offset, _ in told:
                self._offsets.put(progress.queue, offset)
            await asyncio.to_thread(self._offsets.save)
            for progress, offset, epoch in told:
                if progress.epoch == epoch:
                    progress.committed = offset
            return
        first: dict[tuple[str, str], QueueProgress] = {}
        for progress in wanted:
            if (row := _row_of(progress)) not in self._rows:
                first.setdefault(row, progress)
        done = await asyncio.gather(*map(self._commit_one, first.values()), return_exceptions=True)
        known = [each for each in wanted if _row_of(each) in self._rows]
        rest = [each for each in known if first.get(_row_of(each)) is not each]
        done += await asyncio.gather(*map(self._commit_one, rest), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each

    async def _commit_last(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Commits before queues go. Whoever commits by hand has done so, or does not want it."""
        if self.settings.auto_commit_s > 0:
            try:
                await self.commit(queues)
            except ClientError as failed:
                log.warning("%s could not commit; messages come again: %s", self.group, failed)

    async def _commit_one(self, progress: QueueProgress) -> None:
        queue, offset, epoch = progress.queue, progress.commit_offset, progress.epoch
        fields = {
            "consumerGroup": self.group, "topic": queue.topic, "queueId": queue.queue,
            "commitOffset": offset, "bname": queue.broker,
        }  # fmt: skip
        await self.network.request(
            self.broker_of(queue), RequestCode.UPDATE_CONSUMER_OFFSET, fields
        )
        self._rows.add(_row_of(progress))
        if progress.epoch == epoch:
            progress.committed = offset

    # ---- messages ----

    def arrived(self, messages: Sequence[ReceivedMessage]) -> None:
        """Takes messages from the pullers."""
        if self.handling is None or not self.handling.takes(messages):
            self.ready.add(messages)

    async def nack(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Has the message delivered again. Raises: as AsyncConsumer.nack()."""
        if self.settings.broadcast or self.assigned_by_user:
            raise Misuse("nothing comes again in broadcasting, or after assign(); seek() instead")
        if self.popping is not None:
            await self.popping.nack(message, delay_level)
            return
        if message.progress.is_open(message.queue_offset):
            await send_back(self, message, delay_level)
            message.progress.done(message.queue_offset)

    def check_iterable(self) -> None:
        """Checks that messages may be asked for. Raises: NotStarted, Misuse."""
        super().check_iterable()
        if not self.subscriptions and not self.assigned_by_user:
            raise Misuse(
                f"the consumer {self.group} has no topic; name one when you make it, or call"
                " subscribe() or assign() first"
            )

    # ---- what brokers ask ----

    def _handlers(self) -> dict[int, Handler]:
        return consumer_handlers(self) | {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed
        }

    async def consume_directly(self, message: ReceivedMessage) -> tuple[str, str | None]:
        """Gives a message that a tool sends to the handler. Returns how it went, in upstream's
        words."""
        if self._handler is None:
            return "CR_THROW_EXCEPTION", "this consumer has no handler"
        try:
            await self._handler(message)
        except RetryLater as later:
            return "CR_LATER", str(later)
        except Exception as error:  # noqa: BLE001 - it is the tool's answer
            return "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        return "CR_SUCCESS", None

    def _members_changed(self, peer: Peer, command: Command) -> None:
        """Divides the queues soon: somebody joined or left the group."""
        self._rebalancer.soon()

    def _beat(self) -> bytes:
        start = self.settings.start
        names = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}
        named = names[start] if isinstance(start, str) else "CONSUME_FROM_TIMESTAMP"
        consumer = None
        if self.subscriptions:
            consumer = consumer_data(
                self.group, self.subscriptions.values(), broadcast=self.settings.broadcast,
                start=named,
            )  # fmt: skip
        return heartbeat_body(self.network.client_id, [INNER_PRODUCER], consumer)


def _row_of(progress: QueueProgress) -> tuple[str, str]:
    """Returns what a broker keeps the offset of a queue under, with the group."""
    return progress.queue.topic, progress.queue.broker
