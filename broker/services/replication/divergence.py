"""Where two logs part (docs/replication.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pystore import Store

__all__ = ["find_common_end"]

#: Says whether the master has the same record at this place of its log. Raises: OSError,
#: TimeoutError.
HasSame = Callable[[int], Awaitable[bool]]

#: Records whose places are held at once while the fork is looked for.
_STEP = 1024


async def find_common_end(store: Store, begin: int, same: HasSame) -> int:
    """Returns the end of the last record that both logs have; -1: they have none in common.

    begin: of the master's log. Histories part once: before that place all records are equal, after
    it none. So the segment is searched by its first records, then the record in it; the master is
    asked some thirty times, however long the logs are. Raises: what `same` raises, StoreError."""
    info = store.info()
    size = info.commitlog_file_size
    bases = range(max(info.log_min, begin), info.log_max, size)
    segment = await _last(bases, same)
    if segment < 0:
        return -1
    steps = await asyncio.to_thread(_steps, store, segment, segment - segment % size + size)
    step = await _last(steps, same)
    starts = [each.physical_offset for each in store.log(step, max_messages=_STEP)]
    last = await _last(starts, same)
    return last + len(store.message(last).record)


async def _last(places: Sequence[int], same: HasSame) -> int:
    """Returns the last of these places where the logs are the same; -1: there is none."""
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        if await same(places[middle]):
            low = middle + 1
        else:
            high = middle
    return places[low - 1] if low > 0 else -1


def _steps(store: Store, at: int, end: int) -> list[int]:
    """Returns where every _STEP-th record of a segment begins. Raises: StoreError."""
    steps = []
    while at < end:
        batch = store.log(at, max_messages=_STEP)
        if len(batch) == 0:
            break
        steps.append(at)
        at = batch.next_offset
    return steps
