"""What unfinished requests and unread answers may hold: one budget of bytes for all connections of
an event loop, whatever their port (remoting, name server, proxy, gRPC).

Over the limit the connections of strangers end before those of clients that access control has let
in, the largest first, and of equal ones that which has waited longest.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import WeakKeyDictionary

__all__ = ["UNFINISHED_MAX", "Budget", "Holder"]

#: Bytes, where no maxUnfinishedBytes says otherwise.
UNFINISHED_MAX = 256 << 20
#: Once the limit is exceeded, so much of it becomes free: what each connection holds is not looked
#: at again for every byte that comes.
_FREE = 16
_WHY = "unfinished requests and unread answers of all connections exceed maxUnfinishedBytes"

_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Budget] = WeakKeyDictionary()


class Holder(Protocol):
    """A connection."""

    @property
    def known(self) -> bool:
        """Access control has let a request of it in, or it is one of ours."""

    def holds(self) -> int:
        """Bytes, just now: nobody tells a connection when its peer has read some."""

    def abort(self, why: str, detail: str = "") -> None:
        """Closes at once."""


class Threads(Protocol):
    """Connections that are not the loop's (links.py), and end their own largest."""

    @property
    def unfinished(self) -> int:
        """Bytes that they hold."""

    def limit_unfinished(self, size: int) -> None:
        """So many they may hold at most."""


class Budget:
    """Of one loop. Everything happens on its thread."""

    __slots__ = ("__weakref__", "_held", "_limit", "_loop", "_own", "_threads")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: By whoever holds it, those that have waited longest first.
        self._held: dict[Holder, int] = {}
        #: Bytes of all of them.
        self._own = 0
        self._threads: list[Threads] = []
        self._limit = UNFINISHED_MAX

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Budget:
        found = _of_loops.get(loop)
        if found is None:
            found = _of_loops[loop] = cls(loop)
        return found

    @property
    def limit(self) -> int:
        """Bytes; as the server says that was started last."""
        return self._limit

    @limit.setter
    def limit(self, size: int) -> None:
        self._limit = size
        self._leave_the_rest()

    @property
    def held(self) -> int:
        """Bytes that are held, by connections of network threads as well."""
        return self._own + sum(each.unfinished for each in self._threads)

    def share(self, threads: Threads) -> None:
        """From now on connections of these threads hold bytes of it, too."""
        self._threads.append(threads)
        self._leave_the_rest()

    def part(self, threads: Threads) -> None:
        """They have ended."""
        self._threads.remove(threads)

    def hold(self, holder: Holder, size: int) -> None:
        """From now on `holder` holds so many bytes."""
        self._set(holder, size)
        if self._is_exceeded:
            self._make_room(holder)
        self._leave_the_rest()

    @property
    def _is_exceeded(self) -> bool:
        """By connections of the loop: half of it is theirs whatever network threads hold."""
        return self.held > self.limit and (not self._threads or 2 * self._own > self.limit)

    def _leave_the_rest(self) -> None:
        for each in self._threads:
            each.limit_unfinished(max(self.limit - self._own, self.limit // 2))

    def _set(self, holder: Holder, size: int) -> None:
        held = self._held
        self._own += size - held.get(holder, 0)
        if size:
            held[holder] = size
        else:
            held.pop(holder, None)

    def _make_room(self, reading: Holder) -> None:
        held = self._held
        for each in list(held):
            self._set(each, each.holds())
        if not self._is_exceeded:
            return
        enough = self.held - self.limit + self.limit // _FREE
        for victim in sorted(held, key=lambda each: (each.known, -held[each])):
            if enough <= 0:
                break
            enough -= held[victim]
            self._set(victim, 0)
            if victim is reading:
                # It may be asked for room to read into. libuv reads after that, and calls what a
                # connection that was closed meanwhile does not have any more.
                self._loop.call_soon(victim.abort, _WHY)
            else:
                victim.abort(_WHY)
