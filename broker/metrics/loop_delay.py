"""How late an event loop is: a timer that should be on time, and says by how much it was not."""

from __future__ import annotations

import asyncio

__all__ = ["LoopDelay"]

_EVERY_S = 0.1


class LoopDelay:
    """Measures the running loop, from start() to stop()."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._worst_s = 0.0

    def start(self) -> None:
        due = self._loop.time() + _EVERY_S
        self._timer = self._loop.call_at(due, self._look, due)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, due: float) -> None:
        self._worst_s = max(self._worst_s, self._loop.time() - due)
        self.start()

    def take(self) -> float:
        """Returns the worst delay in seconds since it was taken last."""
        worst, self._worst_s = self._worst_s, 0.0
        return worst
