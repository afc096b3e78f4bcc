"""The part of the cold tier in a broker: one thread that looks at the tier, and a master's that
also writes out. docs/cold.md; docs/adr/010-cold-tier.md."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.reasons import reason_of
from broker.loop.safe_log import SafeLogger
from broker.services.cold.behind import Behind, Lack
from broker.services.cold.covers import lacks
from broker.services.cold.handle import TierHandle
from broker.services.cold.limits import limits_of, passes_over, storage_level
from broker.services.cold.pace import WriterStopped
from broker.services.cold.reads import ColdReads
from broker.services.cold.uploads import Uploads
from broker.services.config import Config
from broker.services.topics import Topics
from pystore import Store
from pystore.errors import StoreClosed, StoreError
from pystore.store import hosting

__all__ = ["Cold"]

log = SafeLogger("broker.cold")
_quiet = RateLimitedLogger(log)

#: From one look at the manifests to the next: a listing a thousand queues.
LOOK_S = 600.0
#: From one round to the next, and after one that failed, at most.
_ROUND_S, _PAUSE_MAX_S = 1.0, 60.0
#: A round of many queues is so rare that it takes this share of a processor.
_SHARE = 0.05
#: How long an end waits for a request that is under way; nothing else is written afterwards.
_END_S = 10.0


class Cold:
    """What a broker has of the tier. Made before anything local may go; its duties (duty_table.py)
    start and stop it."""

    def __init__(
        self, store: Store, settings: Config, topics: Topics, cluster: str, broker: str, epoch: int
    ) -> None:
        """Holds back retention. epoch: of the master under a controller, 0 without one."""
        self._store, self._settings = store, settings
        address = str(settings["tieredStoreFilePath"])
        self.handle = TierHandle(store, address, cluster, broker)
        self.reads = ColdReads(store, self.handle, self.level, settings["tieredCacheBytes"])
        settings.changed.append(lambda _: self._set_reads())
        self._set_reads()
        self.behind = Behind(store, self.handle, cluster, broker)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        #: Set while nothing is to be written out.
        self._resting = threading.Event()
        self._resting.set()
        #: Held while something is.
        self._writing = threading.Lock()
        self.uploads = Uploads(
            store, settings, topics, self.handle, self.behind, epoch, self._resting
        )
        #: Why the last round failed; None: it did not.
        self.trouble: Exception | None = None
        #: Bytes that a full disk has taken although they were not out.
        self.let_go = 0
        #: As of the last round, and when one last succeeded, time.monotonic().
        self.lack, self.well_s = Lack(), time.monotonic()
        #: Below it nothing is missed that is gone.
        self._told = store.info().log_min
        #: What the last round took to look, of a processor: a tier that is slow, and a machine that
        #: does other work, are no reason to look less often.
        self._looking_s = 0.0
        self._hold()  # until it is known what is out there, everything

    @property
    def problem(self) -> str:
        """What an operator should look at; nothing: it goes well."""
        if self.trouble is not None:
            return f"the tier cannot be used: {reason_of(self.trouble)}"
        if self.uploads.fenced:
            return f"nothing is written out: {self.uploads.fence}"
        told = self.reads.wrong or self.uploads.counts.strange or self.handle.gaps
        return next(iter(told.values()), "")

    @property
    def level(self) -> str:
        """Which reads the tier serves, one of LEVELS."""
        return storage_level(self._settings)

    def _set_reads(self) -> None:
        self.reads.set_level(self.level)
        self.reads.pass_over(passes_over(self._settings))

    # ---- duties ----

    def start(self) -> None:
        self._stopping.clear()
        self.reads.start()
        self._thread = threading.Thread(target=self._run, name="pystore-cold", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the threads, or lets them end with the requests that are under way."""
        self._stopping.set()
        self._resting.set()
        await self.reads.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, _END_S)
        self.uploads.close()

    def lead(self) -> None:
        """Begins to write out, after a look at what the master before has written."""
        self.handle.looked_s = None
        self.uploads.fenced = False
        self._resting.clear()

    async def follow(self) -> None:
        """Ends writing out; what is under way is no more than a request."""
        self._resting.set()
        await asyncio.to_thread(self._wait_written)

    def _wait_written(self) -> None:
        if self._writing.acquire(timeout=_END_S):
            self._writing.release()

    async def lacks(self, deleted: Mapping[str, int]) -> str:
        """Says what of this store the tier does not have; empty: nothing, so that it need not be
        here. deleted: topics whose messages before a place of the log do not count. Raises:
        StoreError."""
        return await asyncio.to_thread(lacks, self._store, self.handle, deleted)

    # ---- the thread ----

    def _run(self) -> None:
        pause_s = failed_s = _ROUND_S
        while not self._stopping.wait(pause_s):
            try:
                more = self.round()
                pause_s = 0.0 if more else max(_ROUND_S, self._looking_s / _SHARE)
                failed_s, self.trouble, self.well_s = _ROUND_S, None, time.monotonic()
            except WriterStopped:
                pause_s = _ROUND_S
            except StoreClosed:
                return
            except StoreError as failed:
                _quiet.warning(type(failed), "The cold tier rests after an error: %s", failed)
                self.trouble = failed
                pause_s = failed_s = min(2 * failed_s, _PAUSE_MAX_S)
                with contextlib.suppress(StoreError):
                    self._hold()
            except Exception as defect:
                log.exception("The cold tier rests after a defect")
                self.trouble, pause_s = defect, _PAUSE_MAX_S

    def round(self) -> bool:
        """Looks at the tier and at the store, and writes out; returns whether there is more at
        once. Raises: WriterStopped, StoreError."""
        handle, began_s = self.handle, time.thread_time()
        self._hold()
        tier = handle.tier
        if tier is None or handle.looked_s is None or time.monotonic() - handle.looked_s >= LOOK_S:
            tier = handle.look()
            if not self._resting.is_set():
                self.uploads.see_epoch()
        handle.see_deletions()
        self.behind.look()
        self._hold()
        self._looking_s = time.thread_time() - began_s
        if self._resting.is_set():
            return False
        try:
            with self._writing:
                return self.uploads.round(tier)
        finally:
            self._hold()

    def _hold(self) -> None:
        """Tells the store how far everything is out, and says what a full disk has taken beyond.
        What is out in a tier that does not answer stays here, too."""
        border = self.behind.out_to if self.trouble is None else 0
        log_min = self._store.info().log_min
        lets_go = limits_of(self._settings).lets_go
        # Without a border nothing goes; but a round of retention may have gone on by the last one.
        if log_min > self._told and (border or lets_go):
            self.let_go += log_min - self._told
            log.warning(
                "The disk was full: %d bytes of the log are gone that the cold tier does not have",
                log_min - self._told,
            )
        self._told, self.lack = max(border, log_min, self._told), self.behind.lack()
        hosting.keep_beyond(self._store, border, lets_go=lets_go)
