"""Readers of stores, kept open per process: workers and planners live longer than one task.

A cached reader is brought up to date when a range asks for more than it has seen. One whose oldest
segment was deleted is opened again, since its mappings would keep the disk's blocks; so is one
whose store was replaced by another, as by a copy that was put back, and one that found damage,
which may be mended by now.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from spark_ext.errors import BadOption, SourceError
from spark_ext.options import StoreSettings, is_remote

if TYPE_CHECKING:
    import pystore
    from pystore.cold.reader import ColdReader

__all__ = [
    "View",
    "close_reader",
    "damaged_index",
    "known_damage",
    "let_go",
    "open_reader",
    "settle_worker",
    "view_of",
]

_KEPT = 8
#: What helps where the folder of the queues has no log.
_LOG_ELSEWHERE = (
    "if it is on another disk, set option storePathCommitLog, or option conf to the broker's"
    " broker.conf"
)
#: linux/tcp.h; Python's socket module does not have it. 8 ms is the least that a kernel of 250 Hz
#: takes.
_TCP_DELACK_MAX_US = 46
_ACK_DELAY_US = 8000


class _Anchor:
    """Holds the oldest segment open, so that no other file is taken for it; it is closed with the
    object."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            os.close(self._fd)

    def holds(self) -> bool:
        """Says whether the segment is still there."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False


class _KeptReader(NamedTuple):
    """anchor: None of a store without segments."""

    reader: pystore.Reader
    anchor: _Anchor | None

    @property
    def stale(self) -> bool:
        return self.reader.closed or (self.anchor is not None and not self.anchor.holds())


class View(NamedTuple):
    """A reader, and which of its refreshes it shows."""

    reader: pystore.Reader
    number: int


_cache: OrderedDict[tuple[str, StoreSettings], _KeptReader] = OrderedDict()
_tiers: OrderedDict[str, ColdReader] = OrderedDict()
_settled = False


def open_reader(
    path: str, settings: StoreSettings = (), *, fresh: bool = False, index: bool = False
) -> pystore.Reader:
    """Returns the reader of the store at `path`. settings: under upstream's names. fresh: as the
    store is now, for planning. index: with its index checked, as opening does. Raises: SourceError
    naming this host, where the folder is not a store or cannot be read."""
    import pystore

    held = _cache.pop((path, settings), None)
    if fresh and held is not None and (is_remote(path) or index or known_damage(held.reader)):
        held = None  # not closed: see below
    if held is not None and held.stale:
        held.reader.close()
        held = None
    try:
        if held is None:
            reader = _new_reader(path, settings)
            _check_log(reader)
            held = _KeptReader(reader, _anchor_of(reader))
        elif fresh:
            held.reader.refresh()
    except pystore.MissingSegment as e:
        raise SourceError(f"on host {socket.gethostname()}: {e}; {_LOG_ELSEWHERE}") from e
    except (pystore.StoreError, OSError) as e:
        raise SourceError(f"on host {socket.gethostname()}: {e}") from e
    _cache[path, settings] = held
    while len(_cache) > _KEPT:
        # Not closed: a task of this process may still be reading it. It goes with its last
        # reference.
        _cache.popitem(last=False)
    return held.reader


def view_of(path: str, settings: StoreSettings = ()) -> View | None:
    """Returns what the kept reader of a store shows, while a look at the store would find nothing
    else; None where it must be looked at: it may have changed, or is damaged, which may be mended
    by now, or lies on another file system, which gives no such sign."""
    held = _cache.get((path, settings))
    if held is None or is_remote(path) or held.stale or known_damage(held.reader):
        return None
    number = held.reader.view()
    return View(held.reader, number) if number else None


def _new_reader(path: str, settings: StoreSettings) -> pystore.Reader:
    import pystore

    more = dict(settings)
    tier = more.pop("tier", None)
    if tier is not None:
        return _with_tier(path, more, tier)
    if not is_remote(path):
        return pystore.Reader(path, **more)
    from spark_ext.remote import is_tier, open_remote

    return pystore.Reader(path) if is_tier(path) else open_remote(path, settings)


def _with_tier(path: str, settings: dict[str, Any], tier: str) -> pystore.Reader:
    """Opens a store and its tier as one. The tier's reader is kept by itself: the store's is opened
    again each time retention has deleted a segment. Raises: BadOption where the path is a tier."""
    import pystore
    from pystore.cold.reader import ColdReader
    from spark_ext.tiered import TieredReader

    held = _tiers.pop(tier, None)
    if held is None or held.closed:
        held = ColdReader(tier)
    else:
        held.refresh()
    _tiers[tier] = held
    if len(_tiers) > _KEPT:
        _tiers.popitem(last=False)  # not closed, either
    hot = pystore.Reader(path, **settings)
    if hot.is_cold:
        raise BadOption(f"'{path}' is a cold tier itself: option tier goes with a store's folder")
    return cast("pystore.Reader", TieredReader(hot, held))


def let_go(path: str, settings: StoreSettings = ()) -> None:
    """Closes, at the end of a task, the reader where address space is limited, or of a copy on
    another file system, which the next task must list again.

    ``spark.executor.pyspark.memory`` limits it in workers, and every segment that a reader has
    looked into stays mapped, 1 GiB each, until the reader is closed.
    """
    if is_remote(path) or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        close_reader(path, settings)


def close_reader(path: str, settings: StoreSettings = ()) -> None:
    """Closes what open_reader has kept of a store, which no task of this process may be reading."""
    held = _cache.pop((path, settings), None)
    if held is not None:
        held.reader.close()


def known_damage(reader: pystore.Reader) -> list[str]:
    """Says what a reader found damaged after the last unit of any queue when it was opened: no
    queue delivers it, and no task meets it."""
    import pystore

    return [
        f"bytes {item.start} to {item.end - 1} of the log of {reader.path}: {item.why}"
        for item in reader.report.items
        if item.action is pystore.Action.SKIPPED and item.what == "commitlog"
    ]


def damaged_index(reader: pystore.Reader) -> str:
    """Says what a reader found damaged of the index when it was opened: keys in it are not found.
    Empty: nothing."""
    import pystore

    return next(
        (
            f"the index of {reader.path} is damaged: {item.why}"
            for item in reader.report.items
            if item.action is pystore.Action.SKIPPED and item.what == "index"
        ),
        "",
    )


def _check_log(reader: pystore.Reader) -> None:
    """Refuses a store whose log is on another disk: the folder of the queues looks like a store of
    its own."""
    folders = reader.settings.commitlog_dirs(reader.path)
    if not reader.is_cold and not any(folder.is_dir() for folder in folders):
        reader.close()
        raise SourceError(
            f"on host {socket.gethostname()}: {reader.path} does not have its log in"
            f" {' or '.join(map(str, folders))}: {_LOG_ELSEWHERE}"
        )


def _anchor_of(reader: pystore.Reader) -> _Anchor | None:
    files: list[Path] = []
    if reader.is_cold:
        return None
    for folder in reader.settings.commitlog_dirs(reader.path):
        with contextlib.suppress(OSError):
            files += folder.iterdir()
    for file in sorted(files, key=lambda file: file.name):
        with contextlib.suppress(FileNotFoundError):  # retention has taken it just now
            return _Anchor(file)
    return None


def settle_worker() -> None:
    """Does, once per worker, what would otherwise cost every task.

    - What is loaded by now is not looked at again by ``gc.collect()``, which Spark calls after
      every task and which takes 7 ms with pyarrow loaded.
    - Spark sends a task in small pieces, each of which waits for the acknowledgement of the one
      before (Nagle's algorithm), and the kernel holds that back for 40 ms: here for 8 ms.
    - A segment that is cut off under a scan is an error, not the worker's end.
    """
    global _settled
    if not _settled:
        import pystore

        _acknowledge_soon()
        pystore.survive_truncation()
        gc.freeze()
        _settled = True


def _acknowledge_soon() -> None:
    """Sets the delay of acknowledgements of this process's connections: a worker has one, to Spark.

    Linux knows the option since 6.15; elsewhere nothing changes.
    """
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if entry.is_socket():
                with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, _TCP_DELACK_MAX_US, _ACK_DELAY_US)
