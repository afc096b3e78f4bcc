"""Progress of a query as the offsets of a consumer group, so that admin tools show its lag.

A store has one writer. Where nobody has it open, the offsets go into its metadata, and with that
into ``config/consumerOffset.json``. Where a broker or a program has it open, only that process
could take them: they are then left in ``spark/groups/GROUP.json`` of the store, in the form of
consumerOffset.json, and the next commit tries again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pystore.files import FILE_MODE, make_folders, write_whole

__all__ = ["commit_to_group"]

_told: set[str] = set()


def commit_to_group(path: str, group: str, offsets: Mapping[tuple[str, int], int]) -> bool:
    """Writes (topic, queue) -> next offset for a group. Returns False when the store has another
    writer."""
    root = Path(path)
    aside = root / "spark" / "groups" / f"{group}.json"
    with _nobody_else(root) as alone:
        if alone and _into_metadata(root, group, offsets):
            aside.unlink(missing_ok=True)
            return True
    table: dict[str, dict[str, int]] = {}
    for (topic, queue), n in sorted(offsets.items()):
        table.setdefault(f"{topic}@{group}", {})[str(queue)] = n
    try:
        make_folders(aside.parent, FILE_MODE)
        data = json.dumps({"offsetTable": table}, indent=1).encode()
        write_whole(aside, data)
        where = f"they are in {aside}"
    except OSError as e:
        where = str(e)
    if path not in _told:
        _told.add(path)
        print(
            f"rocketmq: {path} is open for writing in another process, so the offsets of group"
            f" {group} cannot go into its metadata: {where}",
            file=sys.stderr,
        )
    return False


def _into_metadata(root: Path, group: str, offsets: Mapping[tuple[str, int], int]) -> bool:
    import pystore

    try:
        with pystore.Metadata(root) as meta, meta.batch():
            for (topic, queue), n in offsets.items():
                meta.offsets.commit(group, topic, queue, n)
    except pystore.StoreLocked:
        return False
    return True


@contextlib.contextmanager
def _nobody_else(root: Path) -> Iterator[bool]:
    """Holds the store's lock, the one that a Java broker takes too, while metadata is written."""
    try:
        lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError:
        yield False
        return
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(lock)
