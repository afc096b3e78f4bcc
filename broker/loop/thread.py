"""A loop in a thread of its own, for callers that have none: tests, scripts, notebooks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

__all__ = ["LoopThread"]

_T = TypeVar("_T")


class LoopThread:
    """uvloop in a daemon thread. run() waits for a coroutine there; stop() ends the thread.

    A forked child has no such thread: there run() raises RuntimeError, and stop() does nothing."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopped = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            # A task that raises these ends the loop; whoever waits for it must still be told.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    @property
    def here(self) -> bool:
        """Returns whether the thread is one of this process."""
        return os.getpid() == self._pid

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Returns the coroutine's result. Raises: what it raises, TimeoutError after `timeout`
        seconds."""
        if not self.here:
            work.close()
            raise RuntimeError("the loop runs in the process that forked this one, not here")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Begins a coroutine there; the future is its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Calls a function there soon, without waiting."""
        self._loop.call_soon_threadsafe(function, *args)

    def is_own(self) -> bool:
        """Returns whether the caller runs on this loop's thread."""
        return threading.get_ident() == self._thread.ident

    def stop(self) -> None:
        """Ends the thread; nothing runs there afterwards. Calling it again does nothing."""
        if self.here and self._thread.is_alive():
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
