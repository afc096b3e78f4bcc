"""The producer of asyncio programs."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar, Unpack

from broker.client.checks import check_messages, check_seconds
from broker.client.client_metrics import ClientMetrics
from broker.client.errors import (
    Attempt,
    BadAnswer,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    Misuse,
    RequestTimeout,
    SendFailed,
    Unreachable,
)
from broker.client.faults import SLOW_S, FaultTable, QueueChooser
from broker.client.ids import new_unique_key
from broker.client.inflight import InFlight, Lane, Slots, Target
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
from broker.client.sending import (
    RETRY_TOPIC_MAX,
    STORED,
    Answer,
    PreparedSend,
    SendRules,
    answer_of,
    check_name,
    cut_batches,
    may_retry,
    prepare,
    result_of,
    results_of,
    with_namespace,
)
from broker.client.subscription import heartbeat_body
from broker.client.telemetry import Spans
from broker.client.tracing import Tracer
from broker.loop.lifetime import Closing
from broker.remoting.connection import Connection, Near
from broker.wire.codec import BadFrame
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.handlers import Handler
from pystore.javahash import java_hash

__all__ = ["AsyncProducer", "ProducerOptions"]

_T = TypeVar("_T")

#: Sends that a broker in this process answers at once, until other tasks get their turn.
YIELD_EVERY = 64
#: How often answers that are late are looked for.
WATCH_S = 0.25


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
    """what: the class that the user named. Raises: Misuse for a keyword that no class of settings
    has."""
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
        self._choosers: dict[str, QueueChooser] = {}
        self._at_once = 0
        #: The quick way of single messages and of batches, by topic.
        self._lanes: dict[tuple[str, bool], Lane] = {}
        #: Connections to brokers in this process, by their addresses.
        self._nearby: dict[str, Connection] = {}
        self._faults = FaultTable()
        self._any = Choice(self._next_queue, True)
        self._slots = Slots(self.settings.max_in_flight)
        #: Sends that wait for their answer, and some that have it, the oldest first.
        self._begun: deque[InFlight] = deque()

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
        """Must come before the first send; ``async with`` does it. Raises: Misuse."""
        self.network.start()
        self.network.spawn(self._watch())
        if self._tracer is not None:
            self._tracer.start()
        return self

    async def flush(self) -> None:
        """Waits until everything that submit() took is acknowledged or has failed."""
        self.network.check()
        await self._slots.all_free()

    async def close(self) -> None:
        """Waits for sends under way, then leaves nothing behind. Harmless when repeated.

        Raises: WrongLoop on another event loop than that of start(), Forked.
        """
        if self.network.started:
            self.network.check()
            await self._slots.all_free()
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
        if usual and self._nearby:
            sent = self._send_nearby(message)
            if sent is not None:
                if self._let_others_run():
                    await asyncio.sleep(0)
                return sent if isinstance(sent, SendResult) else await sent
        outgoing = prepare(message, self._rules)
        slots = self._slots
        if not slots.try_acquire():
            await slots.acquire()
        if usual and not outgoing.timed:
            begun = self._begin(outgoing, result_of)
            if begun is not None:
                if begun.done() and self._let_others_run():
                    await asyncio.sleep(0)
                return await begun
        try:
            return await self._deliver(outgoing, self._choice(key, queue), timeout_s, result_of)
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
        if usual and self._nearby:
            sent = self._send_nearby(message)
            if sent is not None:
                if self._let_others_run():
                    await asyncio.sleep(0)
                return sent if not isinstance(sent, SendResult) else _settled(loop, sent)
        outgoing = prepare(message, self._rules)
        if not self._slots.try_acquire():
            await self._slots.acquire()
        if usual and not outgoing.timed:
            begun = self._begin(outgoing, result_of)
            if begun is not None:
                if begun.done() and self._let_others_run():
                    await asyncio.sleep(0)
                return begun
        choice = self._choice(key, queue)
        task = loop.create_task(self._deliver(outgoing, choice, None, result_of))
        task.add_done_callback(lambda done: self._slots.release())
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
        await self._slots.acquire()
        begun = self._begin(outgoing, results_of) if timeout_s is None else None
        if begun is not None:
            if begun.done() and self._let_others_run():
                await asyncio.sleep(0)
            return await begun
        try:
            return await self._deliver(outgoing, self._any, timeout_s, results_of)
        finally:
            self._slots.release()

    async def send_oneway(
        self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None
    ) -> None:
        """Writes a message to the connection and does not ask what became of it: for what may be
        lost. Raises: InvalidMessage, NoRoute, Unreachable, Misuse."""
        self.network.check()
        outgoing = prepare(message, self._rules)
        async with self._slots:
            route = await self._route(outgoing.topic)
            to = self._choice(key, queue)(route, outgoing.topic, ())
            await self.network.oneway(self._master(route, to), outgoing.command(to))

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
            route = await self._route(outgoing.topic)
            # The broker pushes the reply to a client that it has heard of.
            masters = route.addresses(masters_only=True)
            await asyncio.gather(*map(self.network.registered, masters))
            async with self._slots:
                await self._deliver(outgoing, self._any, timeout_s, result_of)
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

        async with self._slots:
            return await self._deliver(outgoing, Choice(same_broker, False), None, result_of)

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
        address = self._master(await self._route(queue.topic), queue)
        fields = {
            "topic": queue.topic, "recallHandle": result.recall_handle,
            "producerGroup": self.group,
        }  # fmt: skip
        await self.network.request(address, RequestCode.RECALL_MESSAGE, fields)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that take messages. Raises: NoRoute, Unreachable, Misuse,
        InvalidMessage for what is no name."""
        self.network.check()
        full = self._full(topic)
        check_name("topic", full, RETRY_TOPIC_MAX)
        return (await self._route(full)).publish

    def _full(self, topic: str) -> str:
        return with_namespace(topic, self._rules.namespace)

    # ---- how ----

    def _choice(self, key: str | None, queue: MessageQueue | None) -> Choice:
        if key is not None and queue is not None:
            raise Misuse("key and queue exclude each other: a queue leaves nothing to choose")
        if key is not None and not isinstance(key, str):
            raise Misuse(f"key is {type(key).__name__}; pass a text")
        if queue is not None:
            if not isinstance(queue, MessageQueue):
                raise Misuse(
                    f"queue is {type(queue).__name__}; pass one of those that queues(topic) lists"
                )
            fixed = queue
            return Choice(lambda route, topic, failed: fixed, False)
        if key is not None:
            return Choice(lambda route, topic, failed: _by_key(route, key), False)
        return self._any

    def _next_queue(self, route: Route, topic: str, failed: Sequence[str]) -> MessageQueue:
        chooser = self._choosers.get(topic)
        if chooser is None:
            chooser = self._choosers[topic] = QueueChooser()
        return chooser.choose(route.publish, self._faults, time.monotonic(), failed)

    async def _route(self, topic: str) -> Route:
        route = self.network.known_route(topic)
        if route is None or not route.publish:
            fresh = route is not None
            route = await self.network.route(
                topic, create_queues=self.settings.create_queues, fresh=fresh
            )
        if not route.publish:
            raise InvalidMessage(
                f"no broker of the topic {topic} takes messages: its queues are not writable, or"
                " its master is away; see the topic's perm"
            )
        return route

    @staticmethod
    def _master(route: Route, queue: MessageQueue) -> str:
        address = route.master(queue.broker)
        if address is None:
            raise Unreachable(f"the broker {queue.broker} has no master in the route")
        return address

    # ---- the quick way ----

    def _begin(
        self,
        outgoing: PreparedSend,
        result: Callable[[PreparedSend, MessageQueue, Answer], _T],
    ) -> asyncio.Future[_T] | None:
        """Sends a request now, if nothing has to be waited for first. Its slot is released with
        the answer."""
        network, topic, batch = self.network, outgoing.topic, outgoing.batch
        route = network.known_route(topic)
        if route is None or self._faults.avoided or self._tracer is not None:
            return None
        lane = self._lanes.get((topic, batch))
        if lane is None or lane.route is not route:
            try:
                lane = self._lanes[topic, batch] = Lane(route, outgoing, network.signing)
            except BadFrame:  # the way with attempts says what is wrong
                return None
        target = lane.next()
        connection = network.ready(target.address) if target is not None else None
        if connection is None or target is None:
            return None
        sending, future = self._waiting(outgoing, target, connection, time.monotonic(), result)
        if connection.near is not None:
            self._nearby[target.address] = connection
            if self._begin_nearby(sending, lane, target, connection.near):
                return future
        try:
            connection.begin_send(sending, lambda opaque: lane.frame(target, outgoing, opaque))
        except (BadFrame, ConnectionError):
            return None
        self._begun.append(sending)
        return future

    def _waiting(
        self,
        outgoing: PreparedSend,
        target: Target,
        connection: Connection,
        start: float,
        result: Callable[[PreparedSend, MessageQueue, Answer], _T],
    ) -> tuple[InFlight, asyncio.Future[_T]]:
        """Makes the send that waits for its answer, and the future that the user waits for."""
        begun = self._begun
        while begun and begun[0].finished:
            begun.popleft()
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        sending = InFlight(
            self, outgoing, target.queue, target.address, connection, start, future, result
        )
        return sending, future

    # ---- the quick way to a broker in this process ----

    def _begin_nearby(self, sending: InFlight, lane: Lane, target: Target, near: Near) -> bool:
        """Gives the send to a broker of this process without bytes between, and says whether the
        broker has taken it; mostly it is answered, too."""
        at, connection = near.direct(), sending.connection
        if at is None:
            return False
        opaque = connection.next_opaque()
        answer = lane.send_prepared(at, target, opaque, sending.outgoing)
        if answer is None:
            return False
        if answer:
            near.sent(True)
            sending.settle(answer)
        else:
            self._answered_later(sending, opaque, near)
        return True

    def _answered_later(self, sending: InFlight, opaque: int, near: Near) -> None:
        sending.connection.await_send(opaque, sending)
        self._begun.append(sending)
        near.sent(False)

    def _send_nearby(self, message: Message) -> SendResult | asyncio.Future[SendResult] | None:
        """The same without a request in Python, for a message that asks for nothing unusual: its
        result, or the wait for it. None: nothing has happened."""
        if type(message) is not Message or type(message.topic) is not str:
            return None
        topic, slots = message.topic, self._slots
        lane = self._lanes.get((topic, False))
        if lane is None or lane.route is not self.network.known_route(topic) or not slots.free:
            return None
        target = lane.next() if not self._faults.avoided else None
        connection = self._nearby.get(target.address) if target is not None else None
        near = connection.near if connection is not None else None
        at = near.direct() if near is not None else None
        if at is None or near is None or connection is None or target is None:
            return None
        start, key, opaque = time.monotonic(), new_unique_key(), connection.next_opaque()
        sent = lane.send_plain(at, target, opaque, message, key)
        if sent:
            near.sent(True)
            if time.monotonic() - start >= SLOW_S:
                self._report(target.queue.broker, start)
        elif sent is False:
            slots.try_acquire()
            # It does not refuse what send_plain has taken.
            outgoing = prepare(message, self._rules, key=key)
            sending, future = self._waiting(outgoing, target, connection, start, result_of)
            self._answered_later(sending, opaque, near)
            return future
        return sent

    def _let_others_run(self) -> bool:
        """Says whether it is time to give the loop back, which a send that was answered at once has
        not done."""
        self._at_once += 1
        return self._at_once % YIELD_EVERY == 0

    def stored(self, sending: InFlight) -> None:
        self._report(sending.queue.broker, sending.start)
        self._slots.release()

    def _report(self, broker: str, start: float) -> None:
        now = time.monotonic()
        self._faults.report(broker, now - start, now)

    def refused(self, sending: InFlight, answer: Command) -> None:
        error = BrokerRefused(
            f"the message to {sending.outgoing.topic}", answer.code, answer.remark, sending.address
        )
        self._failed(sending, error, may_retry(answer.code))

    def lost(self, sending: InFlight, error: Exception) -> None:
        known = error if isinstance(error, ClientError) else Unreachable(str(error))
        self._failed(sending, known, True)

    def _failed(self, sending: InFlight, error: ClientError, again: bool) -> None:
        """Leaves further attempts to a task, which has the slot now: the first attempt failed."""
        self._nearby.clear()
        if not self.network.started:
            self._slots.release()
            return
        task = self.network.spawn(self._go_on(sending, error, again))
        task.add_done_callback(lambda done: self._slots.release())

    async def _go_on(self, sending: InFlight, error: ClientError, again: bool) -> None:
        outgoing, future = sending.outgoing, sending.future
        self._faults.report(sending.queue.broker, 0, time.monotonic(), failed=True)
        attempts = [Attempt(sending.queue.broker, sending.address, error)]
        try:
            if not again or not self.settings.retries:
                raise SendFailed(outgoing.topic, attempts)
            end = sending.start + self.settings.send_timeout_s
            await self._before_retry(outgoing.topic, error, 0, end)
            result = await self._deliver(outgoing, self._any, None, sending.result, attempts)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as failed:  # noqa: BLE001 - it is the user's result
            if not future.done():
                future.set_exception(failed)
        else:
            if not future.done():
                future.set_result(result)

    async def _watch(self) -> None:
        """Ends the wait for answers that do not come in time."""
        limit = self.settings.send_timeout_s
        begun = self._begun
        while True:
            await asyncio.sleep(min(WATCH_S, limit / 4))
            due = time.monotonic() - limit
            while begun and (begun[0].done() or begun[0].start <= due):
                sending = begun.popleft()
                if sending.done():
                    continue
                if sending.connection.reads == sending.reads:
                    sending.connection.abort("it did not answer", "a send")
                if not sending.done():
                    late = f"{sending.address} did not answer within {limit:g} s"
                    sending.set_exception(RequestTimeout(late))

    # ---- with attempts ----

    async def _deliver(
        self,
        outgoing: PreparedSend,
        choice: Choice,
        timeout_s: float | None,
        result: Callable[[PreparedSend, MessageQueue, Answer], _T],
        before: Sequence[Attempt] = (),
    ) -> _T:
        """Sends one message or batch to a broker, with further attempts where they make sense.
        before: attempts that were made already."""
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
            raise Misuse(f"timeout_s is {timeout_s!r}; pass seconds, more than 0")
        began = time.monotonic()
        end = began + (timeout_s or self.settings.send_timeout_s)
        attempts = list(before)
        failed = [attempt.broker for attempt in attempts]
        for number in range(len(attempts), 1 + (self.settings.retries if choice.elsewhere else 0)):
            route = await self._route(outgoing.topic)
            queue = choice(route, outgoing.topic, failed)
            address = self._master(route, queue)
            start = time.monotonic()
            if number and start >= end:
                break
            error: ClientError
            try:
                answer = await self.network.exchange(
                    address, outgoing.command(queue), max(0.001, end - start)
                )
                now = time.monotonic()
                if answer.code in STORED:
                    self._faults.report(queue.broker, now - start, now)
                    made = result(outgoing, queue, answer_of(answer, queue, address))
                    if self._tracer is not None:
                        self._tracer.sent(outgoing, address, start, answer, made)
                    return made
                error = BrokerRefused(
                    f"the message to {outgoing.topic}", answer.code, answer.remark, address
                )
                again = may_retry(answer.code)
            except (Unreachable, RequestTimeout, BadAnswer) as lost:
                error, again = lost, True
            self._faults.report(queue.broker, 0, time.monotonic(), failed=True)
            attempts.append(Attempt(queue.broker, address, error))
            failed.append(queue.broker)
            if not again:
                break
            await self._before_retry(outgoing.topic, error, number, end)
        if self._tracer is not None:
            self._tracer.sent(outgoing, attempts[-1].address, began, None, None)
        raise SendFailed(outgoing.topic, attempts)

    async def _before_retry(self, topic: str, error: ClientError, number: int, end: float) -> None:
        """Waits a moment and asks for the route again: a broker that went away may have left it, or
        be back in a moment."""
        if isinstance(error, Unreachable):
            pause = min(0.05 * 4**number, max(0.0, end - time.monotonic()))
            await asyncio.sleep(pause)
            await self.network.route(topic, fresh=True)


def _settled(loop: asyncio.AbstractEventLoop, result: _T) -> asyncio.Future[_T]:
    future: asyncio.Future[_T] = loop.create_future()
    future.set_result(result)
    return future


class Choice:
    """How a message's queue is chosen. elsewhere: whether another attempt may go elsewhere."""

    __slots__ = ("elsewhere", "of")

    def __init__(
        self, of: Callable[[Route, str, Sequence[str]], MessageQueue], elsewhere: bool
    ) -> None:
        self.of = of
        self.elsewhere = elsewhere

    def __call__(self, route: Route, topic: str, failed: Sequence[str]) -> MessageQueue:
        return self.of(route, topic, failed)


def _by_key(route: Route, key: str) -> MessageQueue:
    """Chooses as Java's SelectMessageQueueByHash, so that producers of both kinds agree."""
    value = abs(java_hash(key))
    return route.publish[value % len(route.publish)]
