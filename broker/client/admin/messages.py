"""Messages by id, by key, by time, by place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from broker.client.admin.offsets import OffsetAdmin
from broker.client.admin.traces import STEPS, TraceStep, steps_in
from broker.client.checks import check_count, check_offset
from broker.client.errors import BadAnswer, BrokerRefused, Misuse, reading
from broker.client.ids import OffsetId, offset_id_of
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import number_in
from broker.client.progress import QueueProgress
from broker.client.pulling import SUBSCRIPTION
from broker.client.queries import messages_of_broker, placed
from broker.client.records import received
from broker.wire.codes import RequestCode, ResponseCode
from broker.wire.handlers import address_text
from pystore.format.names import TOOLS_GROUP, TRACE_TOPIC

__all__ = ["MessageAdmin"]

_LAST_MS = (1 << 63) - 1
#: Of a client's id, which looks like an offset id, the port is mostly beyond this.
_PORT_MAX = 65535
#: Messages with records of a trace that are looked at: of one message there are a few.
_TRACES = 64
#: Messages that one pull asks for; Java's brokers give 32 of them at most.
_PULL = 64


class MessageAdmin(OffsetAdmin):
    """Messages: one by its id, those with a key, those of a time, those of a queue."""

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        """Finds a message by its id: the client's, which needs the topic, or an offset id (32 or 56
        hexadecimal digits), which names a broker and a place; with broker= that one is asked,
        wherever the id points. None: there is none. Raises: Misuse, ClientError."""
        self.network.check()
        if topic is not None:
            found = await self.messages_by_key(topic, message_id)
            for each in found:
                if each.message_id == message_id:
                    return each
        try:
            place = offset_id_of(message_id)
        except ValueError:
            place = None
        if place is None or not 0 < place.port <= _PORT_MAX:
            if topic is None:
                raise Misuse(f"'{message_id:.60}' is a client's id: name the topic, too")
            return None
        return await self._at(place)

    async def _names(self) -> dict[str, str]:
        """Returns the names of brokers by their addresses."""
        return {each.address: each.name for each in await self.cluster()}

    async def _at(self, place: OffsetId) -> ReceivedMessage | None:
        address = self._broker or address_text((place.host, place.port))
        code = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await self.network.request(
            address, code, {"offset": place.offset}, fine=(0, ResponseCode.SYSTEM_ERROR)
        )
        if answer.code:
            return None
        with reading(code.name, address):
            found = placed(bytes(answer.body), (await self._names()).get(address, ""))
        return found[0] if found and found[0].physical_offset == place.offset else None

    async def messages_by_key(
        self, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = _LAST_MS, most: int = 32
    ) -> list[ReceivedMessage]:
        """Returns messages with a key, or with a client's id, the first stored first: at most so
        many of each broker. Raises: NoRoute, ClientError."""
        self.network.check()
        check_count("most", most, 1)
        found: list[ReceivedMessage] = []
        names = await self._names()
        for address in await self._brokers_of(topic):
            found += await messages_of_broker(
                self.network, names.get(address, ""), address, topic, key, most, begin_ms, end_ms
            )
        return sorted(found, key=lambda message: message.store_timestamp)

    async def trace(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> list[TraceStep]:
        """Returns the way of a message, as far as its producer and consumers trace it: the earliest
        step first. Raises: NoRoute when nobody has traced anything, ClientError."""
        self.network.check()
        found: set[TraceStep] = set()
        for each in await self.messages_by_key(trace_topic, message_id, most=_TRACES):
            found.update(steps_in(each.body, message_id))
        return sorted(found, key=lambda step: (step.when_ms, STEPS.index(step.kind)))

    async def messages(
        self, topic: str, *, begin_ms: int = 0, end_ms: int = _LAST_MS,
        queue: int | None = None,
    ) -> AsyncIterator[ReceivedMessage]:  # fmt: skip
        """Goes through the messages of a topic that were stored in a span of time, queue by queue.
        Consumers and offsets are left alone. Raises: NoRoute, ClientError."""
        self.network.check()
        check_offset("begin_ms", begin_ms)
        for address, queues in await self._queues(topic):
            for each in queues:
                if queue not in (None, each.queue):
                    continue
                at = await self.offset_of(address, each, begin_ms if begin_ms else "first")
                end = await self.offset_of(address, each, "last")
                async for message in self.read(address, each, at, end):
                    if message.store_timestamp > end_ms:
                        break
                    if message.store_timestamp >= begin_ms:
                        yield message

    async def read(
        self, address: str, queue: MessageQueue, offset: int, end: int,
        passed: Callable[[int], None] | None = None,
    ) -> AsyncIterator[ReceivedMessage]:  # fmt: skip
        """Reads a queue from an offset up to, but without, another. passed: is called with the
        offset of the next message after each pull. Raises: BrokerRefused, BadAnswer,
        ClientError."""
        progress = QueueProgress(queue, offset)
        while offset < end:
            found, after = await self._pull(address, progress, offset)
            for message in found:
                if offset <= message.queue_offset < end:
                    yield message
            if after <= offset:
                bad = ValueError(f"offset {offset} was asked for, and the next would be {after}")
                raise BadAnswer(f"a pull of {queue}", bad, address)
            offset = after
            if passed is not None:
                passed(offset)

    async def _pull(
        self, address: str, progress: QueueProgress, offset: int
    ) -> tuple[list[ReceivedMessage], int]:
        """Returns messages, and where the next pull begins."""
        queue = progress.queue
        fields = {
            "consumerGroup": TOOLS_GROUP, "topic": queue.topic, "queueId": queue.queue,
            "queueOffset": offset, "maxMsgNums": _PULL, "sysFlag": SUBSCRIPTION, "commitOffset": 0,
            "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
            "expressionType": "TAG", "bname": queue.broker,
        }  # fmt: skip
        code = RequestCode.PULL_MESSAGE
        gone = (
            ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )  # fmt: skip
        answer = await self.network.request(address, code, fields, fine=(0, *gone))
        with reading(f"a pull of {queue}", address):
            after = number_in(answer, "nextBeginOffset")
            if answer.code == ResponseCode.PULL_NOT_FOUND and after <= offset:
                # The queue ended here since its end was asked for: it was cut, or deleted.
                raise ValueError(f"the queue ends at {after}")
            found = [] if answer.code else received(bytes(answer.body), progress)
        return found, after


def is_unreadable(error: BrokerRefused) -> bool:
    """Says whether a topic may not be read: as dead letters of 4.x may not, until somebody
    allows it."""
    return error.code == ResponseCode.NO_PERMISSION
