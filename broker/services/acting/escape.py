"""A message that is due at an acting slave goes to another broker, once: whatever is answered, or
is not answered, and whenever either side is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from broker.services.acting.bridge import Bridge, Copy, NotStored
from broker.services.acting.escaped import EscapeLedger, Origin

__all__ = ["Escape"]


class Escape:
    """Lives on the event loop. sent: since the start."""

    def __init__(self, bridge: Bridge, escaped: EscapeLedger) -> None:
        self._bridge, self.escaped = bridge, escaped
        self.sent = 0

    async def send_all(self, copies: Iterable[tuple[Origin, Copy]]) -> None:
        """All of them at once. Raises: OSError, TimeoutError: some have not gone; the others
        have."""
        work = (self.send(origin, copy) for origin, copy in copies)
        done = await asyncio.gather(*work, return_exceptions=True)
        await asyncio.to_thread(self.escaped.sync)
        for failed in done:
            if failed is not None:
                raise failed

    async def send(self, origin: Origin, copy: Copy) -> None:
        """Raises: OSError, TimeoutError: it has not gone, or nobody knows yet."""
        escaped, bridge = self.escaped, self._bridge
        if origin in escaped:
            return
        if origin in escaped.doubtful and await self._is_there(origin, copy):
            escaped.gone(origin)
            return
        address, queue = await bridge.next_place(copy)
        escaped.sending(origin, address)
        try:
            await bridge.put(copy, address, queue)
        except NotStored:
            escaped.not_sent(origin)
            raise
        escaped.gone(origin)
        self.sent += 1

    async def _is_there(self, origin: Origin, copy: Copy) -> bool:
        """Whether the broker has it that did not answer. As long as it cannot be asked, and is in
        the route, nobody else gets the message. Raises: OSError, TimeoutError."""
        address = self.escaped.doubtful[origin]
        try:
            return await self._bridge.has(copy, address, copy.born_ms)
        except (OSError, TimeoutError):
            if any(address == at for at, _ in await self._bridge.places(copy)):
                raise
            return False
