"""Classes that ``async with`` starts and ends; and how tasks end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

__all__ = ["Closing", "Stopping", "end_tasks"]


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks, and waits until they have ended. What one of them failed with is logged."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


class Closing:
    """``async with`` waits at the end for close()."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Stopping(Closing):
    """``async with`` waits for start(), and at the end for stop()."""

    async def start(self) -> object:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Stops it, as stop() does."""
        await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self
