"""Consumer offsets of a store that is open for writing: they stay in LMDB, of which a million light
queues take none of the memory here. A broker has those at work in the core's table; whoever else
asks, asks for one pair, or goes over all of them once."""

from __future__ import annotations

import struct
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from pystore.meta import _database

__all__ = ["StoredOffsets"]

Reading = Callable[[], AbstractContextManager[tuple[Any, Mapping[str, Any]]]]

#: Pairs that are read in one transaction: whoever writes meanwhile waits so long.
_AT_ONCE = 1 << 13
_VALUE = struct.Struct(">q")


class _Items(ItemsView[str, dict[int, int]]):
    """Goes over all pairs in their order in LMDB, some at a time; what is written between two steps
    is seen, or not."""

    _mapping: StoredOffsets

    def __iter__(self) -> Iterator[tuple[str, dict[int, int]]]:
        last = None
        while some := self._mapping._after(last):
            yield from some
            last = some[-1][0]


class StoredOffsets(Mapping[str, dict[int, int]]):
    """By ``topic@group`` the offset of each queue. reading: gives a transaction, which may change
    something if one is under way, and the tables. Changes are made in such a one. blocks: yields
    all of them as _database.offset_blocks() does, while nobody changes any."""

    __slots__ = ("_reading", "blocks")

    def __init__(self, reading: Reading, blocks: Callable[[], Iterator[bytes]]) -> None:
        self._reading = reading
        self.blocks = blocks

    def __getitem__(self, pair: str) -> dict[int, int]:
        digest = _database.pair_key(pair)
        with self._reading() as (txn, dbs):
            if txn.get(digest, db=dbs["pairs"]) is None:
                raise KeyError(pair)
            return {queue: _number(value) for queue, value in _rows_of(txn, dbs, digest)}

    def __iter__(self) -> Iterator[str]:
        return (pair for pair, _ in self.items())

    def __len__(self) -> int:
        with self._reading() as (txn, dbs):
            return int(txn.stat(dbs["pairs"])["entries"])

    def items(self) -> ItemsView[str, dict[int, int]]:
        return _Items(self)

    def _after(self, pair: str | None) -> list[tuple[str, dict[int, int]]]:
        after = b"" if pair is None else _database.pair_key(pair)
        with self._reading() as (txn, dbs):
            return list(islice(_database.read_offsets(txn, dbs, dict, after), _AT_ONCE))

    def at(self, pair: str, queue: int) -> int | None:
        """Returns one offset, None: there is none."""
        key = _database.OFFSET_KEY.pack(_database.pair_key(pair), queue)
        with self._reading() as (txn, dbs):
            value = txn.get(key, db=dbs["offsets"])
        return None if value is None else _number(value)

    # ---- changes ----

    def put(self, named: Mapping[str, Mapping[int, int]]) -> int:
        """Sets the offsets of these pairs, and returns how many of them moved."""
        digests = {pair: _database.pair_key(pair) for pair in named}
        pairs = sorted(named, key=digests.__getitem__)  # in LMDB's order: half the pages
        new = [
            (_database.OFFSET_KEY.pack(digests[pair], queue), _VALUE.pack(offset))
            for pair in pairs
            for queue, offset in sorted(named[pair].items())
        ]
        names = [(digests[pair], pair.encode("utf-8", "surrogatepass")) for pair in pairs]
        with self._reading() as (txn, dbs):
            with txn.cursor(db=dbs["offsets"]) as cursor:
                old = dict(cursor.getmulti([key for key, _ in new]))
                moved = [row for row in new if old.get(row[0]) != row[1]]
                cursor.putmulti(moved)
            with txn.cursor(db=dbs["pairs"]) as cursor:
                cursor.putmulti(names, overwrite=False)
        return len(moved)

    def replace(self, rows: Mapping[str, Mapping[int, int]]) -> None:
        """Puts these in the place of all that are there."""
        with self._reading() as (txn, dbs):
            for table in ("pairs", "offsets"):
                txn.drop(dbs[table], delete=False)
        self.put(rows)

    def remove(self, pair: str, queue: int) -> bool:
        """Removes one offset, and says whether there was one; the pair stays."""
        key = _database.OFFSET_KEY.pack(_database.pair_key(pair), queue)
        with self._reading() as (txn, dbs):
            return bool(txn.delete(key, db=dbs["offsets"]))

    def remove_pairs(self, pairs: Iterable[str]) -> int:
        """Removes pairs, and returns how many offsets they had."""
        count = 0
        with self._reading() as (txn, dbs), txn.cursor(db=dbs["offsets"]) as cursor:
            for digest in sorted(map(_database.pair_key, pairs)):  # in LMDB's order
                there = cursor.set_range(digest)
                while there and cursor.key().startswith(digest):
                    there, count = cursor.delete(), count + 1
                txn.delete(digest, db=dbs["pairs"])
        return count


def _number(value: bytes) -> int:
    (offset,) = _VALUE.unpack(value)
    return int(offset)


def _rows_of(txn: Any, dbs: Mapping[str, Any], digest: bytes) -> Iterator[tuple[int, bytes]]:
    with txn.cursor(db=dbs["offsets"]) as cursor:
        if not cursor.set_range(digest):
            return
        for key, value in cursor:
            of, queue = _database.OFFSET_KEY.unpack(key)
            if of != digest:
                return
            yield queue, value
