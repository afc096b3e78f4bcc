"""Stores on other file systems (object storage, HDFS): a local mirror of what a query touches.

The core maps files, so each host keeps a folder of its own with files of the same names and sizes.
Queues and metadata are copied whole, since planning looks into all of them. Segments of the log are
sparse, and blocks of them come by ranged reads before the core looks at them. A mirror belongs to
one listing of one store: names, sizes and what the file system, or else the head of each file, says
of changes. Which blocks are
there is kept in a file for each segment, so that processes share them. After a restart of the
machine a new mirror is made, since nothing here is synced.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pystore
from pystore.cold.places import INDEX_TOPIC, MANIFESTS, cluster_of
from pystore.files import FILE_MODE, make_folders, new_file
from pystore.format.names import LIGHT_PREFIX
from pystore.format.units import NO_RECORD, UNIT
from pystore.native import lib
from spark_ext.errors import SourceError
from spark_ext.options import StoreSettings

__all__ = ["RemoteReader", "is_tier", "open_remote"]

BLOCK = 256 << 10
#: One ranged read takes at most so many neighbouring blocks.
BLOCKS_MAX = 32
#: After the last message of any queue the log is read until so many bytes are zeros: no record of a
#: broker has the room for them.
ZEROS = 16 << 20
#: What a mirror does without: the index and the timers answer questions that are refused here.
LEFT_OUT = ("index", "timerlog", "timerwheel", "compaction", "lock", "spark")
#: What file systems call a value that changes with a file.
MARKS = (
    "ETag", "etag", "checksum", "md5Hash", "mtime", "LastModified", "last_modified", "updated",
    "modificationTime",
)  # fmt: skip
#: Where a file system says nothing of changes, so much of each file does.
HEAD = 4096
UNITS = 65_536


def is_tier(url: str) -> bool:
    """Says whether a cold tier lies at an address, and not a copy of a store."""
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(url)
        found = fs.ls(root, detail=False)
    except Exception:  # noqa: BLE001 each file system has errors of its own; the mirror says it
        return False
    names = {PurePosixPath(each).name for each in found}
    own = cluster_of(PurePosixPath(root).name) is not None
    return own or bool(names & {MANIFESTS, INDEX_TOPIC}) or any(map(cluster_of, names))


class _MirrorFile(NamedTuple):
    name: str  # below the store, with slashes
    size: int
    mark: str  # changes when the file does


class _Remote:
    """A store's folder as fsspec shows it. Raises: SourceError for what cannot be read."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
            self._fs.invalidate_cache()  # it keeps what it listed for as long as the process lives
            found = self._fs.find(self._root, detail=True)
        except Exception as e:  # each file system has errors of its own
            raise SourceError(f"cannot list {url}: {e}") from e
        files = [self._file(path, about) for path, about in found.items()]
        self.files = sorted(f for f in files if f.name.split("/")[0] not in LEFT_OUT)
        names = {f.name for f in files}
        self.log = [f for f in self.files if str(PurePosixPath(f.name).parent) == "commitlog"]
        if not self.log:
            raise SourceError(f"{url} is not a store: {url}/commitlog has no files")
        if "abort" in names:
            raise SourceError(
                f"{url} is a copy of a store that was running or crashed (it has a file 'abort'):"
                " recover it with `pystore repair` or a start of its broker, and copy it when it is"
                " closed"
            )

    def _file(self, path: str, about: dict[str, Any]) -> _MirrorFile:
        name, size = str(PurePosixPath(path).relative_to(PurePosixPath(self._root))), about["size"]
        mark = next((about[key] for key in MARKS if about.get(key)), None)
        if mark is None and name.split("/")[0] not in LEFT_OUT:
            # Another store of the same sizes begins with other records, and one that was written
            # on has another checkpoint, which is all head.
            mark = zlib.crc32(self.read(name, 0, min(int(size), HEAD)))
        return _MirrorFile(name, int(size), str(mark))

    def read(self, name: str, start: int, end: int) -> bytes:
        try:
            data: bytes = self._fs.cat_file(f"{self._root}/{name}", start=start, end=end)
        except Exception as e:  # each file system has errors of its own
            raise SourceError(f"cannot read {self.url}/{name}: {e}") from e
        if len(data) != end - start:
            raise SourceError(f"{self.url}/{name} changed while it was read")
        return data


def _cache_folder() -> Path:
    """Returns Spark's folder for what a job may lose, or one of this user."""
    chosen = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    base = Path(chosen or tempfile.gettempdir())
    return base / f"rocketmq-pystore-{os.getuid()}"


