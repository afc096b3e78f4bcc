"""How an archive lies on the disk: a directory a run, each of them published by one rename.

====================================================== =========================================
``run=FROM-TO/topic=TOPIC/day=DAY/*.parquet``          the messages of these bytes of the log
``run=FROM-TO/_run.json``                              :class:`LogRun`
``run=FROM-TO/_config/*.json``                         the store's metadata as it was then
``run=NUMBER/topic=TOPIC/day=DAY/*.parquet``           of a cold tier: offsets of its queues
``run=NUMBER/_run.json``                               :class:`TierRun`
``run=NUMBER/_queues.json``                            :class:`QueueReach` of every queue so far
``_staging/``                                          a run that is being made; Spark passes it by
====================================================== =========================================
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pystore import errors
from pystore.cli.verbs import usage
from pystore.files import FILE_MODE, make_folders, place_folder, sync_folder, write_whole

__all__ = [
    "FIELDS", "LogRun", "QueueReach", "TierRun", "alone", "is_archive", "made_beside", "publish",
    "queues_of", "runs_of", "staging_of", "write_queues",
]  # fmt: skip

#: Columns of the Parquet files, as DDL. Bodies are as stored; envelope: the record without its
#: body; times are ms since 1970.
FIELDS = (
    "queueId int, queueOffset long, commitLogOffset long, storeSize int, sysFlag int, flag int,"
    " bodyCRC int, reconsumeTimes int, bornTimestamp long, storeTimestamp long, bornHost string,"
    " storeHost string, msgId string, tags string, keys string, properties string,"
    " preparedTransactionOffset long, envelope binary, body binary"
)


@dataclass(frozen=True, slots=True)
class LogRun:
    """start, end: bytes of the log. segment_size: of the store. messages, bytes: of all records.
    witness: place, size, store time in ms and body CRC of the last record, by which the next run
    knows the store. topics: those whose directories have other names, by these names."""

    start: int
    end: int
    segment_size: int
    messages: int
    bytes: int
    witness: list[int]
    topics: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"run={self.start:020d}-{self.end:020d}"

    @property
    def is_whole(self) -> bool:
        """Whether it may be what a run of ``archive`` wrote."""
        numbers = (self.start, self.end, self.segment_size, self.messages, self.bytes)
        whole = all(type(number) is int for number in (*numbers, *self.witness))
        return whole and self.segment_size > 0 and len(self.witness) in (0, 4)


@dataclass(frozen=True, slots=True)
class TierRun:
    """number: from 1 on. cluster, broker: whose tier. messages, bytes: of all records. queues_crc:
    CRC-32 of ``_queues.json``. topics: as in a LogRun."""

    number: int
    cluster: str
    broker: str
    messages: int
    bytes: int
    queues_crc: int
    topics: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"run={self.number:020d}"

    @property
    def is_whole(self) -> bool:
        """Whether it may be what a run of ``archive`` wrote."""
        numbers = (self.number, self.messages, self.bytes, self.queues_crc)
        texts = (self.cluster, self.broker)
        return all(type(n) is int for n in numbers) and all(type(t) is str for t in texts)


class QueueReach(NamedTuple):
    """How far an archive has a queue of a tier: up to offset `end`, from `start` on in this run.
    place, size, stored_ms, crc: of the last record, in the log of its queue; its store time and the
    CRC of its body, by which the queue is known again."""

    topic: str
    queue: int
    start: int
    end: int
    place: int
    size: int
    stored_ms: int
    crc: int


def is_archive(path: Path) -> bool:
    """Says whether a directory holds runs of an archive."""
    return any(path.glob("run=*/_run.json"))


def runs_of(archive: Path) -> list[LogRun] | list[TierRun]:
    """Returns the runs of an archive, in order of the log, or of their numbers. Raises: BadArgument
    for a malformed run, or runs of a store beside those of a tier."""
    of_log: list[LogRun] = []
    of_tier: list[TierRun] = []
    for folder in sorted(archive.glob("run=*")):
        try:
            run = _run_of(folder)
        except (OSError, ValueError, TypeError) as e:
            raise _not_a_run(folder, e) from None
        if isinstance(run, LogRun):
            of_log.append(run)
        else:
            of_tier.append(run)
    if of_log and of_tier:
        raise usage(f"{archive} has runs of a store and runs of a cold tier", "move one kind away")
    return of_log or of_tier


def _not_a_run(folder: Path, why: Exception) -> errors.BadArgument:
    return usage(f"{folder} is not a run of an archive ({why})", "move it away")


def _run_of(folder: Path) -> LogRun | TierRun:
    """Reads a run. Raises: OSError, ValueError, TypeError."""
    said = json.loads((folder / "_run.json").read_text("utf-8"))
    run = TierRun(**said) if "number" in said else LogRun(**said)
    texts = isinstance(run.topics, dict) and all(type(t) is str for t in run.topics.values())
    if not run.is_whole or not texts or run.name != folder.name:
        raise ValueError("_run.json is not what archive wrote there")
    return run


def write_queues(staged: Path, queues: Iterable[QueueReach]) -> int:
    """Writes how far a run has the queues of a tier; returns the file's CRC-32. Raises: OSError."""
    data = json.dumps(list(queues), separators=(",", ":")).encode()
    write_whole(staged / "_queues.json", data)
    return zlib.crc32(data)


def queues_of(archive: Path, run: TierRun) -> dict[tuple[str, int], QueueReach]:
    """Returns how far an archive has each queue after a run. Raises: BadArgument for a file that is
    not the run's."""
    folder = archive / run.name
    try:
        data = (folder / "_queues.json").read_bytes()
        if zlib.crc32(data) != run.queues_crc:
            raise ValueError("_queues.json is not what archive wrote there")
        rows = [QueueReach(*row) for row in json.loads(data)]
    except (OSError, ValueError, TypeError) as e:
        raise _not_a_run(folder, e) from None
    return {(row.topic, row.queue): row for row in rows}


def staging_of(archive: Path, run: str) -> Path:
    """Makes an empty directory for a run that is being made. What a killed one left goes."""
    folder = archive / "_staging"
    shutil.rmtree(folder, ignore_errors=True)
    make_folders(folder, FILE_MODE)
    return folder / run


def publish(archive: Path, staged: Path, run: LogRun | TierRun) -> None:
    """Makes a run visible, in one step, once every byte of it is on the disk. Raises: OSError."""
    write_whole(staged / "_run.json", json.dumps(asdict(run)).encode())
    _sync_tree(staged)
    staged.rename(archive / run.name)
    sync_folder(archive)
    shutil.rmtree(staged.parent, ignore_errors=True)


def _sync_tree(top: Path) -> None:
    for folder, _, names in os.walk(top):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(folder))


@contextlib.contextmanager
def made_beside(target: Path, suffix: str) -> Iterator[Path]:
    """Makes a directory TARGET.SUFFIX to write to, empty but for its lock. When the block ends, it
    is synced and becomes `target`; when it raises, it stays for a look, and the next run empties
    it.

    Raises: StoreLocked while another process writes there; OSError.
    """
    made = target.with_name(f"{target.name}.{suffix}")
    with alone(made, "_lock"):
        for old in made.iterdir():
            if old.name != "_lock":
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        yield made
        _sync_tree(made)
        (made / "_lock").unlink()
        place_folder(made, target)


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[Any]:
    """Holds the lock file `name` of a folder. Raises: StoreLocked while another process does."""
    make_folders(folder, FILE_MODE)
    lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    except BlockingIOError:
        raise errors.StoreLocked("another job is writing there", str(folder)) from None
    finally:
        os.close(lock)
