"""Delay levels and timers: messages that wait, and go to their topics when they are due.

The C core finds and puts them (csrc/store/delay.c, csrc/store/timers.c); here is when, for all of
them: at the next due time, or when what was empty gets its first message. No polling.
docs/internals/timers.md; upstream ScheduleMessageService, TimerMessageStore.

Progress is kept, for levels in ``metadata.delay_offsets``, for timers in the folder ``timers``, and
only as far as what was delivered is on the disk: after a power failure a message may come twice,
and none is missing.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from broker.hot.core import Core
from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.timer_metrics import TimerMetrics
from pystore import DueDelivery, Store
from pystore.errors import StoreError
from pystore.format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from pystore.native import lib
from pystore.store import hosting
from pystore.store.timer_files import HANDED_OVER, hand_over
from pystore.store.timers import TimerRound, Timers, save_timers

__all__ = ["Schedule"]

#: Messages that are delivered before other work has its turn.
_ROUND = 512
_RETRY_S = 0.1
#: How long deliveries wait for a disk that is behind, or for the rate's next share.
_PAUSE_S = 0.01
#: The wall clock may jump, and timers do not see it.
_LOOK_AGAIN_S = 5.0
_PENDING_MAX = 64
_PROGRESS_S = 10.0
#: Under load new timers are read in batches so far apart: a round each would cost more than their
#: sends. The first after a pause is read at once.
_GATHER_S = 0.004
#: POP's, which are many, are delivered in batches so far apart: nobody waits for them.
_GATHER_POP_S = 0.010

#: Bytes of the log that a slave reads before it saves how far it is: what a start reads again.
_SAVED_EACH = 256 << 20

_log = SafeLogger("broker.schedule")
_quiet = RateLimitedLogger(_log)


class _Source(ABC):
    """Something that waits. `on` says whether it is delivered, and `handle` is that of its next
    turn. `next_s` and `last_s` are the times of its next and its last turn, on the loop's clock."""

    name = ""

    def __init__(self) -> None:
        self.handle: asyncio.TimerHandle | asyncio.Handle | None = None
        self.on = False
        self.next_s = math.inf
        self.last_s = -math.inf
        self.failing = False

    @abstractmethod
    def deliver(self, most: int, now_ms: int) -> tuple[int, float]:
        """Delivers what is due, at most `most`, and returns how many those were and in how many
        seconds to continue; a negative number waits until something comes. Raises: StoreError."""


class _Level(_Source):
    """A delay level. `number` counts from 1; `offset` is that of the next message in its queue, and
    `kept` the offset in the metadata. `pending` has (offset, end of the log after its messages) of
    rounds that are not known to be on the disk."""

    def __init__(self, schedule: Schedule, number: int, offset: int) -> None:
        super().__init__()
        self.schedule, self.number = schedule, number
        self.name = f"Delay level {number}"
        self.offset = self.kept = offset
        self.pending: deque[tuple[int, int]] = deque()

    def deliver(self, most: int, now_ms: int) -> tuple[int, float]:
        s = self.schedule
        try:
            done = hosting.deliver_due(s.store, self.number, self.offset, most=most, now_ms=now_ms)
        except StoreError as failed:
            self._moved(getattr(failed, "delivery", None))
            raise
        self._moved(done)
        if done.next_ms >= 0:
            return done.delivered, max(0.0, (done.next_ms - now_ms) / 1000)
        return done.delivered, 0.0 if s.core.watch_level(self.number, self.offset) else -1.0

    def go_on_at(self, offset: int) -> None:
        """Continues at an offset: what comes before is done, by whoever did it."""
        if offset > self.offset:
            self.offset = self.kept = offset
            self.pending.clear()

    def _moved(self, done: DueDelivery | None) -> None:
        if done is None or done.offset == self.offset:
            return
        self.offset = done.offset
        self.schedule.delivered += done.delivered
        self.schedule.passed_over(self.name, done.skipped)
        pending = self.pending
        end = max(done.end, pending[-1][1] if pending else 0)
        if len(pending) >= _PENDING_MAX:
            pending.pop()
        pending.append((done.offset, end))


