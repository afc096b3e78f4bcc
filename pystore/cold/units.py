"""Units and records of a segment as far as they can be believed: what came wrong is asked for once
more.

A unit's place and size are confirmed by the record that they lead to; its tags' hash, by which a
record is passed over without a look at it, by the sum of all units and keys alone. These are looked
at once, piece by piece, and each of their blocks has a sum of its own from then on, by which it is
checked whenever it comes again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from pystore.cold.blocks import BLOCK, BlockCache
from pystore.cold.failures import TierDamaged
from pystore.cold.manifest import Row, crc_of
from pystore.cold.segment import has_sums, summed_bytes, sums_of
from pystore.cold.tier import Extent, Place
from pystore.format.records import Buffer
from pystore.format.units import UNIT, units_of

__all__ = ["fetch_records", "fetch_units", "log_bytes", "prepare_sums"]

_log = logging.getLogger("pystore")
#: Bytes of units and keys that are fetched by one request when all of them are looked at.
_AT_ONCE = 8 * BLOCK
#: Seconds for which units and keys that came wrong twice are not looked at again by those who take
#: wrong units rather than none.
_WRONG_S = 60.0


def fetch_units(
    blocks: BlockCache, extent: Extent, offset: int, count: int, *, on: bool = False,
    summed: bool = True, strict: bool = False,
) -> bytes:  # fmt: skip
    """Returns so many units of an extent from a queue offset on. on: who asks reads on. summed: for
    who believes their tags. strict: for who gets none rather than wrong ones. Raises: TierDamaged,
    TierUnreachable."""
    wrong = None if strict or not summed else blocks.wrong.get(extent.key)
    if wrong is not None and time.monotonic() < wrong[0]:
        why = wrong[1]
        units, _ = _fetched(blocks, extent, offset, count, on, False)
    else:
        units, why = _fetched(blocks, extent, offset, count, on, summed)
        if why:
            blocks.forget(extent.key)
            units, why = _fetched(blocks, extent, offset, count, on, summed)
        if why and strict:
            raise TierDamaged(why, extent.key)
        if why:
            blocks.wrong.put(extent.key, (time.monotonic() + _WRONG_S, why), 1)
    if why:
        _log.warning("Filters may miss messages of the cold tier: %s: %s", extent.key, why)
    return units


def fetch_records(
    blocks: BlockCache, extent: Extent, low: int, high: int, *, on: bool = False
) -> tuple[Buffer, bool | None]:
    """Returns the bytes [low, high) of a queue's log as far as they are there, and whether they
    came as their segment has them, by its sums of records: a record's own covers its body, and the
    rest if it has one of its properties. None: there are no such sums. on: who asks reads on.
    Raises: TierDamaged, TierUnreachable."""
    row = extent.row
    if row is None or not row.has_record_sums or low < row.base:
        return log_bytes(blocks, extent.log, low, high, on=on), None
    records, sums = summed_bytes(row, low, high)
    if not records:
        return b"", True
    data = blocks.get(extent.key, records.start, records.stop, extent.whole, on=on)
    right = has_sums(data, blocks.get(extent.key, sums.start, sums.stop, extent.whole))
    begin = row.base + records.start
    return memoryview(data)[low - begin : high - begin], right


def log_bytes(
    blocks: BlockCache, log: tuple[Place, ...], low: int, high: int, *, on: bool = False
) -> bytes:
    """Returns the bytes [low, high) of a queue's log as far as they are there: units may lie. on:
    who asks reads on. Raises: TierDamaged, TierUnreachable."""
    pieces: list[bytes] = []
    at = low
    for each in log:
        end = each.base + each.size
        if end <= at or each.base > at or at >= high:
            continue
        start, to = at - each.base, min(high, end) - each.base
        pieces.append(blocks.get(each.key, start, to, each.whole, on=on))
        at = each.base + to
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def prepare_sums(blocks: BlockCache, extent: Extent) -> None:
    """Has the sums of records come while something else of the segment is fetched."""
    row = extent.row
    if row is not None and row.has_record_sums and extent.whole > BLOCK:
        blocks.prepare(extent.key, row.sums_at, row.size, extent.whole)


def _fetched(
    blocks: BlockCache, extent: Extent, offset: int, count: int, on: bool, summed: bool
) -> tuple[bytes, str]:
    """Returns the units, and what is wrong with them; nothing: nothing is known to be."""
    row, at = extent.row, extent.at + (offset - extent.first) * UNIT.size
    end = at + count * UNIT.size
    if row is None or not summed:
        units = blocks.get(extent.key, at, end, extent.whole, on=on)
    else:
        units, right = _summed(blocks, extent, row, at, end, on)
        if not right:
            return units, "units and keys have another CRC than they say"
    wrong = row is not None and not _may_be_of(units, row)
    return units, "units do not lead to the records of their segment" if wrong else ""


def _summed(
    blocks: BlockCache, extent: Extent, row: Row, at: int, end: int, on: bool
) -> tuple[bytes, bool]:
    """Returns the bytes [at, end) of what comes after the records of a segment, and whether they
    are right."""
    known = extent.key, row.crc
    sums = blocks.sums.get(known)
    if sums is None:
        sums = sums_of(_tail(blocks, extent, row), row.size - row.records)
        if sums is None:
            return blocks.get(extent.key, at, end, extent.whole, on=on), False
        blocks.sums.put(known, sums, len(sums))
    low = max(row.records, at - at % BLOCK)
    high = min(row.size, -(-end // BLOCK) * BLOCK)
    data = blocks.get(extent.key, low, high, extent.whole, on=on)
    first = low // BLOCK - row.records // BLOCK
    right = all(
        crc_of(part) == crc
        for part, crc in zip(_by_blocks(data, low), sums[first:], strict=False)
    )  # fmt: skip
    return data[at - low : end - low], right


def _tail(blocks: BlockCache, extent: Extent, row: Row) -> Iterator[memoryview]:
    """Yields what comes after the records of a segment, block by block."""
    for low in range(row.records - row.records % BLOCK, row.size, _AT_ONCE):
        start, end = max(low, row.records), min(low + _AT_ONCE, row.size)
        yield from _by_blocks(blocks.get(extent.key, start, end, extent.whole), start)


def _by_blocks(data: bytes, low: int) -> Iterator[memoryview]:
    """Yields the parts of an object's bytes, which begin at `low`, that lie in one block each."""
    view, at = memoryview(data), 0
    while at < len(view):
        end = at + BLOCK - (low + at) % BLOCK
        yield view[at:end]
        at = end


def _may_be_of(units: bytes, row: Row) -> bool:
    """Says whether units lead to records that lie one after the other in a segment."""
    at = -1
    for low, size, _ in units_of(units):
        if size <= 0 or low < row.base or at not in (-1, low):
            return False
        at = low + size
    return at <= row.base + row.records
