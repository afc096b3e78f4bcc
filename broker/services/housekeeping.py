"""The one timer of a broker: periodic jobs, each with its own interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from broker.remoting.safe_log import SafeLogger
from broker.services.context import Services

__all__ = ["Housekeeping"]

log = SafeLogger(__name__)

_STEP_S = 1.0


@dataclass(slots=True)
class _Job:
    pause_s: Callable[[], float]
    work: Callable[[], object]
    due: float


class Housekeeping:
    """Runs on the broker's loop; a failing job is logged, and runs again when it is due."""

    def __init__(self, s: Services) -> None:
        self._s = s
        self._timer: asyncio.TimerHandle | None = None
        self._saving: dict[str, asyncio.Task[None]] = {}
        self._jobs: list[_Job] = []

    def start(self) -> None:
        s = self._s
        s.statistics.sample()
        self.add(s.registration.tick, lambda: _STEP_S)
        self.save(
            "consumer offsets",
            s.offsets.persist,
            lambda: s.settings["flushConsumerOffsetInterval"] / 1000,
        )
        self.add(s.clients.scan, lambda: 10.0)
        self.add(s.locks.scan, lambda: 30.0)
        self.add(s.statistics.sample, lambda: 10.0)
        self._arm()

    def add(self, work: Callable[[], object], pause_s: Callable[[], float]) -> None:
        now = asyncio.get_running_loop().time()
        self._jobs.append(_Job(pause_s, work, now + pause_s()))

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._saving:
            await asyncio.wait(self._saving.values())

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_STEP_S, self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        for job in self._jobs:
            if job.due > now:
                continue
            # From now, not from when it was due: after a long sleep it runs once.
            job.due = now + max(job.pause_s(), _STEP_S) - _STEP_S / 2
            try:
                job.work()
            except Exception:
                log.exception("A periodic job of the broker failed")
        self._arm()

    # ---- what waits for the disk ----

    def save(
        self,
        what: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        pause_s: Callable[[], float],
        *,
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        """A job that waits for the disk: it does not start again before it has ended. changed:
        whether there is anything to save; an idle broker begins no task a second for nothing."""

        def begin() -> None:
            task = self._saving.get(what)
            if (task is None or task.done()) and changed():
                self._saving[what] = asyncio.get_running_loop().create_task(run())

        async def run() -> None:
            try:
                await work()
            except Exception:
                log.exception("Cannot save the %s; will retry", what)

        self.add(begin, pause_s)
