"""What Apache's broker keeps of a store where nobody here reads it: databases of RocksDB
(``storeType=defaultRocksDB`` and others) and the log of DLedger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pystore.errors import StrayFile
from pystore.files import os_error

__all__ = ["Elsewhere", "has_rocksdb", "kept_elsewhere", "refusal", "refuse_kept_elsewhere"]

_CLONE = (
    "copy the store with them while Apache's broker runs: `pystore clone HOST:PORT DIR`; or have it"
    " write them as JSON and move this folder away (docs/howto.md)"
)
_WAITING = (
    "have Apache's broker deliver or end what waits there, stop it, then move this folder out of"
    " the store; an index alone is made again: `pystore rebuild STORE --index`"
)
_LOG = "copy its messages by clients: Apache's broker keeps such a log in a format of its own"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One such folder, what is in it and what to do about it."""

    folder: Path
    what: str
    next_step: str


def has_rocksdb(folder: Path) -> bool:
    """Returns whether a folder holds a database of RocksDB with anything in it. One that was only
    made has a log of no bytes."""
    if not (folder / "CURRENT").is_file():
        return False
    with os.scandir(folder) as entries:
        return any(
            e.name.endswith(".sst") or (e.name.endswith(".log") and e.stat().st_size)
            for e in entries
        )


def kept_elsewhere(root: Path) -> list[Elsewhere]:
    """Returns each such folder of a store but its consume queues, which an open makes again from
    the log. Raises: Forbidden, StoreIOError."""
    try:
        return list(_look(root))
    except OSError as failed:
        raise os_error(failed, failed.filename or root, "cannot look at the store") from failed


def _look(root: Path) -> Iterator[Elsewhere]:
    for folder in sorted(p for p in (root / "config").glob("*") if p.is_dir()):
        if has_rocksdb(folder):
            yield Elsewhere(folder, "topics, groups or committed offsets in RocksDB", _CLONE)
    if has_rocksdb(root / "rocksdbstore"):
        what = "timers, half messages or the index in RocksDB"
        yield Elsewhere(root / "rocksdbstore", what, _WAITING)
    for folder in sorted(root.glob("dledger-*")):
        if any((folder / "data").glob("[0-9]*")):
            yield Elsewhere(folder, "the log of DLedger", _LOG)


def refusal(what: str, folder: str, next_step: str) -> StrayFile:
    """Returns the error of whoever would pass such a folder over."""
    error = StrayFile(f"Apache's broker keeps {what}, which is not read", folder)
    error.next_step = f"nothing was changed; {next_step}"
    return error


def refuse_kept_elsewhere(root: Path) -> None:
    """Refuses to write to a store of which something would be passed over. Raises: StrayFile,
    Forbidden, StoreIOError."""
    for found in kept_elsewhere(root):
        raise refusal(found.what, str(found.folder), found.next_step)
