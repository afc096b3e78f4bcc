"""One consumer of lite topics, behind ``AsyncLiteConsumer``: its settings, its subscriptions at
every broker, its life. What comes and goes is in ``lite_popping.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.client.checks import check_seconds
from broker.client.errors import (
    BrokerRefused,
    ClientError,
    LiteQuotaExceeded,
    Misuse,
    reading,
)
from broker.client.group_member import ConsumerGroupMember
from broker.client.handling import ConcurrentHandling, Handling
from broker.client.instruments import instrumented
from broker.client.lite import (
    COMPLETE_ADD,
    COMPLETE_REMOVE,
    PARTIAL_ADD,
    PARTIAL_REMOVE,
    OffsetOption,
    check_lite_topics,
    subscription_body,
)
from broker.client.lite_popping import LaneMessages, LitePopping
from broker.client.member import ConsumerSettings
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import Network
from broker.client.options import (
    INNER_PRODUCER,
    ClientOptions,
    ClientSettings,
    check_settings,
    name_servers,
)
from broker.client.popping import readable
from broker.client.ready import ReadyMessages
from broker.client.sending import TOPIC_MAX, check_name, with_namespace
from broker.client.subscription import TopicSubscription, consumer_data, heartbeat_body
from broker.loop.safe_log import SafeLogger
from broker.wire import mqjson
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.handlers import Handler, Peer

__all__ = ["LiteMember", "LiteOptions", "LiteSettings", "TakenOver"]

log = SafeLogger("broker.client")

TakenOver = Callable[[str], Awaitable[None] | None]

#: Lite topics that one request subscribes to.
_NAMES_AT_ONCE = 1000
#: Subscriptions of one client, where the group says nothing (lite.sub.client.quota).
_QUOTA = 2000
#: How long a broker may take with a set of a hundred thousand.
_SYNC_TIMEOUT_S = 30.0


class LiteOptions(ClientOptions, total=False):
    """Keyword arguments of a lite consumer: those of ClientOptions, and the fields of
    LiteSettings."""

    invisible_s: float
    concurrency: int
    max_retries: int
    pull_batch: int
    buffer_messages: int
    poll_wait_s: float
    handler_timeout_s: float
    stop_timeout_s: float
    sync_s: float
    on_taken_over: TakenOver | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteSettings:
    """invisible_s: after it a message goes to another client, unless this one lives and keeps it.
    concurrency: handlers at once, one of a lite topic. max_retries: how often a message comes again
    before it is a dead letter; -1: 16 times. pull_batch: messages asked for at once, at most 32.
    buffer_messages: that are here and not done. poll_wait_s: how long a broker holds a request.
    handler_timeout_s: how long a message is kept from others. stop_timeout_s: how long close()
    waits for handlers. sync_s: how often brokers are told all subscriptions. on_taken_over: called
    with the name of a lite topic that another client of an exclusive group has subscribed to."""

    invisible_s: float = 60.0
    concurrency: int = 20
    max_retries: int = -1
    pull_batch: int = 32
    buffer_messages: int = 64
    poll_wait_s: float = 15.0
    handler_timeout_s: float = 900.0
    stop_timeout_s: float = 30.0
    sync_s: float = 30.0
    on_taken_over: TakenOver | None = None

    def __post_init__(self) -> None:
        check_settings(self, more_than_0=("sync_s",))
        check_seconds("sync_s", self.sync_s, more_than_0=True)
        if self.on_taken_over is not None and not callable(self.on_taken_over):
            raise Misuse(f"on_taken_over is {self.on_taken_over!r}; pass a function")
        self.consumer()

    def consumer(self) -> ConsumerSettings:
        """Returns what other consumers have, too. Raises: Misuse."""
        return ConsumerSettings(
            mode="pop", invisible_s=self.invisible_s, concurrency=self.concurrency,
            max_retries=self.max_retries, pull_batch=self.pull_batch,
            buffer_messages=self.buffer_messages, poll_wait_s=self.poll_wait_s,
            handler_timeout_s=self.handler_timeout_s, stop_timeout_s=self.stop_timeout_s,
        )  # fmt: skip


class LiteMember(ConsumerGroupMember):
    """The lite topics that a consumer has subscribed to, and the messages that wait."""

    def __init__(
        self,
        group: str,
        topic: str,
        namesrv: str | Sequence[str] | None,
        client: ClientSettings,
        settings: LiteSettings,
        handler: Callable[[ReceivedMessage], object] | None,
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group or topic)."""
        super().__init__(group, client.namespace)
        self.lite_settings = settings
        self.settings = settings.consumer()
        self.topic = with_namespace(topic, client.namespace)
        check_name("topic", self.topic, TOPIC_MAX)
        self.network = Network(
            f"the lite consumer {group}", name_servers(namesrv, client), client,
            self._handlers(), self._beat, masters_only=True,
            route_changed=lambda topic: self._soon(), connected_again=lambda: self._soon(),
        )  # fmt: skip
        self.ready = LaneMessages() if handler is not None else ReadyMessages()
        self.names: set[str] = set()
        #: Whether the group gets every lite topic, and how many names a client may have.
        self._wildcard = False
        self._quota = _QUOTA
        self._popping = LitePopping(self)
        #: Requests that change subscriptions go one after the other: brokers do not know which of
        #: two is the later one.
        self._changing = asyncio.Lock()
        self._due = asyncio.Event()
        self._handler, self._tracer = instrumented(handler, client, self.network, self.group)
        self.handling: Handling | None = None
        if self._handler is not None:
            self.handling = ConcurrentHandling(self, self._handler)

    # ---- life ----

    async def start(self) -> None:
        """Checks topic and group, and begins to ask. Raises: as AsyncLiteConsumer.start()."""
        self.network.start()
        try:
            self._closed_event = asyncio.Event()
            await self.network.route_soon(self.topic)
            for address in await self._addresses():
                await self._check(address)
            await self.network.beat()
            await self._sync()
        except BaseException:
            await self.close()
            raise
        self.network.spawn(self._keep())
        self.network.spawn(self._popping.renew())
        if self.handling is not None:
            self.handling.start()
        if self._tracer is not None:
            self._tracer.start()

    async def _brokers(self) -> set[str]:
        return readable(await self.network.route(self.topic))

    async def _addresses(self) -> list[str]:
        brokers = await self._brokers()
        return sorted({self.broker_of(MessageQueue(self.topic, each, 0)) for each in brokers})

    async def _check(self, address: str) -> None:
        """Asks a broker whether the topic has lite topics and the group may read them."""
        request = self.network.request
        fine = (0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.INVALID_PARAMETER)
        fields = {"topic": self.topic}
        answer = await request(address, RequestCode.GET_PARENT_TOPIC_INFO, fields, fine=fine)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Misuse(
                f"the broker {address} has no lite topics: Apache RocketMQ has them from 5.5.0 on"
            )
        if answer.code:
            raise Misuse(
                f"the topic {self.topic} is not of type LITE ({answer.remark}); make it with the"
                " attribute message.type=LITE"
            )
        answer = await request(
            address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": self.group}
        )
        with reading(f"the group {self.group}", address):
            attributes: Mapping[str, Any] = mqjson.loads(answer.body).get("attributes") or {}
            self._quota = int(attributes.get("lite.sub.client.quota", _QUOTA))
        self._wildcard = "lite.sub.wildcard" in attributes
        bound = attributes.get("lite.bind.topic")
        if bound != self.topic:
            to = f"to {bound}" if bound else "to no topic"
            raise Misuse(
                f"the group {self.group} is bound {to}, not to {self.topic}: set its attribute"
                " lite.bind.topic"
            )

    async def _wind_up(self) -> ClientError | None:
        """Leaves the brokers, lets handlers finish, and gives back what is not done."""
        stuck: ClientError | None = None
        if self.network.started:
            # First, so that nothing is handed to requests that nobody reads any more.
            await self._leave()
        await self._popping.stop_asking()
        if self.handling is not None:
            stuck = await self.handling.stop(self.settings.stop_timeout_s)
        await self._popping.acknowledged()
        await self._popping.release_all()
        if self._tracer is not None and self.network.started:
            await self._tracer.flush()
        return stuck

    async def _leave(self) -> None:
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(self.network.settings.request_timeout_s), self._changing:
                await self._tell(COMPLETE_REMOVE, [])

    # ---- subscriptions ----

    def wants(self, lite_topic: str) -> bool:
        """Says whether messages of this lite topic are for this consumer."""
        return self._wildcard or lite_topic in self.names

    async def subscribe(self, lite_topics: str | Iterable[str], start: OffsetOption | None) -> None:
        """Adds lite topics. Raises: as AsyncLiteConsumer.subscribe()."""
        self.network.check()
        names = check_lite_topics(lite_topics)
        if start is not None and not isinstance(start, OffsetOption):
            raise Misuse(f"start is {start!r:.80}; pass OffsetOption.MIN or another of its kind")
        self._named_only("subscribe()")
        async with self._changing:
            held = [name for name in names if name in self.names]
            fresh = [name for name in names if name not in self.names]
            if 0 <= self._quota < len(self.names) + len(fresh):
                raise LiteQuotaExceeded(
                    f"{len(self.names) + len(fresh)} lite topics of {self.topic} are more than the"
                    f" {self._quota} that a client of {self.group} may have: unsubscribe() from"
                    " some, use more clients, or raise the group's lite.sub.client.quota"
                )
            if held and start is not None:
                # Brokers would tell a client of an exclusive group that it lost what it has.
                await self._popping.release(held)
                await self._tell(PARTIAL_REMOVE, held)
                fresh = names
            self.names.update(fresh)
            try:
                for at in range(0, len(fresh), _NAMES_AT_ONCE):
                    await self._tell(PARTIAL_ADD, fresh[at : at + _NAMES_AT_ONCE], start)
            except BaseException:
                self.names.difference_update(fresh)
                self._soon()  # some brokers may have taken it
                raise

    async def unsubscribe(self, lite_topics: str | Iterable[str]) -> None:
        """Leaves lite topics. Raises: as AsyncLiteConsumer.unsubscribe()."""
        self.network.check()
        names = check_lite_topics(lite_topics)
        self._named_only("unsubscribe()")
        for name in names:
            if name not in self.names:
                raise Misuse(f"the lite topic {name} is not subscribed to; see lite_topics")
        async with self._changing:
            self.names.difference_update(names)
            await self._popping.release(names)
            await self._tell(PARTIAL_REMOVE, names)

    def _named_only(self, what: str) -> None:
        if self._wildcard:
            raise Misuse(
                f"{what} is not for the group {self.group}, whose attribute lite.sub.wildcard gives"
                " it every lite topic"
            )

    async def _tell(
        self, action: str, names: Iterable[str], start: OffsetOption | None = None
    ) -> None:
        """Tells every broker. Raises: ClientError, the first of several."""
        body = subscription_body(action, self.client_id, self.group, self.topic, names, start)
        timeout = max(self.network.settings.request_timeout_s, _SYNC_TIMEOUT_S)
        told = await asyncio.gather(
            *(self._tell_one(address, body, timeout) for address in await self._addresses()),
            return_exceptions=True,
        )
        for failed in told:
            if isinstance(failed, BaseException):
                raise failed

    async def _tell_one(self, address: str, body: bytes, timeout: float) -> None:
        try:
            await self.network.request(
                address, RequestCode.LITE_SUBSCRIPTION_CTL, None, body, timeout=timeout
            )
        except BrokerRefused as refused:
            if refused.code != ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED:
                raise
            raise LiteQuotaExceeded(
                f"the broker {address} takes no more subscriptions ({refused.remark}):"
                " unsubscribe() from some, or raise its maxLiteSubscriptionCount"
            ) from None

    async def _sync(self) -> None:
        """Tells all brokers all subscriptions, and asks those for messages that have the topic."""
        async with self._changing:
            if self._stopping:  # brokers would hand messages to a client that nobody reads
                return
            await self._tell(COMPLETE_ADD, self.names)
        if not self._stopping:
            self._popping.ask(await self._brokers())

    def _soon(self) -> None:
        self._due.set()

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.lite_settings.sync_s):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._sync()
                await self._look_for_missed()
            except ClientError as failed:
                log.info("%s cannot tell its subscriptions: %s", self.network.name, failed)

    async def _look_for_missed(self) -> None:
        """Has brokers look through our lite topics: Apache 5.5.0 drops an event when it meets
        another request for the same lite topic, whose messages then wait for the next one."""
        fields = {"group": self.group, "clientId": self.client_id}
        for address in await self._addresses() if self.names else ():
            await self.network.request(address, RequestCode.TRIGGER_LITE_DISPATCH, fields)

    # ---- what brokers say ----

    def _handlers(self) -> dict[int, Handler]:
        return {RequestCode.NOTIFY_UNSUBSCRIBE_LITE: self._lost}

    def _lost(self, peer: Peer, command: Command) -> None:
        """Takes note that another client of an exclusive group has a lite topic now."""
        said, name = command.ext, command.ext.get("liteTopic", "")
        if said.get("consumerGroup") != self.group or said.get("clientId") != self.client_id:
            return
        if name not in self.names:
            return
        self.names.discard(name)
        if self._changing.locked():  # what is under way may have it still
            self._soon()
        self.network.spawn(self._taken_over(name))

    async def _taken_over(self, name: str) -> None:
        log.info("Another client of %s took over %s of %s", self.group, name, self.topic)
        await self._popping.release([name])
        if self.lite_settings.on_taken_over is not None:
            told = self.lite_settings.on_taken_over(name)
            if inspect.isawaitable(told):
                await told

    def _beat(self) -> bytes:
        consumer = consumer_data(
            self.group, [TopicSubscription.of(self.topic)], broadcast=False,
            start="CONSUME_FROM_LAST_OFFSET",
        )  # fmt: skip
        return heartbeat_body(self.client_id, [INNER_PRODUCER], consumer)

    # ---- messages ----

    def arrived(self, messages: Sequence[ReceivedMessage]) -> None:
        """Takes messages from the brokers, or again one that could not go back."""
        self.ready.add(m for m in messages if m.progress.is_open(m.queue_offset))

    def settled(self, lite_topic: str) -> None:
        """Takes note that a message that was in hand is done, or goes back."""
        if isinstance(self.ready, LaneMessages):
            self.ready.settled(lite_topic)

    async def nack(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Does what is done with a message whose handler failed. Raises: ClientError."""
        await self._popping.nack(message, delay_level)

    async def redeliver(self, message: ReceivedMessage, after_s: float | None) -> None:
        """Does as AsyncLiteConsumer.nack()."""
        if after_s is None:
            await self._popping.nack(message, 0)
        else:
            await self._popping.redeliver(message, after_s)

    async def reject(self, message: ReceivedMessage) -> None:
        """Does as AsyncLiteConsumer.reject()."""
        await self._popping.reject(message)
