"""Records that take the place of damage, so that the log stays one row of records.

A damaged stretch of the log becomes the body of one record of its own: no queue and no key leads to
it, since its transaction type is "rollback" (docs/internals/format.md), and every byte of it stays
where it is but for the record's own fields. Java and this store walk over it. Nothing else in the
log moves, so every physical offset and every message id stays right.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

__all__ = ["SMALLEST", "TOPIC", "Patch", "blank", "filler"]

#: Where the bytes go in the file, the bytes.
Patch = tuple[int, bytes]

#: As recovery names its own (csrc/store/store.h).
TOPIC = b"RMQ_SYS_DAMAGED"
_SHORT_TOPIC = b"-"
_FIXED = 91  # bytes of a V1 record beside body, topic and properties
SMALLEST = _FIXED + len(_SHORT_TOPIC)
_MAGIC, _BLANK = 0xDAA320A7, 0xCBD43194
_ROLLBACK = 0xC
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")


def filler(
    at: int, size: int, physical: int, timestamp: int, read: Callable[[int, int], bytes]
) -> list[Patch]:
    """The patches that make `size` bytes at `at` of a segment one record.

    physical: its place in the log. timestamp: ms, store time of a neighbour. read: bytes of the
    segment by position and count. Raises: ValueError when there is no room for a record.
    """
    topic = TOPIC if size >= _FIXED + len(TOPIC) else _SHORT_TOPIC
    length = size - _FIXED - len(topic)
    if length < 0:
        raise ValueError(f"{size} bytes hold no record")
    body_at, crc, done = at + _HEAD.size, 0, 0
    while done < length:
        piece = read(body_at + done, min(1 << 20, length - done))
        if not piece:
            raise ValueError("the segment ends within the stretch")
        crc = zlib.crc32(piece, crc)
        done += len(piece)
    head = _HEAD.pack(
        size, _MAGIC, crc & 0x7FFFFFFF if length else 0, 0, 0, 0, physical, _ROLLBACK, timestamp,
        bytes(8), timestamp, bytes(8), 0, 0, length,
    )  # fmt: skip
    tail = struct.pack(">b", len(topic)) + topic + struct.pack(">h", 0)
    return [(at, head), (body_at + length, tail)]


def blank(at: int, segment_size: int) -> list[Patch]:
    """The patch that ends a segment at `at`. Raises: ValueError when 8 bytes are not left."""
    if segment_size - at < 8:
        raise ValueError("there is no room for a blank")
    return [(at, struct.pack(">iI", segment_size - at, _BLANK))]
