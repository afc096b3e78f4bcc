"""Which requests hold the event loop: while a handler runs, no other connection is served."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from broker.remoting.command import Command
from broker.remoting.handlers import Handler, Peer, Result
from broker.remoting.rate_limited_log import RateLimitedLogger

__all__ = ["Watchdog"]

_quiet = RateLimitedLogger(logging.getLogger("broker.remoting"))


class Watchdog:
    """limit_ms: a handler that takes longer is logged, once a minute a request code, and counted.
    clock: in seconds, monotonic.

    counts: by request code. What a handler does after it first waited is not measured.
    """

    def __init__(self, limit_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_ms / 1000
        self._clock = clock
        self.counts: Counter[int] = Counter()
        self.longest_ms = 0

    def call(self, handler: Handler, peer: Peer, command: Command) -> Result:
        """What the handler returns or raises."""
        began = self._clock()
        try:
            return handler(peer, command)
        finally:
            took = self._clock() - began
            if took > self._limit_s:
                self._note(command.code, took, peer)

    def _note(self, code: int, took: float, peer: Peer) -> None:
        took_ms = round(took * 1000)
        self.counts[code] += 1
        self.longest_ms = max(self.longest_ms, took_ms)
        _quiet.warning(
            code,
            "Request %d from %s held the event loop for %d ms",
            code,
            peer.address[0],
            took_ms,
        )
