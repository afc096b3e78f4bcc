"""Reads a server's certificate again when its files change, or on request, as upstream's
FileWatchService does. New connections get the new one; those that are there go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from broker.loop.lifetime import end_tasks
from broker.loop.safe_log import SafeLogger
from broker.remoting.tls import TlsSettings
from pystore.errors import BadArgument

__all__ = ["SETTING", "Certificates"]

log = SafeLogger("broker.remoting")

#: Seconds between two looks at the files.
LOOK_S = 2.0
#: What a request that changes settings names to have the files read again: upstream has none of its
#: own for that.
SETTING = "tls.server.certPath"


class Certificates:
    """Watches the files of a server's TLS from start() to stop(), both on the running loop."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._watching: asyncio.Task[None] | None = None
        self._readings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._tls.files:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        await end_tasks(self._watching, *self._readings)
        self._watching = None

    def read_again(self) -> None:
        """Begins to read the files. What comes of it is logged."""
        if self._tls.files:
            reading = asyncio.get_running_loop().create_task(self._read_quietly())
            self._readings.add(reading)
            reading.add_done_callback(self._readings.discard)

    async def change(self, changes: dict[str, str]) -> None:
        """Takes tls.server.certPath out of a change of settings, if it is there, and reads the
        files again: empty or as it is, it asks for that. Raises: BadArgument for another path,
        without a certificate, and for files that cannot be used."""
        wished = changes.pop(SETTING, None)
        if wished is None:
            return
        if not self._tls.files:
            raise BadArgument("the server has no certificate that it could read again")
        if wished not in ("", self._tls.cert_path):
            raise BadArgument(f"{SETTING} takes effect only at a start: write it to the TLS file")
        await self._read()

    async def _watch(self) -> None:
        used = await asyncio.to_thread(_state_of, self._tls.files)
        before = used
        while True:
            await asyncio.sleep(LOOK_S)
            now = await asyncio.to_thread(_state_of, self._tls.files)
            # Certificate and key are rarely written at one moment: they are read once they rest.
            if now != used and now == before:
                used = now
                await self._read_quietly()
            before = now

    async def _read_quietly(self) -> None:
        with contextlib.suppress(BadArgument):
            await self._read()

    async def _read(self) -> None:
        try:
            await asyncio.to_thread(self._tls.read_again)
        except BadArgument as bad:
            log.error("Kept the certificate of before: %s", bad)
            raise
        log.info("Read the certificate again: %s", self._tls.cert_path)


def _state_of(paths: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns what differs once a file was written or replaced."""
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            of = Path(path).stat()
            found.append((of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns))
        except OSError:
            found.append(())
    return found
