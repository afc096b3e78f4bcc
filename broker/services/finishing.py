"""Work that is done to its end, although who asked for it is gone: half a delete leaves queues of a
topic that is none, and the next open makes it again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from broker.loop.safe_log import SafeLogger

__all__ = ["Finishing"]

log = SafeLogger(__name__)

_T = TypeVar("_T")


class Finishing:
    """What is under way. It belongs to no connection, whose end cancels what it asked for."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    def run(self, what: str, work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """Begins the work, and returns what waits for it; without a running loop, nobody can go,
        and that is the work itself. `what` is named in the log if it fails when nobody waits any
        more."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return work
        task = loop.create_task(work, context=Context())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

        def tell(done: asyncio.Task[_T]) -> None:
            if not done.cancelled() and (failed := done.exception()) is not None:
                log.error("Cannot finish %s: %s", what, failed)

        async def waits() -> _T:
            task.remove_done_callback(tell)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(tell)
                raise

        task.add_done_callback(tell)
        return waits()

    async def stop(self) -> None:
        """Waits for the end of everything that is under way."""
        if self._under_way:
            await asyncio.wait(set(self._under_way))
