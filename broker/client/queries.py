"""Messages by key, from every broker of a topic (docs/internals/wire.md; upstream
MQAdminImpl.queryMessage)."""

from __future__ import annotations

from broker.client.errors import NoRoute
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import Network
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.wire.codes import RequestCode, ResponseCode

__all__ = ["messages_by_key", "messages_of_broker"]

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
    for address in route.addresses(masters_only=True):
        found += await messages_of_broker(network, address, topic, key, most)
    return sorted(found, key=lambda message: message.store_timestamp)


async def messages_of_broker(
    network: Network, address: str, topic: str, key: str, most: int, begin_ms: int = 0,
    end_ms: int = _LAST_MS,
) -> list[ReceivedMessage]:  # fmt: skip
    """Returns at most so many messages that one broker finds. Raises: BrokerRefused, Unreachable,
    RequestTimeout, BadRecord."""
    fields = {
        "topic": topic, "key": key, "maxNum": most, "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
    }  # fmt: skip
    answer = await network.request(address, RequestCode.QUERY_MESSAGE, fields, fine=_FINE)
    progress = QueueProgress(MessageQueue(topic, "", 0), 0)
    return received(bytes(answer.body or b""), progress)
