"""Routes of a broker in the same process, without a name server between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.client.routes import Route

__all__ = ["RouteFinder"]


class RouteFinder:
    """``find_route`` for clients on any event loop of the process.

    loop: the one that the broker serves on, None while it is stopped. look_up: called there.
    """

    def __init__(
        self,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        look_up: Callable[[str], Route | None],
    ) -> None:
        self._loop = loop
        self._look_up = look_up

    async def __call__(self, topic: str) -> Route | None:
        """Returns None for a topic that the broker does not have, and while it is stopped."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            return None
        if loop is asyncio.get_running_loop():
            return self._look_up(topic)

        async def there() -> Route | None:
            return self._look_up(topic)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))