class _Timers(_Source):
    name = "The timers"

    def __init__(self, schedule: Schedule, timers: Timers) -> None:
        super().__init__()
        self.schedule, self.timers = schedule, timers
        self.last: TimerRound | None = None
        self.metrics = TimerMetrics(timers, lambda: schedule.store.range(TIMER_TOPIC, 0)[1])
        self.saved: tuple[int, int, int] | None = None
        self._told = 0.0

    def deliver(self, most: int, now_ms: int) -> tuple[int, float]:
        try:
            done = self.timers.run(most=most, now_ms=now_ms)
        except StoreError as failed:
            self._count(getattr(failed, "round", None))
            raise
        self._count(done)
        if done.waits:
            return done.delivered, _PAUSE_S
        if done.more or self.schedule.core.watch_timers(done.offset):
            self._tell(done, now_ms)
            return done.delivered, 0.0
        if done.next_ms < 0:
            return done.delivered, -1.0
        wait_s = max(0.0, (done.next_ms - now_ms) / 1000)
        return done.delivered, max(wait_s, _GATHER_POP_S) if done.next_is_pop else wait_s

    def _count(self, done: TimerRound | None) -> None:
        if done is None:
            return
        self.last = done
        figures = self.metrics
        figures.offset, figures.next_ms = done.offset, done.next_ms
        figures.delivered += done.delivered
        figures.skipped += done.skipped
        figures.recalled += done.recalled
        figures.late_max_ms = max(figures.late_max_ms, done.late_ms)
        self.schedule.delivered += done.delivered
        self.schedule.passed_over(self.name, done.skipped)

    def _tell(self, done: TimerRound, now_ms: int) -> None:
        """Logs the progress while it catches up after a stop."""
        behind_s = (now_ms - done.next_ms) / 1000 if done.next_ms >= 0 else 0.0
        if behind_s < _PROGRESS_S or time.monotonic() - self._told < _PROGRESS_S:
            return
        self._told = time.monotonic()
        _log.info(
            "Timers are %.0f s behind; %d wait, %d were delivered",
            behind_s, done.pending, self.metrics.delivered,
        )  # fmt: skip

    def mark(self) -> tuple[int, int, int]:
        """Returns a value that changes whenever there is something to save."""
        return self.metrics.delivered, self.metrics.skipped, self.metrics.offset


