"""Readers of stores, kept open per process: workers and planners live longer than one task.

A cached reader is brought up to date when a range asks for more than it has seen. One whose oldest
segment was deleted is opened anew, since its mappings would keep the disk's blocks.
"""

from __future__ import annotations

import gc
import resource
import socket
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_ext.errors import SourceError

if TYPE_CHECKING:
    import pystore

__all__ = ["let_go", "open_reader", "quiet_collector"]

_KEPT = 8


class _Held(NamedTuple):
    reader: pystore.Reader
    oldest: Path | None


_cache: OrderedDict[str, _Held] = OrderedDict()
_frozen = False


def open_reader(path: str, *, fresh: bool = False) -> pystore.Reader:
    """The reader of the store at `path`. fresh: as the store is now, for planning.

    Raises: SourceError naming this host, where the folder is no store or cannot be read.
    """
    import pystore

    held = _cache.pop(path, None)
    if held is not None and (held.reader.closed or _gone(held.oldest)):
        held.reader.close()
        held = None
    try:
        if held is None:
            reader = pystore.Reader(path)
            held = _Held(reader, _oldest(Path(path)))
        elif fresh:
            held.reader.refresh()
    except (pystore.StoreError, OSError) as e:
        raise SourceError(f"on host {socket.gethostname()}: {e}") from e
    _cache[path] = held
    while len(_cache) > _KEPT:
        # Not closed: a task of this process may still be reading it. It goes with its last
        # reference.
        _cache.popitem(last=False)
    return held.reader


def let_go(path: str) -> None:
    """At the end of a task: closes the reader where address space is limited.

    ``spark.executor.pyspark.memory`` limits it in workers, and every segment that a reader has
    looked into stays mapped, 1 GiB each, until the reader is closed.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        held = _cache.pop(path, None)
        if held is not None:
            held.reader.close()


def _oldest(root: Path) -> Path | None:
    try:
        return min((root / "commitlog").iterdir(), default=None)
    except OSError:
        return None


def _gone(path: Path | None) -> bool:
    return path is not None and not path.exists()


def quiet_collector() -> None:
    """Once per worker: what is loaded by now is not looked at again by ``gc.collect()``, which
    Spark calls after every task and which costs 7 ms with pyarrow loaded."""
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
