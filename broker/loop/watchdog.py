"""Which requests hold the event loop: while a handler runs, no other connection is served. One that
waits is measured from one wait to the next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.wire.command import Command
from broker.wire.handlers import Handler, Peer, Result

__all__ = ["Watchdog"]

_quiet = RateLimitedLogger(SafeLogger("broker.remoting"))


class Watchdog:
    """Measures handlers. One that takes longer than `limit_ms` is logged, once a minute for each
    request code, and counted. `clock` is monotonic and in seconds.

    `counts` are by request code."""

    def __init__(self, limit_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_ms / 1000
        self._clock = clock
        self.counts: Counter[int] = Counter()
        self.longest_ms = 0

    def call(self, handler: Handler, peer: Peer, command: Command) -> Result:
        """Returns or raises what the handler does."""
        began = self._clock()
        try:
            result = handler(peer, command)
        finally:
            self._look(began, command.code, peer)
        if result is None or isinstance(result, Command):
            return result
        return _MeasuredWork(self, result, peer, command.code)

    def step(self, work: Callable[[Any], object], value: object, code: int, peer: Peer) -> object:
        """Returns or raises what work(value) does: a piece of a handler, up to where it waits."""
        began = self._clock()
        try:
            return work(value)
        finally:
            self._look(began, code, peer)

    def _look(self, began: float, code: int, peer: Peer) -> None:
        took = self._clock() - began
        if took <= self._limit_s:
            return
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


class _MeasuredWork:
    """A handler's coroutine, each piece of which is measured."""

    def __init__(
        self, dog: Watchdog, work: Awaitable[Command | None], peer: Peer, code: int
    ) -> None:
        self._dog, self._work, self._peer, self._code = dog, work, peer, code
        #: Of a coroutine.
        self.close: Callable[[], None] | None = getattr(work, "close", None)

    def __await__(self) -> Generator[Any, Any, Command | None]:
        running = self._work.__await__()
        step, given = running.send, None
        while True:
            try:
                waits_for = self._dog.step(step, given, self._code, self._peer)
            except StopIteration as done:
                return cast(Command | None, done.value)
            try:
                step, given = running.send, (yield waits_for)
            except BaseException as thrown:  # noqa: BLE001 - it is the handler's to deal with
                step, given = running.throw, thrown
