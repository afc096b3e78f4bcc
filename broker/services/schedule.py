"""Delay levels: messages that wait in SCHEDULE_TOPIC_XXXX and go to their topics when they are due.

The C core finds and puts them (csrc/store/delay.c); here is when: at the next due time of each
level, or when an empty one gets its first message. No polling. docs/internals/services.md#delays;
upstream ScheduleMessageService.

Progress is kept in ``metadata.delay_offsets`` every flushDelayOffsetInterval, and only as far as
what was delivered is on the disk: after a power failure a message may come twice, and none is
missing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.remoting.hot import Core
from pystore import DueDelivery, Store
from pystore.errors import StoreError

__all__ = ["Schedule"]

#: Messages of one level that are delivered before other work has its turn.
_ROUND = 512
_RETRY_S = 0.1
#: The wall clock may jump, and timers do not see it.
_LOOK_AGAIN_S = 5.0
_PENDING_MAX = 64

_log = logging.getLogger("broker.schedule")


@dataclass(slots=True)
class _Level:
    """number: from 1. offset: of the next message, in its queue. kept: as metadata has it. pending:
    (offset, end of the log after its messages) of rounds that are not known to be on the disk."""

    number: int
    offset: int
    kept: int
    pending: deque[tuple[int, int]] = field(default_factory=deque)
    timer: asyncio.TimerHandle | asyncio.Handle | None = None
    failing: bool = False


class Schedule:
    """The delay levels of one store. Everything happens on the event loop's thread."""

    def __init__(
        self, store: Store, core: Core, *, now_ms: Callable[[], int] | None = None
    ) -> None:
        """now_ms: the clock of due times; tests set it."""
        self._store = store
        self._core = core
        self._now_ms = now_ms if now_ms is not None else lambda: time.time_ns() // 1_000_000
        self._levels: dict[int, _Level] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Since the start.
        self.delivered = 0
        self.skipped = 0

    def start(self) -> None:
        """Delivers what is due and waits for the rest. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._core.on_levels = self._got_messages
        kept = self._store.metadata.delay_offsets
        for number in range(1, len(self._store.settings.delay_levels_ms) + 1):
            offset = kept.get(number) or 0
            self._levels[number] = level = _Level(number, offset, offset)
            self._later(level, 0.0)

    def stop(self) -> None:
        """Delivers nothing more and keeps the progress."""
        self._core.on_levels = None
        for level in self._levels.values():
            if level.timer is not None:
                level.timer.cancel()
        if self._levels:
            self._store.flush()
            self.persist()
        self._levels = {}

    def progress(self) -> dict[int, tuple[int, int]]:
        """Level to (delivered, max) offsets, as GET_BROKER_RUNTIME_INFO shows them."""
        ends = {q.queue + 1: q.max_offset for q in self._store.queues("SCHEDULE_TOPIC_XXXX")}
        return {n: (level.offset, ends.get(n, 0)) for n, level in self._levels.items()}

    def persist(self) -> None:
        """Writes the offsets of what is on the disk to the metadata. Raises: DiskFull."""
        self._write(self._progressed())

    async def persist_later(self) -> None:
        """The same, in a thread: a commit waits for the disk. Raises: DiskFull."""
        rows = self._progressed()
        if rows:
            await asyncio.to_thread(self._write, rows)

    def _progressed(self) -> list[tuple[int, int]]:
        """Level and offset to keep, of each level that the metadata has elsewhere."""
        flushed = self._store.info().log_flushed
        for level in self._levels.values():
            while level.pending and level.pending[0][1] <= flushed:
                level.kept = level.pending.popleft()[0]
        kept = self._store.metadata.delay_offsets
        return [
            (level.number, level.kept)
            for level in self._levels.values()
            if (kept.get(level.number) or 0) != level.kept
        ]

    def _write(self, rows: list[tuple[int, int]]) -> None:
        if not rows:
            return
        with self._store.metadata.batch():
            for number, kept in rows:
                self._store.metadata.delay_offsets.commit(number, kept, reset=True)

    def _got_messages(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            level = self._levels.get(number)
            if level is not None:
                self._run(level)

    def _later(self, level: _Level, seconds: float) -> None:
        assert self._loop is not None
        if level.timer is not None:
            level.timer.cancel()
        if seconds <= 0:
            level.timer = self._loop.call_soon(self._run, level)
        else:
            level.timer = self._loop.call_later(min(seconds, _LOOK_AGAIN_S), self._run, level)

    def _run(self, level: _Level) -> None:
        now = self._now_ms()
        try:
            done = self._store.deliver_due(level.number, level.offset, most=_ROUND, now_ms=now)
        except StoreError as failed:
            if not level.failing:
                _log.error("Delay level %d cannot deliver: %s", level.number, failed)
            level.failing = True
            self._moved(level, getattr(failed, "delivery", None))
            self._later(level, _RETRY_S)
            return
        if level.failing:
            _log.info("Delay level %d delivers again", level.number)
        level.failing = False
        self._moved(level, done)
        if done.next_ms >= 0:
            self._later(level, (done.next_ms - now) / 1000)
        elif self._core.watch_level(level.number, level.offset):
            self._later(level, 0.0)

    def _moved(self, level: _Level, done: DueDelivery | None) -> None:
        if done is None or done.offset == level.offset:
            return
        level.offset = done.offset
        self.delivered += done.delivered
        self.skipped += done.skipped
        pending = level.pending
        end = max(done.end, pending[-1][1] if pending else 0)
        if len(pending) >= _PENDING_MAX:
            pending.pop()
        pending.append((done.offset, end))
