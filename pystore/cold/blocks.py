"""Blocks of objects in memory, and on disk below it: one request for neighbours, one fetch of a
block for all who wait.

Objects never change, so a block is right for as long as it is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from pystore.cold.disk import DiskBlocks
from pystore.cold.objects import ObjectStore

__all__ = ["BlockCache"]

BLOCK = 1 << 20
#: Blocks ahead of who reads on.
_AHEAD = 4


class BlockCache:
    """Blocks of an object store's objects. room: bytes that it keeps in memory, at most. disk: for
    more of them, which is the caller's to close."""

    def __init__(
        self, objects: ObjectStore, room: int = 32 << 20, disk: DiskBlocks | None = None
    ) -> None:
        self._objects = objects
        self._disk = disk
        self._room = room
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self.requests = 0

    def get(self, key: str, start: int, end: int, size: int, *, on: bool = False) -> bytes:
        """Returns bytes [start, end) of an object of `size` bytes. on: who asks reads on, so that
        the next blocks are fetched meanwhile. Raises: TierDamaged, TierUnreachable."""
        if end <= start:
            return b""
        first, last = start // BLOCK, (end - 1) // BLOCK
        blocks = self._blocks_of(key, range(first, last + 1), size)
        if on:
            self._fetch_ahead(key, range(last + 1, min(last + 1 + _AHEAD, -(-size // BLOCK))), size)
        data = [each.result() for each in blocks]
        if len(data) == 1:
            return data[0][start - first * BLOCK : end - first * BLOCK]
        return b"".join(data)[start - first * BLOCK : end - first * BLOCK]

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
                found.append(block)
            self._let_go(len(numbers))
        if self._disk is not None:
            mine = [each for each in mine if not self._from_disk(self._disk, key, *each)]
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

    def _fetch(self, key: str, run: list[tuple[int, Future[bytes]]], size: int) -> None:
        start, end = run[0][0] * BLOCK, min(size, (run[-1][0] + 1) * BLOCK)
        self.requests += 1
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
        for i, (number, block) in enumerate(run):
            part = data[i * BLOCK : (i + 1) * BLOCK]
            block.set_result(part)
            if self._disk is not None:
                self._disk.put((key, number), part)

    def _fetch_ahead(self, key: str, numbers: range, size: int) -> None:
        with self._lock:
            missing = [number for number in numbers if (key, number) not in self._blocks]
            if missing and self._pool is None:
                self._pool = ThreadPoolExecutor(2, "pystore-ahead")
        if missing and self._pool is not None:
            self._pool.submit(self._blocks_of, key, range(missing[0], missing[-1] + 1), size)

    def forget(self, key: str) -> None:
        """Drops what is kept of an object: it looked damaged, and another answer may be right."""
        with self._lock:
            for place in [place for place in self._blocks if place[0] == key]:
                del self._blocks[place]
        if self._disk is not None:
            self._disk.forget(key)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._blocks.clear()
