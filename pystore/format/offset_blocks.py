"""Consumer offsets in blocks, as the core gives and takes them (csrc/format/offsetblock.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["OffsetRow", "offset_pairs", "offset_rows"]

OffsetRow = tuple[str, str, int, int]  # group, topic, queue, next offset

#: Lengths of the names, number of rows; and a row.
_BLOCK, _ROW = struct.Struct("=iii"), struct.Struct("=iq")


def offset_rows(blocks: bytes | memoryview) -> Iterator[OffsetRow]:
    """Yields the offsets that blocks say."""
    for group, topic, rows in _read(memoryview(blocks)):
        for queue, offset in _ROW.iter_unpack(rows):
            yield group, topic, queue, offset


def offset_pairs(blocks: bytes | memoryview) -> Iterator[tuple[str, str]]:
    """Yields group and topic of each block."""
    for group, topic, _ in _read(memoryview(blocks)):
        yield group, topic


def _read(blocks: memoryview) -> Iterator[tuple[str, str, memoryview]]:
    end = 0
    while end < len(blocks):
        group_len, topic_len, count = _BLOCK.unpack_from(blocks, end)
        names = end + _BLOCK.size
        topic, rows = names + group_len, names + group_len + topic_len
        end = rows + count * _ROW.size
        yield _text(blocks[names:topic]), _text(blocks[topic:rows]), blocks[rows:end]


def _text(name: memoryview) -> str:
    # Half a surrogate pair, which a file of offsets can carry, is in the metadata as it is.
    return str(name, "utf-8", "surrogatepass")
