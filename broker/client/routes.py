"""Routes: which brokers serve a topic, with which queues (docs/internals/wire.md#routes). No
I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.wire import mqjson
from broker.wire.mqjson import MessageQueue
from broker.wire.static_topics import leaders_of

__all__ = ["Route", "parse_route"]

_READ, _WRITE = 4, 2
#: Queues of a topic; a route that names more would take the memory, and the time, of any client.
QUEUES_MAX = 65536


@dataclass(frozen=True, slots=True)
class Route:
    """publish, read: queues, sorted; of a static topic logical ones. brokers: by name, addresses by
    broker id (0: the master). leaders: of a static topic, the broker of each logical queue. parts:
    of a static topic, queues of brokers that can be read."""

    publish: tuple[MessageQueue, ...] = ()
    read: tuple[MessageQueue, ...] = ()
    brokers: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    leaders: Mapping[MessageQueue, str] = field(default_factory=dict)
    parts: tuple[MessageQueue, ...] = ()

    def broker(self, queue: MessageQueue) -> str:
        """Returns the broker that serves a queue."""
        return self.leaders.get(queue, queue.broker)

    @property
    def held(self) -> tuple[MessageQueue, ...]:
        """Queues of brokers that can be read; of any other topic than a static one, those are
        `read`."""
        return self.parts if self.leaders else self.read

    def master(self, broker: str) -> str | None:
        return self.brokers.get(broker, {}).get(0)

    def address(self, broker: str, broker_id: int = 0) -> str | None:
        """Returns the address of the broker with that id, else of the master of that name, else of
        any."""
        known = self.brokers.get(broker, {})
        return known.get(broker_id) or known.get(0) or next(iter(known.values()), None)

    def addresses(self, *, masters_only: bool) -> set[str]:
        return {
            address
            for by_id in self.brokers.values()
            for number, address in by_id.items()
            if number == 0 or not masters_only
        }


def parse_route(body: bytes | bytearray | memoryview, topic: str) -> Route:
    """Reads the route of a name server's answer, JSON or fastjson. Raises: ValueError."""
    value = mqjson.loads(body)
    if not isinstance(value, Mapping):
        raise ValueError("the route is not a JSON object")
    try:
        return _route(value, topic)
    except (KeyError, TypeError, AttributeError) as bad:
        raise ValueError(f"the route has not the shape of one: {bad!r}") from bad


def _route(value: Mapping[str, Any], topic: str) -> Route:
    brokers: dict[str, dict[int, str]] = {}
    clusters: dict[str, str] = {}
    for data in value.get("brokerDatas") or ():
        name = str(data["brokerName"])
        brokers[name] = {int(n): str(a) for n, a in data["brokerAddrs"].items()}
        clusters[name] = str(data.get("cluster", ""))
    queues: list[Any] = list(value.get("queueDatas") or ())
    if sum(max(0, data["writeQueueNums"], data["readQueueNums"]) for data in queues) > QUEUES_MAX:
        raise ValueError(f"the route names more than {QUEUES_MAX} queues")
    publish = _ordered(str(value.get("orderTopicConf") or ""), topic, brokers)
    if publish is None:
        publish = [
            MessageQueue(topic, data["brokerName"], number)
            for data in queues
            if data["perm"] & _WRITE and 0 in brokers.get(data["brokerName"], {})
            for number in range(data["writeQueueNums"])
        ]
    read = [
        MessageQueue(topic, data["brokerName"], number)
        for data in queues
        if data["perm"] & _READ and brokers.get(data["brokerName"])
        for number in range(data["readQueueNums"])
    ]
    leaders = _leaders(value.get("topicQueueMappingByBroker"), topic, brokers)
    if leaders:
        writable = {queue.broker for queue in publish}
        return Route(
            tuple(queue for queue, broker in leaders.items() if broker in writable),
            tuple(leaders), brokers, clusters, leaders, tuple(sorted(read)),
        )  # fmt: skip
    return Route(tuple(sorted(publish)), tuple(sorted(read)), brokers, clusters)


def _leaders(
    infos: Any, topic: str, brokers: Mapping[str, Mapping[int, str]]
) -> dict[MessageQueue, str]:
    """Returns who leads each logical queue of a static topic, sorted, without queues that nobody
    leads whom the route names."""
    if not infos:
        return {}
    found = leaders_of(infos.values())
    if len(found) > QUEUES_MAX:
        raise ValueError(f"the route names more than {QUEUES_MAX} queues")
    return {
        MessageQueue(topic, name, queue): broker
        for (name, queue), broker in sorted(found.items())
        if brokers.get(broker)
    }


def _ordered(
    conf: str, topic: str, brokers: Mapping[str, Mapping[int, str]]
) -> list[MessageQueue] | None:
    """Returns the queues of an order topic (``broker:queues;...``), or None for another topic."""
    if not conf:
        return None
    made: list[MessageQueue] = []
    for part in conf.split(";"):
        name, _, count = part.partition(":")
        if name in brokers and count.isdigit():
            if len(made) + int(count) > QUEUES_MAX:
                raise ValueError(f"the route names more than {QUEUES_MAX} queues")
            made += [MessageQueue(topic, name, number) for number in range(int(count))]
    return made


def route_of_queues(
    topic: str, broker: str, address: str, cluster: str, perm: int, reads: int, writes: int
) -> Route:
    """Makes the route of a topic that one broker serves."""
    return Route(
        tuple(MessageQueue(topic, broker, n) for n in range(writes if perm & _WRITE else 0)),
        tuple(MessageQueue(topic, broker, n) for n in range(reads if perm & _READ else 0)),
        {broker: {0: address}},
        {broker: cluster},
    )


def as_template(route: Route, topic: str, queues: int) -> Route:
    """Makes, of the route of the default topic, that of a topic to be created with so many
    queues."""
    made = tuple(MessageQueue(topic, q.broker, q.queue) for q in route.publish if q.queue < queues)
    return Route(made, made, route.brokers, route.clusters)
