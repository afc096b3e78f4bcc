"""The producer of asyncio programs."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, Unpack

from broker.client.checks import check_messages, check_seconds
from broker.client.client_metrics import ClientMetrics
from broker.client.errors import (
    Misuse,
)
from broker.client.message import Message, MessageQueue, ReceivedMessage, SendResult
from broker.client.network import Network
from broker.client.options import (
    INNER_PRODUCER,
    ClientOptions,
    ClientSettings,
    check_settings,
    checked_group,
    name_servers,
)
from broker.client.requests import Reply, Waiting, reply_properties, request_properties
from broker.client.routes import Route
from broker.client.send_wrapping import wrap_sends
from broker.client.sender import Choice, Sender
from broker.client.sending import (
    RETRY_TOPIC_MAX,
    PreparedSend,
    SendRules,
    check_name,
    cut_batches,
    prepare,
    result_of,
    results_of,
    with_namespace,
)
from broker.client.subscription import heartbeat_body
from broker.client.telemetry import Spans
from broker.client.tracing import Tracer
from broker.loop.lifetime import Closing
from broker.wire.codes import RequestCode
from broker.wire.handlers import Handler

__all__ = ["AsyncProducer", "ProducerOptions"]

_T = TypeVar("_T")


class ProducerOptions(ClientOptions, total=False):
    """Keyword arguments of every producer: those of ClientOptions, and the fields of
    ProducerSettings."""

    send_timeout_s: float
    retries: int
    max_in_flight: int
    compression: str
    compress_over: int
    message_max: int
    batch_max: int
    create_queues: int
    delay_levels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """send_timeout_s: for all attempts of one send together. retries: attempts after the first, on
    other brokers where there are any. max_in_flight: sends under way; whoever sends more waits.
    compression: zlib, lz4 or zstd, of bodies from compress_over bytes on (0: never). message_max:
    bytes of a body. batch_max: bytes of one request of send_batch(). create_queues: of a topic that
    the broker creates on the first send; 0: none is created. delay_levels: of the brokers'
    messageDelayLevel."""

    send_timeout_s: float = 3.0
    retries: int = 2
    max_in_flight: int = 256
    compression: str = "zlib"
    compress_over: int = 4096
    message_max: int = 4 << 20
    batch_max: int = 1 << 20
    create_queues: int = 4
    delay_levels: int = 18

    def __post_init__(self) -> None:
        check_settings(
            self,
            at_least={
                "max_in_flight": 1, "retries": 0, "compress_over": 0, "message_max": 1,
                "batch_max": 1, "create_queues": 0, "delay_levels": 0,
            },
            more_than_0=("send_timeout_s",),
        )  # fmt: skip


def settings_of(kind: type[_T], options: Mapping[str, Any]) -> _T:
    """Picks the settings of that class from keyword arguments."""
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in options.items() if name in names})


def refuse_unknown(what: str, options: Mapping[str, Any], *kinds: type) -> None:
    """Refuses options that no class of settings has. what: the class that the user named. Raises:
    Misuse for a keyword that no class of settings has."""
    names = {f.name for kind in kinds for f in fields(kind)}
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name.lower(), names, n=1)
            meant = f"did you mean '{near[0]}'? It" if near else "it"
            raise Misuse(f"{what} has no option '{name}'; {meant} has {', '.join(sorted(names))}")


class AsyncProducer(Closing):
    """Sends messages, for programs with an event loop. ``Producer`` is its twin without.

    group: names the application to brokers and tools. namesrv: ``host:port`` of name servers, with
    ; between them; by default the environment variable NAMESRV_ADDR. options: see ProducerOptions.

    >>> import asyncio
    >>> from broker import AsyncProducer, Message
    >>> async def main():
    ...     async with AsyncProducer("orders-api") as producer:  # at NAMESRV_ADDR
    ...         return await producer.send(Message("orders", b"12 apples"))
    >>> asyncio.run(main()).status.name
    'SEND_OK'
    """

    def __init__(
        self,
        group: str = "DEFAULT_PRODUCER",
        namesrv: str | Sequence[str] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Raises: Misuse, InvalidMessage (an illegal group)."""
        refuse_unknown(type(self).__name__, options, ClientSettings, ProducerSettings)
        client = settings_of(ClientSettings, options)
        self.settings = settings_of(ProducerSettings, options)
        self.group = checked_group(group, client.namespace)
        self._replies = Waiting()
        self._rules = SendRules(
            self.group, self.settings.compression, self.settings.compress_over,
            self.settings.message_max, self.settings.create_queues, client.namespace,
            self.settings.delay_levels,
        )  # fmt: skip
        self.network = Network(
            f"the producer {group}", name_servers(namesrv, client), client, self._handlers(),
            self._beat,
            masters_only=True,
        )  # fmt: skip
        self._tracer = Tracer(self.network, self.group, "PRODUCE") if client.trace else None
        if client.spans:
            wrap_sends(self, Spans(client, self.group, self.network.client_id))
        if client.metrics is not None:
            wrap_sends(self, ClientMetrics(client.metrics, self.group))
        self._sender = Sender(
            self.network, self._rules, self._tracer, max_in_flight=self.settings.max_in_flight,
            retries=self.settings.retries, create_queues=self.settings.create_queues,
            send_timeout_s=self.settings.send_timeout_s,
        )  # fmt: skip

    # ---- for subclasses ----

    def _handlers(self) -> dict[int, Handler]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replies.pushed}

    def _beat(self) -> bytes:
        return heartbeat_body(self.network.client_id, [self.group, INNER_PRODUCER])

    # ---- life ----

    @property
    def client_id(self) -> str:
        """How brokers and tools show this client."""
        return self.network.client_id

    async def start(self) -> Self:
        """Starts the producer, before its first send; ``async with`` does it. Raises: Misuse."""
        self.network.start()
        self._sender.start()
        if self._tracer is not None:
            self._tracer.start()
        return self

    async def flush(self) -> None:
        """Waits until everything that submit() took is acknowledged or has failed."""
        self.network.check()
        await self._sender.slots.all_free()

    async def close(self) -> None:
        """Waits for sends under way, then leaves nothing behind. Harmless when repeated.

        Raises: WrongLoop on another event loop than that of start(), Forked.
        """
        if self.network.started:
            self.network.check()
            await self._sender.slots.all_free()
            if self._tracer is not None:
                await self._tracer.flush()
        await self.network.close([("producerGroup", self.group)])

    async def __aenter__(self) -> Self:
        return await self.start()

    # ---- sending ----

    async def send(
        self,
        message: Message,
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Sends one message and waits until a broker has stored it.

        key: messages of one key go to one queue, in the order in which their sends are awaited;
        such a send is not tried elsewhere. queue: the one to send to. Waits first while
        max_in_flight sends are under way.

        Raises: InvalidMessage, NoRoute, Unreachable (no name server), SendFailed with the error of
        each attempt, Misuse.
        """
        self.network.check()
        usual = key is None and queue is None and timeout_s is None
        if usual:
            sent = self._sender.send_nearby(message)
            if sent is not None:
                if self._sender.let_others_run():
                    await asyncio.sleep(0)
                return sent if isinstance(sent, SendResult) else await sent
        outgoing = prepare(message, self._rules)
        slots = self._sender.slots
        if not slots.try_acquire():
            await slots.acquire()
        if usual and outgoing.goes_anywhere:
            begun = self._sender.begin(outgoing, result_of)
            if begun is not None:
                if begun.done() and self._sender.let_others_run():
                    await asyncio.sleep(0)
                return await begun
        try:
            return await self._sender.deliver(
                outgoing, self._sender.choice(outgoing, key, queue), timeout_s, result_of
            )
        finally:
            slots.release()

    async def submit(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> asyncio.Future[SendResult]:
        """Sends in the background. Waits only while max_in_flight sends are under way, so that a
        fast writer does not fill the memory. The future is send()'s result.

        Raises: InvalidMessage, Misuse.
        """
        self.network.check()
        usual = key is None and queue is None
        loop = asyncio.get_running_loop()
        if usual:
            sent = self._sender.send_nearby(message)
            if sent is not None:
                if self._sender.let_others_run():
                    await asyncio.sleep(0)
                return sent if not isinstance(sent, SendResult) else _settled(loop, sent)
        outgoing = prepare(message, self._rules)
        if not self._sender.slots.try_acquire():
            await self._sender.slots.acquire()
        if usual and outgoing.goes_anywhere:
            begun = self._sender.begin(outgoing, result_of)
            if begun is not None:
                if begun.done() and self._sender.let_others_run():
                    await asyncio.sleep(0)
                return begun
        choice = self._sender.choice(outgoing, key, queue)
        task = loop.create_task(self._sender.deliver(outgoing, choice, None, result_of))
        task.add_done_callback(lambda done: self._sender.slots.release())
        return task

    async def send_batch(
        self, messages: Sequence[Message], *, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Sends many with few requests: one per topic and batch_max bytes. The results have the
        order of the messages.

        Raises: as send(); a SendFailed may leave other requests of the same call stored.
        """
        self.network.check()
        if not isinstance(messages, Sequence):
            raise Misuse(f"send_batch() takes a list of messages, not {type(messages).__name__}")
        results: list[SendResult | None] = [None] * len(messages)
        cuts = list(cut_batches(messages, self._rules, self.settings.batch_max))

        if len(cuts) == 1:
            return await self._send_batch(cuts[0][1], timeout_s)

        async def one(indexes: Sequence[int], outgoing: PreparedSend) -> None:
            found = await self._send_batch(outgoing, timeout_s)
            for index, result in zip(indexes, found, strict=True):
                results[index] = result

        if cuts:
            done = await asyncio.gather(*(one(*cut) for cut in cuts), return_exceptions=True)
            for each in done:
                if isinstance(each, BaseException):
                    raise each
        return [result for result in results if result is not None]

    async def _send_batch(
        self, outgoing: PreparedSend, timeout_s: float | None
    ) -> list[SendResult]:
        await self._sender.slots.acquire()
        begun = self._sender.begin(outgoing, results_of) if timeout_s is None else None
        if begun is not None:
            if begun.done() and self._sender.let_others_run():
                await asyncio.sleep(0)
            return await begun
        try:
            return await self._sender.deliver(
                outgoing, self._sender.any_queue, timeout_s, results_of
            )
        finally:
            self._sender.slots.release()

    async def send_oneway(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> None:
        """Writes a message to the connection and does not ask what became of it: for what may be
        lost. Raises: InvalidMessage, NoRoute, Unreachable, Misuse."""
        self.network.check()
        outgoing = prepare(message, self._rules)
        async with self._sender.slots:
            route = await self._sender.route(outgoing.topic)
            to = self._sender.choice(outgoing, key, queue)(route, outgoing.topic, ())
            await self.network.oneway(self._sender.master(route, to), outgoing.command(to))

    async def request(self, message: Message, timeout_s: float = 3.0) -> Reply:
        """Sends a message and waits until a consumer has replied to it.

        Raises: as send(); RequestTimeout when no reply comes in time.
        """
        self.network.check()
        check_seconds("timeout_s", timeout_s, more_than_0=True)
        key, future = self._replies.add()
        try:
            extra = request_properties(key, self.client_id, timeout_s)
            outgoing = prepare(message, self._rules, extra=extra)
            route = await self._sender.route(outgoing.topic)
            # The broker pushes the reply to a client that it has heard of.
            masters = route.addresses(masters_only=True)
            await asyncio.gather(*map(self.network.registered, masters))
            async with self._sender.slots:
                choice = self._sender.choice(outgoing)
                await self._sender.deliver(outgoing, choice, timeout_s, result_of)
            return await self._replies.result(key, future, timeout_s)
        finally:
            self._replies.drop(key)

    async def reply(self, request: ReceivedMessage, body: bytes) -> SendResult:
        """Answers a message that somebody sent with request().

        Raises: InvalidMessage when nobody waits for an answer, SendFailed when the broker cannot
        hand it over.
        """
        self.network.check()
        check_messages("reply()", [request])
        topic, extra = reply_properties(request)
        rules = dataclasses.replace(self._rules, namespace="")
        outgoing = prepare(
            Message(topic, body), rules, extra=extra, code=RequestCode.SEND_REPLY_MESSAGE_V2
        )
        near = request.queue.broker

        def same_broker(route: Route, topic: str, failed: Sequence[str]) -> MessageQueue:
            return next((q for q in route.publish if q.broker == near), route.publish[0])

        async with self._sender.slots:
            return await self._sender.deliver(outgoing, Choice(same_broker, False), None, result_of)

    async def recall(self, result: SendResult) -> None:
        """Recalls a message with a delay, as long as it is not due.

        Raises: Misuse for the result of a message that does not wait; BrokerRefused when it was
        delivered or recalled before, or when the broker allows no recalls (recallMessageEnable);
        Unreachable, RequestTimeout, NoRoute."""
        self.network.check()
        if not isinstance(result, SendResult):
            raise Misuse(f"recall() takes a SendResult, not {type(result).__name__}")
        if result.recall_handle is None:
            raise Misuse(
                f"the message {result.message_id} has no recall handle: it does not wait, or its"
                " broker knows no recalls"
            )
        queue = result.queue
        address = self._sender.master(await self._sender.route(queue.topic), queue)
        fields = {
            "topic": queue.topic, "recallHandle": result.recall_handle,
            "producerGroup": self.group,
        }  # fmt: skip
        await self.network.request(address, RequestCode.RECALL_MESSAGE, fields)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns the queues of a topic that take messages. Raises: NoRoute, Unreachable, Misuse,
        InvalidMessage for an invalid name."""
        self.network.check()
        full = self._full(topic)
        check_name("topic", full, RETRY_TOPIC_MAX)
        return (await self._sender.route(full)).publish

    def _full(self, topic: str) -> str:
        return with_namespace(topic, self._rules.namespace)


def _settled(loop: asyncio.AbstractEventLoop, result: _T) -> asyncio.Future[_T]:
    future: asyncio.Future[_T] = loop.create_future()
    future.set_result(result)
    return future
