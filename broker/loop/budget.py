"""What unfinished requests and unread answers may hold: one budget of bytes for all connections of
an event loop, whatever their port (remoting, name server, proxy, gRPC).

Over the limit the connections of strangers end before those of clients that access control has let
in, the largest first, and of equal ones that which has waited longest.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.loop.per_loop import PerLoop

__all__ = ["UNFINISHED_MAX", "Budget", "Holder"]

#: Bytes, where no maxUnfinishedBytes says otherwise.
UNFINISHED_MAX = 256 << 20
#: Once the limit is exceeded, so much of it becomes free: what each connection holds is not looked
#: at again for every byte that comes.
_FREE = 16
_WHY = "unfinished requests and unread answers of all connections exceed maxUnfinishedBytes"


class Holder(Protocol):
    """Something that holds bytes: a connection."""

    @property
    def known(self) -> bool:
        """Returns whether access control has let a request of it in, or it is one of ours."""

    def holds(self) -> int:
        """Returns the bytes that it holds just now: a connection is not notified when its peer has
        read some."""

    def abort(self, why: str, detail: str = "") -> None:
        """Closes at once."""


class Threads(Protocol):
    """Connections that are not the loop's (links.py), and that end the largest of their own."""

    @property
    def unfinished(self) -> int:
        """Returns the bytes that they hold."""

    def limit_unfinished(self, size: int) -> None:
        """Limits the bytes that they may hold."""


class Budget(PerLoop):
    """The budget of one loop. Everything happens on its thread."""

    __slots__ = ("_held", "_limit", "_own", "_threads")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        #: By whoever holds it, those that have waited longest first.
        self._held: dict[Holder, int] = {}
        #: Bytes of all of them.
        self._own = 0
        self._threads: list[Threads] = []
        self._limit = UNFINISHED_MAX

    @property
    def limit(self) -> int:
        """Returns the limit in bytes, which the server sets that was started last."""
        return self._limit

    @limit.setter
    def limit(self, size: int) -> None:
        self._limit = size
        self._leave_the_rest()

    @property
    def held(self) -> int:
        """Returns the bytes that are held, by connections of network threads as well."""
        return self._own + sum(each.unfinished for each in self._threads)

    def share(self, threads: Threads) -> None:
        """Makes connections of these threads share the budget."""
        self._threads.append(threads)
        self._leave_the_rest()

    def part(self, threads: Threads) -> None:
        """Ends their share."""
        self._threads.remove(threads)

    def hold(self, holder: Holder, size: int) -> None:
        """Notes that `holder` holds so many bytes from now on."""
        self._set(holder, size)
        if self._is_exceeded:
            self._make_room(holder)
        self._leave_the_rest()

    @property
    def _is_exceeded(self) -> bool:
        """Returns whether connections of the loop hold too much: half of the budget is theirs
        whatever network threads hold."""
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
