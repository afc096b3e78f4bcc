"""Ids as official clients make them, for messages that come without one
(docs/internals/wire.md#ids)."""

from __future__ import annotations

import os
import time

__all__ = ["UniqIds"]


class UniqIds:
    def __init__(self, address: bytes) -> None:
        """Takes the broker's address. address: that of the broker, as on disk without its port."""
        self._prefix = address + os.getpid().to_bytes(4, "big")[-2:] + os.urandom(4)
        self._count = 0

    def make(self) -> str:
        now = time.time()
        day = time.localtime(now)
        month = time.mktime((day.tm_year, day.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        self._count = (self._count + 1) & 0xFFFF
        since = int((now - month) * 1000) & 0xFFFFFFFF
        raw = self._prefix + since.to_bytes(4, "big") + self._count.to_bytes(2, "big")
        return raw.hex().upper()
