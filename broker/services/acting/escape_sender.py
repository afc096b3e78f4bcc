"""A message that is due at an acting slave goes to another broker, once: whatever is answered, or
is not answered, and whenever either side is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from broker.services.acting.bridge import Bridge, Copy, NotStored
from broker.services.acting.escape_ledger import Doubt, EscapeLedger, Origin

__all__ = ["EscapeSender"]


class EscapeSender:
    """Lives on the event loop. sent: since the start. careful: another slave may have acted since
    the master was last there, so that others are asked first what it has sent."""

    def __init__(self, bridge: Bridge, ledger: EscapeLedger) -> None:
        self._bridge, self.ledger = bridge, ledger
        self.sent = 0
        self.careful = False

    async def send_all(self, copies: Iterable[tuple[Origin, Copy]]) -> None:
        """Sends all of them at once. Raises: OSError, TimeoutError: some have not gone; the others
        have."""
        work = (self.send(origin, copy) for origin, copy in copies)
        done = await asyncio.gather(*work, return_exceptions=True)
        await asyncio.to_thread(self.ledger.sync)
        for failed in done:
            if failed is not None:
                raise failed

    async def send(self, origin: Origin, copy: Copy) -> None:
        """Sends one message to another broker. Raises: OSError, TimeoutError: it has not gone, or
        nobody knows yet."""
        ledger, bridge = self.ledger, self._bridge
        if origin in ledger:
            return
        doubt = ledger.doubtful.get(origin)
        if doubt is not None and await self._is_there(doubt, copy):
            ledger.gone(origin)
            return
        if doubt is None and self.careful and await bridge.has_any(copy):
            ledger.gone(origin)
            return
        address, queue = await bridge.next_place(copy)
        ledger.sending(origin, Doubt(address, copy.stored_in, copy.key, copy.born_ms))
        try:
            await bridge.put(copy, address, queue)
        except NotStored:
            ledger.not_sent(origin)
            raise
        ledger.gone(origin)
        self.sent += 1

    async def settle(self) -> None:
        """Asks for all that is in doubt; what nobody can say stays so."""
        doubtful = dict(self.ledger.doubtful)
        work = (self._bridge.has(doubt) for doubt in doubtful.values())
        found = await asyncio.gather(*work, return_exceptions=True)
        for origin, answer in zip(doubtful, found, strict=True):
            if answer is True:
                self.ledger.gone(origin)

    async def _is_there(self, doubt: Doubt, copy: Copy) -> bool:
        """Says whether the broker has it that did not answer. As long as it cannot be asked, and is
        in the route, nobody else gets the message. Raises: OSError, TimeoutError."""
        try:
            return await self._bridge.has(doubt)
        except (OSError, TimeoutError):
            if any(doubt.address == at for at, _ in await self._bridge.places(copy)):
                raise
            return False
