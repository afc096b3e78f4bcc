"""Users and policies as they lie in ``access/`` of a store, for the broker and for the audit.

``data.mdb`` is an LMDB environment:

======= =============== ===========================================================
table   key             value
======= =============== ===========================================================
users   name            user with its password, JSON as on the wire
acls    name            ``{"subject", "policies"}``, JSON as on the wire
info    ``version``     how many changes there were, decimal
======= =============== ===========================================================

``users.json`` beside it is a copy, written after each change: ``version``, ``users``, ``acls``, and
as ``sum`` the CRC-32 of these three as compact JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from pystore.files.aside import move_aside
from pystore.meta._database import check_file, check_size, close, compact, reserve_lock, size_of

__all__ = [
    "COPY", "AccessRows", "Changes", "Tables", "check_file", "check_size", "has_access_copy",
    "move_aside",
]  # fmt: skip

_USERS, _ACLS, _INFO = b"users", b"acls", b"info"
_VERSION = b"version"
COPY = "users.json"
_MAP_BYTES = 256 << 20
_MODE = 0o600

#: JSON of users or policies, by name; None deletes one.
Changes = Mapping[str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class AccessRows:
    """All users and policies at one moment, by name. version: how many changes led to them."""

    version: int
    users: dict[str, Any]
    acls: dict[str, Any]

    def to_file(self) -> bytes:
        content = {"version": self.version, "users": self.users, "acls": self.acls}
        return compact({**content, "sum": zlib.crc32(compact(content))})

    @classmethod
    def from_file(cls, data: bytes) -> AccessRows:
        """Reads the rows of a file. Raises: ValueError for damage."""
        try:
            content = json.loads(data)
            told = content.pop("sum")
            rows = cls(int(content["version"]), dict(content["users"]), dict(content["acls"]))
        except (TypeError, KeyError, AttributeError, RecursionError) as bad:
            raise ValueError(f"not a copy of the users: {bad}") from None
        if told != zlib.crc32(compact(content)):
            raise ValueError("its checksum does not match")
        return rows

    def contradicts(self, database: AccessRows) -> bool:
        """Says whether this, a copy, says that the database is damaged, or not the one that it is
        of: a copy is never ahead, and one of the same version is the same."""
        return self.version >= database.version and self != database


def has_access_copy(root: Path) -> bool:
    """Says whether users and policies of a store can be had from their copy."""
    try:
        AccessRows.from_file((root / "access" / COPY).read_bytes())
    except (OSError, ValueError):
        return False
    return True


class Tables:
    """The open environment. place: its folder, or, readonly, its file.

    Raises: OSError, lmdb.Error.
    """

    def __init__(self, place: Path, *, readonly: bool = False) -> None:
        self._place = place
        if not readonly:
            reserve_lock(place, _MODE)
        self._env = lmdb.open(
            os.fspath(place), subdir=not readonly, map_size=_MAP_BYTES, max_dbs=3, mode=_MODE,
            readonly=readonly, lock=not readonly,
        )  # fmt: skip
        self._dbs: dict[bytes, Any] = {}
        try:
            for name in (_USERS, _ACLS, _INFO):
                with contextlib.suppress(lmdb.NotFoundError):  # a reader makes none
                    self._dbs[name] = self._env.open_db(name, create=not readonly)
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        close(self._env, self._place)

    def size(self) -> int:
        """Returns the bytes of the file that the last commit uses."""
        return size_of(self._env, self._place)

    def read(self) -> AccessRows:
        """Reads the database. Raises: ValueError for damage, lmdb.Error."""
        with self._env.begin() as txn:
            return self._read(txn)

    def _read(self, txn: Any) -> AccessRows:
        return AccessRows(self._version(txn), self._table(txn, _USERS), self._table(txn, _ACLS))

    def _table(self, txn: Any, name: bytes) -> dict[str, Any]:
        rows = txn.cursor(db=self._dbs[name]) if name in self._dbs else ()
        return {key.decode(): json.loads(data) for key, data in rows}

    def _version(self, txn: Any) -> int:
        return int(txn.get(_VERSION, b"0", db=self._dbs[_INFO])) if _INFO in self._dbs else 0

    def write(self, users: Changes, acls: Changes, version: int | None = None) -> AccessRows:
        """Writes the database and returns what it holds then. version: None counts on. Raises:
        ValueError, lmdb.Error."""
        with self._env.begin(write=True) as txn:
            for table, changes in ((_USERS, users), (_ACLS, acls)):
                for name, value in changes.items():
                    if value is None:
                        txn.delete(name.encode(), db=self._dbs[table])
                    else:
                        txn.put(name.encode(), compact(value), db=self._dbs[table])
            version = self._version(txn) + 1 if version is None else version
            txn.put(_VERSION, b"%d" % version, db=self._dbs[_INFO])
            return self._read(txn)
