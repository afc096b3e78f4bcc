"""How an archive lies on the disk: a directory a run, each of them published by one rename.

====================================================== =========================================
``run=FROM-TO/topic=TOPIC/day=DAY/*.parquet``          the messages of these bytes of the log
``run=FROM-TO/_run.json``                              :class:`ReportRun`
``run=FROM-TO/_config/*.json``                         the store's metadata as it was then
``_staging/``                                          a run that is being made; Spark passes it by
====================================================== =========================================
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pystore import errors
from pystore.cli.verbs import usage
from pystore.files import FILE_MODE, make_folders, place_folder, sync_folder, write_whole

__all__ = [
    "FIELDS", "ReportRun", "alone", "is_archive", "made_beside", "publish", "runs_of", "staging_of",
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
class ReportRun:
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


def is_archive(path: Path) -> bool:
    """Says whether a directory holds runs of an archive."""
    return any(path.glob("run=*/_run.json"))


def runs_of(archive: Path) -> list[ReportRun]:
    """Returns the runs of an archive, in order of the log. Raises: BadArgument for a malformed
    run."""
    found = []
    for folder in sorted(archive.glob("run=*")):
        try:
            run = _run_of(folder)
        except (OSError, ValueError, TypeError) as e:
            raise usage(f"{folder} is not a run of an archive ({e})", "move it away") from None
        found.append(run)
    return found


def _run_of(folder: Path) -> ReportRun:
    """Reads a run. Raises: OSError, ValueError, TypeError."""
    run = ReportRun(**json.loads((folder / "_run.json").read_text("utf-8")))
    numbers = (run.start, run.end, run.segment_size, run.messages, run.bytes, *run.witness)
    whole = all(type(number) is int for number in numbers) and run.segment_size > 0
    texts = isinstance(run.topics, dict) and all(type(t) is str for t in run.topics.values())
    if not whole or not texts or len(run.witness) not in (0, 4) or run.name != folder.name:
        raise ValueError("_run.json is not what archive wrote there")
    return run


def staging_of(archive: Path, run: str) -> Path:
    """Makes an empty directory for a run that is being made. What a killed one left goes."""
    folder = archive / "_staging"
    shutil.rmtree(folder, ignore_errors=True)
    make_folders(folder, FILE_MODE)
    return folder / run


def publish(archive: Path, staged: Path, run: ReportRun) -> None:
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
