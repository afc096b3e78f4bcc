"""Derived files made in parts by many processes (csrc/derive): the units of some segments are one
part, an index file is another.

The driver cuts the work and puts the pieces together; whoever does a part (:func:`derive_part`)
sees the store at the same path. All parts of a run write below one new folder: what is left of a
run that was abandoned finds that folder gone. A log that is not plain, as after the deletion of a
topic, is left to the recovery of a scratch store.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from pystore.audit.core import Key
from pystore.audit.layout import UNIT, Layout, last_with_data
from pystore.audit.parts import AuditContext, AuditPart, check_same, cut_parts, share
from pystore.errors import NotAStore
from pystore.files import make_folders, sync_folder
from pystore.native import ffi, lib, raise_error
from pystore.settings import Settings, fill

__all__ = ["DerivedPart", "Deriving", "Run", "derive", "derive_part", "one_by_one"]


@dataclass(slots=True)
class Deriving:
    """What all parts begin with. `into` is the folder of this run; `slots` and `entries` are those
    of an index file."""

    seen: AuditContext
    into: Path
    slots: int
    entries: int


class IndexFile(NamedTuple):
    """An index file to be made: `keys` of them after the first `skip` of these segments."""

    number: int
    segments: range
    skip: int
    keys: int


@dataclass(slots=True)
class DerivedPart:
    """What a part made. `plain` is False where it could not. `queues` has the offsets [first, end)
    of the units that it wrote, and `indexes` the files that it made, by number."""

    plain: bool = True
    queues: dict[Key, tuple[int, int]] = field(default_factory=dict)
    indexes: dict[int, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """A way to run parts. `do` does parts and returns what each made, in order; `most` limits the
    parts of the log."""

    do: Callable[[Deriving, Sequence[AuditPart]], Iterable[DerivedPart]]
    most: int


def _one_by_one(deriving: Deriving, parts: Sequence[AuditPart]) -> Iterable[DerivedPart]:
    return (derive_part(deriving, part) for part in parts)


#: All parts in this thread.
one_by_one = Run(_one_by_one, 1)


# ---- a part ----


def derive_part(deriving: Deriving, part: AuditPart) -> DerivedPart:
    """Does one part. Raises: NotAStore, DiskFull, Forbidden, StoreIOError, FlushFailed."""
    check_same(deriving.seen)
    if not deriving.into.is_dir():
        error = NotAStore(f"on host {socket.gethostname()}: not there", str(deriving.into))
        error.next_step = "executors must see the store at the driver's path, and may write to it"
        raise error
    deriver = _Deriver(deriving)
    if part.step == "queues":
        return deriver.queues(part.items)
    return deriver.index(part.items) if part.step == "index" else deriver.begin(part.items)


class _Deriver:
    """Uses ps_derive, and keeps what it makes."""

    def __init__(self, deriving: Deriving) -> None:
        self._deriving = deriving
        self._layout = deriving.seen.layout
        conf, _keep = fill(ffi, deriving.seen.settings, self._layout.root)
        into = ffi.new("char[]", os.fsencode(deriving.into))
        given = ffi.new("ps_derive_conf *")
        given.into = into
        given.consumequeue_file_size = self._layout.queue_file_size
        given.file_mode = deriving.seen.settings.file_mode
        given.index_slots, given.index_entries = deriving.slots, deriving.entries
        given.level_count = conf.level_count
        given.level_delay_ms = conf.level_delay_ms
        raw = lib.ps_derive_new(given, ffi.NULL)
        if raw == ffi.NULL:
            raise MemoryError("no memory to make derived files")
        self._raw = ffi.gc(raw, lib.ps_derive_free)
        self._error = ffi.new("ps_error *")

    def queues(self, numbers: Sequence[int]) -> DerivedPart:
        """Makes the units of these segments."""
        for i in numbers:
            file, last = self._layout.segments[i], i == self._deriving.seen.last
            if not self._check(
                lib.ps_derive_units(
                    self._raw, os.fsencode(file.path), file.number, file.size, last, self._error
                )
            ):
                return DerivedPart(plain=False)
        self._check(lib.ps_derive_sync(self._raw, self._error))
        return DerivedPart(queues=self._written())

    def _written(self) -> dict[Key, tuple[int, int]]:
        found: dict[Key, tuple[int, int]] = {}
        raw = ffi.new("ps_derive_queue *")
        while lib.ps_derive_queue_get(self._raw, len(found), raw):
            topic = os.fsdecode(bytes(ffi.buffer(raw.topic, raw.topic_len)))
            found[topic, int(raw.queue_id)] = (int(raw.first), int(raw.end))
        return found

    def begin(self, firsts: Sequence[tuple[Key, int]]) -> DerivedPart:
        """Fills the files in whose middle queues begin, up to there."""
        for (topic, queue), first in firsts:
            name = os.fsencode(topic)
            self._check(lib.ps_derive_begin(self._raw, name, len(name), queue, first, self._error))
        self._check(lib.ps_derive_sync(self._raw, self._error))
        return DerivedPart()

    def index(self, files: Sequence[IndexFile]) -> DerivedPart:
        """Makes index files under names of their own: of two attempts, one is used."""
        made = DerivedPart()
        for number, segments, skip, keys in files:
            path = self._deriving.into / "index" / f"{number}-{secrets.token_hex(8)}"
            wanted = ffi.new("ps_derive_keys *")
            of_log = [self._layout.segments[i] for i in segments]
            texts = [ffi.new("char[]", os.fsencode(file.path)) for file in of_log]
            paths = ffi.new("char *[]", texts)
            bases = ffi.new("int64_t[]", [file.number for file in of_log])
            sizes = ffi.new("int64_t[]", [file.size for file in of_log])
            wanted.paths, wanted.bases, wanted.sizes = paths, bases, sizes
            wanted.count, wanted.skip, wanted.keys = len(of_log), skip, keys
            wanted.last = segments[-1] == self._deriving.seen.last
            got = self._check(
                lib.ps_derive_index(self._raw, os.fsencode(path), wanted, self._error)
            )
            if got != keys:
                return DerivedPart(plain=False)
            made.indexes[number] = path
        return made

    def _check(self, code: int) -> int:
        if code < 0:
            raise_error(self._error[0], code)
        return code


# ---- the whole ----


def derive(
    keys: Sequence[int], run: Run, layout: Layout, settings: Settings, into: Path, index: bool
) -> bool:
    """Makes the queues of a store in folder `into`, and its index. Returns False where the log is
    not plain: nothing is made then.

    `keys` says how many each segment holds. Raises: as :func:`derive_part`; OSError."""
    if (layout.root / "deletedTopics").exists() or not layout.segments or layout.light_queues:
        return False
    if index and settings["indexTagsEnable"]:
        return False  # `keys` are without tags
    shape = (settings["maxHashSlotNum"], settings["maxIndexNum"])
    slots, entries = layout.index[-1][1:] if layout.index else shape
    made = into / f"parts-{secrets.token_hex(8)}"
    for name in ("consumequeue", "index"):
        make_folders(made / name, settings.file_mode)
    last = last_with_data(layout)
    deriving = Deriving(share(layout, settings, "closed", last), made, slots, entries)
    indexed = index and settings["messageIndexEnable"]
    files = _index_files(keys[: last + 1], entries - 1) if indexed else []
    numbers = range(last + 1)
    sizes = [layout.segments[i].size for i in numbers]
    # An index file is the longest part.
    parts = [AuditPart("index", [file]) for file in files]
    parts += cut_parts("queues", numbers, sizes, run.most)
    done = list(run.do(deriving, parts))
    begins = _begins(layout, done)
    if begins:
        firsts = [first % (layout.queue_file_size // UNIT) for _, first in begins]
        list(run.do(deriving, cut_parts("begin", begins, firsts, run.most)))
    if begins is not None:
        _place(made, into, {n: path for each in done for n, path in each.indexes.items()})
    shutil.rmtree(made)
    return begins is not None


def _index_files(keys: Sequence[int], each: int) -> list[IndexFile]:
    """Returns the index files to be made. keys: those of each segment; a file takes `each` of
    them."""
    until = list(accumulate(keys))
    total = until[-1]
    files = []
    for number, first in enumerate(range(0, total, each)):
        end = min(first + each, total)
        # A file goes on from the last key of the one before, which is read again for it.
        begin = bisect_right(until, max(0, first - 1))
        segments = range(begin, bisect_right(until, end - 1) + 1)
        skip = first - (until[begin] - keys[begin])
        files.append(IndexFile(number, segments, skip, end - first))
    return files


def _begins(layout: Layout, done: Iterable[DerivedPart]) -> list[tuple[Key, int]] | None:
    """Returns the queues that begin in the middle of a file, and where, or None where the log is
    not plain."""
    firsts: dict[Key, int] = {}
    ends: dict[Key, int] = {}
    for each in done:
        if not each.plain:
            return None
        for key, (first, end) in each.queues.items():
            if ends.get(key, first) != first:
                return None
            firsts.setdefault(key, first)
            ends[key] = end
    if layout.log_min == 0 and any(firsts.values()):
        return None
    units = layout.queue_file_size // UNIT
    return [(key, first) for key, first in firsts.items() if first % units]


def _place(made: Path, into: Path, indexes: dict[int, Path]) -> None:
    """Moves the pieces to where they belong, index files under names as the store gives them."""
    now = datetime.now().astimezone()  # names are local time
    for number, path in sorted(indexes.items()):
        name = (now + timedelta(milliseconds=number)).strftime("%Y%m%d%H%M%S%f")[:17]
        path.rename(made / "index" / name)
    for path in (made / "index").glob("*-*"):
        path.unlink()  # of an attempt that failed
    for name in ("consumequeue", "index"):
        if any((made / name).iterdir()):
            sync_folder(made / name)
            (made / name).rename(into / name)
    sync_folder(into)
