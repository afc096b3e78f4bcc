"""Messages by key, from every broker of a topic (docs/internals/wire.md; upstream
MQAdminImpl.queryMessage)."""

from __future__ import annotations

from collections.abc import Callable

from broker.client.errors import NoRoute
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import Network
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.wire.codes import RequestCode, ResponseCode

__all__ = ["messages_by_key", "messages_of_broker", "placed"]

_LAST_MS = (1 << 63) - 1
_FINE = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


async def messages_by_key(
    network: Network, topic: str, key: str, most: int = 32
) -> list[ReceivedMessage]:
    """Returns at most so many messages of each broker, the first stored first; none of a topic
    without route. Every broker must answer: a message that cannot be seen is not one that is
    missing.

    Raises: BrokerRefused, Unreachable, RequestTimeout, BadRecord."""
    try:
        route = await network.route(topic, fresh=True)
    except NoRoute:
        return []
    found: list[ReceivedMessage] = []
    for name in route.brokers:
        if (address := route.master(name)) is not None:
            found += await messages_of_broker(network, name, address, topic, key, most)
    return sorted(found, key=lambda message: message.store_timestamp)


async def messages_of_broker(
    network: Network, name: str, address: str, topic: str, key: str, most: int, begin_ms: int = 0,
    end_ms: int = _LAST_MS,
) -> list[ReceivedMessage]:  # fmt: skip
    """Returns at most so many messages that the broker of this name finds. Raises: BrokerRefused,
    Unreachable, RequestTimeout, BadRecord."""
    fields = {
        "topic": topic, "key": key, "maxNum": most, "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
    }  # fmt: skip
    answer = await network.request(address, RequestCode.QUERY_MESSAGE, fields, fine=_FINE)
    return placed(bytes(answer.body or b""), name)


def placed(body: bytes, broker: str, shown: Callable[[str], str] = str) -> list[ReceivedMessage]:
    """Returns the messages of an answer that were not pulled from a queue: each record says which
    it is in. shown: as of a QueueProgress. Raises: BadRecord."""
    found = received(body, QueueProgress(MessageQueue("", broker, 0), 0))
    for message in found:
        queue = MessageQueue(message.stored_topic, broker, message.head.queue)
        message.progress = QueueProgress(queue, 0, shown)
    return found
