"""Units of a queue and entries of the index as numpy arrays, for audits of one's own.

The arrays lie on read-only mappings of the files: nothing is read before it is looked at, nothing
can be changed. They show the files as they are, damage included, and are meant for a store that is
closed, or for a copy: what another process cuts off while it is mapped is zeros from then on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from pystore.audit.layout import Layout, look
from pystore.errors import NotFound
from pystore.files.mapped import MappedFile
from pystore.files.quiet import open_quietly
from pystore.settings import load

__all__ = ["ENTRY", "UNIT", "entries", "units"]

#: A unit of a consume queue (docs/internals/format.md#consume-queue): byte of the record in the
#: log, size of the record in bytes, tags code.
UNIT = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
#: An entry of an index file (docs/internals/format.md#index): hash of ``topic#key``, byte of the
#: record in the log, seconds since the file's first record, number of the entry before it in the
#: chain of its slot, 0 when there is none.
ENTRY = np.dtype(
    [("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)  # fmt: skip

_HEADER, _SLOT = 40, 4

Array = np.ndarray[Any, np.dtype[Any]]


def _map(path: Path, dtype: np.dtype[Any], start: int = 0) -> Array:
    """Maps the file from byte `start`, as far as whole items go. Raises: OSError, StoreIOError."""
    with open_quietly(path) as file:
        size = os.fstat(file.fileno()).st_size
        count = max(0, size - start) // dtype.itemsize
        if not count:
            return np.frombuffer(b"", dtype)
        mapped = MappedFile(file.fileno(), path, size)
    return np.frombuffer(mapped.view, dtype, count, start)


def _look(path: str | os.PathLike[str], conf: Any, settings: dict[str, Any]) -> Layout:
    return look(Path(path), load(conf, settings))


def units(
    path: str | os.PathLike[str], topic: str, queue: int,
    conf: str | os.PathLike[str] | None = None, **settings: Any,
) -> list[tuple[int, Array]]:  # fmt: skip
    """Returns the files of a queue: the queue offset of the first unit of each, and its units
    (:data:`UNIT`).

    The units after the last written one are zero. Raises: NotAStore, NotFound, OSError."""
    files = _look(path, conf, settings).queues.get((topic, queue))
    if files is None:
        raise NotFound(f"no queue {queue} of topic '{topic}'", str(path))
    return [(file.number // UNIT.itemsize, _map(file.path, UNIT)) for file in files]


def entries(
    path: str | os.PathLike[str], conf: str | os.PathLike[str] | None = None, **settings: Any
) -> list[tuple[Path, Array]]:
    """Returns the index files, oldest first: path and entries (:data:`ENTRY`).

    An entry's number is its place here. Number 0 is never used, and those from the header's
    ``indexCount`` on are not written yet. Raises: NotAStore, OSError."""
    return [
        (file, _map(file, ENTRY, _HEADER + slots * _SLOT)[:limit])
        for file, slots, limit in _look(path, conf, settings).index
    ]
