"""Records that take the place of damage, so that the log stays one row of records.

A damaged stretch of the log becomes the body of one record of its own: no queue and no key leads to
it, since its transaction type is "rollback" (docs/internals/format.md), and every byte of it stays
where it is but for the record's own fields. Java and this store walk over it. Nothing else in the
log moves, so every physical offset and every message id stays right.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from pystore.format.names import FILLER_TOPIC, FILLER_TOPIC_SHORT
from pystore.format.records import HEAD_LEN
from pystore.native import ffi, lib

__all__ = ["SHORT_TOPIC", "SMALLEST", "TOPIC", "Patch", "blank", "filler"]

#: Where the bytes go in the file, the bytes.
Patch = tuple[int, bytes]

#: As recovery names its own.
TOPIC, SHORT_TOPIC = FILLER_TOPIC.encode(), FILLER_TOPIC_SHORT.encode()
_FIXED = int(lib.PS_RECORD_FIXED)
SMALLEST = _FIXED + len(SHORT_TOPIC)


def filler(
    at: int, size: int, physical: int, timestamp: int, read: Callable[[int, int], bytes]
) -> list[Patch]:
    """Returns the patches that make `size` bytes at `at` of a segment one record.

    `physical` is its log offset. `timestamp` is the store time of a neighbour in ms. `read` returns
    bytes of the segment by position and count. Raises: ValueError when there is no room for a
    record."""
    topic = TOPIC if size >= _FIXED + len(TOPIC) else SHORT_TOPIC
    length = size - _FIXED - len(topic)
    if length < 0:
        raise ValueError(f"{size} bytes hold no record")
    tail = ffi.new("uint8_t[]", 3 + len(topic))
    head = ffi.new("uint8_t[]", size - length - len(tail))
    body_at, crc, done = at + len(head), 0, 0
    while done < length:
        piece = read(body_at + done, min(1 << 20, length - done))
        if not piece:
            raise ValueError("the segment ends within the stretch")
        crc = zlib.crc32(piece, crc)
        done += len(piece)
    lib.ps_fields_frame(length, crc, physical, timestamp, topic, len(topic), head, tail)
    return [(at, ffi.buffer(head)[:]), (body_at + length, ffi.buffer(tail)[:])]


def blank(at: int, segment_size: int) -> list[Patch]:
    """Returns the patch that ends a segment at `at`. Raises: ValueError when 8 bytes are not
    left."""
    if segment_size - at < HEAD_LEN:
        raise ValueError("there is no room for a blank")
    head = ffi.new("uint8_t[]", HEAD_LEN)
    lib.ps_blank_write(head, segment_size - at)
    return [(at, ffi.buffer(head)[:])]
