"""Who subscribes to which lite topics, and the events that wait for each client.

An event is the name of a light queue in which a group has something to read; of each group one
client has it. Upstream: LiteSubscriptionRegistryImpl, LiteEventDispatcher; there a client is known
by its id alone, so that one in two groups mixes theirs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import randrange

from broker.services.lite.names import parts_of
from broker.wire.handlers import Peer

__all__ = ["LiteClient", "LiteRegistry"]


@dataclass(slots=True, eq=False)
class LiteClient:
    """A client of a group. `queues` are the light queues it subscribes to; `events` are those in
    which there is something for it, in order of their coming. `polls` are woken when one comes.
    `peer` is where it is notified that it lost a lite topic."""

    group: str
    client_id: str
    parent: str
    queues: set[str] = field(default_factory=set)
    events: dict[str, None] = field(default_factory=dict)
    polls: deque[Callable[[], None]] = field(default_factory=deque)
    peer: Peer | None = None
    version: int = 0
    updated: float = field(default_factory=time.monotonic)
    accessed_ms: int = -1
    #: An event found no room: all of its queues are to be looked at again.
    overflowed: bool = False

    def wake(self) -> None:
        """Wakes the poll that has waited longest."""
        if self.polls:
            self.polls.popleft()()


class LiteRegistry:
    """Clients by group and id, and by queue."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], LiteClient] = {}
        #: By queue, then by group. One client is the usual case, and kept without a list.
        self._by_queue: dict[str, dict[str, LiteClient | list[LiteClient]]] = {}
        #: Clients of wildcard groups, by topic: they read all of its lite topics.
        self.wild: dict[str, list[LiteClient]] = {}
        #: Pairs of client and lite topic.
        self.pairs = 0
        #: How often who subscribes to what has changed.
        self.changes = 0

    def get(self, group: str, client_id: str) -> LiteClient | None:
        return self._clients.get((group, client_id))

    def all(self) -> Iterable[LiteClient]:
        return list(self._clients.values())

    def named(self, client_id: str) -> list[LiteClient]:
        """Returns a client in all of its groups."""
        return [each for each in self._clients.values() if each.client_id == client_id]

    def of_group(self, group: str) -> Iterator[LiteClient]:
        return (each for each in self.all() if each.group == group)

    def made(self, group: str, client_id: str, parent: str) -> LiteClient:
        """Returns a client, made when it is new."""
        found = self._clients.get((group, client_id))
        if found is None:
            found = self._clients[group, client_id] = LiteClient(group, client_id, parent)
        found.updated = time.monotonic()
        return found

    def subscribers(self, queue: str, group: str) -> list[LiteClient]:
        found = self._by_queue.get(queue, {}).get(group)
        if found is not None:
            return list(found) if isinstance(found, list) else [found]
        parts = parts_of(queue) if self.wild else None
        wild = self.wild.get(parts[0], ()) if parts is not None else ()
        return [each for each in wild if each.group == group]

    def groups_at(self, queue: str) -> list[str]:
        return list(self._by_queue.get(queue, ()))

    def add(self, client: LiteClient, queue: str) -> bool:
        """Subscribes; False: the client has it already."""
        if queue in client.queues:
            return False
        client.queues.add(queue)
        groups = self._by_queue.setdefault(queue, {})
        here = groups.get(client.group)
        if here is None:
            groups[client.group] = client
        elif isinstance(here, list):
            here.append(client)
        else:
            groups[client.group] = [here, client]
        self.pairs += 1
        self.changes += 1
        return True

    def add_wild(self, client: LiteClient) -> bool:
        """Has a client of a wildcard group read all lite topics of its topic; False: it does."""
        here = self.wild.setdefault(client.parent, [])
        if client in here:
            return False
        here.append(client)
        self.changes += 1
        return True

    def remove(self, client: LiteClient, queue: str) -> bool:
        """Unsubscribes, and drops the event; False: the client did not have it."""
        client.events.pop(queue, None)
        if queue not in client.queues:
            return False
        client.queues.discard(queue)
        groups = self._by_queue[queue]
        left = [each for each in self.subscribers(queue, client.group) if each is not client]
        if left:
            groups[client.group] = left if len(left) > 1 else left[0]
        else:
            del groups[client.group]
            if not groups:
                del self._by_queue[queue]
        self.pairs -= 1
        self.changes += 1
        return True

    def drop(self, client: LiteClient) -> list[str]:
        """Forgets a client, and returns the events that it had."""
        events = list(client.events)
        for queue in list(client.queues):
            self.remove(client, queue)
        here = self.wild.get(client.parent, [])
        if client in here:
            here.remove(client)
            self.changes += 1
        client.events.clear()
        self._clients.pop((client.group, client.client_id), None)
        while client.polls:
            client.wake()
        return events

    def choose(self, queue: str, group: str, room: int) -> LiteClient | None:
        """Returns who gets an event of this queue: a client that waits for one, else any with room;
        None when nobody of the group subscribes, or all are full, and are then marked so. Whoever
        has the event already keeps it."""
        found = self.subscribers(queue, group)
        if not found:
            return None
        for each in found:
            if queue in each.events:
                return each
        start = randrange(len(found)) if len(found) > 1 else 0
        turn = found[start:] + found[:start]
        best: LiteClient | None = None
        for each in turn:
            if len(each.events) >= room:
                each.overflowed = True
            elif each.polls:
                return each
            elif best is None:
                best = each
        return best
