"""Which client of a group owns which queue: orderly consumption (codes 41 and 42)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.wire.mqjson import MessageQueue

__all__ = ["Locks"]

#: A lock that was not renewed for so long may be taken by another client.
LIFE_S = 60.0


@dataclass(slots=True)
class _Lock:
    client: str
    renewed: float


class Locks:
    """Locks by group and queue; after a restart all queues are unlocked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Takes or renews what it can, and returns the queues that this client holds now."""
        now, held = self._clock(), []
        table = self._groups.setdefault(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is None or lock.client == client or now - lock.renewed > LIFE_S:
                table[queue] = _Lock(client, now)
                held.append(queue)
        return held

    def unlock(self, group: str, client: str, queues: Iterable[MessageQueue]) -> None:
        table = self._groups.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.client == client:
                del table[queue]

    def is_orderly(self, group: str) -> bool:
        """Returns whether a member of the group holds an unexpired lock."""
        now = self._clock()
        return any(now - each.renewed <= LIFE_S for each in self._groups.get(group, {}).values())

    def scan(self) -> None:
        """Forgets locks that nobody has renewed, so that the table does not grow forever."""
        now = self._clock()
        for group, table in list(self._groups.items()):
            for queue in [q for q, lock in table.items() if now - lock.renewed > LIFE_S]:
                del table[queue]
            if not table:
                del self._groups[group]
