"""The threads beside a store's own: config files are written out, awaiting puts are notified."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pystore.base.enums import PutStatus
from pystore.errors import StoreClosed, StoreError
from pystore.metadata import Metadata
from pystore.settings import Settings

if TYPE_CHECKING:  # a fifth of the time that `import pystore` takes
    import asyncio

_EXPORT_S = 5.0
_EXPORT_PAUSE_S = 0.2


class Exporter:
    """Writes changed metadata out to ``config/``: topics and groups soon after they change, offsets
    on upstream's cadence. A thread of its own, so that a put of a new topic does not wait."""

    def __init__(self, metadata: Metadata, watch: Callable[[], object]) -> None:
        """Takes what is called. watch: a bound method, called about every five seconds and kept by
        a weak reference."""
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=_export_now_and_then,
            args=(weakref.ref(metadata), weakref.WeakMethod(watch), self._wake, self._stop),
            name="pystore-export",
            daemon=True,
        )
        self._thread.start()

    def changed(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()


def _export_now_and_then(
    ref: weakref.ref[Metadata],
    watch: weakref.WeakMethod[Callable[[], object]],
    wake: threading.Event,
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        if wake.wait(_EXPORT_S):
            wake.clear()
            stop.wait(_EXPORT_PAUSE_S)  # many changes at once become one export
        metadata = ref()
        if metadata is None or stop.is_set():
            return
        try:
            look = watch()
            if look is not None:
                look()
            del look
            metadata.maybe_export()
        except StoreError:
            continue  # the next round, flush() or close() tries again; close() tells
        finally:
            del metadata


class SyncTarget(Protocol):
    """What a FlushQueue needs of its store."""

    settings: Settings

    def wait_flushed(self, offset: int, timeout: float) -> bool: ...


class FlushQueue:
    """Serves awaiting puts: one thread waits for the sync of the last of them, and resolves all
    that a sync has served."""

    def __init__(self, store: SyncTarget) -> None:
        self._store = weakref.ref(store)
        self._lock = threading.Condition()
        self._waiting: list[tuple[int, asyncio.Future[PutStatus]]] = []
        self._thread: threading.Thread | None = None
        self._stopped = False

    async def wait(self, offset: int) -> PutStatus:
        import asyncio

        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pystore-flush", daemon=True)
                self._thread.start()
            self._waiting.append((offset, future))
            self._lock.notify()
        return await future

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopped:
                    self._lock.wait()
                if not self._waiting:
                    return
                batch, self._waiting = self._waiting, []
            self._serve(batch)

    def _serve(self, batch: list[tuple[int, asyncio.Future[PutStatus]]]) -> None:
        store = self._store()
        outcome: PutStatus | BaseException
        try:
            if store is None:
                raise StoreClosed("the store was closed")
            timeout = int(store.settings["syncFlushTimeout"]) / 1000
            done = store.wait_flushed(max(offset for offset, _ in batch), timeout)
            outcome = PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT
        except BaseException as e:  # noqa: BLE001  reported to whoever awaits, whatever it was
            outcome = e
        for _, future in batch:
            try:
                future.get_loop().call_soon_threadsafe(_resolve, future, outcome)
            except RuntimeError:  # its loop is closed: nobody waits any more
                continue


def _resolve(future: asyncio.Future[PutStatus], outcome: PutStatus | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
