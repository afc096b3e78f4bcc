"""How the members of a group divide the queues of a topic. No I/O.

Every member computes the same from the same sorted lists, so they agree without talking; members in
Java and Go follow the same rules. The names are those of upstream's AllocateMessageQueueStrategy.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

from broker.client.errors import Misuse
from broker.wire.mqjson import MessageQueue

__all__ = [
    "STRATEGIES", "Strategy", "average", "average_by_circle", "by_config", "consistent_hash",
    "machine_room", "machine_room_nearby", "strategy_of",
]  # fmt: skip

#: (queues, client ids, own client id), both lists sorted and not empty, to the own queues.
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]

VIRTUAL_NODES = 10


def average(
    queues: Sequence[MessageQueue], clients: Sequence[str], own: str
) -> Sequence[MessageQueue]:
    """Divides as AVG: each member gets a run of neighbouring queues; the first members get one
    more."""
    index, count = clients.index(own), len(clients)
    each, rest = divmod(len(queues), count)
    start = index * each + min(index, rest)
    return queues[start : start + each + (index < rest)]


def average_by_circle(
    queues: Sequence[MessageQueue], clients: Sequence[str], own: str
) -> Sequence[MessageQueue]:
    """Divides as AVG_BY_CIRCLE: each of n members gets every n-th queue."""
    return queues[clients.index(own) :: len(clients)]


def consistent_hash(
    queues: Sequence[MessageQueue], clients: Sequence[str], own: str
) -> Sequence[MessageQueue]:
    """Divides as CONSISTENT_HASH: a ring of ten points a member; few queues move when a member
    comes."""
    ring = sorted((_place(f"{c}-{n}"), c) for c in clients for n in range(VIRTUAL_NODES))
    places = [place for place, _ in ring]
    mine = []
    for queue in queues:
        text = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue}]"
        )
        at = bisect_left(places, _place(text))
        if ring[at % len(ring)][1] == own:
            mine.append(queue)
    return mine


def _place(text: str) -> int:
    """Returns the first four bytes of the text's MD5, as a number."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def by_config(queues: Collection[MessageQueue]) -> Strategy:
    """Makes the strategy CONFIG: the queues that the user names.

    >>> from broker import MessageQueue
    >>> from broker.client import by_config
    >>> strategy = by_config([MessageQueue("orders", "broker-a", 3)])  # of one Consumer
    >>> strategy([], ["me"], "me")
    (MessageQueue(topic='orders', broker='broker-a', queue=3),)
    """
    fixed = tuple(sorted(queues))
    return lambda queues, clients, own: fixed


def machine_room(rooms: Collection[str]) -> Strategy:
    """Makes the strategy MACHINE_ROOM: only queues of brokers named ``room@broker`` in these rooms,
    divided evenly.

    >>> from broker import MessageQueue
    >>> from broker.client import machine_room
    >>> queues = [MessageQueue("orders", f"{room}@b", 0) for room in ("east", "west")]
    >>> [queue.broker for queue in machine_room({"west"})(queues, ["me"], "me")]
    ['west@b']
    """

    def allocate(
        queues: Sequence[MessageQueue], clients: Sequence[str], own: str
    ) -> Sequence[MessageQueue]:
        near = [q for q in queues if q.broker.count("@") == 1 and q.broker.split("@")[0] in rooms]
        index, count = clients.index(own), len(clients)
        each, rest = divmod(len(near), count)
        mine = near[index * each : (index + 1) * each]
        return [*mine, near[index + each * count]] if index < rest else mine

    return allocate


def machine_room_nearby(
    inner: Strategy,
    room_of_broker: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> Strategy:
    """Makes the strategy MACHINE_ROOM_NEARBY: queues of a room go to the members there; a room
    without members is divided among all. inner: divides in each room.

    >>> from broker import MessageQueue
    >>> from broker.client import machine_room_nearby
    >>> from broker.client.allocation import average
    >>> room = lambda broker_or_client: broker_or_client.split("@")[0]
    >>> nearby = machine_room_nearby(average, lambda queue: room(queue.broker), room)
    >>> queues = [MessageQueue("orders", f"{at}@b", 0) for at in ("east", "west")]
    >>> [queue.broker for queue in nearby(queues, ["east@1", "west@1"], "west@1")]
    ['west@b']
    """

    def allocate(
        queues: Sequence[MessageQueue], clients: Sequence[str], own: str
    ) -> Sequence[MessageQueue]:
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(room_of_broker(queue), []).append(queue)
        members: dict[str, list[str]] = {}
        for client in clients:
            members.setdefault(room_of_client(client), []).append(client)
        here = room_of_client(own)
        mine: list[MessageQueue] = []
        if here in by_room:
            mine += inner(by_room[here], members[here], own)
        for room in sorted(by_room):
            if room not in members:
                mine += inner(by_room[room], clients, own)
        return mine

    return allocate


STRATEGIES: Mapping[str, Strategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}


def strategy_of(given: str | Strategy) -> Strategy:
    """Returns a strategy by upstream's name, or the user's own. Raises: Misuse for an unknown
    name."""
    if callable(given):
        return given
    found = STRATEGIES.get(given) if isinstance(given, str) else None
    if found is None:
        raise Misuse(
            f"there is no allocation strategy {given!r}; use one of {', '.join(STRATEGIES)}, or"
            " by_config(), machine_room(), machine_room_nearby() of broker.client.allocation"
        )
    return found
