"""How the metadata lies in LMDB, and how it is read: by its writer, and from a copy by readers.

``<root>/meta/`` is an LMDB environment with these tables:

======== ===================================== ====================================================
table    key                                   value
======== ===================================== ====================================================
info     ``schema``                            layout version, decimal
info     ``version/<table>``                   dataVersion of the table's file, JSON
info     ``extra/<table>``                     members of the file that nobody here knows, JSON
info     ``raw/<file>``                        content of a file that is not interpreted
info     ``print/<file>``                      what was written or read last (:class:`Fingerprint`)
info     ``said``                              the commit, decimal, as of which the config files say
                                               what the tables do; those after it are not in them
topics   name                                  TopicConfig as in topics.json, compact JSON
groups   name                                  SubscriptionGroup as in subscriptionGroup.json
pairs    16 bytes: BLAKE2b of ``topic@group``  ``topic@group``
offsets  the same 16 bytes, i32 queue          i64 offset
delays   i32 level                             i64 offset
halves   see pystore/meta/pending.py
======== ===================================== ====================================================
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import lmdb

from pystore import files
from pystore.errors import (
    DiskFull,
    NewerLayout,
    RecordDamaged,
    StoreError,
    StoreIOError,
)
from pystore.files.quiet import copy_quietly, memory_file
from pystore.meta import _pages, configfiles
from pystore.meta.configfiles import SECTIONS, Parts
from pystore.native import ffi, lib, raise_error, text_of

#: Raised when a table above changes its meaning.
SCHEMA = 1
#: Sparse: only what is used takes room. Grown when it is full, under the lock that every
#: transaction takes: LMDB has no other safe way to (py-lmdb#269).
MAP_SIZE = 1 << 30
MAP_MAX = 16 << 30
MAX_DBS = 16
_DBS = ("info", "topics", "groups", "pairs", "offsets", "delays", "halves")
_SAID = b"said"
#: LMDB's longest key is 511 bytes.
_KEY_MAX = 500
#: Of lock.mdb with LMDB's 126 readers.
_LOCK_BYTES = 8192
#: How long a reader tries to take a copy while a writer commits, seconds.
_COPY_SECONDS = 5.0

_T = TypeVar("_T")


@dataclass(slots=True)
class Fingerprint:
    """Contents of a config file that are ours, as SHA-256.

    main: of the file: what was written or read last, and during an export also what comes next.
    bak: of its ``.bak``. content: of the table in our own form, at that time; empty when the file
    lags behind the table. size, mtime_ns: of the file, so that it need not be read to be known.
    """

    main: list[str] = field(default_factory=list)
    bak: list[str] = field(default_factory=list)
    content: str = ""
    size: int = -1
    mtime_ns: int = -1


@dataclass(slots=True)
class MetadataState:
    """The metadata in memory: the whole of a reader, without the offsets of a writer."""

    parts: dict[str, Parts] = field(default_factory=lambda: {name: Parts() for name in SECTIONS})
    raw: dict[str, bytes] = field(default_factory=dict)
    prints: dict[str, Fingerprint] = field(default_factory=dict)


def digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def digest_of(pieces: Iterable[bytes]) -> str:
    """Returns the digest of content that comes in pieces."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def file_digest(path: Path) -> str:
    """Returns the digest of a file, "" when there is none. Raises: Forbidden, StoreIOError."""
    opened = files.open_file(path)
    if opened is None:
        return ""
    with files.named_errors(path), opened as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def row_key(name: str) -> bytes:
    """Encodes a name as a key. A name that no key can hold (only a hostile file has one) becomes
    its digest."""
    raw = name.encode("utf-8", "surrogatepass")
    if 0 < len(raw) <= _KEY_MAX:
        return raw
    return b"\0" + hashlib.blake2b(raw, digest_size=16).digest()


