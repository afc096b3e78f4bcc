"""What makes a commit happen once: a file a job in ``spark/ledger/`` of the store.

A commit writes down what it is about to put, puts it, brings the log to the disk, and writes down
that it is done. One that died in between is finished from its spool files: every message carries
the job, batch, partition and row that it came from, and the log from where the commit began tells
which of them are in the store already. Store, ledger and spools are all that is needed; nothing is
remembered in a process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pystore.errors import StoreError
from pystore.files import FILE_MODE, make_folders, read_file, sync_folder, write_whole
from spark_ext.errors import SinkError

if TYPE_CHECKING:
    import pystore

__all__ = ["CommitEntry", "Ledger", "Stamp", "stamps_since"]

Stamp = tuple[int, int]  # partition, row
_SPOOL = re.compile(r"[0-9]{1,9}-[0-9a-z-]+\.arrow")  # as spark_ext/sink.py names them


class CommitEntry(NamedTuple):
    """The last commit of a job. log_from: the end of the log before it; spools: its files, in
    order."""

    job: str
    batch: int
    done: bool
    log_from: int
    rows: int
    spools: tuple[str, ...]


def _entry(job: str, data: bytes) -> CommitEntry:
    """Reads an entry. What it names is read, put and deleted. Raises: ValueError that says what is
    wrong."""
    kept = json.loads(data)
    if not isinstance(kept, dict) or set(kept) != set(CommitEntry._fields):
        raise ValueError("its fields are not those of an entry")
    numbers = [kept[name] for name in ("batch", "log_from", "rows")]
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("a number is missing or out of range")
    if kept["job"] != job or type(kept["done"]) is not bool:
        raise ValueError("it is the entry of another job, or of none")
    spools = kept["spools"]
    if not isinstance(spools, list) or not all(
        isinstance(path, str) and _SPOOL.fullmatch(Path(path).name) and job in Path(path).parts
        for path in spools
    ):
        raise ValueError("a spool is not a file of this job")
    return CommitEntry(**{**kept, "spools": tuple(spools)})


class Ledger:
    """The entries of a store, which are written only while the store's lock is held."""

    def __init__(self, store: Path) -> None:
        self.folder = store / "spark" / "ledger"

    def _path(self, job: str) -> Path:
        return self.folder / f"{job}.json"

    def get(self, job: str) -> CommitEntry | None:
        """Returns the entry of a batch, or None. Raises: SinkError for an entry that is damaged:
        what it says is not guessed."""
        path = self._path(job)
        try:
            data = read_file(path)
            return None if data is None else _entry(job, data)
        except (StoreError, ValueError, RecursionError) as bad:
            raise SinkError(
                f"the entry of job {job} cannot be read ({bad}): {path}; restore it from a backup,"
                " or delete it to forget which batch was last: that one may then be put twice"
            ) from None

    def all(self) -> Iterator[CommitEntry]:
        for path in sorted(self.folder.glob("*.json")):
            entry = self.get(path.stem)
            if entry is not None:
                yield entry

    def put(self, entry: CommitEntry) -> None:
        """Writes the entry: it is on the disk when this returns, whole or not at all."""
        make_folders(self.folder, FILE_MODE)
        path = self._path(entry.job)
        write_whole(path, json.dumps(entry._asdict()).encode())
        self._sync()

    def forget(self, job: str) -> None:
        self._path(job).unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
            sync_folder(folder)


def stamps_since(store: pystore.Store, entry: CommitEntry) -> set[Stamp]:
    """Returns which rows of a commit the log holds, from the place on where the commit began."""
    found: set[Stamp] = set()
    at = max(entry.log_from, store.info().log_min)
    while True:
        batch = store.log(at)
        for message in batch:
            stamp = message.properties
            if stamp.get("SPARK_JOB") == entry.job and stamp.get("SPARK_BATCH") == str(entry.batch):
                found.add((int(stamp["SPARK_PARTITION"]), int(stamp["SPARK_ROW"])))
        at = batch.next_offset
        if batch.outcome != 0:
            return found