class Schedule:
    """All that waits in one store. Everything happens on the thread of the event loop."""

    def __init__(
        self,
        store: Store,
        core: Core,
        *,
        timers: Timers | None = None,
        max_tps: int = 0,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Takes the clocks and limits. timers: None means that they are off. max_tps: limits
        deliveries a second, of levels and timers together; 0 sets no limit. now_ms: the clock of
        due times, which tests set."""
        self.store = store
        self.core = core
        self._shift_ms = 0
        self.now_ms = now_ms if now_ms is not None else self._clock
        #: Deliveries a second, of levels and of timers; 0 for any number.
        self.max_tps = max_tps
        self._share = float(_ROUND)
        self._shared_at = 0.0
        self._levels: dict[int, _Level] = {}
        self.timers = _Timers(self, timers) if timers is not None else None
        #: Since the start.
        self.delivered = 0
        self.skipped = 0
        #: Of the log, at a slave: up to here what was read of timers is saved.
        self._followed = 0

    def passed_over(self, source: str, count: int) -> None:
        """Counts and logs messages that go nowhere."""
        self.skipped += count
        if count:
            _quiet.warning(
                source,
                "%s: passed over %d messages that cannot be read, or whose topic was deleted",
                source, count,
            )  # fmt: skip

    # ---- starting and stopping ----

    async def begin_levels(self) -> None:
        """Starts them once it is noted that the progress on the disk is not all. Raises:
        DiskFull."""
        if self.store.metadata.delays_known():
            await asyncio.to_thread(self.store.metadata.set_delays_known, False)
        self.start_levels()

    def start_levels(self) -> None:
        """Delivers what is due of the levels and waits for the rest. It needs a running loop."""
        self.core.on_levels = self._got_messages
        kept = self.store.metadata.delay_offsets
        if not self._levels:
            for number in range(1, len(self.store.settings.delay_levels_ms) + 1):
                self._levels[number] = _Level(self, number, kept.get(number) or 0)
        for level in self._levels.values():
            level.go_on_at(kept.get(level.number) or 0)
            self._begin(level)

    async def stop_levels(self) -> None:
        """Stops delivering from the levels, and keeps the progress; a later start continues from
        there. Raises: FlushFailed, DiskFull."""
        for level in self._levels.values():
            self._end(level)
        if self._levels:
            await asyncio.to_thread(self.store.flush)
            await self.persist_later()
            await asyncio.to_thread(self.store.metadata.set_delays_known, True)

    def start_timers(self) -> None:
        """Does the same for the timers, unless they are off. It needs a running loop."""
        if self.timers is not None:
            self.core.on_timers = self._got_timers
            self._begin(self.timers)

    async def stop_timers(self) -> None:
        """Stops the timers and saves them. Raises: FlushFailed, DiskFull."""
        if self.timers is not None:
            self._end(self.timers)
            await self.save_timers()

    def _begin(self, source: _Source) -> None:
        source.on = True
        self._later(source, 0.0)

    @staticmethod
    def _end(source: _Source) -> None:
        source.on = False
        if source.handle is not None:
            source.handle.cancel()

    def hand_over(self) -> None:
        """Writes, at the very end, what lets Java's broker find the timers, too. Raises: DiskFull,
        FlushFailed."""
        timers, was_on = self.timers, self.core.on_timers is not None
        self.core.on_levels = self.core.on_timers = None
        if timers is None or not was_on:
            return
        self.store.flush()
        save_timers(self.store, timers.timers.capture()[0])
        try:
            if not hand_over(self.store, timers.timers, timers.metrics.offset, self.now_ms()):
                _log.info("Java's timer files are not written: more than %d wait", HANDED_OVER)
        except OSError as failed:
            _log.warning("Java's timer files cannot be written: %s", failed)

    def _clock(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def shift_clock(self, ms: int) -> None:
        """Sets the clock that far ahead of the machine's, for tests."""
        self._shift_ms = ms
        lib.ps_timers_shift_clock(self.store.c_handle(), ms)
        self.look_at_timers()

    def sample_timers(self) -> None:
        """Takes a sample once a second, for the rates of the metrics."""
        if self.timers is not None:
            self.timers.metrics.sample()

    def look_at_timers(self) -> None:
        """Looks at the timers now, since something came or the clock was set."""
        if self.timers is not None and self.timers.on:
            self._run(self.timers)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Returns (delivered, max) offsets by level, as GET_BROKER_RUNTIME_INFO shows them."""
        end = self.store.range
        return {
            n: (level.offset, end(SCHEDULE_TOPIC, n - 1)[1]) for n, level in self._levels.items()
        }

    def persist(self) -> None:
        """Writes the offsets of what is on the disk to the metadata. Raises: DiskFull."""
        self._write(self._progressed())

    async def persist_later(self) -> None:
        """Does the same in a thread, since a commit waits for the disk. Raises: DiskFull."""
        rows = self._progressed()
        if rows:
            await asyncio.to_thread(self._write, rows)

    def _progressed(self) -> list[tuple[int, int]]:
        """Returns level and offset to keep, for each level that has another one in the metadata."""
        flushed = self.store.info().log_flushed
        for level in self._levels.values():
            while level.pending and level.pending[0][1] <= flushed:
                level.kept = level.pending.popleft()[0]
        kept = self.store.metadata.delay_offsets
        return [
            (level.number, level.kept)
            for level in self._levels.values()
            if (kept.get(level.number) or 0) != level.kept
        ]

    def _write(self, rows: list[tuple[int, int]]) -> None:
        if not rows:
            return
        with self.store.metadata.batch():
            for number, kept in rows:
                self.store.metadata.delay_offsets.commit(number, kept, reset=True)

    def roll_timers(self) -> None:
        """Puts timers again whose records retention would soon delete: those that are half as old
        as fileReservedTime. Raises: what putting raises."""
        if self.timers is None:
            return
        half_ms = self.store.settings["fileReservedTime"] * 1_800_000
        before_ms = time.time_ns() // 1_000_000 - half_ms
        if self.timers.on and self.timers.timers.roll(before_ms):
            asyncio.get_running_loop().call_soon(self.roll_timers)

    async def follow_timers(self) -> None:
        """Reads, at a slave, which timers its master has put, and which it has delivered since.
        Raises: StoreError."""
        if self.timers is None:
            return
        timers = self.timers.timers
        if await asyncio.to_thread(timers.read_on) - self._followed >= _SAVED_EACH:
            state, end = timers.capture()
            await asyncio.to_thread(self._save_timers, state, end)
            self._followed = end

    def timers_changed(self) -> bool:
        """Returns whether there is something to save."""
        return self.timers is not None and self.timers.saved != self.timers.mark()

    async def save_timers(self) -> None:
        """Saves the set of timers that wait, once the log is on the disk as far as it goes. Raises:
        DiskFull, FlushFailed."""
        timers = self.timers
        if timers is None or not self.timers_changed():
            return
        mark = timers.mark()
        state, end = timers.timers.capture()
        await asyncio.to_thread(self._save_timers, state, end)
        timers.saved = mark

    def _save_timers(self, state: object, end: int) -> None:
        if self.store.info().log_flushed < end:
            self.store.flush()
        save_timers(self.store, state)

    def _got_timers(self) -> None:
        if self.timers is None or not self.timers.on:
            return
        now_s, at_s = asyncio.get_running_loop().time(), self.timers.last_s + _GATHER_S
        if now_s >= at_s:
            self._run(self.timers)
        elif self.timers.next_s > at_s:
            self._later(self.timers, at_s - now_s)

    def _got_messages(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            level = self._levels.get(number)
            if level is not None and level.on:
                self._run(level)

    def _later(self, source: _Source, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if source.handle is not None:
            source.handle.cancel()
        source.next_s = loop.time() + seconds
        if seconds <= 0:
            source.handle = loop.call_soon(self._run, source)
        else:
            source.handle = loop.call_later(min(seconds, _LOOK_AGAIN_S), self._run, source)

    def _allowed(self) -> int:
        """Returns how many may be delivered now."""
        if not self.max_tps:
            return _ROUND
        now = time.monotonic()
        self._share = min(_ROUND, self._share + (now - self._shared_at) * self.max_tps)
        self._shared_at = now
        return int(self._share)

    def _run(self, source: _Source) -> None:
        source.last_s, source.next_s = asyncio.get_running_loop().time(), math.inf
        if not self.core.leads:
            self._later(source, _RETRY_S)
            return
        most = self._allowed()
        if most < 1:
            self._later(source, _PAUSE_S)
            return
        try:
            delivered, pause_s = source.deliver(most, self.now_ms())
        except StoreError as failed:
            if not source.failing:
                _log.error("%s cannot deliver: %s", source.name, failed)
            if self.timers is source:
                self.timers.metrics.errors += 1
            source.failing = True
            self._later(source, _RETRY_S)
            return
        if source.failing:
            _log.info("%s: delivers again", source.name)
        source.failing = False
        self._share -= delivered
        if pause_s >= 0:
            self._later(source, pause_s)
