"""Ends the log of a closed store at a place that its owner names: what a slave has and its master
does not is cut off (docs/replication.md). Or empties it, where it ends before its master's
begins."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pystore.audit.layout import File, look_at_log
from pystore.files import named_errors, new_file, sync_folder
from pystore.files.aside import Piece, copy_aside, free_folder
from pystore.files.sparse import data_ranges
from pystore.repair.journal import hold_lock
from pystore.settings import Settings

__all__ = ["cut_back", "empty"]

#: What is made of a log, and says something of one that is gone.
_DERIVED = ("consumequeue", "consumequeue_ext", "index", "lightqueue", "timers", "checkpoint",
            "queueEnds")  # fmt: skip

#: Bytes that are copied or zeroed at once.
_PIECE = 64 << 20
#: Bytes that are looked at at once.
_LOOK = 1 << 20
#: Of a record: its size and magic.
_HEAD = 8


def cut_back(root: Path, settings: Settings, at: int) -> Path | None:
    """Ends the log of a closed store at byte `at`. What followed is copied into ``aside/TIME/``
    first, and that folder returned; None: nothing followed. The next opening recovers the store:
    queues and index end with the log.

    Nothing is taken away that was not copied, on a full disk neither; when it is interrupted, the
    next call copies and cuts what is left. Raises: StoreError."""
    mode = settings.file_mode
    with hold_lock(root, mode):
        layout = look_at_log(root, settings)
        after = [file for file in layout.segments if file.number + file.size > at]
        pieces = [piece for file in after for piece in _pieces(layout.name(file.path), file, at)]
        if not pieces:
            return None
        with named_errors(root, "cannot cut the log back"):
            folder = free_folder(root)
            copy_aside(root, pieces, "the master's log does not have it", mode,
                       root / "aside.part", folder)  # fmt: skip
            with new_file(root / "abort", mode) as abort:
                abort.write(str(os.getpid()).encode())
                abort.flush()
                os.fsync(abort.fileno())
            sync_folder(root)
            beyond = [file for file in after if file.number >= at]
            stays, goes = beyond[:1], beyond[1:]
            for file in reversed(beyond):
                _behead(file)
            for file in reversed(goes):
                _delete(file)
            for file in [*stays, *(file for file in after if file.number < at)]:
                _end_file(file, max(0, at - file.number))
        return folder


def empty(root: Path, settings: Settings) -> None:
    """Deletes the log of a closed store, and what was made of it; topics, groups and offsets stay.
    When it is interrupted, what is left is a store whose log begins later. Raises: StoreError."""
    mode = settings.file_mode
    with hold_lock(root, mode), named_errors(root, "cannot empty the store"):
        with (root / "abort").open("wb") as abort:  # so that recovery makes what is missing
            os.fsync(abort.fileno())
        sync_folder(root)
        for name in _DERIVED:
            found = root / name
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink(missing_ok=True)
        sync_folder(root)
        for file in look_at_log(root, settings).segments:  # the oldest first, as retention does
            _delete(file)


def _pieces(name: str, file: File, at: int) -> list[Piece]:
    """Returns the parts of a segment that follow `at`, without the holes after its last byte."""
    begin = max(0, at - file.number)
    with file.path.open("rb") as opened:
        end = _last_data(opened.fileno(), begin, file.size)
    return [(name, start, min(_PIECE, end - start)) for start in range(begin, end, _PIECE)]


def _last_data(fd: int, begin: int, size: int) -> int:
    """Returns the end of the last piece from `begin` on that is not zero all over, or `begin`."""
    last = begin
    for start, length in data_ranges(fd, begin, size):
        for at in range(start, start + length, _LOOK):
            count = min(_LOOK, start + length - at)
            if os.pread(fd, count, at).strip(b"\0"):
                last = at + count
    return last


def _behead(file: File) -> None:
    """Ends the log before a segment, which stays: where the last one is full and queues go on, an
    open takes segments to be missing. Raises: OSError."""
    with file.path.open("r+b") as opened:
        os.pwrite(opened.fileno(), bytes(_HEAD), 0)
        os.fsync(opened.fileno())


def _delete(file: File) -> None:
    """Deletes a file. Raises: OSError."""
    file.path.unlink()
    sync_folder(file.path.parent)


def _end_file(file: File, begin: int) -> None:
    """Zeroes what follows byte `begin` of a segment. Raises: OSError."""
    with file.path.open("r+b") as opened:
        end = _last_data(opened.fileno(), begin, file.size)
        while end > begin:  # from the end on, so that what is left is a log at any time
            count = min(_PIECE, end - begin)
            end -= count
            os.pwrite(opened.fileno(), bytes(count), end)
            os.fsync(opened.fileno())
