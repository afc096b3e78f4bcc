"""What Apache's broker keeps of a store where nobody here reads it: databases of RocksDB
(``storeType=defaultRocksDB`` and others), the log of DLedger, compacted topics, and queues of
batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pystore.errors import StrayFile
from pystore.files import os_error

__all__ = ["Elsewhere", "kept_elsewhere", "refusal", "refuse_kept_elsewhere"]

_CLONE = (
    "copy the store with them while Apache's broker runs: `pystore clone HOST:PORT DIR`; or have it"
    " write them as JSON and move this folder away (docs/howto.md)"
)
_WAITING = (
    "have Apache's broker deliver or end what waits there, stop it, then move this folder out of"
    " the store; an index alone is made again: `pystore rebuild STORE --index`"
)
_POPPED = (
    "have Apache's broker write that to the log (start it on this store and send it POP_ROLLBACK,"
    " 200056), or move the folder away, and these messages are lost for their groups"
)
_LOG = "copy its messages by clients: Apache's broker keeps such a log in a format of its own"
_TOPICS = (
    "have clients copy the messages of these topics while Apache's broker runs, then move this"
    " folder out of the store"
)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One such folder, what is in it and what to do about it."""

    folder: Path
    what: str
    next_step: str


def _has_rocksdb(folder: Path) -> bool:
    """Returns whether a folder holds a database of RocksDB with anything in it. One that was only
    made has a log of no bytes."""
    if not (folder / "CURRENT").is_file():
        return False
    with os.scandir(folder) as entries:
        return any(
            e.name.endswith(".sst") or (e.name.endswith(".log") and e.stat().st_size)
            for e in entries
        )


def _have_content(files: Iterable[Path]) -> bool:
    """Returns whether one of them begins with something: such files are made ahead, of zeros."""
    for path in files:
        if path.is_file():
            with path.open("rb") as file:
                if any(file.read(8)):
                    return True
    return False


def kept_elsewhere(root: Path) -> list[Elsewhere]:
    """Returns each such folder of a store but its consume queues, which an open makes again from
    the log. Raises: Forbidden, StoreIOError."""
    try:
        return list(_look(root))
    except OSError as failed:
        raise os_error(failed, failed.filename or root, "cannot look at the store") from failed


def _look(root: Path) -> Iterator[Elsewhere]:
    for folder in sorted(p for p in (root / "config").glob("*") if p.is_dir()):
        if _has_rocksdb(folder):
            yield Elsewhere(folder, "topics, groups or committed offsets in RocksDB", _CLONE)
    if _has_rocksdb(root / "rocksdbstore"):
        what = "timers, half messages or the index in RocksDB"
        yield Elsewhere(root / "rocksdbstore", what, _WAITING)
    if _has_rocksdb(root / "kvStore"):
        yield Elsewhere(root / "kvStore", "what was popped in RocksDB", _POPPED)
    compacted, batches = root / "compaction", root / "batchconsumequeue"
    if _have_content(compacted.glob("compactionLog/*/*/**/*")):
        yield Elsewhere(compacted, "messages of compacted topics in a log of their own", _TOPICS)
    if _have_content(batches.glob("*/*/*")):
        yield Elsewhere(batches, "several messages in a record (queue.type=BatchCQ)", _TOPICS)
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
