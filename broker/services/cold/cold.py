"""The part of the cold tier in a broker: one thread that looks at the tier, and a master's that
also writes out. docs/cold.md; docs/adr/010-cold-tier.md."""

from __future__ import annotations

import asyncio
import threading
import time

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.cold.handle import TierHandle
from broker.services.cold.limits import storage_level
from broker.services.context import Services
from pystore.errors import StoreClosed, StoreError

__all__ = ["Cold"]

log = SafeLogger("broker.cold")
_quiet = RateLimitedLogger(log)

#: From one look at the manifests to the next: a listing a thousand queues.
LOOK_S = 600.0
#: From one round to the next, and after one that failed, at most.
_ROUND_S, _PAUSE_MAX_S = 1.0, 60.0
#: How long an end waits for a request that is under way; it writes nothing else afterwards.
_END_S = 10.0


class Cold:
    """What a broker has of the tier. Made before anything local may go; its duties (duty_table.py)
    start and stop it."""

    def __init__(self, s: Services, epoch: int) -> None:
        """Holds back retention. epoch: of the master under a controller, 0 without one."""
        self._store, self._settings = s.store, s.settings
        self._store.keep_beyond(0)  # until it is known what is out there
        self.handle = TierHandle(
            s.store, str(s.settings["tieredStoreFilePath"]), s.cluster, s.broker_name
        )
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def level(self) -> str:
        """Which reads the tier serves, one of LEVELS."""
        return storage_level(self._settings)

    # ---- duties ----

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="pystore-cold", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread, or lets it end with the request that is under way."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, _END_S)

    def lead(self) -> None:
        """Begins to write out."""

    def follow(self) -> None:
        """Ends writing out."""

    # ---- the thread ----

    def _run(self) -> None:
        pause_s = _ROUND_S
        while not self._stopping.wait(pause_s):
            try:
                self._round()
                pause_s = _ROUND_S
            except StoreClosed:
                return
            except StoreError as failed:
                _quiet.warning(type(failed), "The cold tier rests after an error: %s", failed)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            except Exception:
                log.exception("The cold tier rests after a defect")
                pause_s = _PAUSE_MAX_S

    def _round(self) -> None:
        looked_s = self.handle.looked_s
        if looked_s is None or time.monotonic() - looked_s >= LOOK_S:
            self.handle.look()
