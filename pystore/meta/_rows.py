"""The rows of a store's metadata: in memory and in LMDB, changed together or not at all.

What pystore/metadata.py opens and closes; the tables (_tables.py, pending.py) read and write
through it. _database.py says how the rows lie in LMDB.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import lmdb

from pystore.errors import ReadOnly, StoreClosed, UsedAfterFork
from pystore.meta import _database, configfiles
from pystore.meta._offsets import StoredOffsets
from pystore.meta.configfiles import RAW_FILES, SECTIONS
from pystore.settings import Settings

__all__ = ["MetaStore"]

_Found = TypeVar("_Found")


class MetaStore:
    """Rows by table, one lock, one transaction at a time.

    _state: what is in LMDB, in memory, but for a writer's offsets. _dirty: tables whose config file
    is to be written. _txn: the transaction that is open, None between changes. _size: bytes of the
    file that are in use.
    """

    def __init__(self, root: Path, settings: Settings, readonly: bool) -> None:
        self.root = root
        self.path = root / "meta"
        self.readonly = readonly
        self._settings = settings
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._txn: Any = None
        self._env: Any = None
        self._dbs: dict[str, Any] = {}
        self._changes: dict[str, int] = {}
        self._dirty = {*SECTIONS, *RAW_FILES}
        self._closed = False
        self._size = 0
        self._state = _database.MetadataState()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the metadata was closed: {self.path}")
        if not self.readonly and os.getpid() != self._pid:
            raise UsedAfterFork(f"the metadata was opened by process {self._pid}: {self.path}")

    def _check_writable(self) -> None:
        self._check_open()
        if self.readonly:
            raise ReadOnly(f"the metadata was opened read-only: {self.path}")

    def _rows(self, name: str) -> Any:
        self._check_open()
        return self._state.parts[name].rows

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Gives a writer its transaction, or one to read in, and the tables. Raises: StoreClosed,
        RecordDamaged."""
        self._check_open()
        with self._lock:
            self._check_open()
            if self._txn is not None:
                yield self._txn, self._dbs
                return
            _database.check_size(self.path, self._size)
            try:
                with self._env.begin() as txn:
                    yield txn, self._dbs
            except lmdb.Error as failed:
                raise _database.lmdb_error(failed, self.path) from failed

    def _offset_blocks(self) -> Iterator[bytes]:
        """Yields a writer's offsets as _database.offset_blocks() does; whoever changes something
        waits, and none of it may come from within a change. Raises: StoreClosed, RecordDamaged,
        StoreIOError, OutOfMemory."""
        self._check_open()
        with self._lock:
            self._check_open()
            assert self._txn is None, "these are of the last commit"
            yield from _database.offset_blocks(self.path)

    def _read_pending(self, read: Callable[[Any, Mapping[str, Any]], _Found]) -> _Found:
        """Returns what `read` makes of a transaction and the tables; of a copy when read-only."""
        self._check_open()
        if not self.readonly:
            with self._reading() as (txn, tables):
                return read(txn, tables)

        def of_copy(env: Any) -> _Found:
            dbs = _database.open_dbs(env)
            with env.begin() as txn:
                return read(txn, dbs)

        found = _database.from_copy(self.path, of_copy)
        return read(None, {}) if found is None else found

    # ---- changes ----

    @contextlib.contextmanager
    def batch(self) -> Iterator[Self]:
        """Makes one transaction of a block. ``with meta.batch():`` all changes inside are one
        transaction, or none when it raises.

        Other threads wait meanwhile. Raises: ReadOnly, StoreClosed, DiskFull, StoreIOError.
        """
        with self._write():
            yield self

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        # Before the lock as well: in a forked child nobody may ever release it.
        self._check_writable()
        with self._lock:
            self._check_writable()
            yield

    @contextlib.contextmanager
    def _write(self) -> Iterator[Any]:
        with self._exclusive():
            if self._txn is not None:
                yield self._txn
                return
            dirty = set(self._dirty)
            _database.check_size(self.path, self._size)
            try:
                with self._env.begin(write=True) as self._txn:
                    yield self._txn
                self._size = _database.size_of(self._env, self.path)
            except BaseException as failed:
                # What was changed in memory is not in LMDB: that one is right.
                self._dirty = dirty
                self._read_state()
                if isinstance(failed, lmdb.MapFullError):
                    self._grow()
                if isinstance(failed, lmdb.Error):
                    raise _database.lmdb_error(failed, self.path) from failed
                raise
            finally:
                self._txn = None

    def _read_state(self) -> None:
        """Reads what a writer has in memory: all but the offsets."""
        self._state = _database.read_state(self._env, self._dbs, self.path, None)
        self._state.parts["offsets"].rows = StoredOffsets(self._reading, self._offset_blocks)

    def _grow(self) -> None:
        """Makes room for whoever tries again. No transaction is open, and none can begin."""
        size = self._env.info()["map_size"]
        if size < _database.MAP_MAX:
            self._env.set_mapsize(min(2 * size, _database.MAP_MAX))

    def _bump(self, name: str, txn: Any, step: int = 1, changes: int = 1) -> None:
        """Counts changes of a table; every step-th one is a new version of its file."""
        self._dirty.add(name)
        before = self._changes.get(name, 0)
        count = self._changes[name] = before + changes
        versions = count // step - before // step
        if versions > 0:
            parts = self._state.parts[name]
            parts.version = parts.version.bumped(versions)
            self._put_version(name, txn)

    def _put_version(self, name: str, txn: Any) -> None:
        version = configfiles.version_to_json(self._state.parts[name].version)
        txn.put(f"version/{name}".encode(), _database.compact(version), db=self._dbs["info"])
