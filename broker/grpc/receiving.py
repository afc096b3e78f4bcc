"""QueryAssignment and ReceiveMessage: whom a consumer asks, and what it is handed out
(docs/internals/grpc.md#receiving)."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.client.message import MessageQueue
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.grpc.brokers import Brokers, InProcess
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import check_invisible, group_of, topic_of
from broker.grpc.clients import Client, GrpcClients
from broker.grpc.deliveries import Ask, FoundMessage, ack, change, dead_letter, to_consume
from broker.grpc.lite import lite_deliveries
from broker.grpc.messages import delivery, message_of, millis, set_millis
from broker.grpc.receipts import Receipt
from broker.grpc.renewal import Renewals
from broker.grpc.routes import RouteMethods
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, of_response, ok
from broker.loop.lifetime import end_tasks
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.processors.durable import after_disk
from broker.processors.poprules import PopRules
from broker.processors.refusals import put_refusal
from broker.services.pop.batches import PopOutcome, PopRequest
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command, texts
from broker.wire.receipts import NORMAL, RETRY_V1, RETRY_V2, Deliveries, retry_topic
from pystore.errors import StoreError

__all__ = ["FULL", "NOTHING", "Receiving", "poll_ms"]

quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: What the broker hands out at once.
_BATCH_MAX = 32
#: Its answer to a poll comes so long after the poll's time at the latest.
_GRACE_S = 10.0
#: Messages that could not be sent to their client are visible again so soon.
_BACK_MS = 1000
#: From this version on clients know ILLEGAL_POLLING_TIME.
_KNOWS_POLLING_TIME = "5.0.3"


@dataclass(frozen=True, slots=True)
class _ReceiveRequest:
    """A request for messages that was found to be right. most: attempts of a message. lite: of the
    lite topics that the client subscribes to."""

    client_id: str
    lite: bool
    topic: str
    group: str
    broker: str
    batch: int
    poll_ms: int
    invisible_ms: int
    renews: bool
    fifo: bool
    most: int
    kind: str
    expression: str
    attempt: str


class Receiving:
    def __init__(
        self, broker: Brokers, clients: GrpcClients, settings: ProxySettings, routes: RouteMethods,
        renewals: Renewals,
    ) -> None:  # fmt: skip
        self._broker, self._clients, self._settings = broker, clients, settings
        self._routes, self._renewals = routes, renewals
        self._tasks: set[asyncio.Task[Any]] = set()

    def handlers(self) -> Handlers:
        return {"QueryAssignment": self.assignment, "ReceiveMessage": self.receive}

    async def stop(self) -> None:
        await end_tasks(*self._tasks)

    # ---- QueryAssignment ----

    async def assignment(self, call: Call, request: Any) -> Any:
        """Returns the queues: each to a group that consumes in order, else any queue of the
        broker."""
        topic, group = topic_of(request.topic), group_of(request.group)
        await self._broker.check(call, to_consume(group, topic))
        places = await self._broker.places(topic)
        if not places:
            raise Problem(Code.TOPIC_NOT_FOUND, f"topic[{topic}] not exist")
        readable = [each for each in places if each.reads]
        if not readable:
            raise Problem(Code.FORBIDDEN, "no readable queue")
        found = await self._broker.group(group, (topic,))
        in_order = found is not None and found.consume_message_orderly
        reply = pb.QueryAssignmentResponse(status=ok())
        for place in readable:
            broker = self._routes.broker_of(request, place, min(place.ids))
            for number in range(place.reads) if in_order else (-1,):
                queue = pb.MessageQueue(
                    topic=request.topic, id=number, permission=pb.Permission.READ_WRITE,
                    broker=broker,
                )  # fmt: skip
                reply.assignments.append(pb.Assignment(message_queue=queue))
        return reply

    # ---- ReceiveMessage ----

    async def receive(self, call: Call, request: Any) -> AsyncGenerator[Any, None]:
        """Yields a status, the messages, and a time, which ends them."""
        try:
            asked = await self._allowed(call, request)
            if asked.lite or not isinstance(self._broker, InProcess):
                replies = self._handed_out(call, asked, await self._pop(call, asked))
            elif call.found is None:
                replies = self._popping(self._broker, call, asked)
            else:
                replies = self._found_before(self._broker, call, asked, call.found)
        except Problem:
            if call.found is not None and isinstance(self._broker, InProcess):
                names = request.group.name, request.message_queue.topic.name
                self._broker.give_back(*names, call.found)
            raise
        async with contextlib.aclosing(replies):
            async for reply in replies:
                yield reply

    async def _allowed(self, call: Call, request: Any) -> _ReceiveRequest:
        """Reads a request and checks that it is allowed. Raises: Problem."""
        client = await self._clients.settled(call.client_id)
        if client is None or client.is_producer:
            raise Problem(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                "cannot find settings of a consumer for this client",
            )
        name, topic = request.message_queue.broker.name, topic_of(request.message_queue.topic)
        await self._broker.check(call, to_consume(group_of(request.group), topic))
        return self._asked(call, request, client, await self._broker.reader(topic, name))

    async def _handed_out(
        self, call: Call, asked: _ReceiveRequest, left: Sequence[FoundMessage]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the replies. What could not be sent is visible again soon."""
        try:
            left = await self._passed(asked, left)
            if not left:
                raise Problem(Code.MESSAGE_NOT_FOUND, "no match message")
            yield _OK
            while left:
                made = await delivery(*_shown(asked, left[0]))
                self._hold(call, asked, left[0])
                yield made
                left = left[1:]
        finally:
            if left:
                self._spawn(self._give_back(asked, left))
        yield _end()

    # ---- ReceiveMessage without bytes between ----

    def _found_before(
        self, broker: InProcess, call: Call, asked: _ReceiveRequest, found: PopOutcome
    ) -> AsyncGenerator[bytes, None]:
        """Returns the replies with what a network thread has popped."""
        rules = broker.pop_rules(call, RequestCode.POP_MESSAGE, asked.topic, asked.group)
        arrival: asyncio.Future[PopOutcome | StoreError] = (
            asyncio.get_running_loop().create_future()
        )
        arrival.set_result(found)
        return self._arriving(call, asked, rules, arrival)

    def _popping(
        self, broker: InProcess, call: Call, asked: _ReceiveRequest
    ) -> AsyncGenerator[bytes, None]:
        """Returns the replies, of a pop from the broker of the same process. Raises: Problem,
        Refused."""
        rules = broker.pop_rules(call, RequestCode.POP_MESSAGE, asked.topic, asked.group)
        wanted = _wanted(rules, call, asked)
        arrival: asyncio.Future[PopOutcome | StoreError] = (
            asyncio.get_running_loop().create_future()
        )
        replies = self._arriving(call, asked, rules, arrival)
        pop, number = rules.pop(), 0
        # A call that ended, even before it began, frees them.
        listens = weakref.ref(replies, lambda _: pop.leave(number))

        def is_awaited() -> bool:
            return listens() is not None and not arrival.cancelled()

        def told(found: PopOutcome | StoreError) -> None:
            if is_awaited():
                arrival.set_result(found)
            else:
                self._return(asked, found)

        number = pop.receive(wanted, told, born_ms=self._broker.now_ms(), poll_ms=asked.poll_ms)
        return replies

    async def _arriving(
        self, call: Call, asked: _ReceiveRequest, rules: PopRules,
        arrival: asyncio.Future[PopOutcome | StoreError],
    ) -> AsyncGenerator[bytes, None]:  # fmt: skip
        """Yields the replies with what is popped, once it is."""
        try:
            popped = await arrival
        except asyncio.CancelledError:
            if arrival.done() and not arrival.cancelled():
                self._return(asked, arrival.result())
            raise
        if isinstance(popped, StoreError):
            raise put_refusal(popped, rules.s)
        if not popped.batches:
            raise _nothing(full=popped.full)
        wait = after_disk(rules.s, popped.end)
        if wait is not None:
            await wait
        left = _popped(asked, popped)
        async with contextlib.aclosing(self._handed_out(call, asked, left)) as replies:
            async for reply in replies:
                yield reply

    # ---- what both have in common ----

    def _asked(self, call: Call, request: Any, client: Client, broker: str) -> _ReceiveRequest:
        """Reads a request. broker: to be asked. Raises: Problem."""
        own, settings = self._settings, client.settings
        wait_ms = poll_ms(call, request, millis(settings.request_timeout), own)
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        renews = own.renew and request.auto_renew
        invisible_ms = own.invisible_default_ms
        if not renews:
            invisible_ms = millis(request.invisible_duration)
            check_invisible(invisible_ms, own.invisible_min_ms, own)
        if request.batch_size < 1:
            raise Problem(Code.BAD_REQUEST, f"batch_size {request.batch_size} is less than 1")
        kind, expression = _filter_of(request.filter_expression)
        if client.is_lite:
            self._check_lite(client, kind, renews)
        return _ReceiveRequest(
            call.client_id, client.is_lite, topic, group, broker,
            min(request.batch_size, _BATCH_MAX), wait_ms, invisible_ms,
            renews, settings.subscription.fifo, settings.backoff_policy.max_attempts, kind,
            expression, request.attempt_id,
        )  # fmt: skip

    def _check_lite(self, client: Client, kind: str, renews: bool) -> None:
        """Checks what a client of lite topics asks beside the rest. Raises: Problem."""
        if kind != "TAG":
            raise Problem(
                Code.ILLEGAL_FILTER_EXPRESSION, "messages of lite topics are filtered by tags alone"
            )
        held = self._renewals.held_by(client.client_id) if renews else 0
        if held > self._settings.lite_held:
            raise Problem(
                Code.FORBIDDEN,
                f"The client [{client.client_id}] has too many unacked messages. Unacked count:"
                f" {held}",
            )

    async def _pop(self, call: Call, asked: _ReceiveRequest) -> list[FoundMessage]:
        """Asks a broker by a request. Raises: Problem, also when nothing is there."""
        code, own = (
            (RequestCode.POP_LITE_MESSAGE, _of_lite(asked))
            if asked.lite
            else (RequestCode.POP_MESSAGE, _of_queues(asked))
        )
        ext = own | {
            "consumerGroup": asked.group, "topic": asked.topic,
            "invisibleTime": asked.invisible_ms, "pollTime": asked.poll_ms,
            "bornTime": self._broker.now_ms(), "attemptId": asked.attempt or None,
        }  # fmt: skip
        request = self._broker.request(
            call, Command(code, texts(ext)), asked.broker,
            timeout_s=asked.poll_ms / 1000 + _GRACE_S,
        )  # fmt: skip
        popping = self._spawn(request)
        try:
            answer = await asyncio.shield(popping)
        except asyncio.CancelledError:
            # Nobody listens any more; what still comes goes back.
            popping.add_done_callback(partial(self._popped_in_vain, asked))
            raise
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            raise _nothing(full=False)
        if answer.code == ResponseCode.POLLING_FULL:
            raise _nothing(full=True)
        if answer.code != ResponseCode.SUCCESS:
            raise Problem(of_response(answer.code), answer.remark or "")
        return self._found(asked, answer)

    def _popped_in_vain(self, asked: _ReceiveRequest, popping: asyncio.Task[Command]) -> None:
        if popping.cancelled() or popping.exception() is not None:
            return
        answer = popping.result()
        if answer.code == ResponseCode.SUCCESS:
            self._spawn(self._give_back(asked, self._found(asked, answer)))

    def _found(self, asked: _ReceiveRequest, answer: Command) -> list[FoundMessage]:
        """Reads the answer to a pop. Raises: Problem for an answer that cannot be read."""
        name, said = asked.broker, answer.ext
        found = []
        try:
            if asked.lite:
                return lite_deliveries(asked.topic, name, answer)
            deliveries = Deliveries(said, name)
            queue = QueueProgress(MessageQueue(asked.topic, name, -1), 0)
            for message in received(bytes(answer.body), queue):
                handle = deliveries.handle(
                    message.head.queue, message.queue_offset, message.properties.get("POP_CK"),
                    _kind_of(message.stored_topic, asked),
                )  # fmt: skip
                attempts = message.head.reconsume_times
                if handle.is_order:
                    attempts = deliveries.times(handle)
                found.append(
                    FoundMessage(message.record, Receipt(handle, message.physical_offset), attempts)
                )
        except (KeyError, ValueError) as bad:
            raise Problem(
                Code.INTERNAL_SERVER_ERROR, f"a malformed answer of the broker: {bad}"
            ) from bad
        return found

    async def _passed(
        self, asked: _ReceiveRequest, found: Sequence[FoundMessage]
    ) -> list[FoundMessage]:
        """Returns those that are handed out: one that was too often goes to the dead letters, and
        one of a lite topic without the tags is acknowledged."""
        passed = []
        tags: set[str | None] | None = None
        if asked.lite and asked.expression != "*":
            tags = {each.strip() for each in asked.expression.split("||")}
        for each in found:
            if tags is not None and message_of(each.record).tags not in tags:
                await ack(self._own(asked), asked.group, asked.topic, each.receipt)
                continue
            if each.attempts < asked.most:
                passed.append(each)
                continue
            try:
                await dead_letter(
                    self._own(asked), asked.group, asked.topic,
                    message_of(each.record).message_id, each.receipt,
                )  # fmt: skip
            except Problem as failed:
                quiet.warning(
                    "dead letter",
                    "A message of %s that came %d times is not in the dead letters yet: %s",
                    asked.topic, each.attempts, failed,
                )  # fmt: skip
        return passed

    def _hold(self, call: Call, asked: _ReceiveRequest, each: FoundMessage) -> None:
        """Renews it from now on, unless its client has just left."""
        if asked.renews and self._clients.get(call.client_id) is not None:
            self._renewals.hold(
                call.client_id, asked.group, asked.topic, each.receipt, each.attempts
            )

    # ---- what could not be sent ----

    def _return(self, asked: _ReceiveRequest, found: PopOutcome | StoreError) -> None:
        if isinstance(found, PopOutcome) and isinstance(self._broker, InProcess):
            self._broker.give_back(asked.group, asked.topic, found)

    async def _give_back(self, asked: _ReceiveRequest, found: Sequence[FoundMessage]) -> None:
        """Gives messages back that their client did not get: they are visible again soon."""
        for each in found:
            self._renewals.release(asked.group, asked.topic, each.receipt.text)
            try:
                await change(self._own(asked), asked.group, asked.topic, each.receipt, _BACK_MS)
            except Problem as failed:
                quiet.info("stays", "A message of %s stays invisible: %s", asked.topic, failed)

    def _own(self, asked: _ReceiveRequest) -> Ask:
        return partial(self._broker.request_own, broker=asked.broker)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _of_queues(asked: _ReceiveRequest) -> dict[str, object]:
    """Returns the fields of POP_MESSAGE that POP_LITE_MESSAGE lacks."""
    return {
        "queueId": -1, "maxMsgNums": asked.batch, "initMode": 1, "expType": asked.kind,
        "exp": asked.expression, "order": asked.fifo,
    }  # fmt: skip