class _Mirror:
    """The local folder of a store, which knows what of its log is there."""

    def __init__(self, remote: _Remote) -> None:
        self._remote = remote
        self.url = remote.url
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        name = hashlib.sha256(json.dumps([remote.url, boot, remote.files]).encode()).hexdigest()
        self.path = _cache_folder() / name[:32]
        for file in remote.log:
            if not re.fullmatch(r"[0-9]{20}", PurePosixPath(file.name).name):
                raise SourceError(f"{remote.url}/{file.name} is not a segment: move it elsewhere")
        self._log = {int(PurePosixPath(f.name).name): f for f in remote.log}
        self._size = max(f.size for f in remote.log)
        self._copy()

    def _copy(self) -> None:
        """Copies everything but the log. A file is there with its name when it is whole."""
        for folder in ("index", "commitlog"):
            make_folders(self.path / folder, FILE_MODE)
        for file in self._remote.files:
            target = self.path / file.name
            make_folders(target.parent, FILE_MODE)
            if file in self._log.values():
                with open(os.open(target, os.O_RDWR | os.O_CREAT, FILE_MODE), "r+b") as made:
                    made.truncate(file.size)
            elif not target.exists():
                part = target.with_name(f"{target.name}.{os.getpid()}")
                with new_file(part, FILE_MODE) as out:
                    out.write(self._remote.read(file.name, 0, file.size) if file.size else b"")
                part.replace(target)
        for base in (min(self._log), max(self._log)):
            self.fetch([(base, base + 1)])
        self._fetch_tail()
        self._fetch_unlinked()

    def _fetch_tail(self) -> None:
        """Fetches the log from the last message of any queue on, which opening a reader walks."""
        at = max(self._last_places(), default=min(self._log))
        end = max(self._log) + self._log[max(self._log)].size
        if at >= end:
            raise SourceError(
                f"{self._remote.url} is a copy without the end of its log: its queues have messages"
                f" of the segment {end:020d}, which is not there; copy it anew, with all of its"
                " segments"
            )
        while at < end:
            step = min(end, at + ZEROS)
            self.fetch([(at, step)])
            if not any(map(any, self._pieces(at, step))):
                return
            at = step

    def _fetch_unlinked(self) -> None:
        """Fetches what an open compares queues with, unless their writer has noted how far they
        reach: the end of each segment whose units are a chain, as csrc/store/coverage.c has it,
        and all of any other segment."""
        if lib.ps_queues_are_noted(os.fsencode(self.path)):
            return
        units = self._units()
        for base in self._log:
            end = base + self._size
            places, ends = units[(units[:, 0] >= base) & (units[:, 0] < end)].T
            linked = len(places) and places[0] == base and (places[1:] == ends[:-1]).all()
            self.fetch([(int(ends[-1]), min(end, int(ends[-1]) + 1)) if linked else (base, end)])

    def _units(self) -> Any:
        """Returns start and end of each unit's record, in their order: an array of two columns."""
        import numpy as np

        found = [np.empty((0, 2), np.int64)]
        for file in self._remote.files:
            folder, _, rest = file.name.partition("/")
            if folder == "consumequeue" and not rest.startswith(LIGHT_PREFIX):
                data = (self.path / file.name).read_bytes()
                data = data[: len(data) // UNIT.size * UNIT.size]
                raw = np.frombuffer(data, [("at", ">i8"), ("size", ">i4"), ("tags", ">i8")])
                raw = raw[(raw["size"] > 0) & (raw["size"] != NO_RECORD)]
                starts = raw["at"].astype(np.int64)
                found.append(np.column_stack((starts, starts + raw["size"])))
        units = np.concatenate(found)
        return units[units[:, 0].argsort()]

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Yields bytes of the mirrored log."""
        for base, file in sorted(self._log.items()):
            low, high = max(start, base), min(end, base + file.size)
            if low < high:
                with (self.path / file.name).open("rb") as log:
                    log.seek(low - base)
                    yield log.read(high - low)

    def _last_places(self) -> Iterator[int]:
        """Returns, of each queue's last message, its place in the log."""
        queues: dict[str, list[str]] = {}
        for file in self._remote.files:
            if file.name.startswith("consumequeue/"):
                queues.setdefault(str(PurePosixPath(file.name).parent), []).append(file.name)
        for names in queues.values():
            for name in sorted(names, reverse=True):
                units = (self.path / name).read_bytes().rstrip(b"\0")
                count = -(-len(units) // UNIT.size)
                if count:
                    last = units[(count - 1) * UNIT.size :].ljust(UNIT.size, b"\0")
                    place, size, _ = UNIT.unpack(last)
                    if size != NO_RECORD:
                        yield place
                    break

    # ---- pieces of the log ----

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Brings the blocks of these bytes [from, to) of the log. Raises: SourceError."""
        wanted: dict[int, set[int]] = {}
        for start, end in ranges:
            for base in range(start - start % self._size, end, self._size):
                file = self._log.get(base)
                if file is not None:
                    low, high = max(start, base) - base, min(end - base, file.size)
                    numbers = range(low // BLOCK, -(-high // BLOCK))
                    wanted.setdefault(base, set()).update(numbers)
        for base, blocks in sorted(wanted.items()):
            self._fetch_blocks(self._log[base], sorted(blocks))

    def _fetch_blocks(self, file: _MirrorFile, blocks: list[int]) -> None:
        path = self.path / file.name
        # Not in commitlog: the core lists that folder.
        marks = self.path / f"{path.name}.blocks"
        with (
            path.open("r+b") as log,
            open(os.open(marks, os.O_RDWR | os.O_CREAT, FILE_MODE), "r+b") as there,
        ):
            known = there.read()
            missing = [b for b in blocks if not known[b : b + 1].strip(b"\0")]
            for first, count in _runs(missing):
                start = first * BLOCK
                end = min(start + count * BLOCK, file.size)
                os.pwrite(log.fileno(), self._remote.read(file.name, start, end), start)
                os.pwrite(there.fileno(), b"\1" * count, first)  # after the data is there


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    """Yields (first, count) of neighbours."""
    for _, group in itertools.groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
        run = [block for _, block in group]
        for i in range(0, len(run), BLOCKS_MAX):
            yield run[i], len(run[i : i + BLOCKS_MAX])


class RemoteReader(pystore.Reader):
    """A reader of a mirror, which fetches what it is asked for first."""

    def __init__(self, mirror: _Mirror, settings: StoreSettings) -> None:
        """Raises: SourceError for queues that lack messages of the log: a reader of files makes
        them again from the log, which is not here."""
        self._mirror = mirror
        super().__init__(mirror.path, **dict(settings))
        for item in self.report.items:
            if item.action == pystore.Action.SKIPPED and item.what.startswith("consumequeue/"):
                self.close()
                raise SourceError(
                    f"{mirror.url}: {item.what} lacks messages of the log from offset {item.start}"
                    " on: mend the store with `pystore repair` or a start of its broker, and copy"
                    " it again"
                )

    def refresh(self) -> None:
        """Does nothing: a mirror stays what it is, and who plans or begins a task opens it
        again."""

    def _fetch_queue(self, topic: str, queue: int, start: int, end: int) -> None:
        for at in range(start, end, UNITS):
            units = self.units(topic, queue, at, min(UNITS, end - at))
            self._mirror.fetch((place, place + size) for place, size, _ in units)

    def read(self, topic: str, queue: int, offset: int, **more: Any) -> Any:
        count = int(more.get("max_messages", 32))
        self._fetch_queue(topic, queue, offset, offset + count)
        return super().read(topic, queue, offset, **more)

    def message(self, offset: int) -> pystore.Message:
        self._mirror.fetch([(offset, offset + BLOCK)])
        return super().message(offset)

    def offset_at(self, topic: str, queue: int, timestamp: int, *, upper: bool = False) -> int:
        """Searches as the reader of files does, and fetches the messages it looks at."""
        if upper:
            raise NotImplementedError("the last message before a time")
        low, high = self.range(topic, queue)
        while low < high:
            middle = (low + high) // 2
            at, stored = self._next_stored(topic, queue, middle, high)
            if stored is not None and stored < timestamp:
                low = at + 1
            else:
                high = middle
        return low

    def _next_stored(self, topic: str, queue: int, start: int, end: int) -> tuple[int, int | None]:
        """Returns the first message in [start, end) that can be read, and its store time."""
        for at in range(start, end):
            for message in self.read(topic, queue, at, max_messages=1):
                return message.queue_offset, message.store_timestamp
        return end, None

    def arrow(self, topic: str | None = None, queue: int | None = None, **options: Any) -> Any:
        start, end = options.get("start"), options.get("end")
        if start is not None and end is not None:
            if topic is None or queue is None:
                self._mirror.fetch([(start, end)])
            else:
                self._fetch_queue(topic, queue, start, end)
        return super().arrow(topic, queue, **options)


def open_remote(url: str, settings: StoreSettings) -> RemoteReader:
    """Opens a reader of the store at an address that fsspec knows. Raises: SourceError,
    StoreError."""
    return RemoteReader(_Mirror(_Remote(url)), settings)
