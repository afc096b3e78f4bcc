"""What unfinished requests and unread answers may hold: one budget of bytes for all connections of
an event loop and its network threads, whatever their port (remoting, name server, proxy, gRPC).

Over the limit the connections of strangers end before those of clients that access control has let
in, the largest first, and of equal ones that which has waited longest.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from broker.loop.per_loop import PerLoop
from pystore.native import ffi, lib

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


class Budget(PerLoop):
    """The budget of one loop. Everything happens on its thread."""

    __slots__ = ("_held", "_limit", "_own", "handle")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        #: By whoever holds it, those that have waited longest first.
        self._held: dict[Holder, int] = {}
        #: Bytes of all of them.
        self._own = 0
        self._limit = UNFINISHED_MAX
        #: ``ps_net_budget *``, which network threads share.
        self.handle: Any = ffi.gc(lib.ps_net_budget_new(UNFINISHED_MAX), lib.ps_net_budget_free)

    @property
    def limit(self) -> int:
        """Returns the limit in bytes, which the server sets that was started last."""
        return self._limit

    @limit.setter
    def limit(self, size: int) -> None:
        self._limit = size
        lib.ps_net_budget_limit(self.handle, size)

    @property
    def held(self) -> int:
        """Returns the bytes that are held, by connections of network threads as well."""
        return int(lib.ps_net_budget_hold(self.handle, 0))

    def hold(self, holder: Holder, size: int) -> None:
        """Notes that `holder` holds so many bytes from now on."""
        self._set(holder, size)
        if self._is_exceeded:
            self._make_room(holder)

    @property
    def _is_exceeded(self) -> bool:
        """Returns whether connections of the loop hold too much: half of the budget is theirs
        whatever network threads hold, which end the largest of their own (csrc/net/link.c)."""
        held = self.held
        return held > self._limit and (held == self._own or 2 * self._own > self._limit)

    def _set(self, holder: Holder, size: int) -> None:
        held = self._held
        more = size - held.get(holder, 0)
        self._own += more
        lib.ps_net_budget_hold(self.handle, more)
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
