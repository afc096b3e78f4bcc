"""A broker whose disk may be made to wait: no sync of its log ends until it is let go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from faulty import faulty

from broker import Broker
from broker.hot.core import Core
from pystore import Store

__all__ = ["Disk"]

_FDATASYNC = 1 << 5  # of csrc/tests/faulty_io.h: what syncs the log


class Disk:
    """The disk of every store that is opened from now on in this test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._table = faulty.ps_io_faulty_new()  # never freed: a store's views may outlive the test
        monkeypatch.setattr(Store, "_io", self._io)

    def _io(self) -> Any:
        return self._table

    @contextlib.contextmanager
    def held(self, broker: Broker) -> Iterator[Core]:
        """No sync ends in the block, unless it is let go. The core counts what waits."""
        # The log needs a file: a put that had to make one would wait for the disk by itself.
        broker.store.put("first", b"message")
        core = broker.services.core
        assert isinstance(core, Core)
        faulty.ps_io_faulty_slow(self._table, _FDATASYNC, 600_000)
        try:
            yield core
        finally:
            self.let_go()

    def let_go(self) -> None:
        faulty.ps_io_faulty_slow(self._table, 0, 0)
