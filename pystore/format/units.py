"""Units of consume queues, as the files hold them (csrc/queues/consumequeue.c)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["NO_RECORD", "UNIT", "units_of"]

#: The log offset of a record, its size and its tags code.
UNIT = struct.Struct(">qiq")
#: The size in a unit that leads to no record: what upstream fills a queue's first file with.
NO_RECORD = 0x7FFF_FFFF


def units_of(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields the whole units of a piece of a file."""
    return UNIT.iter_unpack(data[: len(data) // UNIT.size * UNIT.size])
