"""Topics, groups and offsets of a store: LMDB is the truth, config/*.json the interchange.

pystore/meta/_database.py says how the rows lie there. All but the consumer offsets of a writer is
held in memory as well, as upstream does, and looked up there without a lock: a value may be seen a
moment before it is on the disk. One process writes. A reader takes a copy of the environment, so
that nothing a writer does reaches it.

The config files are written from the tables (:meth:`Metadata.maybe_export`, :meth:`Metadata.close`)
and imported when another program has written them: a Java broker ran. "Another program" means that
the content is neither what we wrote nor what we read. Each content is noted before it is written,
so that an export that was killed half way is still known as our own, and never rolls the tables
back.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lmdb

from pystore import files
from pystore.base.closing import ClosedByWith
from pystore.errors import (
    NewerLayout,
    NotWriteable,
    RecordDamaged,
    StoreError,
    StoreLocked,
)
from pystore.files import javajson
from pystore.files.aside import move_aside
from pystore.format.names import (
    BENCHMARK_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYNC_MEMBER_PREFIX,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
)
from pystore.meta import _database, configfiles
from pystore.meta._database import Fingerprint
from pystore.meta._rows import MetaStore
from pystore.meta._tables import DelayOffsets, Offsets, Table, check_number
from pystore.meta.configfiles import (
    LMQ_OFFSETS,
    RAW_FILES,
    SECTIONS,
    ConsumerOffset,
    DataVersion,
    Parts,
    SubscriptionGroup,
    TopicConfig,
)
from pystore.meta.offsetfile import ConsumerOffsetFile
from pystore.meta.pending import PendingTable
from pystore.settings import Settings, load

__all__ = [
    "ConfigEvent",
    "ConsumerOffset",
    "DataVersion",
    "Metadata",
    "SubscriptionGroup",
    "Table",
    "TopicConfig",
    "system_topics",
]

_log = logging.getLogger("pystore")

#: What is done about a config file without taking its content.
_WITHOUT_FILES = ("kept", "rebuilt")
#: What is open here, by process, device and inode of the folder. What nobody holds any more is gone
#: by itself, as LMDB's own handle is.
_OPEN_HERE: weakref.WeakValueDictionary[tuple[int, int, int] | None, Metadata] = (
    weakref.WeakValueDictionary()
)
_OPEN_HERE_LOCK = threading.Lock()
_OFFSETS_MARK = b"offsets/mark"
_DELAYS_KNOWN = b"delays/known"


#: How long consumer offsets rest after an export, in times of what it took of a processor.
_REST = 20


@dataclass(frozen=True, slots=True)
class _Todo:
    """A file to write: its content, the digests of that and of what is there ("": nothing), and
    whether that becomes the ``.bak``."""

    content: Iterable[bytes]
    digest: str
    old: str
    keep: bool


@dataclass(frozen=True, slots=True)
class ConfigEvent:
    """What was done about one config file.

    action: "imported" (its content replaced the table), "backup" (the ``.bak`` did), "kept" (the
    table stayed as it was), "rebuilt" (the table is made of what the log has), "skipped", "aside"
    (of ``meta``: the database was moved aside, and the config files count). why: one sentence.
    """

    file: str
    action: str
    why: str


# ---- built-in topics ----


def system_topics(settings: Settings) -> list[TopicConfig]:
    """Returns the topics that a broker with these settings makes at its start
    (docs/internals/format.md#config-files)."""
    cluster, broker = settings["brokerClusterName"], settings["brokerName"]
    defaults = settings["defaultTopicQueueNums"]
    rows: list[tuple[str, int, int]] = [(SELF_TEST_TOPIC, 1, 6)]
    if settings["autoCreateTopicEnable"]:
        rows.append((TEMPLATE_TOPIC, defaults, 7))
    rows.append((BENCHMARK_TOPIC, 1024, 6))
    rows.append((cluster, 16, 7 if settings["clusterTopicEnable"] else 1))
    rows.append((broker, 1, 7 if settings["brokerTopicEnable"] else 1))
    rows.append((OFFSET_MOVED_TOPIC, 1, 6))
    rows.append((SCHEDULE_TOPIC, 18, 6))
    if settings["traceTopicEnable"]:
        rows.append((settings["msgTraceTopicName"], 1, 6))
    rows.append((cluster + REPLY_SUFFIX, 1, 6))
    rows.append((REVIVE_PREFIX + cluster, settings["reviveQueueNum"], 6))
    rows.append((SYNC_MEMBER_PREFIX + broker, 1, 1))
    rows.append((HALF_TOPIC, 1, 6))
    rows.append((OP_TOPIC, 1, 6))
    if settings["timerWheelEnable"]:
        rows.append((TIMER_TOPIC, 1, 6))
    return [TopicConfig(name, queues, queues, perm) for name, queues, perm in rows]


# ---- the whole ----


class Metadata(MetaStore, ClosedByWith):
    """The metadata of one store: ``topics``, ``groups``, ``offsets``, ``delay_offsets``.

    One process writes; any thread of it may. With readonly nothing is locked or written, and a
    store without ``meta/`` (a Java broker's) is read from its config files; the content is that of
    the moment of opening or of :meth:`refresh`.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        readonly: bool = False,
        sync: bool = True,
    ) -> None:
        """Opens ``<root>/meta``, made when missing, and imports what a Java broker has written.

        settings: for the cadence of exports and the defaults of new topics. sync: each change is on
        the disk when its call returns; without it a power failure may take the last ones.

        What is damaged is passed over in the order of docs/recovery.md#metadata; ``report`` and
        the log say so.

        Raises: StoreLocked, NewerLayout, RecordDamaged (a config file and its ``.bak`` are both
        torn, and nothing else has what they held; they were not changed), Forbidden, DiskFull,
        StoreIOError.
        """
        super().__init__(Path(root), settings if settings is not None else load(), readonly)
        self.config = self.root / "config"
        self._file_mode = self._settings.file_mode
        self._system_rows: tuple[Settings | None, dict[str, TopicConfig]] = (None, {})
        #: Device and inode of the folder of the database, of a writer.
        self._place = (0, 0)
        #: What opening it did about the config files.
        self.report: tuple[ConfigEvent, ...] = ()
        #: Config files whose tables begin empty: neither they nor a database was there.
        self.lacking: tuple[str, ...] = ()
        self.topics: Table[TopicConfig] = Table(self, "topics")
        self.groups: Table[SubscriptionGroup] = Table(self, "groups")
        self.offsets = Offsets(self)
        self.delay_offsets = DelayOffsets(self)
        #: Transactions that wait for their decision.
        self.pending = PendingTable(self)
        self._owner_fd = -1
        self._entry: tuple[int, int, int] | None = None
        self._exported: dict[str, float] = {}
        self._offsets_took = 0.0  # seconds of a processor, by the last export that had them
        if readonly:
            self.refresh()
        else:
            self._open(sync)

    def _open(self, sync: bool) -> None:
        """Opens the database. One that is damaged goes aside, and the config files count."""
        try:
            self._open_database(sync)
        except RecordDamaged as damaged:
            if not str(damaged.where).startswith(str(self.path)):
                raise
            event = self._set_aside(damaged)
            self._closed = False
            self._state = _database.MetadataState()
            self._open_database(sync)
            self.report = (event, *self.report)
        for event in self.report:
            if event.action != "imported":
                _log.warning("%s/%s: %s: %s", self.root, event.file, event.action, event.why)

    def _set_aside(self, damaged: RecordDamaged) -> ConfigEvent:
        """Sets a damaged table aside. Raises: StoreLocked while another process has the database
        open, Forbidden, DiskFull."""
        try:
            with files.named_errors(self.path):
                self._own()
                folder = move_aside(self.root, [self.path], str(damaged), self._file_mode)
        finally:
            self._release()
        where = folder.relative_to(self.root)
        return ConfigEvent("meta", "aside", f"{damaged}; it is in {where}, the config files count")

    def _open_database(self, sync: bool) -> None:
        try:
            fresh = not (self.path / "data.mdb").exists()
            files.make_folders(self.path, self._file_mode)
            if fresh:
                files.sync_folder(self.root)
            about = self.path.stat()
            self._place = about.st_dev, about.st_ino
            self._enter()
            _database.check_file(self.path / "data.mdb")
            _database.reserve_lock(self.path, self._file_mode)
            self._env = lmdb.open(
                str(self.path), map_size=_database.MAP_SIZE, max_dbs=_database.MAX_DBS,
                writemap=False, sync=sync, metasync=True, mode=self._file_mode,
            )  # fmt: skip
            self._own()
            new = _database.read_schema(self._env, self.path) == 0
            self._dbs = _database.make_dbs(self._env, new)
            if fresh:
                files.sync_folder(self.path)
            self._size = _database.size_of(self._env, self.path)
            self._read_state()
            if self._env.info()["last_txnid"] == _database.said(self._env, self._dbs):
                self._dirty = set()
            files.remove_temporaries(self.config, (file for _, file in _all_tables()))
            self.report = tuple(self._import_changed())
            self.lacking = self._without_source() if new else ()
        except BaseException as failed:
            self._release()
            if isinstance(failed, lmdb.Error):
                raise _database.lmdb_error(failed, self.path) from failed
            if isinstance(failed, OSError) and not isinstance(failed, StoreError):
                raise files.os_error(failed, self.path) from failed
            raise

    def _enter(self) -> None:
        """Refuses a second open by this process, before it touches a file: a POSIX lock goes with
        the first close of its file, whoever took it."""
        entry = (os.getpid(), *self._place)
        with _OPEN_HERE_LOCK:
            if entry in _OPEN_HERE:
                text = "this process already has the metadata open"
                raise StoreLocked(text, str(self.path), pid=os.getpid())
            _OPEN_HERE[entry] = self
        self._entry = entry

    def _own(self) -> None:
        """Takes the lock of the writer: LMDB lets several processes write, a store has one writer,
        whoever opens its metadata."""
        path = self.path / "owner"
        self._owner_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._file_mode)
        try:
            fcntl.lockf(self._owner_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreLocked("another process has the metadata open", str(self.path)) from None

    def _release(self) -> None:
        env, self._env = self._env, None
        fd, self._owner_fd = self._owner_fd, -1
        self._closed = True
        if env is not None and os.getpid() == self._pid:
            _database.close(env, self.path)
        if fd >= 0:
            os.close(fd)
        entry, self._entry = self._entry, None
        with _OPEN_HERE_LOCK:
            _OPEN_HERE.pop(entry, None)

    def size(self) -> tuple[int, int, int]:
        """Returns the bytes of the pages in use, the most they may become, and how many readers
        there are."""
        env = self._env
        if env is None:
            return 0, 0, 0
        about = env.info()
        used = (about["last_pgno"] + 1) * env.stat()["psize"]
        return used, about["map_size"], about["num_readers"]

    # ---- life ----

    def close(self) -> None:
        """Exports everything and lets go; a second call does nothing.

        Raises: Forbidden, DiskFull, StoreIOError when a config file could not be written. It is
        closed all the same, and LMDB holds everything.
        """
        if os.getpid() != self._pid:  # the parent's; its lock may be held by a thread of the parent
            self._release()
            return
        with self._lock:
            if self._closed:
                return
            try:
                if not self.readonly:
                    self.export_json()
                    self._note_said()
            finally:
                self._release()

    def _note_said(self) -> None:
        """Notes that the config files say what the tables do: unless somebody commits something
        after that, the next open need not write them again. Raises: DiskFull, StoreIOError."""
        if self._env.info()["last_txnid"] != _database.said(self._env, self._dbs):
            with self._write() as txn:
                _database.note_said(txn, self._dbs)

    def refresh(self) -> None:
        """Reads everything again; for a reader beside a live writer. A writer is always up to date.

        Raises: NewerLayout, RecordDamaged, Forbidden, StoreIOError; what was read before stays.
        """
        self._check_open()
        if not self.readonly:
            return
        with self._lock:
            before, events = self._state, []
            try:
                try:
                    state = _database.read_copy(self.path)
                except NewerLayout:
                    raise
                except StoreError as failed:
                    # A reader is for rescue too: the config files are seconds older, and there.
                    events.append(ConfigEvent("meta", "skipped", str(failed)))
                    state = None
                self._state = state if state is not None else _database.MetadataState()
                self.report = (*events, *self._import_changed())
            except BaseException:
                self._state = before
                raise

    # ---- changes ----

    def _replace(self, name: str, parts: Parts, txn: Any) -> None:
        """Puts the content of a file in the place of a whole table."""
        stored: Any = self._state.parts[name].rows
        self._state.parts[name] = parts
        if txn is None:  # of a reader
            return
        if name != "offsets":
            txn.drop(self._dbs[name], delete=False)
        if name == "offsets":
            stored.replace(parts.rows)
            self._state.parts[name] = replace(parts, rows=stored)
        elif name == "delays":
            for level, offset in parts.rows.items():
                value = struct.pack(">q", offset)
                txn.put(struct.pack(">i", level), value, db=self._dbs["delays"])
        else:
            write = _database.ROWS[name][2]
            for row in parts.rows.values():
                txn.put(
                    _database.row_key(row.name), _database.compact(write(row)), db=self._dbs[name]
                )
        self._put_version(name, txn)
        txn.put(f"extra/{name}".encode(), _database.compact(parts.extra), db=self._dbs["info"])

    def version(self, name: str) -> DataVersion:
        """Returns the dataVersion of "topics", "groups", "offsets" or "delays"."""
        self._check_open()
        return self._state.parts[name].version

    def bump(self, name: str) -> None:
        """Makes a new version of a table although no row changed: what others read into it did.

        Raises: ReadOnly, StoreClosed, DiskFull.
        """
        with self._write() as txn:
            self._bump(name, txn)

    def raise_version(self, name: str, version: DataVersion) -> None:
        """Sets the dataVersion of a table, unless it has a later one: a slave's is its master's.
        Raises: ReadOnly, StoreClosed, DiskFull."""
        parts = self._state.parts[name]
        if parts.version >= version:
            return
        with self._write() as txn:
            parts.version = version
            self._dirty.add(name)
            self._put_version(name, txn)

    # ---- rules of groups ----

    def forbidden(self) -> dict[str, dict[str, int]]:
        """Returns forbiddenTable of subscriptionGroup.json: by group and topic, bits of what the
        group may not do there; bit 0: read. What a file has there in another shape counts as
        none."""
        self._check_open()
        table = self._state.parts["groups"].extra.get("forbiddenTable")
        return {
            group: {topic: bits for topic, bits in topics.items() if type(bits) is int and bits > 0}
            for group, topics in (table.items() if isinstance(table, dict) else ())
            if isinstance(topics, dict)
        }

    def set_forbidden(self, table: Mapping[str, Mapping[str, int]]) -> None:
        """Replaces that table. Raises: ReadOnly, StoreClosed, DiskFull."""
        with self._write() as txn:
            extra = self._state.parts["groups"].extra
            extra["forbiddenTable"] = {group: dict(topics) for group, topics in table.items()}
            txn.put(b"extra/groups", _database.compact(extra), db=self._dbs["info"])
            self._bump("groups", txn)

    # ---- how far consumer offsets are kept ----

    def _noted(self, key: bytes) -> bytes:
        """Returns what is noted under a key of its own; empty: nothing is."""

        def read(txn: Any, dbs: Mapping[str, Any]) -> bytes:
            return bytes(txn.get(key, b"", db=dbs["info"])) if "info" in dbs else b""

        return self._read_pending(read)

    def offsets_mark(self) -> int:
        """Returns the offset of the log up to which the consumer offsets say what records of it did
        to them; 0: nobody has noted it."""

        raw = self._noted(_OFFSETS_MARK)
        return int(raw) if raw.isdigit() else 0

    def set_offsets_mark(self, offset: int) -> None:
        """Sets the mark, together with the offsets in one batch(). Raises: ReadOnly, StoreClosed,
        DiskFull."""
        with self._write() as txn:
            txn.put(_OFFSETS_MARK, str(offset).encode(), db=self._dbs["info"])

    # ---- how far delay levels are kept ----

    def delays_known(self) -> bool:
        """Says whether the offsets of delay levels say all that was delivered: a clean end noted
        it."""
        return self._noted(_DELAYS_KNOWN) == b"1"

    def set_delays_known(self, known: bool) -> None:
        """Notes whether the offsets say all that was delivered. Raises: ReadOnly, StoreClosed,
        DiskFull."""
        with self._write() as txn:
            txn.put(_DELAYS_KNOWN, b"1" if known else b"0", db=self._dbs["info"])

    # ---- topics that make themselves ----

    def ensure_system_topics(self, settings: Settings) -> list[str]:
        """Makes the built-in topics in a store that has no topic yet; returns their names.

        A store that has topics has them from its own broker, whose name and cluster may be others.
        The settings also become this object's. Raises: ReadOnly, StoreClosed, DiskFull.
        """
        with self._exclusive():
            self._settings = settings
            if len(self.topics):
                return []
            with self.batch():
                rows = system_topics(settings)
                for row in rows:
                    self.topics.put(row)
            return [row.name for row in rows]

    def ensure_topic(self, name: str, queue_id_max: int = 0) -> TopicConfig:
        """Returns the topic, made as a broker would on a first message, with room for the queue id.

        A new one has perm 6 and max(defaultTopicQueueNums, queue_id_max + 1) queues; one queue when
        it is a retry or dead-letter topic. One that has too few queues gets more: consumers would
        not look into the others. Raises: BadArgument, ReadOnly, StoreClosed, DiskFull.
        """
        check_number("queue_id_max", queue_id_max, 0, 65535)
        needed = queue_id_max + 1
        with self._exclusive():
            old = self.topics.get(name)
            if old is None:
                queues = 1
                if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                    queues = self._settings["defaultTopicQueueNums"]
                old = self._built_in().get(name) or TopicConfig(name, queues, queues)
            row = replace(
                old,
                read_queue_nums=max(old.read_queue_nums, needed),
                write_queue_nums=max(old.write_queue_nums, needed),
            )
            self.topics.put(row)
            return row

    def _built_in(self) -> dict[str, TopicConfig]:
        """Returns the system topics of these settings, which are made once: a log may bring 20,000
        new topics."""
        settings, rows = self._system_rows
        if settings is not self._settings:
            rows = {row.name: row for row in system_topics(self._settings)}
            self._system_rows = self._settings, rows
        return rows

    # ---- from the config files ----

    def _import_changed(self) -> list[ConfigEvent]:
        """Imports each config file that another program has written: a Java broker ran."""
        events: list[ConfigEvent] = []
        found: dict[str, tuple[bytes, Any, Fingerprint]] = {}
        for name, file in _all_tables():
            known = self._state.prints.get(file, Fingerprint())
            if known.main and _database.file_digest(self.config / file) in known.main:
                continue  # it may be long, and is not read into memory
            main, bak = _read_both(self.config / file)
            if main is None and bak is None and not known.main:
                continue  # a store that never had it
            taken, event = _choose(name, self.config / file, main, bak, known)
            events.append(event)
            self._dirty.add(name)
            if event.action in _WITHOUT_FILES and not self.readonly:
                self._keep_torn(name, file, event.why)
            if taken is not None:
                print_ = _print_of(taken, main, bak)
                found[file] = (taken, _decode(name, taken), print_)
        if found:
            self._take_over(found, self.config)
        return events

    def _without_source(self) -> tuple[str, ...]:
        told = {event.file for event in self.report}
        return tuple(f for name, f in _all_tables() if name in SECTIONS and f not in told)

    def _keep_torn(self, name: str, file: str, why: str) -> None:
        """Copies a damaged file aside: the next export takes its place."""
        path = self.config / file
        both = zip((path, path.with_name(f"{file}.bak")), _read_both(path), strict=True)
        torn = [each for each, data in both if data and not _readable(name, data)]
        if torn:
            move_aside(self.root, torn, why, self._file_mode)

    def _take_over(self, found: Mapping[str, tuple[bytes, Any, Fingerprint]], folder: Path) -> None:
        """Replaces the tables by these files of a folder, all in one transaction. The store's own
        files then say what the tables say."""
        found = dict(found)
        lagging = self._unite_offsets(found, folder)
        with self._write() if not self.readonly else contextlib.nullcontext() as txn:
            for name, file in _all_tables():
                if file not in found:
                    continue
                data, decoded, print_ = found[file]
                if name in SECTIONS:
                    self._replace(name, decoded, txn)
                else:
                    self._state.raw[file] = data
                    if txn is not None:
                        txn.put(f"raw/{file}".encode(), data, db=self._dbs["info"])
                # Read from a .bak: the file itself is torn, not ours, and to be written again.
                says_so = folder == self.config and print_.main and file not in lagging
                content = self._encode(name, file) if says_so else None
                print_.content = "" if content is None else _database.digest_of(content)
                self._put_print(file, print_, txn)
                self._dirty.add(name)

    def _unite_offsets(
        self, found: dict[str, tuple[bytes, Any, Fingerprint]], folder: Path
    ) -> tuple[str, ...]:
        """Has the table of offsets know what both files say; returns those that say less. A Java
        broker with enableLmq keeps the progress of all groups in lmqConsumerOffset.json and leaves
        consumerOffset.json as it was, one without it the reverse: what was written last counts,
        where both know a group."""
        if LMQ_OFFSETS not in found:
            return ()
        section = SECTIONS["offsets"]
        try:
            light = section.loads(found[LMQ_OFFSETS][0])
        except ValueError as bad:
            _log.warning("Offsets of %s are not taken: %s", LMQ_OFFSETS, bad)
            return ()
        known = replace(self._state.prints.get(section.file, Fingerprint()))
        data, plain, print_ = found.get(section.file, (b"", self._state.parts["offsets"], known))
        rows = [plain.rows, light.rows]
        later = _mtime(folder / section.file) > _mtime(folder / LMQ_OFFSETS)
        if section.file in found and later:
            rows.reverse()
        united = {pair: dict(queues) for pair, queues in rows[0].items()}
        for pair, queues in rows[1].items():
            united.setdefault(pair, {}).update(queues)
        found[section.file] = data, replace(plain, rows=united), print_
        return section.file, LMQ_OFFSETS

    def _put_print(self, file: str, print_: Fingerprint, txn: Any) -> None:
        with contextlib.suppress(OSError):
            about = (self.config / file).stat()
            print_.size, print_.mtime_ns = about.st_size, about.st_mtime_ns
        self._state.prints[file] = print_
        if txn is not None:
            txn.put(
                f"print/{file}".encode(), _database.compact(asdict(print_)), db=self._dbs["info"]
            )

    def import_json(self, directory: str | os.PathLike[str] | None = None) -> list[ConfigEvent]:
        """Replaces each table by the file in the folder (default: the store's own config/).

        A file that is missing or torn is read from its ``.bak``; without that too the table stays.

        Raises: RecordDamaged when a file and its ``.bak`` are torn (nothing was changed), ReadOnly,
        StoreClosed, Forbidden, DiskFull, StoreIOError.
        """
        folder = self.config if directory is None else Path(directory)
        own = folder.resolve() == self.config.resolve()
        with self._exclusive():
            found: dict[str, tuple[bytes, Any, Fingerprint]] = {}
            events = []
            for name, file in _all_tables():
                main, bak = _read_both(folder / file)
                if main is None and bak is None:
                    continue
                taken, event = _choose(name, folder / file, main, bak, Fingerprint())
                events.append(event)
                if taken is not None:
                    print_ = replace(self._state.prints.get(file, Fingerprint()))
                    if own:
                        print_ = _print_of(taken, main, bak)
                    found[file] = (taken, _decode(name, taken), print_)
            if found:
                self._take_over(found, self.config if own else folder)
            return events

    # ---- to the config files ----

    def _encode(self, name: str, file: str) -> Iterable[bytes] | None:
        """Encodes the file, in pieces that come as often as they are asked for, while nothing
        changes; None when there is nothing to write."""
        if name not in SECTIONS:
            data = self._state.raw.get(file)
            if file != LMQ_OFFSETS or data is None:
                return None if data is None else (data,)
            # The progress of all groups of a Java broker with enableLmq, which reads no other file.
            own = javajson.loads(data)
            extra = {k: v for k, v in own.items() if k in ("pullOffsetTable", "lmqOffsetTable")}
            return self._encode_parts("offsets", replace(self._state.parts["offsets"], extra=extra))
        parts = self._state.parts[name]
        return None if parts.untouched else self._encode_parts(name, parts)

    def _encode_parts(self, name: str, parts: Parts) -> Iterable[bytes]:
        # The core reads what is committed, of a writer.
        if name == "offsets" and not self.readonly and self._txn is None:
            return ConsumerOffsetFile(self.path, parts.version, parts.extra)
        return (SECTIONS[name].dumps(parts),)

    def maybe_export(self, now: float | None = None) -> list[str]:
        """Writes the config files that are due; returns their names.

        Consumer offsets every flushConsumerOffsetInterval (5 s), delay offsets every
        flushDelayOffsetInterval (10 s), topics and groups after each change: upstream's cadence.
        Consumer offsets rest longer than that when they are many: _REST times what the last export
        of them took of a processor. now: seconds, of any clock that goes forward (default:
        time.monotonic).

        Raises: Forbidden, DiskFull, StoreIOError; the files hold their old content or the new one.
        """
        now = time.monotonic() if now is None else now
        pauses = {
            "offsets": max(
                self._settings["flushConsumerOffsetInterval"] / 1000, _REST * self._offsets_took
            ),
            "delays": self._settings["flushDelayOffsetInterval"] / 1000,
        }
        with self._exclusive():
            due = set()
            for name in self._dirty:
                last = self._exported.get(name)
                # A clock that was set back must not stop the exports.
                if last is None or not 0 <= now - last < pauses.get(name, 0):
                    due.add(name)
            if "offsets" in due:
                due.add(LMQ_OFFSETS)
            began = time.thread_time()
            try:
                written = self._export(due)
            finally:  # one that fails, too: a full disk must not make it run all the time
                if "offsets" in due:
                    self._offsets_took = time.thread_time() - began
                    self._exported["offsets"] = now
            for name in due:
                self._exported[name] = now
            return written

    def export_json(self, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """Writes the config files into the folder (default: the store's own); returns their names.

        In the store's own folder only those whose content changed. Each file is replaced as a whole
        and synced; its previous content becomes its ``.bak``.

        Raises: Forbidden, DiskFull, StoreIOError; each file holds its old content or the new one.
        """
        with self._lock:
            self._check_open()
            if directory is not None and Path(directory).resolve() != self.config.resolve():
                return self._export_elsewhere(Path(directory))
            self._check_writable()
            return self._export({*SECTIONS, *RAW_FILES})

    def _export_elsewhere(self, folder: Path) -> list[str]:
        written = []
        with files.named_errors(folder):
            files.make_folders(folder, self._file_mode)
            for name, file in _all_tables():
                content = self._encode(name, file)
                if content is not None:
                    path = folder / file
                    files.replace_pieces(path, content, keep_old=True, mode=self._file_mode)
                    written.append(file)
            files.sync_folder(folder)
        return written

    def _check_place(self) -> None:
        """Checks that the path still leads to the database: else the files would go to a new
        folder, or into another store."""
        try:
            found = self.path.stat()
            there = (found.st_dev, found.st_ino) == self._place
        except FileNotFoundError:
            there = False
        if not there:
            raise NotWriteable(
                "the folder was moved, replaced or deleted while the store was open: close the"
                " store and open it where it lies now",
                str(self.path),
            )

    def _export(self, names: set[str]) -> list[str]:
        """Writes the store's own files of these tables, those that changed.

        Raises: NotWriteable when their folder is not the one that was opened.
        """
        self._check_place()
        todo: dict[str, _Todo] = {}
        changed = self._dirty | ({LMQ_OFFSETS} if "offsets" in self._dirty else set())
        for name, file in _all_tables():
            stands = self._stands(file)
            if name not in names or (stands and name not in changed):
                continue
            content = self._encode(name, file)
            if content is None:
                continue
            digest = _database.digest_of(content)
            known = self._state.prints.get(file, Fingerprint())
            if stands and known.content == digest:
                continue
            old = known.main[0] if stands else _database.file_digest(self.config / file)
            whole = old in known.main or _readable_at(name, self.config / file)
            # A broker's service has written its file since it was read: the copy in the database
            # is an older one, which the next open replaces.
            if whole and name not in SECTIONS and old not in known.main:
                continue
            todo[file] = _Todo(content, digest, old, keep=whole and old != digest)
        if todo:
            self._export_files(todo)
        self._dirty -= names
        return list(todo)

    def _stands(self, file: str) -> bool:
        """Says whether the file is as it was when it said what its table did, be it in upstream's
        own layout."""
        print_ = self._state.prints.get(file)
        if print_ is None or print_.content == "":
            return False
        try:
            about = (self.config / file).stat()
        except OSError:
            return False
        return (about.st_size, about.st_mtime_ns) == (print_.size, print_.mtime_ns)

    def _export_files(self, todo: Mapping[str, _Todo]) -> None:
        before = {file: self._state.prints.get(file, Fingerprint()) for file in todo}
        # First what will be there, then the files: whenever this is cut short, the next open knows
        # both contents as ours.
        with self._write() as txn:
            for file, new in todo.items():
                print_ = replace(before[file], content="")
                there = [digest for digest in print_.main if digest == new.old]
                print_.main = [*there, new.digest]
                if new.keep:
                    print_.bak = list(dict.fromkeys([*print_.bak, new.old]))
                self._put_print(file, print_, txn)
        with files.named_errors(self.config):
            if not self.config.is_dir():
                files.make_folders(self.config, self._file_mode)
                files.sync_folder(self.root)
            for file, new in todo.items():
                path = self.config / file
                files.replace_pieces(path, new.content, keep_old=new.keep, mode=self._file_mode)
            files.sync_folder(self.config)
        with self._write() as txn:
            for file, new in todo.items():
                bak = [new.old] if new.keep else before[file].bak
                self._put_print(file, Fingerprint([new.digest], bak, new.digest), txn)


def _all_tables() -> Iterator[tuple[str, str]]:
    """Returns table and file; a file that is not interpreted is its own table."""
    for name, section in SECTIONS.items():
        yield name, section.file
    for file in RAW_FILES:
        yield file, file


def _decode(name: str, data: bytes) -> Any:
    """Decodes a file. Raises: ValueError that says what is wrong."""
    if name in SECTIONS:
        return SECTIONS[name].loads(data)
    configfiles.check_json(data)
    return None


def _readable_at(name: str, path: Path) -> bool:
    """Says whether what a file holds is worth keeping: a torn one must not push out a good .bak."""
    return _readable(name, files.read_file(path) or b"")


def _readable(name: str, data: bytes) -> bool:
    try:
        _decode(name, data)
    except ValueError:
        return False
    return True


def _read_both(path: Path) -> tuple[bytes | None, bytes | None]:
    """Reads a file and its ``.bak``; one that is empty counts as damaged: a crash leaves it."""
    main = files.read_file(path)
    bak = files.read_file(path.with_name(path.name + ".bak"))
    return main, bak or None


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _print_of(taken: bytes, main: bytes | None, bak: bytes | None) -> Fingerprint:
    """Returns what is ours once the content `taken` of a file or its ``.bak`` has replaced the
    table."""
    return Fingerprint([_database.digest(main)] if taken is main else [], [_database.digest(bak)])


def _choose(
    name: str, path: Path, main: bytes | None, bak: bytes | None, known: Fingerprint
) -> tuple[bytes | None, ConfigEvent]:
    """Chooses the content that counts, None for what the tables hold. Raises: RecordDamaged."""
    file, why = path.name, "the file is missing" if main is None else "the file is empty"
    if main:
        try:
            _decode(name, main)
        except ValueError as bad:
            why = f"the file is damaged ({bad})"
        else:
            said = "another program has written it" if known.main else "it has not been read before"
            return main, ConfigEvent(file, "imported", said)
    if bak is None:
        return None, ConfigEvent(file, "kept", f"{why} and there is no .bak file")
    if _database.digest(bak) in known.main + known.bak:
        return None, ConfigEvent(
            file, "kept", f"{why} and the .bak file is an older version of ours"
        )
    try:
        _decode(name, bak)
    except ValueError as bad:
        if known.main:  # the database has the table
            return None, ConfigEvent(file, "kept", f"{why}, and so is its .bak ({bad})")
        if name == "topics":
            return None, ConfigEvent(file, "rebuilt", f"{why}, and so is its .bak ({bad})")
        error = RecordDamaged(f"{why}, and so is its .bak ({bad})", f"{path}.bak")
        error.next_step = "repair one of the two, or move both elsewhere"
        raise error from None
    return bak, ConfigEvent(file, "backup", why)
