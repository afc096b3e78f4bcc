"""Lite topics over gRPC (docs/internals/lite.md#grpc): what clients subscribe to, and what a pop of
it brings."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from broker.client.errors import Misuse
from broker.client.lite import (
    COMPLETE_ADD,
    COMPLETE_REMOVE,
    PARTIAL_ADD,
    PARTIAL_REMOVE,
    OffsetOption,
    lite_place,
    subscription_body,
    times_before,
)
from broker.client.message import MessageQueue
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.grpc.brokers import Brokers
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import check_binding, check_lite_topic, group_of, quota_of, topic_of
from broker.grpc.clients import Client, GrpcClients, check_user
from broker.grpc.deliveries import FoundMessage, to_consume
from broker.grpc.receipts import Receipt
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, of_response, ok
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.processors.bodies import LITE_TOPICS_MAX
from broker.services.lite.lite_topics import WILDCARD
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.command import Command
from broker.wire.receipts import NORMAL, ORDER_QUEUE, Handle
from pystore.native import lib

__all__ = ["LiteMethods", "lite_deliveries"]

quiet = RateLimitedLogger(SafeLogger("broker.grpc"))

#: A request may have so many more: the client counts, and this only stops what does not.
_QUOTA_SLACK = 300
#: Each broker answers a subscription within this time.
_SYNC_S = 2.0
_ACTIONS = {
    pb.LiteSubscriptionAction.PARTIAL_ADD: PARTIAL_ADD,
    pb.LiteSubscriptionAction.PARTIAL_REMOVE: PARTIAL_REMOVE,
    pb.LiteSubscriptionAction.COMPLETE_ADD: COMPLETE_ADD,
    pb.LiteSubscriptionAction.COMPLETE_REMOVE: COMPLETE_REMOVE,
}
#: Of a record.
_OFFSET_AT = int(lib.PS_AT_QUEUE_OFFSET)
_POLICIES = {0: OffsetOption.LAST, 1: OffsetOption.MIN, 2: OffsetOption.MAX}


# ---- subscriptions ----


class LiteMethods:
    def __init__(self, broker: Brokers, clients: GrpcClients, settings: ProxySettings) -> None:
        self._broker, self._clients, self._settings = broker, clients, settings
        #: The second that runs, and requests that subscribed in it.
        self._second, self._count = 0, 0

    def handlers(self) -> Handlers:
        return {"SyncLiteSubscription": self.sync}

    async def sync(self, call: Call, request: Any) -> Any:
        """Tells every broker of the topic what a client subscribes to. Some may have taken what
        another one refuses: the client sends the whole set again every half minute."""
        came_ms = time.time_ns() // 1_000_000
        topic, name = topic_of(request.topic), group_of(request.group)
        action, names = _ACTIONS.get(request.action), list(dict.fromkeys(request.lite_topic_set))
        if action is None:
            raise Problem(Code.BAD_REQUEST, f"{request.action} is not an action of subscriptions")
        await self._broker.check(call, to_consume(name, topic))
        client = self._clients.get(call.client_id)
        if client is not None:
            check_user(client, call)
        group = await self._broker.group(name, (topic,))
        check_binding(name, group, [topic], is_lite=True)
        assert group is not None
        quota = min(quota_of(group), LITE_TOPICS_MAX - _QUOTA_SLACK)  # brokers of ours take no more
        if len(names) > quota + _QUOTA_SLACK:
            raise Problem(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {quota}"
            )
        for each in names:
            check_lite_topic(each, self._settings.lite_max)
        if action == PARTIAL_ADD:
            self._check_rate()
        option = _option_of(request.offset_option) if request.HasField("offset_option") else None
        body = subscription_body(
            action, call.client_id, name, topic, names, option,
            version=request.version or came_ms,
        )  # fmt: skip
        await self._tell(call, topic, body)
        return pb.SyncLiteSubscriptionResponse(status=ok())

    async def _tell(self, call: Call, topic: str, body: bytes) -> None:
        """Sends the body to all brokers of the topic. Raises: Problem for the first that refuses
        it, once all have answered."""
        names = [each.broker for each in await self._broker.places(topic) if each.reads]
        if not names:
            raise Problem(Code.TOPIC_NOT_FOUND, f"topic[{topic}] not exist")
        found = await asyncio.gather(
            *(
                self._broker.request(
                    call, Command(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body), each,
                    timeout_s=_SYNC_S,
                )
                for each in names
            ),
            return_exceptions=True,
        )  # fmt: skip
        for each in found:
            if isinstance(each, BaseException):
                raise each
            if each.code != ResponseCode.SUCCESS:
                raise _refusal(each)

    def _check_rate(self) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > self._settings.lite_rate:
            raise Problem(
                Code.TOO_MANY_REQUESTS,
                "Too many syncLiteSubscription requests, please reduce the frequency.",
            )

    # ---- clients that come and go ----

    async def arrived(self, call: Call, client: Client) -> None:
        """Has a client of a wildcard group read every lite topic of its topic from now on: it
        names none, and would say so only with its first regular synchronization, after 30 s."""
        topics = client.topics
        group = await self._broker.group(client.group, topics)
        if not topics or group is None or WILDCARD not in group.attributes:
            return
        try:
            body = subscription_body(COMPLETE_ADD, client.client_id, client.group, topics[0], ())
            await self._tell(call, topics[0], body)
        except Problem as failed:
            quiet.info("arrived", "A client of %s waits to be known: %s", client.group, failed)

    async def left(self, client: Client) -> None:
        """Unsubscribes a client that is gone: what waited for it goes to others at once."""
        if not client.topics:
            return
        topic = client.topics[0]
        body = subscription_body(COMPLETE_REMOVE, client.client_id, client.group, topic, ())
        try:
            places = await self._broker.places(topic)
        except Problem as failed:
            self._stays(client, failed)
            return
        asks = (
            self._broker.request_own(
                Command(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body), each.broker
            )
            for each in places
        )
        for done in await asyncio.gather(*asks, return_exceptions=True):
            if isinstance(done, Exception):
                self._stays(client, done)

    @staticmethod
    def _stays(client: Client, failed: Exception) -> None:
        """Says that a broker still has a client that is gone; it forgets it after some minutes."""
        quiet.info("left", "A client of %s that is gone stays subscribed: %s", client.group, failed)


def _option_of(given: Any) -> OffsetOption:
    """Returns where reading begins. Raises: Problem."""
    kind = given.WhichOneof("offset_type")
    try:
        if kind == "offset":
            return OffsetOption.of_offset(given.offset)
        if kind == "tail_n" and not given.tail_n:
            return OffsetOption.MAX
        if kind == "tail_n":
            return OffsetOption.of_tail_n(given.tail_n)
        if kind == "timestamp":
            return OffsetOption.of_timestamp(given.timestamp)
        return _POLICIES[given.policy]
    except (Misuse, KeyError) as bad:
        raise Problem(Code.ILLEGAL_OFFSET, f"the offset option is wrong: {bad}") from None


def _refusal(answer: Command) -> Problem:
    """Returns the problem of a subscription that a broker refused. Of its refusals Apache's proxy
    names the quota alone."""
    code = of_response(answer.code)
    if answer.code == ResponseCode.ILLEGAL_OPERATION:
        code = Code.INTERNAL_SERVER_ERROR
    return Problem(code, answer.remark or "")


# ---- messages ----


def lite_deliveries(topic: str, broker: str, answer: Command) -> list[FoundMessage]:
    """Returns what a pop of lite topics has brought; each record says its place in the light queue
    instead of the topic's. One that cannot be acknowledged is passed over. Raises: KeyError,
    ValueError for an answer that cannot be read."""
    pop_ms, invisible_ms = (int(answer.ext[name]) for name in ("popTime", "invisibleTime"))
    messages = received(bytes(answer.body), QueueProgress(MessageQueue(topic, broker, -1), 0))
    places: list[tuple[str, int]] = []
    for message in messages:
        try:
            places.append(lite_place(message.properties, topic, message.stored_topic))
        except ValueError as bad:
            quiet.warning("strange", "Nobody can acknowledge, so nobody gets: %s", bad)
            places.append(("", message.queue_offset))
    found = []
    all_times = times_before(answer.ext.get("orderCountInfo", ""), places)
    for message, (name, offset), times in zip(messages, places, all_times, strict=True):
        if name:
            handle = Handle(0, pop_ms, invisible_ms, ORDER_QUEUE, NORMAL, broker, 0, offset)
            receipt = Receipt(handle, message.physical_offset, name)
            record = bytearray(message.record)
            record[_OFFSET_AT : _OFFSET_AT + 8] = offset.to_bytes(8, "big")
            found.append(FoundMessage(memoryview(record), receipt, times))
    return found
