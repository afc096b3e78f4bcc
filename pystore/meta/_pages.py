"""Whether LMDB survives the pages of a metadata file: looked at before LMDB maps it.

LMDB believes its pages. A page number beyond the end of the file, a node that reaches out of its
page, a tree that leads back into itself end the process that follows them, or keep it for ever. So
every page that the last commit reaches is read once, with bounded work: each page at most once.

What a value holds is not looked at: the rows are, when they are read (pystore/meta/_database.py).

Layout of LMDB 0.9 on a 64-bit little-endian machine (mdb.c: MDB_page, MDB_node, MDB_db, MDB_meta):

======== ===== =====================================================================================
at       width of a page
======== ===== =====================================================================================
0        8     its own number
10       2     flags: 1 branch, 2 leaf, 4 overflow, 8 meta
12       2, 2  end of the array of node places, begin of the nodes; of an overflow page: i32 pages
16       2*n   where each node begins
======== ===== =====================================================================================

A node: u16 low and u16 high half of the length of its data, u16 flags (1: the data is the number of
an overflow page, 2: it is a table), u16 length of the key, key, data. In a branch page the first
three are the number of the page below, and the first key counts as the smallest there is.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import pairwise

from pystore.native import ffi, lib

__all__ = ["PageError", "check_pages", "leaf_pages"]

_HEAD = 16
_PAGE = struct.Struct("<QHHHH")
#: pad, flags, depth; branch, leaf and overflow pages, entries, root
_TABLE = struct.Struct("<IHHQQQQQ")
_META = struct.Struct("<IIQQ48s48sQQ")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_BIG, _SUB = 1, 2
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_EMPTY = 0xFFFFFFFFFFFFFFFF
_KEY_MAX = 511
_DEPTH_MAX = 32
_INTEGER_KEY = 8
_HEADS = 2 * 32768  # both meta pages, whatever their size


class PageError(Exception):
    """A page is wrong; the text says which, and what is wrong with it."""


@dataclass(slots=True)
class _Table:
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


def _table(raw: bytes) -> _Table:
    _, flags, depth, *rest = _TABLE.unpack(raw)
    return _Table(flags, depth, *rest)


def _metas(fd: int) -> tuple[int, int, int, list[_Table]]:
    """Returns page size, last page, transaction and the two tables of the last commit."""
    first = os.pread(fd, _HEAD + _META.size, 0)
    if len(first) < _HEAD + _META.size:
        raise PageError("the file is too short")
    page: int = _TABLE.unpack(_META.unpack_from(first, _HEAD)[4])[0]
    if page not in (512, 1024, 2048, 4096, 8192, 16384, 32768):
        raise PageError(f"the size of a page cannot be {page} bytes")
    found = []
    for number in (0, 1):
        raw = os.pread(fd, _HEAD + _META.size, number * page)
        if len(raw) < _HEAD + _META.size:
            raise PageError("the file is too short")
        own, _, flags, *_ = _PAGE.unpack_from(raw)
        magic, version, _, mapped, free, main, last, txn = _META.unpack_from(raw, _HEAD)
        if (own, flags, magic, version) != (number, _IS_META, _MAGIC, _VERSION):
            raise PageError(f"page {number} does not describe a commit")
        if _TABLE.unpack(free)[0] != page or (txn and txn % 2 != number):
            raise PageError(f"page {number} does not describe a commit")
        found.append((txn, last, mapped, [_table(free), _table(main)]))
    txn, last, mapped, tables = max(found, key=lambda meta: meta[0])
    if abs(found[0][0] - found[1][0]) > 1:
        raise PageError("the two commits do not follow each other")
    # A sound file may end before its last pages: those that one transaction took and freed again
    # are never written. A page that is in use and not there is found by who reads it.
    if last < 1 or mapped < (last + 1) * page:
        raise PageError(f"{last + 1} pages are in use, in {mapped} bytes")
    return page, last, txn, tables


def _order(key: bytes, table: _Table) -> bytes:
    return key[::-1] if table.flags & _INTEGER_KEY else key


class _Walk:
    """Makes one pass over all pages of a commit."""

    def __init__(self, fd: int, page: int, last: int) -> None:
        self.fd, self.page, self.last = fd, page, last
        self.there = min(last + 1, os.fstat(fd).st_size // page)
        self.seen = bytearray(self.there)
        self.seen[:2] = b"\1\1"
        self.last_key = ffi.new("int32_t[2]")

    def take(self, number: int, count: int = 1) -> None:
        if number < 2 or count < 1 or number + count > self.last + 1:
            raise PageError(f"page {number} is not in the file")
        if number + count > self.there:
            raise PageError(f"the file was cut off before page {number}, which is in use")
        if any(self.seen[number : number + count]):
            raise PageError(f"page {number} is in use twice")
        self.seen[number : number + count] = b"\1" * count

    def read(self, number: int, flags: int) -> bytes:
        data = os.pread(self.fd, self.page, number * self.page)
        if len(data) < self.page:
            raise PageError(f"page {number} is not in the file")
        own, _, found, _, _ = _PAGE.unpack_from(data)
        if own != number or found != flags:
            raise PageError(f"page {number} is another page, or of another kind")
        return data

    def nodes(self, number: int, data: bytes) -> list[int]:
        """Returns where the nodes begin; none of their heads reaches out of the page."""
        _, _, _, lower, upper = _PAGE.unpack_from(data)
        if not _HEAD < lower <= upper <= self.page or lower % 2:
            raise PageError(f"page {number} has no sound bounds")
        places = list(struct.unpack_from(f"<{(lower - _HEAD) // 2}H", data, _HEAD))
        least, most = min(places), max(places)
        if least < upper or most + _NODE.size > self.page or any(p % 2 for p in places):
            raise PageError(f"a node of page {number} is not in its page")
        return places

    def tree(self, table: _Table, what: str) -> list[tuple[bytes, int, bytes]]:
        """Walks a table; returns its entries: key, flags, data (of those that main and free have).

        Raises PageError, also when there are other pages or entries than the table says.
        """
        if (table.root == _EMPTY) != (table.depth == 0) or table.depth > _DEPTH_MAX:
            raise PageError(f"the table {what} has no sound root")
        kept: list[tuple[bytes, int, bytes]] = []
        kept_too = what in ("free", "main")
        counts = [0, 0, 0, 0]  # branches, leaves, overflows, entries
        before: bytes | None = None
        level = [table.root] if table.depth else []
        for depth in range(table.depth, 0, -1):
            below: list[int] = []
            for number in level:
                self.take(number)
                data = self.read(number, _LEAF if depth == 1 else _BRANCH)
                counts[0 if depth > 1 else 1] += 1
                if depth > 1:
                    below += self.branch(number, data)
                    continue
                plain = -1 if kept_too else self.plain(data, before, table.flags)
                if plain >= 0:
                    counts[3] += plain
                    before = data[self.last_key[0] : sum(self.last_key)]
                    continue
                for key, flags, value, pages in self.leaf(number, data):
                    if before is not None and _order(key, table) <= _order(before, table):
                        raise PageError(f"the keys of page {number} are not in order")
                    before = key
                    counts[2] += pages
                    counts[3] += 1
                    if kept_too:
                        kept.append((key, flags, value))
                    elif flags & _SUB:
                        raise PageError(f"page {number} holds a table within a table")
            level = below
        if counts != [table.branches, table.leaves, table.overflows, table.entries]:
            raise PageError(f"the table {what} has other pages or entries than it says")
        return kept

    def leaves(self, table: _Table) -> list[int]:
        """Returns the leaf pages of a table, none of which it reads, in order."""
        level = [table.root] if table.depth else []
        for _ in range(table.depth - 1):
            below = [self.branch(number, self.read(number, _BRANCH)) for number in level]
            level = [number for some in below for number in some]
        for number in level:
            self.take(number)
        return level

    def plain(self, data: bytes, before: bytes | None, flags: int) -> int:
        """Returns how many entries a leaf page has that is sound at the first look; -1: look
        closer."""
        least = b"" if before is None else before
        found: int = lib.ps_audit_leaf(
            data, self.page, least, -1 if before is None else len(before), flags & _INTEGER_KEY,
            self.last_key,
        )  # fmt: skip
        return found

    def branch(self, number: int, data: bytes) -> list[int]:
        below = []
        for at in self.nodes(number, data):
            low, high, flags, key = _NODE.unpack_from(data, at)
            if key > _KEY_MAX or at + _NODE.size + key > self.page:
                raise PageError(f"a node of page {number} is not in its page")
            below.append(low | high << 16 | flags << 32)
        if len(below) < 2:
            raise PageError(f"page {number} leads to one page only")
        return below

    def leaf(self, number: int, data: bytes) -> list[tuple[bytes, int, bytes, int]]:
        found = []
        for at in self.nodes(number, data):
            low, high, flags, key_len = _NODE.unpack_from(data, at)
            size, start = low | high << 16, at + _NODE.size + key_len
            inside = 8 if flags & _BIG else size
            if flags not in (0, _BIG, _SUB) or not 0 < key_len <= _KEY_MAX:
                raise PageError(f"a node of page {number} is of no known kind")
            if start + inside > self.page or (flags & _SUB and size != _TABLE.size):
                raise PageError(f"a node of page {number} is not in its page")
            key, value, pages = data[at + _NODE.size : start], data[start : start + inside], 0
            if flags & _BIG:
                pages, value = self.overflow(int.from_bytes(value, "little"), size)
            found.append((key, flags, value, pages))
        return found

    def overflow(self, number: int, size: int) -> tuple[int, bytes]:
        """Returns how many pages a long value takes, and its first bytes, up to a page."""
        data = self.read(number, _OVERFLOW)
        # A value keeps its pages when a shorter one replaces it within the transaction.
        pages = int.from_bytes(data[12:16], "little")
        if pages < (_HEAD - 1 + size) // self.page + 1:
            raise PageError(f"page {number} has another length than its value")
        self.take(number, pages)
        return pages, os.pread(self.fd, size, number * self.page + _HEAD)

    def free(self, table: _Table, txn: int) -> None:
        """Checks the lists of pages that may be written again: in use nowhere, and each in one
        list."""
        unwritten = set[int]()
        for key, flags, value in self.tree(table, "free"):
            ids = [i for (i,) in struct.iter_unpack("<Q", value[: len(value) // 8 * 8])]
            if len(key) != 8 or int.from_bytes(key, "little") > txn or flags & _SUB or not ids:
                raise PageError("a list of free pages is not sound")
            pages = ids[1 : ids[0] + 1]
            if len(pages) != ids[0] or any(a <= b for a, b in pairwise(pages)):
                raise PageError("a list of free pages is not sound")
            for number in pages:
                if not self.there <= number <= self.last:
                    self.take(number)
                elif number in unwritten:
                    raise PageError(f"page {number} is in use twice")
                else:
                    unwritten.add(number)


def check_pages(path: str | os.PathLike[str]) -> None:
    """Reads every page that the last commit reaches. Raises: PageError, OSError.

    A file that another process commits to meanwhile is not judged: LMDB's lock is for that.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        before = os.pread(fd, _HEADS, 0)
        try:
            _check(fd)
        except PageError:
            if os.pread(fd, _HEADS, 0) == before:
                raise
    finally:
        os.close(fd)


def _check(fd: int) -> None:
    if os.fstat(fd).st_size == 0:
        return
    page, last, txn, (free, main) = _metas(fd)
    if free.flags != _INTEGER_KEY or main.flags != 0:
        raise PageError("the tables are of another kind")
    walk = _Walk(fd, page, last)
    for key, flags, value in walk.tree(main, "main"):
        if not flags & _SUB:
            raise PageError(f"{key!r} is not a table")
        table = _table(value)
        if table.flags:
            raise PageError(f"the table {key!r} is of another kind")
        walk.tree(table, repr(key))
    walk.free(free, txn)


def leaf_pages(fd: int, *names: bytes) -> tuple[int, list[list[int]]]:
    """Returns the size of a page, and for each of these tables its leaf pages in order, as the last
    commit has them; none of a table that is not there. Raises: PageError, OSError."""
    page, last, _, (_, main) = _metas(fd)
    walk = _Walk(fd, page, last)
    tables = {key: _table(value) for key, flags, value in walk.tree(main, "main") if flags & _SUB}
    return page, [walk.leaves(tables[name]) if name in tables else [] for name in names]
