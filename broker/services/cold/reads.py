"""Reads of the tier: what a read of the store lacks is fetched by threads and lent to it, and who
waits for that is served as if it had always been there (pystore/cold/lending.py).

Everything but what runs in a thread happens on the event loop, and nothing blocks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.cold.handle import TierHandle
from broker.services.cold.limits import LEVELS
from pystore import Store
from pystore.cold.blocks import BLOCK, BlockCache
from pystore.cold.disk import DiskBlocks
from pystore.cold.failures import TierDamaged, TierUnreachable
from pystore.cold.lending import PLACE_SIZE, Lender, Want, place_for
from pystore.cold.reader import ColdReader
from pystore.cold.tier import QueueSpan
from pystore.errors import StoreClosed, StoreError
from pystore.native import lib

__all__ = ["ColdReads"]

log = SafeLogger("broker.cold")
_quiet = RateLimitedLogger(log)

_T = TypeVar("_T")

#: Threads that fetch. Wants that are served at once: more of them wait in the core, which refuses
#: whatever is too much for it by name.
_THREADS, _AT_ONCE = 16, 64
#: Questions of tools and of consumers that wait for a thread, at most.
_ASKED_MAX = 256
#: Seconds until such a question is to be asked again, however many requests it takes: a client has
#: given up by then, and a connection on which nothing came for 100 s is closed.
_ANSWER_S = 60.0
#: Lent to the store, and blocks beside it: what reading the tier takes of memory.
_LENT, _BLOCKS = 32 << 20, 24 << 20
#: Seconds until what failed is asked for again: doubled each time, and spread.
_REST_S, _REST_MAX_S = 0.2, 5.0
#: What is here, too, is read here for so long after a failure.
_LOCAL_MS = 5000


class ColdReads:
    """What a broker's store lacks, out of the tier."""

    def __init__(self, store: Store, handle: TierHandle, level: str, cache_bytes: int) -> None:
        """Hides nothing until the tier was looked at. level: one of LEVELS. cache_bytes: of blocks
        that are kept on the disk, at most."""
        self._store, self._handle, self._level = store, handle, level
        self._disk: DiskBlocks | None = None
        self._cache_bytes = cache_bytes
        lib.ps_tier_known(store.c_handle(), level == LEVELS[0])
        handle.on_look.append(self._publish_all)
        handle.on_note.append(self._publish)
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lender: Lender | None = None
        self._reader: ColdReader | None = None
        self._published: dict[tuple[str, int], QueueSpan] = {}
        self._serving: dict[Want, asyncio.Task[None]] = {}
        #: Seconds, by topic and queue, after the next failure.
        self._rests: dict[tuple[str, int], float] = {}
        self._asked = 0
        self._passes_over = False
        #: Queues of which something came wrong, twice, the last time that it was asked for, and
        #: what; who reads it waits.
        self.wrong: dict[tuple[str, int], str] = {}
        #: What there is was looked at.
        self.is_known = level == LEVELS[0]
        #: How often anything was lent.
        self.lent = 0
        #: Why the last fetch failed; None: it did not.
        self.trouble: StoreError | None = None

    # ---- life ----

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(_THREADS, "pystore-tier")
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._fd, self._look)
        if self._cache_bytes >= BLOCK:
            self._open_disk(self._store.path / "tiered_cache")
        self.set_level(self._level)

    def _open_disk(self, folder: Path) -> None:
        try:
            self._disk = DiskBlocks(folder, self._cache_bytes, BLOCK)
        except OSError as failed:
            log.warning("%s keeps no blocks of the cold tier: %s", folder, failed)

    def set_level(self, level: str) -> None:
        """Takes another level, in any thread."""
        self._level = level
        if self._fd >= 0:
            number = LEVELS.index(level)
            lib.ps_tier_set(self._store.c_handle(), number, _LENT, self._fd)
            self._publish_all()

    def pass_over(self, passes: bool) -> None:
        """Sets whether who reads what comes wrong twice goes on after it, in any thread."""
        self._passes_over = passes
        if self._lender is not None and self._reader is not None:
            self._lender.passes_over = self._reader.passes_over = passes

    @property
    def passed_over(self) -> int:
        """Messages that came wrong twice, and that consumers went on after."""
        return self._lender.damaged if self._lender is not None else 0

    async def stop(self) -> None:
        """Ends it: who waits for something of the tier is told so when its time is over."""
        if self._loop is None or self._pool is None:
            return
        self._loop.remove_reader(self._fd)
        for task in list(self._serving.values()):
            task.cancel()
        if not self._store.closed:
            lib.ps_tier_set(self._store.c_handle(), 0, _LENT, -1)
        self._pool.shutdown(wait=False, cancel_futures=True)
        os.close(self._fd)
        self._fd = -1
        if self._disk is not None:
            self._disk.close()

    # ---- what there is ----

    def _publish_all(self) -> None:
        """Says what there is of every queue, in any thread. Raises: StoreError."""
        tier = self._handle.tier
        if tier is None or self._fd < 0:
            return
        if self._lender is None:
            blocks = BlockCache(tier.objects, _BLOCKS, self._disk)
            self._reader = ColdReader.over(tier, blocks)
            self._lender = Lender(self._store, tier, blocks)
            self.pass_over(self._passes_over)
        places = {(each.topic, each.queue) for each in self._handle.spans()}
        for place in self._published.keys() | places:
            self._publish(*place)
        lib.ps_tier_known(self._store.c_handle(), True)
        self.is_known = True

    def _publish(self, topic: str, queue: int) -> None:
        """Says what there is of one."""
        if self._lender is None or self._reader is None:
            return
        self._reader.look_again()
        span = self._handle.span(topic, queue) if self._level != LEVELS[0] else None
        if self._published.get((topic, queue)) != span:
            self._lender.publish(topic, queue, span)
            if span is not None:
                self._published[topic, queue] = span
            else:  # its topic may be gone for good
                self._published.pop((topic, queue), None)
                self._rests.pop((topic, queue), None)
                self.wrong.pop((topic, queue), None)

    @property
    def caches(self) -> tuple[BlockCache | None, DiskBlocks | None]:
        """Blocks in memory, None until the tier was looked at; and on the disk, None without."""
        return self._lender.blocks if self._lender is not None else None, self._disk

    # ---- wants ----

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        self._take()

    def _take(self) -> None:
        lender = self._lender
        while lender is not None and len(self._serving) < _AT_ONCE and not self._store.closed:
            want = lender.take()
            if want is None:
                return
            if want not in self._serving:
                task = asyncio.get_running_loop().create_task(self._serve(lender, want))
                self._serving[want] = task
                task.add_done_callback(partial(self._served, want))

    def _served(self, want: Want, task: asyncio.Task[None]) -> None:
        if self._serving.get(want) is task:
            del self._serving[want]
        if self._fd >= 0:
            self._take()

    async def _serve(self, lender: Lender, want: Want) -> None:
        """Lends what is wanted; after a failure and a rest, who still waits for it asks again."""
        try:
            await self._in_thread(lender.fulfil, want)
        except StoreClosed:
            return
        except StoreError as failed:
            self._failed(lender, want, failed)
        else:
            self.lent += 1
            self.trouble = None
            self._rests.pop(want[:2], None)
            self.wrong.pop(want[:2], None)
            return
        rest_s = self._rests.get(want[:2], _REST_S)
        self._rests[want[:2]] = min(2 * rest_s, _REST_MAX_S)
        await asyncio.sleep(rest_s * random.uniform(0.75, 1.25))
        self._serving.pop(want, None)  # or what is asked again would be taken for this one
        with contextlib.suppress(StoreError):
            await self._in_thread(lender.again, want.topic, want.queue)

    def _failed(self, lender: Lender, want: Want, failed: StoreError) -> None:
        _quiet.warning(
            type(failed), "Offset %d of %s/%d cannot be had from the cold tier: %s", want.offset,
            want.topic, want.queue, failed,
        )  # fmt: skip
        self.trouble = failed
        if isinstance(failed, TierDamaged):
            self.wrong[want[:2]] = f"who reads {want.topic}/{want.queue} waits: {failed.text}"
        if not self._store.closed:
            lender.failed(failed.text, _LOCAL_MS)

    async def _in_thread(self, function: Callable[..., _T], *args: object) -> _T:
        assert self._loop is not None and self._pool is not None
        return await self._loop.run_in_executor(self._pool, function, *args)

    # ---- questions ----

    def holds(self, topic: str, queue: int, offset: int) -> bool:
        """Says whether a message is in the tier alone."""
        low, high = self._store.span(topic, queue)
        return low <= offset < min(high, self._store.range(topic, queue)[0])

    def may_be_at(self, topic: str, queue: int, physical: int) -> bool:
        """Says whether a message of the tier may have, or have had, this physical offset: that of
        its place there, or that of before the store deleted it."""
        place = place_for(topic, queue)
        here = self._store.info().log_min
        return 0 <= physical < here or place <= physical < place + PLACE_SIZE

    def time_about(self, topic: str, queue: int, offset: int) -> int:
        """Returns when the oldest message was stored, ms, of the object with a queue offset; -1 if
        that is not in memory."""
        tier = self._handle.tier
        known = tier.known(topic, queue) if tier is not None else None
        rows = known.rows if known is not None else ()
        at = bisect_right(rows, offset, key=lambda row: row.end)
        return rows[at].time_min if at < len(rows) and rows[at].first <= offset else -1

    async def ask(self, question: Callable[[Lender, ColdReader], _T]) -> _T:
        """Returns what a question is answered in a thread. Raises: TierUnreachable, TierDamaged,
        StoreError."""
        lender, reader = self._lender, self._reader
        if lender is None or reader is None:
            raise TierUnreachable("the cold tier was not looked at yet")
        if self._asked >= _ASKED_MAX:
            error = TierUnreachable(f"{self._asked} questions to the cold tier wait already")
            error.next_step = "ask again later"
            raise error
        self._asked += 1
        answer = asyncio.create_task(self._in_thread(question, lender, reader))
        answer.add_done_callback(self._answered)
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            error = TierUnreachable(f"the cold tier has not answered for {_ANSWER_S:.0f} s")
            error.next_step = "ask again later"
            raise error from None

    def _answered(self, answer: asyncio.Task[Any]) -> None:
        self._asked -= 1
        if not answer.cancelled():
            answer.exception()  # nobody may wait for it any more
