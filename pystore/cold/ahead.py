"""Work that goes on side by side and comes in its order: as much of it as threads and memory have
room for, however much there is to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ROOM", "in_order"]

_T = TypeVar("_T")
_R = TypeVar("_R")
#: Bytes of objects in memory at once, or a single larger one.
ROOM = 64 << 20
#: So many items a thread are under way or wait to be yielded: one that takes long, such as a
#: request that is sent again, holds up none of its neighbours.
_ITEMS_A_THREAD = 4


def in_order(
    work: Callable[[_T], _R], items: Iterable[_T], threads: int, *,
    size: Callable[[_T], int] = lambda _: 0, room: int = ROOM,
    at_hand: Callable[[_T], _R | None] = lambda _: None,
) -> Iterator[tuple[_T, _R]]:  # fmt: skip
    """Yields each item with what `work` returned for it. size: bytes that it takes until it is
    yielded; what does not fit into `room` waits. at_hand: what is asked for an item first, and
    returns what it finds without waiting: then no thread is woken for it. Raises: what `work` and
    `at_hand` raise."""
    waiting: deque[tuple[_T, int, Future[_R] | _R]] = deque()
    held, most = 0, threads * _ITEMS_A_THREAD
    pool = ThreadPoolExecutor(threads, "pystore-ahead")
    try:
        for item in items:
            takes = size(item)
            while waiting and (len(waiting) > most or held + takes > room):
                held -= waiting[0][1]
                yield _first(waiting)
            found = at_hand(item)
            waiting.append((item, takes, pool.submit(work, item) if found is None else found))
            held += takes
        while waiting:
            yield _first(waiting)
    finally:  # who ends it early does not wait for what is on its way
        pool.shutdown(wait=False, cancel_futures=True)


def _first(waiting: deque[tuple[_T, int, Future[_R] | _R]]) -> tuple[_T, _R]:
    """Takes the first item out. What it was made into is referenced by the caller alone."""
    item, _, done = waiting.popleft()
    return item, done.result() if isinstance(done, Future) else done
