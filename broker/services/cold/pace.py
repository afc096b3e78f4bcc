"""How fast may be written out: bytes a second, and requests an hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["BytePace", "PutBudget", "WriterStopped"]

_HOUR_S = 3600.0
#: So much of an hour's requests may be made at once.
_BURST = 60


class WriterStopped(Exception):
    """The broker stops, or is not the master any more: nothing else is written."""


class BytePace:
    """Lets so many bytes pass in a second. rate: bytes/s, 0 for any."""

    def __init__(self, stopping: threading.Event) -> None:
        self.rate = 0
        self._stopping = stopping
        self._free_s = 0.0

    def pass_bytes(self, count: int) -> None:
        """Returns when so many may be written. Raises: WriterStopped."""
        if self.rate:
            now_s = time.monotonic()
            wait_s = self._free_s - now_s
            self._free_s = max(self._free_s, now_s) + count / self.rate
            if wait_s > 0:
                self._stopping.wait(wait_s)
        if self._stopping.is_set():
            raise WriterStopped


class PutBudget:
    """Requests that may be made: at most so many within any hour. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._left: float | None = None

    def take(self, count: int, an_hour: int, *, must: bool = False) -> bool:
        """Takes so many; False: they are not there yet. must: they are made nevertheless, and
        others wait for longer."""
        burst = max(2, an_hour // _BURST)
        now_s = self._clock()
        gained = (now_s - self._since_s) * (an_hour - burst) / _HOUR_S
        self._left = min(burst, self._left + gained if self._left is not None else burst)
        self._since_s = now_s
        if not must and self._left < count:
            return False
        self._left -= count
        return True
