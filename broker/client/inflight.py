"""Sends under way: how many there may be, and the quick way of one that needs no task.

A send whose route is known and whose connection is open is written at once; its answer settles the
user's future directly. Whatever does not go well goes on in ``AsyncProducer._deliver``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.client.message import MessageQueue, SendResult
from broker.client.sending import Outgoing
from broker.remoting.command import Command

if TYPE_CHECKING:
    from broker.remoting.connection import Connection

__all__ = ["InFlight", "Slots"]


class Slots:
    """A bound on the sends under way; those that wait for one are served in order."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []

    @property
    def taken(self) -> int:
        return self._count - self._free

    async def acquire(self) -> None:
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it was given, and nobody uses it
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
        if self._idle and self._free == self._count:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def all_free(self) -> None:
        """Until no send is under way."""
        while self.taken:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future


class InFlight:
    """One send that waits for its answer. A connection treats it as a future of the answer."""

    __slots__ = (
        "_answered", "_finished", "_lost", "address", "connection", "future", "outgoing", "queue",
        "reads", "start",
    )  # fmt: skip

    def __init__(
        self,
        answered: Callable[[InFlight, Command], None],
        lost: Callable[[InFlight, Exception], None],
        outgoing: Outgoing,
        queue: MessageQueue,
        address: str,
        connection: Connection,
        start: float,
        future: asyncio.Future[SendResult],
    ) -> None:
        self._answered = answered
        self._lost = lost
        self._finished = False
        self.outgoing: Outgoing | None = outgoing
        self.queue = queue
        self.address = address
        self.connection = connection
        self.start = start
        self.reads = connection.reads
        self.future = future

    def done(self) -> bool:
        return self._finished

    def set_result(self, answer: Command) -> None:
        self._finished = True
        self._answered(self, answer)

    def set_exception(self, error: Exception) -> None:
        """The connection ended, or the answer did not come in time."""
        self._finished = True
        self._lost(self, error)
