"""Segments of the tier, made by the core and taken apart again (csrc/flat/flat.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from pystore.cold.buffers import BufferPool
from pystore.cold.failures import TierDamaged
from pystore.cold.manifest import Row, crc_of
from pystore.errors import OutOfMemory
from pystore.files.mapped import MappedFile
from pystore.format.records import Buffer
from pystore.format.units import UNIT
from pystore.native import ffi, lib, raise_error
from pystore.store._messages import Batch

__all__ = ["BLOCK", "check_segment", "checks_of", "choose_units", "excerpt", "filled_excerpt",
           "has_sums", "key_bytes", "key_slice", "keys_of", "make_segment", "summed_bytes",
           "sums_of", "units_of_row"]  # fmt: skip

_TAIL = struct.Struct(">qqiiIiIq")
_KEY = struct.Struct(">II")
assert _TAIL.size == lib.PS_FLAT_TAIL
#: Bytes of the tail that its sum is of, too.
_SUMMED = 24
assert _KEY.size == lib.PS_FLAT_KEY
#: Keys that have a sum, their bytes with it, and what the sum is of beside them.
_SUM_KEYS = int(lib.PS_FLAT_KEYS)
_SUM_BYTES = _SUM_KEYS * _KEY.size + int(lib.PS_FLAT_SUM)
_WHICH_KEYS = struct.Struct(">qI")
_RECORD_SUM = struct.Struct(">I")
assert _RECORD_SUM.size == lib.PS_FLAT_SUM
#: Bytes of records that have a sum, at most.
BLOCK = int(lib.PS_FLAT_BLOCK)
#: A slice of a key table reaches so many standard deviations around where a hash is expected.
_SIGMAS = 6
#: Which sums of records are looked at, and where those of properties are wrong.
_SUMS = int(lib.PS_CHECK_BODY_CRC | lib.PS_CHECK_PROP_IF)
_BODY_SUM = int(lib.PS_CHECK_BODY_CRC)


def make_segment(
    batch: Batch, base: int, epoch: int, buffers: BufferPool
) -> tuple[Row, memoryview]:
    """Returns the segment of a batch of a queue, as far as its offsets are dense, and its row.
    buffers: where its memory comes from. Raises: OutOfMemory."""
    about = ffi.new("ps_flat *")
    info: Any = batch._info
    if lib.ps_flat_measure(info, about) < 0:
        raise ValueError("the batch is empty")
    data = buffers.take(about.size)
    to = ffi.from_buffer("uint8_t[]", data)
    if lib.ps_flat_write(info, base, to, about) < 0:
        raise OutOfMemory("no memory for the keys of a segment")
    size = info.views[about.count - 1].size
    last = lib.ps_flat_crc(0, to + (about.records - size), size)
    return Row(
        base, about.size, about.records, about.first, about.count, about.keys, about.time_min,
        about.time_max, about.crc, last, epoch,
    ), data  # fmt: skip


def check_segment(data: Buffer, row: Row, where: str, *, records: bool = True) -> memoryview:
    """Checks a whole segment by its row, and returns its sums of records. records: whether they are
    looked at themselves; else it is these sums that are right, and that are to be looked at where
    records are read. Raises: TierDamaged."""
    view = memoryview(data)
    sums = view[row.sums_at : row.size - _TAIL.size]
    right = len(view) == row.size
    if right and row.has_record_sums:
        right = _crc_by_sums(view, sums, row) == row.crc
        right = right and (not records or has_sums(view[: row.records], sums))
    elif right:
        right = crc_of(view) == row.crc
    if not right:
        raise TierDamaged("a segment has another CRC than its manifest says", where)
    tail = _TAIL.unpack_from(data, row.size - _TAIL.size)
    if tail[:4] != (row.base, row.first, row.count, row.keys) or tail[6] != lib.PS_MAGIC_BLANK:
        raise TierDamaged("a segment's end says something else than its manifest", where)
    return sums


def _crc_by_sums(data: memoryview, sums: memoryview, row: Row) -> int:
    """Returns the CRC of a segment whose records have these sums."""
    crc = lib.ps_flat_joined(ffi.from_buffer("uint8_t[]", sums), row.records)
    behind = data[row.records :]
    return int(lib.ps_flat_join(crc, crc_of(behind), len(behind)))


def summed_bytes(row: Row, low: int, high: int) -> tuple[range, range]:
    """Returns which bytes of a segment have sums that cover the bytes [low, high) of its log's
    records, and which bytes of it these sums are. Both are of what the row says is there."""
    first, end = (max(low - row.base, 0)) // BLOCK, -(-min(high - row.base, row.records) // BLOCK)
    size = int(lib.PS_FLAT_SUM)
    return (
        range(first * BLOCK, min(end * BLOCK, row.records)),
        range(row.sums_at + first * size, row.sums_at + end * size),
    )


def has_sums(records: Buffer, sums: Buffer) -> bool:
    """Says whether records have these sums, from the beginning of a block on."""
    view = memoryview(records)
    blocks = (view[at : at + BLOCK] for at in range(0, len(view), BLOCK))
    return [crc_of(each) for each in blocks] == [crc for (crc,) in _RECORD_SUM.iter_unpack(sums)]


def sums_of(pieces: Iterable[Buffer], size: int) -> tuple[int, ...] | None:
    """Returns the CRC of each piece of what comes after the records of a segment, one after the
    other, `size` bytes in all; None: together they do not have the sum that they end with."""
    sums, crc, tail = [], 0, b""
    left = size - _TAIL.size + _SUMMED  # that the sum is of
    for piece in pieces:
        view = memoryview(piece)
        mine = crc_of(view[:left])
        crc = int(lib.ps_flat_join(crc, mine, min(len(view), left)))
        sums.append(mine if len(view) <= left else crc_of(view[left:], mine))
        left -= min(len(view), left)
        tail = (tail + bytes(view[-_TAIL.size :]))[-_TAIL.size :]
    if len(tail) < _TAIL.size or crc != _TAIL.unpack(tail)[4]:
        return None
    return tuple(sums)


def checks_of(*, summed: bool, covered: bool | None = None) -> int:
    """Returns which of its own sums a record is checked by. summed: whether the sums of properties
    are right, which upstream's tier leaves wrong. covered: whether a sum of the segment says that
    the record is as it was written out; then what its own would find was damaged in the store
    before, which gives it out as it is, too: nothing is looked at."""
    if covered:
        return 0
    return _SUMS if summed else _BODY_SUM


def units_of_row(data: Buffer, row: Row) -> memoryview:
    """Returns the units of a whole segment."""
    return memoryview(data)[row.records : row.records + row.count * UNIT.size]


def filled_excerpt(
    records: Buffer, base: int, units: Buffer, first: int, place: tuple[str, int], checks: int
) -> tuple[Any, Any]:
    """Returns a ``ps_excerpt`` of a queue, and what it points into, which is to live as long.
    Arguments: as of ``excerpt``."""
    raw = ffi.new("ps_excerpt *")
    topic = place[0].encode()
    keep = (
        ffi.from_buffer("uint8_t[]", records),
        ffi.from_buffer("uint8_t[]", units),
        ffi.new("char[]", topic),
    )
    raw.records, raw.units, raw.topic = keep
    raw.len, raw.base = len(records), base
    raw.count, raw.first = len(units) // UNIT.size, first
    raw.topic_len, raw.queue_id = len(topic), place[1]
    raw.checks = checks
    return raw, keep


def excerpt(
    records: Buffer, base: int, units: Buffer, first: int, place: tuple[str, int], options: Any,
    *, checks: int = _SUMS, file: MappedFile | None = None,
) -> Batch:  # fmt: skip
    """Returns messages of an excerpt of a queue, which point into `records`.

    base: what units call the first byte of `records`. first: queue offset of the first unit.
    place: topic and queue of all records. options: ``ps_read_options *``. checks: as of
    ``checks_of``. file: where `records` lie, its bytes called as units call them. Raises:
    OutOfMemory, FileSizeMismatch."""
    raw, keep = filled_excerpt(records, base, units, first, place, checks)
    if file is not None:
        raw.file = file.handle
    error = ffi.new("ps_error *")
    batch = lib.ps_excerpt_read(raw, first, raw.count, options, error)
    if batch == ffi.NULL:
        raise_error(error)
    return Batch(batch, None if file is not None else keep)


def choose_units(units: Buffer, options: Any = ffi.NULL) -> Any:
    """Returns what a read takes of units: a ``ps_unit_choice``. options: ``ps_read_options *``;
    without them all units that lead to a record."""
    choice = ffi.new("ps_unit_choice *")
    raw = ffi.from_buffer("uint8_t[]", units)
    lib.ps_units_choose(raw, len(units) // UNIT.size, options, choice)
    return choice


# ---- keys ----


def key_slice(row: Row, crc: int) -> tuple[int, int]:
    """Returns which entries [from, to) of a segment's table of keys hold a key, most probably: the
    sums are spread evenly over 32 bits, and stand in their order."""
    share = crc / (1 << 32)
    margin = _SIGMAS * (row.keys * share * (1 - share)) ** 0.5 + 2
    middle = row.keys * share
    return max(0, int(middle - margin)), min(row.keys, int(middle + margin) + 1)


def key_bytes(row: Row, low: int, high: int) -> tuple[int, int]:
    """Returns which bytes of a segment tell its keys [low, high), and that they are right: where
    keys have no sums of their own, everything after the records."""
    if not row.has_key_sums:
        return row.records, row.size
    start = row.records + row.count * UNIT.size
    end = start + -(-high // _SUM_KEYS) * _SUM_BYTES
    return start + low // _SUM_KEYS * _SUM_BYTES, min(end, row.sums_at)


def keys_of(data: Buffer, row: Row, low: int) -> bytes | None:
    """Returns the entries of a segment's keys in `key_bytes`, whose first key is `low` or before;
    None: they are wrong."""
    if not row.has_key_sums:
        right = sums_of([data], len(data)) is not None
        return bytes(data[row.count * UNIT.size : -_TAIL.size]) if right else None
    first, found = low - low % _SUM_KEYS, []
    for at in range(0, len(data), _SUM_BYTES):
        block = bytes(data[at : at + _SUM_BYTES])
        keys, crc = block[: -lib.PS_FLAT_SUM], block[-lib.PS_FLAT_SUM :]
        if crc_of(_WHICH_KEYS.pack(row.base, first) + keys) != int.from_bytes(crc, "big"):
            return None
        found.append(keys)
        first += _SUM_KEYS
    return b"".join(found)


def numbers_of(table: Buffer, crc: int) -> Iterator[int]:
    """Yields the messages of a piece of a table of keys that have a key of this sum."""
    for found, number in _KEY.iter_unpack(table):
        if found == crc:
            yield number


def encloses(table: Buffer, crc: int) -> tuple[bool, bool]:
    """Says whether a piece begins before a sum, and ends after it: all entries of the sum are then
    in it."""
    if not len(table):
        return False, False
    low, high = _KEY.unpack_from(table, 0)[0], _KEY.unpack_from(table, len(table) - _KEY.size)[0]
    return low < crc, high > crc
