"""What unfinished requests and unread answers may hold: one budget of bytes for all accepted
connections of an event loop, whatever their port (remoting, name server, proxy, gRPC). csrc/net
counts, and ends connections over the limit (csrc/net/link.c).
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.loop.per_loop import PerLoop
from pystore.native import ffi, lib

__all__ = ["UNFINISHED_MAX", "Budget"]

#: Bytes, where no maxUnfinishedBytes says otherwise.
UNFINISHED_MAX = 256 << 20


class Budget(PerLoop):
    """The budget of one loop. Everything happens on its thread."""

    __slots__ = ("_limit", "handle")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._limit = UNFINISHED_MAX
        #: ``ps_net_budget *``, which ports share.
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
        """Returns the bytes that are held."""
        return int(lib.ps_net_budget_held(self.handle))