def pair_key(pair: str) -> bytes:
    return hashlib.blake2b(pair.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def lmdb_error(failed: Exception, path: Path) -> StoreError:
    """Makes the named error of what LMDB raised."""
    text = f"metadata error ({failed})"
    if isinstance(failed, lmdb.MapFullError):
        return DiskFull("the metadata is full", str(path))
    if isinstance(failed, lmdb.DiskError):  # ENOSPC
        return DiskFull(text, str(path))
    damage = (
        lmdb.CorruptedError,
        lmdb.InvalidError,
        lmdb.PageNotFoundError,
        lmdb.VersionMismatchError,
        lmdb.PanicError,
    )
    if isinstance(failed, damage):
        return _damaged(str(failed), path)
    return StoreIOError(text, str(path))


# ---- the environment, as rows ----


def read_schema(env: Any, path: Path) -> int:
    """Returns the layout version, 0 when the environment is new. Raises: NewerLayout,
    RecordDamaged."""
    try:
        info = env.open_db(b"info", create=False)
    except lmdb.NotFoundError:
        return 0
    with env.begin(db=info) as txn:
        raw = txn.get(b"schema", b"")
    if not raw.isdigit() or len(raw) > 9:
        raise RecordDamaged(f"the metadata has no layout version ({raw!r:.40})", str(path))
    if int(raw) > SCHEMA:
        raise NewerLayout(
            f"the metadata has layout {int(raw)}; this version knows up to {SCHEMA}", str(path)
        )
    return int(raw)


def said(env: Any, dbs: Mapping[str, Any]) -> int:
    """Returns the commit that note_said() was of, -1: none."""
    with env.begin(db=dbs["info"]) as txn:
        raw = bytes(txn.get(_SAID, b""))
    return int(raw) if raw.isdigit() and len(raw) < 20 else -1


def note_said(txn: Any, dbs: Mapping[str, Any]) -> None:
    """Notes of the commit to come that the config files say what it leaves in the tables."""
    txn.put(_SAID, str(txn.id()).encode(), db=dbs["info"])


def open_dbs(env: Any) -> dict[str, Any]:
    """Opens the tables that a reader's copy has."""
    dbs = {}
    for name in _DBS:
        with contextlib.suppress(lmdb.NotFoundError):
            dbs[name] = env.open_db(name.encode(), create=False)
    return dbs


def make_dbs(env: Any, new: bool) -> dict[str, Any]:
    """Opens the tables of a writer, made in one transaction when the environment is new."""
    with env.begin(write=True) as txn:
        dbs = {name: env.open_db(name.encode(), txn=txn) for name in _DBS}
        if new:
            txn.put(b"schema", b"%d" % SCHEMA, db=dbs["info"])
    return dbs


def read_state(
    env: Any, dbs: Mapping[str, Any], path: Path, queues: Callable[[], Any] | None = dict
) -> MetadataState:
    """Reads everything in the environment; `queues` makes what keeps the offsets of a pair by their
    queue, None: a writer's stay where they are. Raises: RecordDamaged for a row that cannot be
    read."""
    state = MetadataState()
    try:
        with env.begin() as txn:
            for name, parts in state.parts.items():
                if name not in dbs:
                    continue
                if name != "offsets":
                    parts.rows = _read_rows(name, txn, dbs)
                elif queues is not None:
                    parts.rows = dict(read_offsets(txn, dbs, queues))
                else:  # each is read, so that none is found damaged later
                    deque(offset_blocks(path), maxlen=0)
            for key, value in txn.cursor(dbs["info"]) if "info" in dbs else ():
                kind, _, name = bytes(key).decode().partition("/")
                if kind == "version" and name in SECTIONS:
                    state.parts[name].version = configfiles.version_from_json(json.loads(value))
                elif kind == "extra" and name in SECTIONS:
                    state.parts[name].extra = dict(json.loads(value))
                elif kind == "raw":
                    state.raw[name] = bytes(value)
                elif kind == "print":
                    state.prints[name] = Fingerprint(**json.loads(value))
    except (AttributeError, ValueError, LookupError, TypeError, struct.error) as bad:
        raise lmdb_error(lmdb.CorruptedError(f"cannot read a row: {bad}"), path) from bad
    return state


def _read_rows(name: str, txn: Any, dbs: Mapping[str, Any]) -> dict[Any, Any]:
    rows: dict[Any, Any] = {}
    if name == "delays":
        for key, value in txn.cursor(dbs["delays"]):
            rows[struct.unpack(">i", key)[0]] = struct.unpack(">q", value)[0]
    else:
        member, read = ROWS[name][:2]
        for _, value in txn.cursor(dbs[name]):
            one = json.loads(value)
            rows[one[member]] = read(one[member], one)
    return rows


def read_offsets(
    txn: Any, dbs: Mapping[str, Any], queues: Callable[[], Any], after: bytes = b""
) -> Iterator[tuple[str, Any]]:
    """Yields each pair whose digest comes after `after`, with its queues' offsets. There may be a
    million, so rows are unpacked together, some at a time; both tables are in the order of their
    keys, which begin with the digest of the pair. Raises: ValueError for a row that no pair has."""
    pairs = _from(txn.cursor(dbs["pairs"]), after + b"\0" if after else b"")
    found = _from(txn.cursor(dbs["offsets"]), after + _LAST_QUEUE if after else b"")
    name, row, last = None, queues(), None
    while some := list(itertools.islice(found, _ROWS_AT_ONCE)):
        keys, values = zip(*some, strict=True)
        for parts, size in ((keys, OFFSET_KEY.size), (values, 8)):
            if set(map(len, parts)) - {size}:
                raise ValueError("an offset's row has another length")
        offsets = struct.unpack(f">{len(values)}q", b"".join(values))
        for (digest, queue), offset in zip(
            OFFSET_KEY.iter_unpack(b"".join(keys)), offsets, strict=True
        ):
            while digest != last:  # those before it were made and have no offset
                if name is not None:
                    yield bytes(name).decode("utf-8", "surrogatepass"), row
                last, name = next(pairs, (None, None))
                if name is None:
                    raise ValueError("an offset's row is of no pair")
                row = queues()
            row[queue] = offset
    if name is not None:
        yield bytes(name).decode("utf-8", "surrogatepass"), row
    for _, name in pairs:
        yield bytes(name).decode("utf-8", "surrogatepass"), queues()


def offset_blocks(meta: Path) -> Iterator[bytes]:
    """Yields the offsets of all pairs that have some, as the last commit has them, in blocks
    (csrc/format/offsetblock.h): names as they are, of a million of which no object is made. Nobody
    commits meanwhile. Raises: RecordDamaged, StoreIOError, OutOfMemory."""
    return _walk_offsets(meta, lib.ps_audit_offsets_next)


def light_members(meta: Path, escaped: bool) -> Iterator[bytes]:
    """Yields the members that light queues are in offsetTable of consumerOffset.json, as the last
    commit has them, each behind a comma; escaped: in ASCII. Nobody commits meanwhile. Raises:
    RecordDamaged, StoreIOError, OutOfMemory."""
    return _walk_offsets(
        meta, lambda walk, *out: lib.ps_audit_offsets_members(walk, True, escaped, *out)
    )


def other_members(meta: Path, escaped: bool) -> tuple[dict[bytes, bytes], bool]:
    """Returns those of all other pairs by name, and whether any name at all needs escapes: half a
    surrogate pair has no other form in a file. Raises: as light_members()."""
    found, half = {}, False

    def members(walk: Any, *out: Any) -> Any:
        nonlocal half
        pieces = lib.ps_audit_offsets_members(walk, False, escaped, *out)
        half = bool(lib.ps_audit_offsets_half(walk))
        return pieces

    for piece in _walk_offsets(meta, members):
        end = 0
        while end < len(piece):
            name_len, text_len = _MEMBER.unpack_from(piece, end)
            name = end + _MEMBER.size
            text, end = name + name_len, name + name_len + text_len
            found[piece[name:text]] = piece[text:end]
    return found, half


def _walk_offsets(meta: Path, following: Callable[..., Any]) -> Iterator[bytes]:
    path = meta / "data.mdb"
    error, size, fd = ffi.new("ps_error *"), ffi.new("int64_t *"), -1
    try:
        with files.named_errors(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            page, tables = _pages.leaf_pages(fd, b"pairs", b"offsets")
            pairs, rows = (ffi.new("int64_t[]", numbers) for numbers in tables)
            walk = lib.ps_audit_offsets_begin(fd, page, pairs, len(pairs), rows, len(rows), error)
            _check_walk(walk, error, meta)
            try:
                while True:
                    found = following(walk, size, error)
                    _check_walk(found, error, meta)
                    if size[0] == 0:
                        break
                    yield bytes(ffi.buffer(found, size[0]))
            finally:
                lib.ps_audit_offsets_free(walk)
    except _pages.PageError as bad:
        raise _damaged(str(bad), meta) from None
    finally:
        if fd >= 0:
            os.close(fd)


def _check_walk(found: Any, error: Any, meta: Path) -> None:
    if found != ffi.NULL:
        return
    if error.code == lib.PS_E_DAMAGED:
        raise _damaged(text_of(error.text), meta)
    raise_error(error[0])


def _from(cursor: Any, key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows from a key on."""
    return iter(cursor.iternext() if not key or cursor.set_range(key) else ())


_MEMBER = struct.Struct("=ii")  # lengths of its name and of its text
_ROWS_AT_ONCE = 1 << 10
OFFSET_KEY = struct.Struct(">16si")  # digest of the pair, queue
_LAST_QUEUE = b"\xff" * 5  # more than any queue of that pair
#: Member that holds a row's name, how a row is read, how it is written.
ROWS: dict[str, tuple[str, Any, Any]] = {
    "topics": ("topicName", configfiles.topic_from_json, configfiles.topic_to_json),
    "groups": ("groupName", configfiles.group_from_json, configfiles.group_to_json),
}


def check_regular(path: Path) -> bool:
    """Says whether there is a file. Raises: RecordDamaged for anything else in its place,
    OSError."""
    try:
        info = path.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(info.st_mode):
        raise _damaged("not a regular file", path)
    return True


def check_file(path: Path, shown: Path | None = None) -> None:
    """Refuses what LMDB would not survive in the place of its file.

    A device would be written until the disk is full, a pipe waited for, and a damaged page, or one
    beyond the end of a file that was cut off, ends the process. shown: the path in the error.
    Raises: RecordDamaged, OSError.
    """
    if not check_regular(path):
        return
    try:
        _pages.check_pages(path)
    except _pages.PageError as bad:
        raise _damaged(str(bad), shown or path) from None


def reserve_lock(folder: Path, mode: int) -> None:
    """Makes room for LMDB's lock file, which it maps: on a full disk its first byte ends the
    process. A file that has some is left alone, since closing it takes the locks of this process
    away. Raises: OSError."""
    path = folder / "lock.mdb"
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_blocks > 0:
            return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


def size_of(env: Any, meta: Path) -> int:
    """Returns the bytes of the file that the last commit uses. The file may be shorter than its
    pages: one that was taken at the end and freed in the same transaction is not written."""
    pages = int((env.info()["last_pgno"] + 1) * env.stat()["psize"])
    try:
        return min(pages, (meta / "data.mdb").stat().st_size)
    except FileNotFoundError:
        return pages


def check_size(meta: Path, size: int) -> None:
    """Checks that the file still has that many bytes, and the lock file its own: LMDB's next look
    at a page that somebody has cut off would end the process. Raises: RecordDamaged."""
    for path, bytes_ in ((meta / "data.mdb", size), (meta / "lock.mdb", _LOCK_BYTES)):
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            continue  # LMDB holds a file that has no name any more
        if found < bytes_:
            raise _damaged(f"the file was cut off at {found} bytes while it was open", path)


def close(env: Any, meta: Path) -> None:
    """Closes a database, which looks into its lock file: one that was cut off is made as long as it
    was before. It could not be used after that: what stood in it is gone."""
    path = meta / "lock.mdb"
    with contextlib.suppress(OSError):
        if path.stat().st_size < _LOCK_BYTES:
            os.truncate(path, _LOCK_BYTES)
    env.close()


def _damaged(why: str, path: Path) -> RecordDamaged:
    error = RecordDamaged(f"the metadata is damaged ({why})", str(path))
    error.next_step = "open the store for writing; it is rebuilt from config/*.json"
    return error


def _copy_environment(meta: Path, into: BinaryIO) -> bool:
    """Copies data.mdb while a writer may be at work; False when no quiet moment was found.

    A commit writes free pages only, and last the meta page (one of the first two). When these are
    the same before and after, the copy holds every page of the commit they name.
    """
    head = 2 * os.sysconf("SC_PAGESIZE")
    end = time.monotonic() + _COPY_SECONDS
    check_regular(meta / "data.mdb")
    while time.monotonic() < end:
        if copy_quietly(meta / "data.mdb", into, MAP_MAX, head):
            return True
        time.sleep(0.001)
    return False


def read_copy(meta: Path, queues: Callable[[], Any] = dict) -> MetadataState | None:
    """Returns the state of an environment that another process may be writing to; None when there
    is none. `queues`: see `read_state`.

    Raises: NewerLayout, RecordDamaged, Forbidden, StoreIOError.
    """
    return from_copy(meta, lambda env: read_state(env, open_dbs(env), meta, queues))


def from_copy(meta: Path, read: Callable[[Any], _T]) -> _T | None:
    """Returns what `read` makes of a copy of the environment; None when there is none.

    Nothing is locked or written, neither beside the store: the copy lies in memory.
    Raises: NewerLayout, RecordDamaged, Forbidden, StoreIOError.
    """
    with files.named_errors(meta):
        if not (meta / "data.mdb").exists():
            return None
        with memory_file() as (copy, path):
            if not _copy_environment(meta, copy):
                raise StoreIOError("the metadata changes too fast for a consistent copy", str(meta))
            check_file(path, shown=meta / "data.mdb")
            try:
                env = lmdb.open(
                    str(path), subdir=False, readonly=True, lock=False, max_dbs=MAX_DBS,
                    map_size=MAP_MAX,
                )  # fmt: skip
                with env:
                    return None if read_schema(env, meta) == 0 else read(env)
            except lmdb.Error as failed:
                raise lmdb_error(failed, meta) from failed
