"""Units of a segment as far as they can be believed: what came wrong is asked for once more.

A unit's place and size are confirmed by the record that they lead to; its tags' hash, by which a
record is passed over without a look at it, by the sum of all units and keys alone.
"""

from __future__ import annotations

import logging

from pystore.cold.blocks import BlockCache
from pystore.cold.failures import TierDamaged
from pystore.cold.manifest import Row
from pystore.cold.segment import is_summed
from pystore.cold.tier import Extent
from pystore.format.units import UNIT, units_of

__all__ = ["fetch_units"]

_log = logging.getLogger("pystore")
#: Units and keys of a segment that are looked at whole: ours are smaller, unless their messages
#: have very many keys.
_SUMMED_MAX = 4 << 20


def fetch_units(
    blocks: BlockCache, extent: Extent, offset: int, count: int, *, on: bool = False,
    summed: bool = True, strict: bool = False,
) -> bytes:  # fmt: skip
    """Returns so many units of an extent from a queue offset on. on: who asks reads on. summed: for
    who believes their tags. strict: for who gets none rather than wrong ones. Raises: TierDamaged,
    TierUnreachable."""
    units, why = _fetched(blocks, extent, offset, count, on, summed)
    if why:
        blocks.forget(extent.key)
        units, why = _fetched(blocks, extent, offset, count, on, summed)
    if why and strict:
        raise TierDamaged(why, extent.key)
    if why:
        _log.warning("Filters may miss messages of the cold tier: %s: %s", extent.key, why)
    return units


def _fetched(
    blocks: BlockCache, extent: Extent, offset: int, count: int, on: bool, summed: bool
) -> tuple[bytes, str]:
    """Returns the units, and what is wrong with them; nothing: nothing is known to be."""
    row, at = extent.row, extent.at + (offset - extent.first) * UNIT.size
    end = at + count * UNIT.size
    if row is None or not summed or row.size - row.records > _SUMMED_MAX:
        units = blocks.get(extent.key, at, end, extent.whole, on=on)
    else:
        tail = blocks.get(extent.key, row.records, row.size, extent.whole, on=on)
        units = tail[at - row.records : end - row.records]
        if not is_summed(tail):
            return units, "units and keys have another CRC than they say"
    wrong = row is not None and not _may_be_of(units, row)
    return units, "units do not lead to the records of their segment" if wrong else ""


def _may_be_of(units: bytes, row: Row) -> bool:
    """Says whether units lead to records that lie one after the other in a segment."""
    at = -1
    for low, size, _ in units_of(units):
        if size <= 0 or low < row.base or at not in (-1, low):
            return False
        at = low + size
    return at <= row.base + row.records
