"""Reads a copy of a database of a store for the audit.

LMDB maps the copy, and a page that it does not survive would end the process: so every page is
checked first (pystore/meta/_pages.py), as by every open of a store.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lmdb

from pystore.errors import StoreError
from pystore.files.quiet import copy_quietly, memory_file
from pystore.meta import accessfiles
from pystore.meta._database import read_copy

__all__ = ["PackedQueues", "read_access", "read_meta"]

_ACCESS_MAX = 1 << 30  # several times what the database may grow to


class PackedQueues:
    """The offsets of a pair by queue, in 12 bytes each instead of 80: there may be a million. They
    stand in arrays of all pairs, one after the other."""

    __slots__ = ("_count", "_first", "_offsets", "_queues")

    def __init__(self, queues: array[int], offsets: array[int]) -> None:
        self._queues, self._offsets = queues, offsets
        self._first, self._count = len(queues), 0

    def __setitem__(self, queue: int, offset: int) -> None:
        self._queues.append(queue)
        self._offsets.append(offset)
        self._count += 1

    def items(self) -> Iterator[tuple[int, int]]:
        """Returns each queue with its offset, in the order in which they came."""
        part = slice(self._first, self._first + self._count)
        return zip(self._queues[part], self._offsets[part], strict=True)


def read_meta(meta: Path) -> dict[str, Any]:
    """Returns topics and offsets of the database in folder `meta`, and the files that it has read
    or written; or what is wrong with it. Raises: OSError."""
    try:
        state = read_copy(meta, partial(PackedQueues, array("i"), array("q")))
    except OSError:
        raise
    except StoreError as error:
        return {"error": error.text}
    if state is None:
        return {}
    return {
        "topics": sorted(state.parts["topics"].rows),
        "offsets": state.parts["offsets"].rows,
        "known": {file: (print_.main, print_.bak) for file, print_ in state.prints.items()},
    }


def read_access(access: Path) -> dict[str, Any]:
    """Returns users and policies of the database in folder `access`, as their copy has them
    (``copy``), or what is wrong with it. Raises: OSError."""
    try:
        with memory_file() as (copy, path):
            copy_quietly(access / "data.mdb", copy, _ACCESS_MAX)
            accessfiles.check_file(path, shown=access / "data.mdb")
            tables = accessfiles.Tables(path, readonly=True)
            try:
                return {"copy": tables.read().to_file().decode()}
            finally:
                tables.close()
    except (lmdb.Error, ValueError, RecursionError) as error:
        return {"error": error.text if isinstance(error, StoreError) else str(error)}