def _of_lite(asked: _ReceiveRequest) -> dict[str, object]:
    """Returns the same, the other way round."""
    return {"clientId": asked.client_id, "maxMsgNum": asked.batch}


def _wanted(rules: PopRules, call: Call, asked: _ReceiveRequest) -> PopRequest:
    """Makes the pop of a request. Raises: Refused."""
    return rules.request(
        call.host, topic=asked.topic, group=asked.group, queue=-1, most=asked.batch,
        invisible_ms=asked.invisible_ms, from_min=False, kind=asked.kind,
        expression=asked.expression, order=asked.fifo, attempt=asked.attempt or None,
    )  # fmt: skip


def _popped(asked: _ReceiveRequest, popped: PopOutcome) -> list[FoundMessage]:
    """Reads what was popped. Raises: StoreError."""
    return [
        FoundMessage(message.record, Receipt(handle, message.physical_offset), times)
        for message, handle, times in popped.deliveries(asked.broker)
    ]


def _nothing(*, full: bool) -> Problem:
    if full:
        return Problem(Code.TOO_MANY_REQUESTS, "polling full")
    return Problem(Code.MESSAGE_NOT_FOUND, "no new message")


#: Replies of requests that have waited in vain, and that may not wait.
NOTHING, FULL = (
    pb.ReceiveMessageResponse(status=_nothing(full=full).status()).SerializeToString()
    for full in (False, True)
)
_OK: bytes = pb.ReceiveMessageResponse(status=ok()).SerializeToString()


