"""Blocks of objects in memory, and on disk below it: one request for neighbours, one fetch of a
block for all who wait.

Ours never change, so a block is right for as long as it is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from pystore.cold.disk import DiskBlocks
from pystore.cold.objects import ObjectStore
from pystore.cold.tier import Recent

__all__ = ["BLOCK", "RUN_BYTES", "BlockCache"]

BLOCK = 1 << 20
#: Blocks that are fetched by one request ahead of who reads on.
_RUN = 4
RUN_BYTES = _RUN * BLOCK
#: Sums of blocks that are kept, those of 64 GiB in 4 MB of memory; objects that came wrong.
_SUMS, _WRONG = 1 << 16, 1024


class BlockCache:
    """Blocks of an object store's objects. room: bytes that it keeps in memory, at most. disk: for
    more of them, which is the caller's to close. ahead: requests that are on their way for who
    reads on."""

    def __init__(
        self, objects: ObjectStore, room: int = 32 << 20, disk: DiskBlocks | None = None,
        ahead: int = 1,
    ) -> None:  # fmt: skip
        self._objects = objects
        self._disk = disk
        self._room = room
        self._ahead = ahead
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._later: set[tuple[str, range]] = set()  # what the pool will fetch
        self._forgets = 0
        #: By key and CRC of an object whose units and keys have had their sum, that of each of
        #: their blocks; by key of one where they had not, twice, until when, on the monotonic
        #: clock, they are not looked at again, and why.
        self.sums: Recent[tuple[str, int], tuple[int, ...]] = Recent(_SUMS)
        self.wrong: Recent[str, tuple[float, str]] = Recent(_WRONG)
        #: Requests for blocks; blocks that were found here, those that had to be fetched, and bytes
        #: of these; blocks that gave way to others.
        self.requests = self.hits = self.misses = self.fetched = self.evictions = 0

    def get(self, key: str, start: int, end: int, size: int, *, on: bool = False) -> bytes:
        """Returns bytes [start, end) of an object of `size` bytes. on: who asks reads on, so that
        the next blocks are fetched meanwhile. Raises: TierDamaged, TierUnreachable."""
        if end <= start:
            return b""
        first, last = start // BLOCK, (end - 1) // BLOCK
        blocks = self._blocks_of(key, range(first, last + 1), size)
        if on:
            self._fetch_ahead(key, last, size)
        low, high = start - first * BLOCK, end - last * BLOCK
        if first == last:
            return blocks[0].result()[low:high]
        data = [memoryview(each.result()) for each in blocks]
        return b"".join((data[0][low:], *data[1:-1], data[-1][:high]))

    def prepare(self, key: str, start: int, end: int, size: int) -> None:
        """Fetches bytes [start, end) meanwhile: who reads on comes there soon."""
        self._fetch_later(key, range(start // BLOCK, (end - 1) // BLOCK + 1), size)

    def _blocks_of(self, key: str, numbers: range, size: int) -> list[Future[bytes]]:
        """Returns the blocks; those that nobody has asked for yet are fetched by one request for
        each run of neighbours."""
        found, mine = [], []
        with self._lock:
            for number in numbers:
                block = self._blocks.get((key, number))
                if block is None:
                    block = self._blocks[key, number] = Future()
                    mine.append((number, block))
                else:
                    self._blocks.move_to_end((key, number))
                    self.hits += 1
                found.append(block)
            self._let_go(len(numbers))
        if self._disk is not None:
            mine = [each for each in mine if not self._from_disk(self._disk, key, *each)]
        with self._lock:
            self.misses += len(mine)
        while mine:
            apart = (i for i in range(1, len(mine)) if mine[i][0] != mine[0][0] + i)
            count = next(apart, len(mine))
            self._fetch(key, mine[:count], size)
            mine = mine[count:]
        return found

    @staticmethod
    def _from_disk(disk: DiskBlocks, key: str, number: int, block: Future[bytes]) -> bool:
        data = disk.get((key, number))
        if data is not None:
            block.set_result(data)
        return data is not None

    def _let_go(self, needed: int) -> None:
        while len(self._blocks) > max(needed, self._room // BLOCK):
            self._blocks.popitem(last=False)
            self.evictions += 1

    def _fetch(self, key: str, run: list[tuple[int, Future[bytes]]], size: int) -> None:
        start, end = run[0][0] * BLOCK, min(size, (run[-1][0] + 1) * BLOCK)
        with self._lock:
            self.requests += 1
            forgets = self._forgets
        try:
            data = self._objects.get(key, start, end)
        except BaseException as failed:
            with self._lock:
                for number, block in run:
                    if self._blocks.get((key, number)) is block:
                        del self._blocks[key, number]
            for _, block in run:
                block.set_exception(failed)
            if not isinstance(failed, Exception):
                raise
            return
        with self._lock:
            self.fetched += len(data)
        for i, (number, block) in enumerate(run):
            part = bytes(data[i * BLOCK : (i + 1) * BLOCK])
            if self._disk is not None:  # before anybody sees it, and may want it forgotten
                self._disk.put((key, number), part)
            block.set_result(part)
        if self._disk is not None and forgets != self._forgets:
            self._disk.forget(key)  # it was on its way when others of it were found to be wrong

    def _fetch_ahead(self, key: str, last: int, size: int) -> None:
        """Fetches the rest of the run with a block, and the runs after it."""
        end, run = -(-size // BLOCK), last // _RUN
        for start in (last + 1, *range((run + 1) * _RUN, (run + 1 + self._ahead) * _RUN, _RUN)):
            if start < end and (key, start) not in self._blocks:
                self._fetch_later(key, range(start, min((start // _RUN + 1) * _RUN, end)), size)

    def _fetch_later(self, key: str, numbers: range, size: int) -> None:
        run = key, numbers
        if run in self._later or all((key, number) in self._blocks for number in numbers):
            return
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._ahead + 1, "pystore-ahead")
        self._later.add(run)
        done = self._pool.submit(self._blocks_of, key, numbers, size)
        done.add_done_callback(lambda _: self._later.discard(run))

    @property
    def size(self) -> int:
        """Bytes that are kept in memory."""
        with self._lock:
            done = [each for each in self._blocks.values() if each.done()]
        return sum(len(each.result()) for each in done if each.exception() is None)

    def forget(self, key: str) -> None:
        """Drops what is kept of an object: it looked damaged, and another answer may be right."""
        with self._lock:
            self._forgets += 1
            for place in [place for place in self._blocks if place[0] == key]:
                del self._blocks[place]
        if self._disk is not None:
            self._disk.forget(key)

    def forget_all(self) -> None:
        """Drops what is kept in memory: objects of upstream's tier grow."""
        with self._lock:
            self._blocks.clear()

    def close(self, *, wait: bool = False) -> None:
        """Ends it. wait: until what is on its way has come."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=not wait)
        with self._lock:
            self._blocks.clear()
