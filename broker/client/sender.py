"""What a producer sends with: queues in turn, the quick way of a send that needs no task, and
further attempts. ``AsyncProducer`` is what a program calls.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.client.errors import (
    Attempt,
    BadAnswer,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    Misuse,
    RequestTimeout,
    Unreachable,
    send_failure,
)
from broker.client.faults import SLOW_S, FaultTable, QueueChooser
from broker.client.ids import new_unique_key
from broker.client.inflight import InFlight, Lane, Slots, Target
from broker.client.lite import lite_queue
from broker.client.message import Message, MessageQueue, SendResult
from broker.client.network import Network
from broker.client.routes import Route
from broker.client.sending import (
    STORED,
    Answer,
    PreparedSend,
    SendRules,
    answer_of,
    has_moved,
    may_retry,
    prepare,
    result_of,
)
from broker.client.tracing import Tracer
from broker.remoting.connection import Connection, Near
from broker.wire.codec import BadFrame
from broker.wire.command import Command
from pystore.format.javahash import java_hash

__all__ = ["Choice", "Sender"]

_T = TypeVar("_T")

#: Sends that a broker in this process answers at once, until other tasks get their turn.
YIELD_EVERY = 64
#: How often answers that are late are looked for.
WATCH_S = 0.25


class Sender:
    """Sends prepared messages of one producer. retries, create_queues, send_timeout_s: as of
    ProducerSettings."""

    def __init__(
        self,
        network: Network,
        rules: SendRules,
        tracer: Tracer | None,
        *,
        max_in_flight: int,
        retries: int,
        create_queues: int,
        send_timeout_s: float,
    ) -> None:
        self._network = network
        self._rules = rules
        self._tracer = tracer
        self._retries = retries
        self._create_queues = create_queues
        self._send_timeout_s = send_timeout_s
        self._choosers: dict[str, QueueChooser] = {}
        self._at_once = 0
        #: The quick way of single messages and of batches, by topic.
        self._lanes: dict[tuple[str, bool], Lane] = {}
        #: Connections to brokers in this process, by their addresses.
        self._nearby: dict[str, Connection] = {}
        self._faults = FaultTable()
        #: Takes the queues in turn, and may take another one for another attempt.
        self.any_queue = Choice(self._next_queue, True)
        self.slots = Slots(max_in_flight)
        #: Sends that wait for their answer, and some that have it, the oldest first.
        self._begun: deque[InFlight] = deque()

    def start(self) -> None:
        """Begins to look for answers that are late."""
        self._network.spawn(self._watch())

    # ---- which queue ----

    def choice(
        self, outgoing: PreparedSend, key: str | None = None, queue: MessageQueue | None = None
    ) -> Choice:
        """Returns how the queue of a message is chosen: the named one, one by the key, the one of
        its lite topic, or any. Raises: Misuse."""
        if key is not None and queue is not None:
            raise Misuse("key and queue exclude each other: a queue leaves nothing to choose")
        if key is not None and not isinstance(key, str):
            raise Misuse(f"key is {type(key).__name__}; pass a text")
        name = outgoing.lite_topic
        if name is not None:
            if key is not None or queue is not None:
                raise Misuse("a lite topic has its queue: send to it without key and queue")
            return Choice(lambda route, topic, failed: lite_queue(route.publish, name), True)
        if queue is not None:
            if not isinstance(queue, MessageQueue):
                raise Misuse(
                    f"queue is {type(queue).__name__}; pass one of those that queues(topic) lists"
                )
            fixed = queue
            return Choice(lambda route, topic, failed: fixed, False)
        if key is not None:
            return Choice(lambda route, topic, failed: _by_key(route, key), False)
        return self.any_queue

    def _next_queue(self, route: Route, topic: str, failed: Sequence[str]) -> MessageQueue:
        chooser = self._choosers.get(topic)
        if chooser is None:
            chooser = self._choosers[topic] = QueueChooser()
        return chooser.choose(route, self._faults, time.monotonic(), failed)

    async def route(self, topic: str) -> Route:
        """Returns the route of a topic that takes messages. Raises: NoRoute, Unreachable,
        InvalidMessage."""
        route = self._network.known_route(topic)
        if route is None or not route.publish:
            fresh = route is not None
            route = await self._network.route(topic, create_queues=self._create_queues, fresh=fresh)
        if not route.publish:
            raise InvalidMessage(
                f"no broker of the topic {topic} takes messages: its queues are not writable, or"
                " its master is away; see the topic's perm"
            )
        return route

    @staticmethod
    def master(route: Route, queue: MessageQueue) -> str:
        """Returns the address of the master that has the queue. Raises: Unreachable."""
        address = route.master(route.broker(queue))
        if address is None:
            raise Unreachable(f"the broker {route.broker(queue)} has no master in the route")
        return address

    # ---- the quick way ----

    def begin(
        self,
        outgoing: PreparedSend,
        result: Callable[[PreparedSend, MessageQueue, Answer], _T],
    ) -> asyncio.Future[_T] | None:
        """Sends a request now, if nothing has to be waited for first. Its slot is released with
        the answer."""
        network, topic, batch = self._network, outgoing.topic, outgoing.batch
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
        sending = InFlight(self, outgoing, target, connection, start, future, result)
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

    def send_nearby(self, message: Message) -> SendResult | asyncio.Future[SendResult] | None:
        """Does the same as begin() without a request in Python, for a message that asks for nothing
        unusual: its result, or the wait for it. None: nothing has happened."""
        if not self._nearby or type(message) is not Message or type(message.topic) is not str:
            return None
        topic, slots = message.topic, self.slots
        lane = self._lanes.get((topic, False))
        if lane is None or lane.route is not self._network.known_route(topic) or not slots.free:
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
                self._report(target.broker, start)
        elif sent is False:
            slots.try_acquire()
            # It does not refuse what send_plain has taken.
            outgoing = prepare(message, self._rules, key=key)
            sending, future = self._waiting(outgoing, target, connection, start, result_of)
            self._answered_later(sending, opaque, near)
            return future
        return sent

    def let_others_run(self) -> bool:
        """Says whether it is time to give the loop back, which a send that was answered at once has
        not done."""
        self._at_once += 1
        return self._at_once % YIELD_EVERY == 0

    # ---- what became of a send; InFlight calls these ----

    def stored(self, sending: InFlight) -> None:
        self._report(sending.target.broker, sending.start)
        self.slots.release()

    def _report(self, broker: str, start: float) -> None:
        now = time.monotonic()
        self._faults.report(broker, now - start, now)

    def refused(self, sending: InFlight, answer: Command) -> None:
        error = BrokerRefused(
            f"the message to {sending.outgoing.topic}",
            answer.code,
            answer.remark,
            sending.target.address,
        )
        self._failed(sending, error, may_retry(answer.code))

    def lost(self, sending: InFlight, error: Exception) -> None:
        known = error if isinstance(error, ClientError) else Unreachable(str(error))
        self._failed(sending, known, True)

    def _failed(self, sending: InFlight, error: ClientError, again: bool) -> None:
        """Leaves further attempts to a task, which has the slot now: the first attempt failed."""
        self._nearby.clear()
        if not self._network.started:
            self.slots.release()
            return
        task = self._network.spawn(self._go_on(sending, error, again))
        task.add_done_callback(lambda done: self.slots.release())

    async def _go_on(self, sending: InFlight, error: ClientError, again: bool) -> None:
        outgoing, future, target = sending.outgoing, sending.future, sending.target
        if not has_moved(error):
            self._faults.report(target.broker, 0, time.monotonic(), failed=True)
        attempts = [Attempt(target.broker, target.address, error)]
        try:
            if not again or not self._retries:
                raise send_failure(outgoing.topic, attempts)
            end = sending.start + self._send_timeout_s
            await self._before_retry(outgoing.topic, error, 0, end)
            result = await self.deliver(outgoing, self.any_queue, None, sending.result, attempts)
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
        limit = self._send_timeout_s
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
                    late = f"{sending.target.address} did not answer within {limit:g} s"
                    sending.set_exception(RequestTimeout(late))

    # ---- with attempts ----

    async def deliver(
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
        end = began + (timeout_s or self._send_timeout_s)
        attempts = list(before)
        failed = [attempt.broker for attempt in attempts]
        for number in range(len(attempts), 1 + (self._retries if choice.retried else 0)):
            route = await self.route(outgoing.topic)
            queue = choice(route, outgoing.topic, failed)
            broker, address = route.broker(queue), self.master(route, queue)
            start = time.monotonic()
            if number and start >= end:
                break
            error: ClientError
            try:
                answer = await self._network.exchange(
                    address, outgoing.command(queue), max(0.001, end - start)
                )
                now = time.monotonic()
                if answer.code in STORED:
                    self._faults.report(broker, now - start, now)
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
            attempts.append(Attempt(broker, address, error))
            if has_moved(error):
                if not choice.retried:  # its next send goes to who leads it now
                    await self._network.route(outgoing.topic, fresh=True)
            else:
                self._faults.report(broker, 0, time.monotonic(), failed=True)
                failed.append(broker)
            if not again:
                break
            await self._before_retry(outgoing.topic, error, number, end)
        if self._tracer is not None:
            self._tracer.sent(outgoing, attempts[-1].address, began, None, None)
        raise send_failure(outgoing.topic, attempts)

    async def _before_retry(self, topic: str, error: ClientError, number: int, end: float) -> None:
        """Waits a moment and asks for the route again: a broker that went away may have left it, or
        be back in a moment."""
        if has_moved(error) or isinstance(error, Unreachable):
            pause = min(0.05 * 4**number, max(0.0, end - time.monotonic()))
            await asyncio.sleep(pause)
            await self._network.route(topic, fresh=True)


class Choice:
    """How a message's queue is chosen. retried: whether another attempt makes sense."""

    __slots__ = ("of", "retried")

    def __init__(
        self, of: Callable[[Route, str, Sequence[str]], MessageQueue], retried: bool
    ) -> None:
        self.of = of
        self.retried = retried

    def __call__(self, route: Route, topic: str, failed: Sequence[str]) -> MessageQueue:
        return self.of(route, topic, failed)


def _by_key(route: Route, key: str) -> MessageQueue:
    """Chooses as Java's SelectMessageQueueByHash, so that producers of both kinds agree."""
    value = abs(java_hash(key))
    return route.publish[value % len(route.publish)]
