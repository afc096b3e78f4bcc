"""Messages by key, from every broker of a topic (docs/internals/wire.md; upstream
MQAdminImpl.queryMessage)."""

from __future__ import annotations

from broker.client.errors import NoRoute
from broker.client.message import MessageQueue, ReceivedMessage
from broker.client.network import Network
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.wire.codes import RequestCode, ResponseCode

__all__ = ["messages_by_key"]

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
    fields = {
        "topic": topic, "key": key, "maxNum": most, "beginTimestamp": 0, "endTimestamp": _LAST_MS,
    }  # fmt: skip
    progress = QueueProgress(MessageQueue(topic, "", 0), 0)
    found: list[ReceivedMessage] = []
    for address in route.addresses(masters_only=True):
        answer = await network.request(address, RequestCode.QUERY_MESSAGE, fields, fine=_FINE)
        found += received(bytes(answer.body or b""), progress)
    return sorted(found, key=lambda message: message.store_timestamp)
