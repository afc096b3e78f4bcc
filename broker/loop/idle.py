"""Closes connections that nobody uses, with one coarse timer for all of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["IdleWheel"]

#: Ticks of the idle time: one that is idle is closed at most a 24th of it too late.
TICKS = 24


class IdleSubject(Protocol):
    #: IdleWheel.now when it was last used.
    seen: int

    def idle(self) -> None:
        """Ends what was not used for the idle time."""


class IdleWheel:
    """A ring of buckets. Use costs one assignment, and each connection is looked at once in
    idle_s."""

    def __init__(self, idle_s: float) -> None:
        """Makes the clock of idle connections. idle_s: in seconds; 0 closes nothing."""
        self.now = 0
        self._tick_s = idle_s / TICKS
        self._ring: list[set[IdleSubject]] = [set() for _ in range(TICKS + 2)]
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watched: IdleSubject) -> None:
        watched.seen = self.now
        if self._tick_s <= 0:
            return
        self._ring[(self.now + TICKS + 1) % len(self._ring)].add(watched)
        self._count += 1
        if self._timer is None:
            self._arm()

    def remove(self, watched: IdleSubject) -> None:
        for bucket in self._ring:
            if watched in bucket:
                bucket.remove(watched)
                self._count -= 1
                return

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self.now += 1
        at = self.now % len(self._ring)
        due, self._ring[at] = self._ring[at], set()
        for watched in due:
            end = watched.seen + TICKS + 1
            if end > self.now:
                self._ring[end % len(self._ring)].add(watched)
            else:
                self._count -= 1
                watched.idle()
        self._timer = None
        if self._count:
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
