"""Light queues as a Java broker has them: a folder of consume queue files each, and the file of
offsets in which it looks with enableLmq. They are derived: `pystore rebuild --light-files` makes
them from the log, a broker with `lightFilesAtStop` from its own units, which takes a file's time a
queue instead of a pass over the log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pystore.errors import StoreError
from pystore.files import make_folders, named_errors, replace_file
from pystore.format.names import LIGHT_PREFIX
from pystore.format.units import NO_RECORD, UNIT
from pystore.meta.configfiles import LMQ_OFFSETS
from pystore.repair.journal import hold_lock
from pystore.store._store import Store

__all__ = ["copy_offsets", "make_queue_folder", "remove_light_files", "write_light_files"]

_BLANK = UNIT.pack(0, NO_RECORD, 0)


def make_queue_folder(root: Path, name: str, file_mode: int) -> Path:
    """Makes the folder of a light queue's files. Raises: StoreIOError, DiskFull."""
    folder = root / "consumequeue" / name / "0"
    make_folders(folder, file_mode)
    return folder


def copy_offsets(config: Path, file_mode: int) -> None:
    """Makes the file in which a Java broker with enableLmq looks for the offsets of all groups, and
    in no other; from then on both are written. Raises: StoreIOError, DiskFull."""
    plain, light = (config / name for name in ("consumerOffset.json", LMQ_OFFSETS))
    with named_errors(light):
        if plain.exists() and not light.exists():
            replace_file(light, plain.read_bytes(), keep_old=False, mode=file_mode)


def _write_queue(store: Store, name: str, low: int) -> None:
    """Writes the files of one queue. What comes before its first unit is filled, as Java fills the
    first file of a queue whose beginning is deleted."""
    size = int(store.settings["mappedFileSizeConsumeQueue"]) // UNIT.size * UNIT.size
    folder = make_queue_folder(store.path, name, store.settings.file_mode)
    at = low * UNIT.size // size * size
    units, end = bytearray(), at // UNIT.size
    while rows := store.lights.places(name, max(low, end)):
        for row in rows:
            units += _BLANK * (row.offset - end)
            units += UNIT.pack(row.physical_offset, row.size, row.tags_code)
            end = row.offset + 1
        while len(units) >= size:
            _write_file(folder / f"{at:020}", units[:size], size, store.settings.file_mode)
            at += size
            del units[:size]
    if units:
        _write_file(folder / f"{at:020}", units, size, store.settings.file_mode)


def _write_file(path: Path, units: bytes | bytearray, size: int, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.write(fd, units)
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def write_light_files(store: Store) -> int:
    """Writes the files of all light queues of an open store that gets no more messages, and returns
    how many queues there are. They are on the disk when it returns; where that fails, none is left,
    since Java would believe what is there. Raises: OSError, StoreError."""
    store.flush()
    count = begin = 0
    try:
        while begin >= 0:
            some, begin = store.lights.some(begin)
            for each in some:
                _write_queue(store, each.name, each.low)
            count += len(some)
        store.metadata.export_json()
        copy_offsets(store.path / "config", store.settings.file_mode)
        os.sync()
    except (OSError, StoreError):
        for folder in _folders(store.path):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return count


def _folders(root: Path) -> list[Path]:
    queues = root / "consumequeue"
    return list(queues.glob(f"{LIGHT_PREFIX}*")) if queues.is_dir() else []


def remove_light_files(root: Path, file_mode: int) -> int:
    """Removes the files of all light queues of a store that nobody has open, and returns of how
    many: a store that finds such a folder keeps its files going, with a descriptor each. Raises:
    StoreLocked, OSError, StoreIOError."""
    folders = _folders(root)
    if folders:
        with hold_lock(root, file_mode):
            for folder in folders:
                shutil.rmtree(folder)
    return len(folders)
