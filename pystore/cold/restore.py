"""A store made of a tier, and a tier copied: what `pystore cold restore` and `fetch` do.

The tier keeps no order over all queues, so that of the new log is by queue. Queue offsets stay;
physical offsets are new.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from pystore.cold.failures import TierDamaged
from pystore.cold.push import PushReport, push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import new_tier
from pystore.errors import BadArgument
from pystore.files import FILE_MODE, make_folders, new_file, place_folder
from pystore.format.records import HEAD_LEN
from pystore.native import ffi, lib
from pystore.store._store import Store

__all__ = ["fetch", "restore"]

SEGMENT_BYTES = 1 << 30


class _LogWriter:
    """Segments of a commit log, filled one after the other."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size
        self._base = 0
        self._at = 0
        self._file: BinaryIO | None = None
        self.records = 0

    def put(self, record: bytearray) -> None:
        """Appends a record, with its new physical offset."""
        if len(record) + HEAD_LEN > self._size:
            raise BadArgument(f"a record of {len(record)} bytes does not fit into a segment")
        if self._file is None or self._at + len(record) + HEAD_LEN > self._size:
            self._next()
        assert self._file is not None
        raw = ffi.from_buffer("uint8_t[]", record)
        if lib.ps_record_move(raw, len(record), self._base + self._at) < 0:
            raise TierDamaged("what a unit leads to is not a whole record")
        self._file.write(record)
        self._at += len(record)
        self.records += 1

    def _next(self) -> None:
        if self._file is not None:
            blank = bytearray(HEAD_LEN)
            lib.ps_blank_write(ffi.from_buffer("uint8_t[]", blank), self._size - self._at)
            self._file.write(blank)
            self._base += self._size
        self.close()
        self._file = new_file(self._folder / f"{self._base:020d}", FILE_MODE)
        self._at = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.truncate(self._size)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def restore(
    reader: ColdReader, target: Path, *, topics: Iterable[str] = (),
    segment_bytes: int = SEGMENT_BYTES,
) -> int:  # fmt: skip
    """Makes a store of a tier's messages; returns how many. It is made beside its place, and opened
    once, so that its queues and index are there. target: must not exist.

    Raises: BadArgument, TierDamaged, TierUnreachable, DiskFull, StoreIOError."""
    if target.exists():
        raise BadArgument("the folder for the store exists already", str(target))
    made = target.with_name(f"{target.name}.unfinished")
    if made.exists():
        raise BadArgument("an unfinished restore lies here: delete it first", str(made))
    chosen = set(topics) or {span.topic for span in reader.spans()}
    try:
        make_folders(made / "commitlog", FILE_MODE)
        log = _LogWriter(made / "commitlog", segment_bytes)
        counts: dict[str, int] = {}
        for topic in sorted(chosen):
            for batch in reader.batches(topic=topic):
                for message in batch:
                    log.put(bytearray(message.record))
                    counts[topic] = max(counts.get(topic, 0), message.queue + 1)
        log.close()
        (made / "abort").touch(mode=FILE_MODE)  # so that recovery makes queues and index
        _finish(made, segment_bytes, counts)
        place_folder(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return log.records


def _finish(made: Path, segment_bytes: int, counts: dict[str, int]) -> None:
    size = {"mappedFileSizeCommitLog": segment_bytes}
    with Store(made, {**size, "cleanResourceInterval": 0}) as store:
        for topic, queues in counts.items():
            store.metadata.ensure_topic(topic, queues - 1)


def fetch(
    reader: ColdReader, target: str | os.PathLike[str], *, topics: Iterable[str] = (),
    cluster: str = "", broker: str = "",
) -> PushReport:  # fmt: skip
    """Copies a tier's messages into another tier, such as a folder of this host. It takes over what
    upstream has written, too. cluster, broker: where the address does not tell.

    Raises: BadArgument, TierTaken, TierDamaged, TierUnreachable."""
    cluster, broker = cluster or reader.tier.cluster, broker or reader.tier.broker
    if not cluster or not broker:
        raise BadArgument("the address does not tell the names of cluster and broker: give both")
    return push(reader, new_tier(target, cluster, broker), topics=topics)
