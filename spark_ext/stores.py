"""Readers of stores, kept open per process: workers and planners live longer than one task.

A cached reader is brought up to date when a range asks for more than it has seen. One whose oldest
segment was deleted is opened anew, since its mappings would keep the disk's blocks.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_ext.errors import SourceError
from spark_ext.options import StoreSettings

if TYPE_CHECKING:
    import pystore

__all__ = ["let_go", "open_reader", "settle_worker"]

_KEPT = 8


class _Held(NamedTuple):
    reader: pystore.Reader
    oldest: Path | None


_cache: OrderedDict[tuple[str, StoreSettings], _Held] = OrderedDict()
_settled = False


def open_reader(path: str, settings: StoreSettings = (), *, fresh: bool = False) -> pystore.Reader:
    """The reader of the store at `path`. settings: under upstream's names. fresh: as the store is
    now, for planning.

    Raises: SourceError naming this host, where the folder is no store or cannot be read.
    """
    import pystore

    held = _cache.pop((path, settings), None)
    if held is not None and (held.reader.closed or _gone(held.oldest)):
        held.reader.close()
        held = None
    try:
        if held is None:
            reader = pystore.Reader(path, **dict(settings))
            _check_log(reader)
            held = _Held(reader, _oldest(reader))
        elif fresh:
            held.reader.refresh()
    except (pystore.StoreError, OSError) as e:
        raise SourceError(f"on host {socket.gethostname()}: {e}") from e
    _cache[path, settings] = held
    while len(_cache) > _KEPT:
        # Not closed: a task of this process may still be reading it. It goes with its last
        # reference.
        _cache.popitem(last=False)
    return held.reader


def let_go(path: str, settings: StoreSettings = ()) -> None:
    """At the end of a task: closes the reader where address space is limited.

    ``spark.executor.pyspark.memory`` limits it in workers, and every segment that a reader has
    looked into stays mapped, 1 GiB each, until the reader is closed.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        held = _cache.pop((path, settings), None)
        if held is not None:
            held.reader.close()


def _check_log(reader: pystore.Reader) -> None:
    """A log on another disk leaves the folder of the queues looking like a store of its own."""
    folders = reader.settings.commitlog_dirs(reader.path)
    if not any(folder.is_dir() for folder in folders):
        reader.close()
        raise SourceError(
            f"on host {socket.gethostname()}: {reader.path} has its log not in"
            f" {' nor in '.join(map(str, folders))}: say where storePathCommitLog is, in an option"
            " of that name or with option conf and the broker's broker.conf"
        )


def _oldest(reader: pystore.Reader) -> Path | None:
    files: list[Path] = []
    for folder in reader.settings.commitlog_dirs(reader.path):
        with contextlib.suppress(OSError):
            files += folder.iterdir()
    return min(files, key=lambda file: file.name, default=None)


def _gone(path: Path | None) -> bool:
    return path is not None and not path.exists()


def settle_worker() -> None:
    """Once per worker. What is loaded by now is not looked at again by ``gc.collect()``, which
    Spark calls after every task and which costs 7 ms with pyarrow loaded; and a segment that is cut
    off under a scan is an error, not the worker's end."""
    global _settled
    if not _settled:
        import pystore

        pystore.survive_truncation()
        gc.freeze()
        _settled = True
