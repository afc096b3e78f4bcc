"""Open transactions, as they are kept in the metadata.

Metadata, tables ``halves`` and ``info``:

====== ===================== =======================================================================
table  key                   value
====== ===================== =======================================================================
halves i64 half queue offset i64 place in the log, i64 first copy's offset, i64 its place, i64 store
                             time ms, i64 last check ms, i32 checks, i32 immunity s, u8 length of
                             the group, group, topic
info   ``halves/mark``       :class:`Mark`, JSON
====== ===================== =======================================================================

They are written every second or so; what has happened since is in the log: see
pystore/store/pending_log.py.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pystore.errors import RecordDamaged
from pystore.meta._rows import MetaStore
from pystore.native import lib

__all__ = [
    "Decision",
    "Mark",
    "PendingHalf",
    "PendingTable",
    "immunity_of",
]


_ROW = struct.Struct(">qqqqqiiB")
_KEY = struct.Struct(">q")


class Decision(enum.IntEnum):
    """How a transaction ended. FINISHED: how is not known any more."""

    COMMIT = 8
    ROLLBACK = 12
    DISCARD = 1
    LOST = 2
    FINISHED = 3


class PendingHalf(NamedTuple):
    """A half message that is neither committed nor rolled back.

    offset, physical: of its newest copy, in the half queue and in the log. root, root_physical: of
    the first one. store_ms: of the first one. asked_ms: the last check, 0: none. immunity_s: how
    long the producer is not to be asked; -1: as long as transactionTimeOut says, although it named
    a time; -2: it named none. topic: where it is to go.
    """

    offset: int
    physical: int
    root: int
    root_physical: int
    store_ms: int
    asked_ms: int
    checks: int
    immunity_s: int
    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What the rows are the state of. half_next, op_next: the queues were read up to here. op_from:
    progress of CID_RMQ_SYS_TRANS in the ops. log_from: every final message before has its op, or is
    known. log_end: end of the log then. witness: place in the log of half half_next - 1, -1: there
    is none."""

    half_next: int
    op_next: int
    op_from: int
    log_from: int
    log_end: int
    witness: int


def immunity_of(text: str | None) -> int:
    """Returns CHECK_IMMUNITY_TIME_IN_SECONDS as PendingHalf has it: the core reads it."""
    if not text:
        return int(lib.PS_IMMUNITY_NONE)
    raw = text.encode("utf-8", "replace")
    return int(lib.ps_tx_immunity(raw, len(raw)))


class PendingTable:
    """The rows of one store's metadata."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def load(self) -> tuple[Mark | None, list[PendingHalf]]:
        """Returns the mark, None when nothing was ever written, and the rows in order of their
        offsets.

        Raises: RecordDamaged, StoreClosed.
        """
        try:
            return self._meta._read_pending(_read)
        except (ValueError, TypeError, KeyError, struct.error) as bad:
            raise RecordDamaged(
                f"cannot read the open transactions in the metadata ({bad})",
                str(self._meta.path),
            ) from bad

    def apply(
        self, changed: Iterable[PendingHalf], gone: Iterable[int], mark: Mark, *, anew: bool = False
    ) -> None:
        """Writes rows, deletes others, sets the mark, all in one transaction. anew: the rows given
        are all there are. Raises: ReadOnly, StoreClosed, DiskFull."""
        meta = self._meta
        with meta._write() as txn:
            db = meta._dbs["halves"]
            if anew:
                txn.drop(db, delete=False)
            for offset in gone:
                txn.delete(_KEY.pack(offset), db=db)
            for half in changed:
                txn.put(_KEY.pack(half.offset), _encode(half), db=db)
            value = json.dumps(asdict(mark)).encode()
            txn.put(b"halves/mark", value, db=meta._dbs["info"])

    def clear(self) -> None:
        """Forgets everything: the next start reads the log."""
        meta = self._meta
        with meta._write() as txn:
            txn.drop(meta._dbs["halves"], delete=False)
            txn.delete(b"halves/mark", db=meta._dbs["info"])


def _encode(half: PendingHalf) -> bytes:
    group = half.group.encode()
    fixed = _ROW.pack(
        half.physical, half.root, half.root_physical, half.store_ms, half.asked_ms, half.checks,
        half.immunity_s, len(group),
    )  # fmt: skip
    return fixed + group + half.topic.encode()


def _read(txn: Any, dbs: Any) -> tuple[Mark | None, list[PendingHalf]]:
    raw = txn.get(b"halves/mark", db=dbs["info"]) if "info" in dbs else None
    if raw is None or "halves" not in dbs:
        return None, []
    rows = []
    for key, value in txn.cursor(dbs["halves"]):
        physical, root, at, stored, asked, checks, immunity, n = _ROW.unpack_from(value)
        names = bytes(value[_ROW.size :])
        (offset,), group, topic = _KEY.unpack(key), names[:n].decode(), names[n:].decode()
        rows.append(
            PendingHalf(offset, physical, root, at, stored, asked, checks, immunity, group, topic)
        )
    return Mark(**json.loads(raw)), rows
