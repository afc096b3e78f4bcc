"""Which client of a group owns which queue: orderly consumption (codes 41 and 42)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.wire.codes import ResponseCode
from broker.wire.command import Refused
from broker.wire.mqjson import MessageQueue

__all__ = ["Locks"]

#: A lock that was not renewed for so long may be taken by another client.
LIFE_S = 60.0
#: Bytes, roughly: of a group and of a lock beside their names; all may take so many.
GROUP, LOCK = 400, 500
SIZE_MAX = 64 << 20


@dataclass(slots=True)
class _Lock:
    client: str
    renewed: float


class Locks:
    """Locks by group and queue; after a restart all queues are unlocked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        #: Bytes, roughly, of all locks.
        self.size = 0

    def lock(self, group: str, client: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Takes or renews what it can, and returns the queues that this client holds now. Raises:
        Refused when a lock more would take too much memory."""
        now, held = self._clock(), []
        for queue in queues:
            table = self._groups.get(group)
            lock = table.get(queue) if table is not None else None
            if lock is None or lock.client == client or now - lock.renewed > LIFE_S:
                self._put(group, queue, _Lock(client, now))
                held.append(queue)
        return held

    def _put(self, group: str, queue: MessageQueue, lock: _Lock) -> None:
        table = self._groups.get(group, {})
        old = table.get(queue)
        more = _size(queue, lock) - (_size(queue, old) if old is not None else 0)
        if group not in self._groups:
            more += GROUP + len(group)
        if more > 0 and self.size + more > SIZE_MAX:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"all locks of queues together take {SIZE_MAX >> 20} MB: no other one is taken"
                f" before some are given back, or {LIFE_S:.0f} s old",
            )
        self._groups[group] = table
        table[queue] = lock
        self.size += more

    def unlock(self, group: str, client: str, queues: Iterable[MessageQueue]) -> None:
        table = self._groups.get(group, {})
        for queue in queues:
            lock = table.get(queue)
            if lock is not None and lock.client == client:
                self._drop(table, queue)

    def _drop(self, table: dict[MessageQueue, _Lock], queue: MessageQueue) -> None:
        self.size -= _size(queue, table.pop(queue))

    def is_orderly(self, group: str) -> bool:
        """Returns whether a member of the group holds an unexpired lock."""
        now = self._clock()
        return any(now - each.renewed <= LIFE_S for each in self._groups.get(group, {}).values())

    def scan(self) -> None:
        """Forgets locks that nobody has renewed, so that the table does not grow forever."""
        now = self._clock()
        for group, table in list(self._groups.items()):
            for queue in [q for q, lock in table.items() if now - lock.renewed > LIFE_S]:
                self._drop(table, queue)
            if not table:
                del self._groups[group]
                self.size -= GROUP + len(group)


def _size(queue: MessageQueue, lock: _Lock) -> int:
    return LOCK + len(queue.topic) + len(queue.broker) + len(lock.client)
