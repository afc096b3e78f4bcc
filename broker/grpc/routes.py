"""QueryRoute: the queues of a topic, and where their brokers take gRPC."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from broker.access.needs import AccessAction
from broker.grpc.brokers import Brokers, TopicPlace
from broker.grpc.calls import Call, Handlers
from broker.grpc.checks import topic_of
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, ok
from broker.services.topics import READ, WRITE
from pystore.meta.configfiles import TopicConfig

__all__ = ["RouteMethods", "accepted_types", "endpoints_of"]

_TYPES: dict[str, tuple[int, ...]] = {
    "NORMAL": (pb.MessageType.NORMAL,),
    "FIFO": (pb.MessageType.FIFO,),
    "DELAY": (pb.MessageType.DELAY,),
    "TRANSACTION": (pb.MessageType.TRANSACTION,),
    "PRIORITY": (pb.MessageType.PRIORITY,),
    "LITE": (pb.MessageType.LITE,),
    "MIXED": (
        pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY,
        pb.MessageType.TRANSACTION,
    ),
}  # fmt: skip
_HERE = "127.0.0.1"
_UNKNOWN_TYPE = (pb.MessageType.MESSAGE_TYPE_UNSPECIFIED,)


def accepted_types(config: TopicConfig) -> tuple[int, ...]:
    """Returns the message types that a topic takes (its attribute message.type)."""
    return _TYPES.get(config.attributes.get("message.type", "NORMAL"), _UNKNOWN_TYPE)


def endpoints_of(host: str, port: int) -> Any:
    """Returns pb.Endpoints of one address."""
    host = host.strip("[]")
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
        scheme = pb.AddressScheme.IPv6 if is_v6 else pb.AddressScheme.IPv4
    except ValueError:
        scheme = pb.AddressScheme.DOMAIN_NAME
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])


class RouteMethods:
    """port: where this service is reached."""

    def __init__(self, broker: Brokers, settings: ProxySettings, port: int) -> None:
        self._broker = broker
        self._settings = settings
        self._port = port

    def handlers(self) -> Handlers:
        return {"QueryRoute": self.query}

    async def query(self, call: Call, request: Any) -> Any:
        topic = topic_of(request.topic)
        await self._broker.check_topic(call, topic, AccessAction.PUB, AccessAction.SUB)
        places = await self._broker.everywhere(topic)
        if not places:
            raise Problem(
                Code.TOPIC_NOT_FOUND,
                f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}\n"
                "Make it with mqadmin updateTopic.",
            )
        reply = pb.QueryRouteResponse(status=ok())
        for place in places:
            types = accepted_types(place.config)
            for broker_id in place.ids:
                broker = self.broker_of(request, place, broker_id)
                for number, permission in enumerate(permissions(place.config)):
                    reply.message_queues.append(
                        pb.MessageQueue(
                            topic=request.topic, id=number, permission=permission, broker=broker,
                            accept_message_types=types,
                        )
                    )  # fmt: skip
        return reply

    def broker_of(self, request: Any, place: TopicPlace, broker_id: int) -> Any:
        """Returns pb.Broker, as whoever asks with these endpoints reaches it: through us, or at a
        host of its own."""
        endpoints = self._endpoints(request, place.host or self._broker.host)
        return pb.Broker(name=place.broker, id=broker_id, endpoints=endpoints)

    def _endpoints(self, request: Any, known: str) -> Any:
        """Returns pb.Endpoints of the service at the host that is known. Where brokers do not say
        what that is, it is at those addresses that the client asked, with our port."""
        asked = request.endpoints.addresses
        keeps = self._settings.port_of_request and asked and 0 < asked[0].port < 65536
        if known or not asked:
            host = known or self._settings.host or _HERE
            return endpoints_of(host, asked[0].port if keeps else self._port)
        made = pb.Endpoints()
        made.CopyFrom(request.endpoints)
        for each in made.addresses:
            if not keeps:
                each.port = self._port
        return made


def permissions(config: TopicConfig) -> Iterator[int]:
    """Yields one for each queue of a topic, in upstream's order: what can only be read, only be
    written, both."""
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
