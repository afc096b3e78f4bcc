"""QueryRoute: the queues of a topic, and where their brokers take gRPC."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from broker.access.needs import Action
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import topic_of
from broker.grpc.local import LocalBroker
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, ok
from broker.services.topics import READ, WRITE
from pystore.configfiles import TopicConfig

__all__ = ["Routes", "accepted_types", "endpoints_of"]

_TYPES: dict[str, tuple[int, ...]] = {
    "NORMAL": (pb.MessageType.NORMAL,),
    "FIFO": (pb.MessageType.FIFO,),
    "DELAY": (pb.MessageType.DELAY,),
    "TRANSACTION": (pb.MessageType.TRANSACTION,),
    "MIXED": (
        pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY,
        pb.MessageType.TRANSACTION,
    ),
}  # fmt: skip
_UNKNOWN_TYPE = (pb.MessageType.MESSAGE_TYPE_UNSPECIFIED,)


def accepted_types(config: TopicConfig) -> tuple[int, ...]:
    """The message types that a topic takes (its attribute message.type)."""
    return _TYPES.get(config.attributes.get("message.type", "NORMAL"), _UNKNOWN_TYPE)


def endpoints_of(host: str, port: int) -> Any:
    """pb.Endpoints of one address."""
    host = host.strip("[]")
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
        scheme = pb.AddressScheme.IPv6 if is_v6 else pb.AddressScheme.IPv4
    except ValueError:
        scheme = pb.AddressScheme.DOMAIN_NAME
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])


class Routes:
    """port: where this service is reached."""

    def __init__(self, broker: LocalBroker, settings: ProxySettings, port: int) -> None:
        self._broker = broker
        self._settings = settings
        self._port = port

    def handlers(self) -> Handlers:
        return {"QueryRoute": self.query}

    async def query(self, call: Call, request: Any) -> Any:
        topic = topic_of(request.topic)
        self._broker.check_topic(call, topic, Action.PUB, Action.SUB)
        config = self._broker.services.topics.get(topic)
        if config is None:
            raise Problem(
                Code.TOPIC_NOT_FOUND,
                f"No topic route info for the topic: {topic}. Make it with mqadmin updateTopic.",
            )
        broker = self.broker_of(request)
        types = accepted_types(config)
        reply = pb.QueryRouteResponse(status=ok())
        for number, permission in enumerate(permissions(config)):
            reply.message_queues.append(
                pb.MessageQueue(
                    topic=request.topic, id=number, permission=permission, broker=broker,
                    accept_message_types=types,
                )
            )  # fmt: skip
        return reply

    def broker_of(self, request: Any) -> Any:
        """pb.Broker of ours, as whoever asks with these endpoints reaches it."""
        port = self._port
        asked = request.endpoints.addresses
        if self._settings.port_of_request and asked and 0 < asked[0].port < 65536:
            port = asked[0].port
        services = self._broker.services
        return pb.Broker(
            name=services.broker_name,
            id=int(services.settings["brokerId"]),
            endpoints=endpoints_of(services.host, port),
        )


def permissions(config: TopicConfig) -> Iterator[int]:
    """One for each queue of a topic, in upstream's order: what can only be read, only be written,
    both."""
    reads, writes = config.read_queue_nums, config.write_queue_nums
    may_read, may_write = config.perm & READ, config.perm & WRITE
    kind = pb.Permission
    if may_read and may_write:
        both = min(reads, writes)
        rows = [(kind.READ, reads - both), (kind.WRITE, writes - both), (kind.READ_WRITE, both)]
    elif may_read:
        rows = [(kind.READ, reads)]
    elif may_write:
        rows = [(kind.WRITE, writes)]
    else:
        rows = [(kind.NONE, max(1, reads, writes))]
    for permission, count in rows:
        yield from [permission] * count
