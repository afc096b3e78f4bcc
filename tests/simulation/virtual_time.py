"""Virtual time: one queue of events for a whole world, and an event loop for each broker that runs
asyncio code over it. A broker's clock may run at another rate than the world's, and a paused
broker's events wait for its end, as those of a process under SIGSTOP do."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import itertools
import math
import random
from collections.abc import Callable, Generator
from typing import Any

__all__ = ["Clock", "Events", "Violation", "VirtualLoop", "VirtualTime"]


class Violation(AssertionError):
    """What must hold does not."""


class Clock:
    """Of one broker. rate: of its seconds to the world's. paused_until: in the world's time. life:
    rises when all that was to happen to it shall not."""

    __slots__ = ("events", "life", "paused_until", "rate")

    def __init__(self, events: Events, rate: float = 1.0) -> None:
        self.events, self.rate, self.paused_until, self.life = events, rate, -math.inf, 0

    def time(self) -> float:
        return self.events.now * self.rate

    def at(self, delay: float, what: Callable[[], None]) -> None:
        """In this life. delay: in its own seconds."""
        self.events.at(delay / self.rate, what, self)


class Events:
    """What happens next. now: seconds since the world began."""

    def __init__(self, chance: random.Random) -> None:
        self.now, self.steps, self.chance = 0.0, 0, chance
        #: What must not be, as it was found first; a broker's code may catch what is raised.
        self.problems: list[str] = []
        self._queue: list[tuple[float, int, Clock, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._world = Clock(self)

    def at(self, delay: float, what: Callable[[], None], clock: Clock | None = None) -> None:
        """clock: of the broker that it happens to."""
        owner = clock or self._world
        entry = (self.now + delay, next(self._order), owner, owner.life, what)
        heapq.heappush(self._queue, entry)

    def violated(self, how: str) -> Violation:
        """To be raised; the run ends with it in any case."""
        self.problems.append(how)
        return Violation(how)

    def run_until(self, end: float) -> None:
        """Raises: Violation."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] < end and not self.problems:
            now, _, owner, life, what = pop(queue)
            self.now = now
            if owner.life != life:
                continue
            if now < owner.paused_until:
                order = next(self._order)
                heapq.heappush(queue, (owner.paused_until, order, owner, life, what))
                continue
            what()
            self.steps += 1
        if self.problems:
            raise Violation(self.problems[0])
        self.now = end


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of a loop as tasks, futures and timeouts need. It ends with its broker: then nothing
    of it runs any more."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self._ended = clock, False
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- for the world ----

    def end(self) -> None:
        """A kill: no task hears of it."""
        self._ended = True
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro: Any = task.get_coro()
            if inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                coro.close()
        self._tasks.clear()

    def spawn(self, coro: Generator[Any, None, Any] | Any) -> asyncio.Task[Any]:
        with _running(self):
            return self.create_task(coro)

    # ---- for asyncio ----

    def time(self) -> float:
        return self.clock.time()

    def call_soon(self, callback, *args, context=None):  # type: ignore[no-untyped-def]
        return self.call_later(0.0, callback, *args, context=context)

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None):  # type: ignore[no-untyped-def]
        due = self.time() + delay
        handle = asyncio.TimerHandle(
            due, callback, args, self, context or contextvars.copy_context()
        )

        def run() -> None:
            if not self._ended and not handle.cancelled():
                with _running(self):
                    handle._run()  # type: ignore[attr-defined]

        self.clock.at(max(delay, 0.0), run)
        return handle

    def call_at(self, when, callback, *args, context=None):  # type: ignore[no-untyped-def]
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro, **more):  # type: ignore[no-untyped-def]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **more)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._ended

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.clock.events.problems.append(f"{context['message']}: {context.get('exception')!r}")


class _running:
    """asyncio.get_running_loop() is this one."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._before)


class VirtualTime:
    """In place of the module `time` where a broker's code asks it for seconds."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()