def _end() -> bytes:
    """Returns what ends the messages of a reply."""
    made = pb.ReceiveMessageResponse()
    set_millis(made.delivery_timestamp, time.time_ns() // 1_000_000)
    data: bytes = made.SerializeToString()
    return data


def _shown(asked: _ReceiveRequest, each: FoundMessage) -> tuple[memoryview, str, str, int]:
    """Returns what delivery() takes."""
    return each.record, asked.topic, each.receipt.text, each.attempts + 1


def poll_ms(call: Call, request: Any, request_timeout_ms: int, own: ProxySettings) -> int:
    """Returns how long a request for messages may wait: as it says, else what its deadline leaves.
    Raises: Problem when the client gives up before the shortest wait is over."""
    left_s = call.remaining_s
    left = None if left_s is None else int(left_s * 1000)
    if request.HasField("long_polling_timeout"):
        wait = millis(request.long_polling_timeout)
    else:
        wait = own.poll_max_ms if left is None else left - request_timeout_ms // 2
    wait = min(max(wait, own.poll_min_ms), own.poll_max_ms)
    if left is None or wait <= left:
        return wait
    if left >= own.poll_min_ms:
        return left
    known = call.version >= _KNOWS_POLLING_TIME
    raise Problem(
        Code.ILLEGAL_POLLING_TIME if known else Code.BAD_REQUEST,
        f"the deadline of the call is in {max(left, 0)} ms, before the shortest polling time of"
        f" {own.poll_min_ms} ms is over",
    )


def _filter_of(given: Any) -> tuple[str, str]:
    """Returns kind and expression of a filter. Raises: Problem."""
    expression: str = given.expression
    if given.type == pb.FilterType.SQL:
        return "SQL92", expression
    if expression and not expression.replace("|", ""):
        raise Problem(Code.ILLEGAL_FILTER_EXPRESSION, "subString split error")
    return "TAG", expression or "*"


def _kind_of(stored: str, asked: _ReceiveRequest) -> str:
    """Returns whether a message was read from the topic itself or from a retry topic of the
    group."""
    if stored == asked.topic:
        return NORMAL
    return RETRY_V2 if stored == retry_topic(asked.group, asked.topic, RETRY_V2) else RETRY_V1
