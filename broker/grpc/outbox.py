"""What waits for a client to read it on its Telemetry stream: bounded by count and bytes, which
count among those that its connection holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["BYTES_MAX", "COUNT_MAX", "Outbox"]

#: Commands that wait for one client.
COUNT_MAX = 100
#: Their bytes as they will be sent. A single command may be longer: it carries a message.
BYTES_MAX = 1 << 20


class Outbox:
    """The outbox of one stream, used on the thread of its loop alone. hold: told how many bytes
    more wait."""

    def __init__(self, hold: Callable[[int], None]) -> None:
        self._hold = hold
        self._waiting: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        #: Set while the next command, or the end, can be taken.
        self._some = asyncio.Event()
        #: Set while a reply has room.
        self._room = asyncio.Event()
        self._room.set()
        self._last: Exception | None = None
        self._ended = False

    def tell(self, command: Any) -> None:
        """Adds a command of the broker's own; the oldest that wait make room for it."""
        size = command.ByteSize()
        while self._waiting and not self._fits(size):
            self._drop()
        self._add(command, size)

    async def reply(self, command: Any) -> None:
        """Adds the answer to what the client sent, once there is room: until then nothing more of
        it is read."""
        size = command.ByteSize()
        while self._waiting and not self._fits(size):
            self._room.clear()
            await self._room.wait()
        self._add(command, size)

    def end(self, problem: Exception | None = None) -> None:
        """Ends the stream after what waits. problem: that it ends with."""
        if not self._ended:
            self._ended, self._last = True, problem
            self._some.set()

    async def take(self) -> Any:
        """Returns the next command; None at the end. Raises: the problem that the stream ends
        with."""
        while not self._waiting:
            if self._ended:
                if self._last is not None:
                    raise self._last
                return None
            self._some.clear()
            await self._some.wait()
        return self._drop()

    def close(self) -> None:
        """Forgets what waits: the stream is over."""
        self._waiting.clear()
        self._hold(-self._bytes)
        self._bytes = 0

    # ---- inside ----

    def _fits(self, size: int) -> bool:
        return len(self._waiting) < COUNT_MAX and self._bytes + size <= BYTES_MAX

    def _add(self, command: Any, size: int) -> None:
        if self._ended:
            return
        self._waiting.append((command, size))
        self._bytes += size
        self._some.set()
        self._hold(size)

    def _drop(self) -> Any:
        command, size = self._waiting.popleft()
        self._bytes -= size
        self._room.set()
        self._hold(-size)
        return command
