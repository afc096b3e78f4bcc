"""What the first page of a folder shows: totals, rates out of store times, what the doctor finds.
It has a reader and a thread of its own, so that no other page waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from broker.doctor import examine_folder
from broker.services.names import is_system_group
from broker.web.cached import CachedAnswer
from broker.web.drawing import RatePlot, plot_of
from broker.web.rawlog import RawLog
from broker.web.rows import Examination, LagTotal, kind_of
from broker.web.store_lists import StoreLists
from broker.web.store_pages import StorePages
from pystore import Reader
from pystore.store.pending_log import find_pending
from pystore.store.timers import Timers

__all__ = ["StoreOverview", "StoreRates", "StoreTotals", "rates_of"]

_T = TypeVar("_T")
#: What the lines show: a quarter of an hour, in steps, out of the newest bytes of the log.
_SPAN_MS, _STEPS, _BYTES = 15 * 60_000, 60, 64 << 20
_BATCH, _BATCH_BYTES = 4096, 4 << 20
#: As for a cluster: how long what the doctor found is taken for the present, and may be shown.
_EXAMINED_S, _EXAMINED_MAX_S = 60.0, 3600.0
#: A store that nobody writes is counted once in a while; totals cost as much as the lists.
_WAITING_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreTotals:
    """Topics, groups and lag are those of users; messages and bytes are of everything."""

    messages: int
    topics: int
    groups: int
    lag: LagTotal
    dead: int


@dataclass(frozen=True, slots=True)
class StoreRates:
    """Up to the newest message. begin_ms, end_ms: store times of what was looked at. whole: it is
    all of the quarter hour, or all of the log."""

    messages: RatePlot
    sizes: RatePlot
    begin_ms: int
    end_ms: int
    whole: bool


def rates_of(reader: Reader, log: RawLog) -> StoreRates | None:
    """Counts the newest records by their store times; None where there are too few. A part that
    is damaged is stepped over. Raises: StoreError, OSError."""
    info = reader.info()
    begin = max(info.log_min, info.log_max - _BYTES)
    at = log.next_record(begin)
    found: list[tuple[int, int]] = []
    while at is not None and at < info.log_max:
        batch = reader.log(at, max_messages=_BATCH, max_bytes=_BATCH_BYTES)
        found += [(message.store_timestamp, message.size) for message in batch]
        if batch.outcome < 0:
            break
        after = batch.next_offset
        if batch.outcome or after <= at:
            at = log.next_record(after + 1)
        else:
            at = after
    end_ms = max((when for when, _ in found), default=0)
    kept = [row for row in found if row[0] > end_ms - _SPAN_MS]
    begin_ms = min((when for when, _ in kept), default=0)
    if end_ms <= begin_ms:
        return None
    whole = begin == info.log_min or len(kept) < len(found)
    return _drawn(kept, end_ms - _SPAN_MS if len(kept) < len(found) else begin_ms, end_ms, whole)


def _drawn(rows: list[tuple[int, int]], begin_ms: int, end_ms: int, whole: bool) -> StoreRates:
    step = (end_ms - begin_ms) / _STEPS
    messages, sizes = [0.0] * _STEPS, [0.0] * _STEPS
    for when, size in rows:
        place = min(_STEPS - 1, int((when - begin_ms) / step))
        messages[place] += 1000 / step
        sizes[place] += size * 1000 / step
    times = [number * (end_ms - begin_ms) / 1000 / (_STEPS - 1) for number in range(_STEPS)]
    return StoreRates(
        plot_of(times, {"came": messages}),
        plot_of(times, {"came": sizes}, binary=True),
        begin_ms,
        end_ms,
        whole,
    )


class StoreOverview:
    """The overview of one folder. Whoever asks waits a moment; the question goes on."""

    def __init__(
        self, path: Path, conf: Path | None, given: Mapping[str, Any], log: RawLog
    ) -> None:
        self._path, self._conf, self._given, self._log = path, conf, given, log
        self._pages = StorePages(path, conf, given)
        self._lists = StoreLists(self._pages)
        self._thread = ThreadPoolExecutor(1, "pystore-web-overview")
        self._doctor = ThreadPoolExecutor(1, "pystore-web-doctor")
        self.totals = CachedAnswer(self._by(self._totals))
        self.rates = CachedAnswer(self._by(self._rates))
        self.waiting = CachedAnswer(self._by(self._waiting), _WAITING_S)
        self.examined = CachedAnswer(self._examine, _EXAMINED_S, _EXAMINED_MAX_S)

    def _by(self, work: Callable[[], _T]) -> Any:
        """Returns a question that the thread answers."""
        return partial(self._asked, work)

    async def _asked(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        for kept in (self.totals, self.rates, self.waiting, self.examined):
            await kept.close()
        await self._asked(self._pages.close)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._doctor.shutdown(wait=False, cancel_futures=True)

    def _totals(self) -> StoreTotals:
        """Returns the totals. Raises: StoreError."""
        queues = self._pages.open().queues()
        topics = {queue.topic for queue in queues if kind_of(queue.topic) == "messages"}
        groups = [g for g in self._lists.all_groups().rows if not is_system_group(g.name)]
        return StoreTotals(
            sum(len(queue) for queue in queues), len(topics), len(groups),
            LagTotal.of({group.name: group.behind or 0 for group in groups}),
            sum(group.dead or 0 for group in groups),
        )  # fmt: skip

    def _rates(self) -> tuple[StoreRates | None]:
        """Returns the rates. Raises: StoreError, OSError."""
        return (rates_of(self._pages.open(), self._log),)

    def _waiting(self) -> tuple[int, int]:
        """Returns delayed messages, and open transactions. Raises: StoreError."""
        reader = self._pages.open()
        with closing(Timers(reader)) as timers:
            return timers.count(), len(find_pending(reader).rows)

    async def _examine(self) -> Examination:
        """Asks the doctor about the folder and its machine. Raises: OSError."""
        work = partial(examine_folder, self._path, self._conf, dict(self._given))
        found = await asyncio.get_running_loop().run_in_executor(self._doctor, work)
        return Examination(time.time_ns() // 1_000_000, found)
