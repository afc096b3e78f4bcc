"""Idempotent produce: the messages that the C core remembers (csrc/sends/dedup.h).

The core looks for repeats when it puts a send, whoever decided it; Python only says how many are
remembered, and by which property.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.hot.core import Core, CoreErrors
from pystore.native import ffi, lib

__all__ = ["Dedup", "DedupState"]


class DedupState(NamedTuple):
    """The state of deduplication. `window` is how many messages may be remembered, `remembered` how
    many are, `bytes` the memory they take, and `repeats` how many messages were not stored again
    since the start."""

    window: int
    remembered: int
    bytes: int
    repeats: int


class Dedup(CoreErrors):
    """Recognises repeats. All of it happens on the thread of the core."""

    def __init__(self, core: Core, window: int, key: str) -> None:
        """Makes the memory. window: how many messages are to be remembered. key: the property that
        names a message.

        Raises: BadArgument, OutOfMemory."""
        super().__init__()
        self._core = core
        self._check(lib.ps_core_dedup_set(core.handle, window, key.encode(), self._error))

    def build(self) -> None:
        """Remembers what the end of the log has; it must come before the first send. Raises:
        StoreClosed."""
        self._check(lib.ps_core_dedup_build(self._core.handle, self._error))

    def state(self) -> DedupState:
        raw = ffi.new("ps_dedup_state *")
        lib.ps_core_dedup_get_state(self._core.handle, raw)
        return DedupState(raw.window, raw.remembered, raw.bytes, raw.repeats)
