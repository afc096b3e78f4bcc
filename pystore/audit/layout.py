"""The files of a store before anything is read of them: which are there, how long they are."""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from pystore.audit.findings import Finding
from pystore.audit.kinds import (
    DoubleSegmentFinding,
    FileFault,
    IndexSizeFinding,
    KeptElsewhereFinding,
    LogFolderFinding,
    MisnamedSegmentFinding,
    MissingSegmentFinding,
    QueueStrayFinding,
    SegmentSizeFinding,
    StrayFileFinding,
    StrayReason,
)
from pystore.audit.sizes import SEGMENT_LEAST, Piece, piece_of, usual_size
from pystore.errors import NotAStore, NotFound, StoreError
from pystore.files import hold_the_same, os_error
from pystore.files.elsewhere import kept_elsewhere, refuse_kept_elsewhere
from pystore.files.quiet import open_quietly
from pystore.format.records import RecordHead, record_at
from pystore.native import ffi, lib, raise_error
from pystore.settings import Settings

__all__ = [
    "GAP_MOST",
    "UNIT",
    "File",
    "Layout",
    "base_of",
    "file_of",
    "is_circle",
    "last_with_data",
    "look",
    "look_at_log",
    "record_of",
]

_BY_NAME = attrgetter("name")
_DIGITS = re.compile(r"[0-9]{1,20}")
_NUMBER_MAX = (1 << 63) - 1  # of what is named by an offset or a time
_SEGMENT = re.compile(r"[0-9]{20}")
_RATIOS = (4, 2, 1, 5, 10, 8, 3)  # index entries to slots
_HEADER, _SLOT, _ENTRY = 40, 4, 20
#: Bytes of a unit of a queue.
UNIT = 20
_INDEX_MOST = (1 << 31) - 1  # bytes that Java can map
#: So many segments may be missing in one place: more are no part of a log that was lost.
GAP_MOST = 16_384


@dataclass(frozen=True, slots=True)
class File:
    """A file named by a number, with its size in bytes."""

    place: str
    number: int
    size: int

    @property
    def path(self) -> Path:
        """Returns the path, made when it is asked for: a store may have a hundred thousand
        files."""
        return Path(self.place)


@dataclass(slots=True)
class Layout:
    """The contents of a store's folders.

    `segments` are those of the log, by first byte. `queues` are the files of each queue folder, by
    topic and queue id. `index` has path, slots and entries of each index file, oldest first.
    `in_the_way` are other things where folders of topics or queues may be. `lights` are the files
    of light queues, by first slot; None: the store serves none."""

    root: Path
    segments: list[File] = field(default_factory=list)
    segment_size: int = 0
    queues: dict[tuple[str, int], list[File]] = field(default_factory=dict)
    queue_file_size: int = 0
    index: list[tuple[Path, int, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    in_the_way: list[Path] = field(default_factory=list)
    lights: list[File] | None = None

    @property
    def log_min(self) -> int:
        return self.segments[0].number if self.segments else 0

    @property
    def log_end(self) -> int:
        """Returns the end of the last segment, whatever it holds."""
        return self.segments[-1].number + self.segments[-1].size if self.segments else 0

    @property
    def light_queues(self) -> list[tuple[str, int]]:
        """Returns the queues of light messages (csrc/format/multi.h), which the log alone does not
        ask for."""
        return [key for key in self.queues if key[0].startswith("%LMQ%")]

    def name(self, path: Path) -> str:
        """Returns the path as findings show it."""
        return (
            path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        )

    def segment_of(self, physical: int) -> str:
        """Returns the name of the file that holds a byte of the log."""
        for file in self.segments:
            if file.number <= physical < file.number + max(file.size, self.segment_size):
                return self.name(file.path)
        return "commitlog"

    def light_file_of(self, slot: int) -> str:
        """Returns the name of the file of light queues that holds a slot."""
        before = [file for file in self.lights or () if file.number <= slot]
        return self.name(before[-1].path) if before else "lightqueue"

    def queue_file_of(self, topic: str, queue: int, offset: int) -> str:
        """Returns the name of the file that holds a unit."""
        base = offset * UNIT - offset * UNIT % self.queue_file_size
        return f"consumequeue/{topic}/{queue}/{base:020d}"

    def found(self, kind: type[Finding], file: Path | str, **details: Any) -> None:
        """Adds a finding of this kind; `details` are its fields."""
        named = self.name(file) if isinstance(file, Path) else file
        self.findings.append(kind(file=named, **details))


def file_of(layout: Layout, physical: int) -> File | None:
    """Returns the segment that holds a byte of the log; None: none does."""
    return next((s for s in layout.segments if s.number <= physical < s.number + s.size), None)


def record_of(layout: Layout, physical: int) -> tuple[bytes, RecordHead] | None:
    """Returns the whole record at a place of the log; None: there is none. Raises: OSError."""
    file = file_of(layout, physical)
    if file is None:
        return None
    with open_quietly(file.path) as opened:
        return record_at(opened.fileno(), physical - file.number)


def _sorted(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=_BY_NAME)
    except OSError as failed:
        if failed.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return []
        raise


def _folders(folder: Path | str, others: list[Path]) -> Iterator[os.DirEntry[str]]:
    """Returns what is a folder, or a link to one, by name. others: takes everything else."""
    for entry in _sorted(folder):
        with suppress(OSError):  # a link in a circle
            if entry.is_dir():
                yield entry
                continue
        others.append(Path(entry.path))


def _entries(folder: Path | str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    for entry in _sorted(folder):
        try:
            yield entry, entry.stat(follow_symlinks=True)
        except OSError:
            with suppress(FileNotFoundError):  # gone meanwhile
                yield entry, entry.stat(follow_symlinks=False)  # a link to nothing


def is_circle(path: Path | str) -> bool:
    """Returns whether it is a link that leads to itself: no open looks past one."""
    try:
        Path(path).stat()
    except OSError as failed:
        return failed.errno == errno.ELOOP
    return False


def _numbered(folder: Path | str) -> tuple[list[File], list[Path]]:
    """Returns the regular files named by a number, and what else is there, except folders and links
    to nothing that do not have a segment's name: an open passes over them, too."""
    files, others = [], []
    for entry, info in _entries(folder):
        passed_over = stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode)
        if passed_over and not _SEGMENT.fullmatch(entry.name) and not is_circle(entry.path):
            continue
        number = int(entry.name) if _DIGITS.fullmatch(entry.name) else _NUMBER_MAX + 1
        if stat.S_ISREG(info.st_mode) and number <= _NUMBER_MAX:
            files.append(File(entry.path, number, info.st_size))
        else:
            others.append(Path(entry.path))
    files.sort(key=lambda file: file.number)
    return files, others


def _segment_size(files: list[File], otherwise: int) -> int:
    """Returns the size of a segment. It looks into the files where their lengths and names do not
    agree."""
    sizes = {file.size for file in files}
    apart = [after.number - before.number for before, after in pairwise(files)]
    if len(sizes) == 1 and min(sizes) >= SEGMENT_LEAST and set(apart) <= sizes:
        return sizes.pop()
    pieces = []
    for file in files:
        try:
            with open_quietly(file.path) as opened:
                pieces.append(piece_of(opened, file.number))
        except OSError:  # gone meanwhile, or not for this user
            pieces.append(Piece(file.number, file.size))
    return usual_size([pieces], otherwise)


def _queue_file_size(queues: Collection[list[File]], otherwise: int) -> int:
    sizes = {file.size for files in queues for file in files}
    if len(sizes) == 1 and (one := min(sizes)) and one % UNIT == 0:
        return one
    groups = ([Piece(file.number, file.size) for file in files] for files in queues)
    return usual_size(groups, otherwise, least=UNIT, step=UNIT)


def _once(layout: Layout, files: list[File]) -> list[File]:
    """Returns one file for each place of the log, by place: the first folder's where several have
    one."""
    kept: dict[int, File] = {}
    for file in files:
        first = kept.setdefault(file.number, file)
        if first is not file:
            with open_quietly(first.path) as one, open_quietly(file.path) as other:
                equal = hold_the_same(one, other)
            layout.found(DoubleSegmentFinding, file.path, start=file.number,
                         end=file.number + file.size, equal=equal,
                         first=layout.name(first.path))  # fmt: skip
    return sorted(kept.values(), key=lambda file: file.number)


def _in_place(layout: Layout, files: list[File]) -> list[File]:
    """Returns the files without those whose names say a place in the middle of another segment."""
    size = layout.segment_size
    odd = [file for file in files if size and file.number % size]
    if 2 * len(odd) > len(files):
        return files  # it is the size that is wrong
    for file in odd:
        layout.found(StrayFileFinding, file.path, why=StrayReason.AMID_A_SEGMENT)
    return [file for file in files if file not in odd]


def base_of(path: Path, size: int) -> int | None:
    """Returns the first byte of a segment in the log, by what its records say of their own places,
    or None when none does. Raises: StoreIOError, Forbidden."""
    error = ffi.new("ps_error *")
    base = int(lib.ps_log_base_of(ffi.NULL, os.fsencode(path), size, error))
    if base < 0:
        try:
            raise_error(error[0], base)
        except NotFound:
            return None
    return base


def _without_far_files(layout: Layout, files: list[File]) -> list[File]:
    """Returns the files without those that hold no record and come after a gap that no log has."""
    runs: list[list[File]] = []
    for file in files:
        wide = GAP_MOST * layout.segment_size
        if not runs or file.number - runs[-1][-1].number > wide:
            runs.append([])
        runs[-1].append(file)
    if len(runs) < 2:
        return files
    held = [run for run in runs if any(_holds_records(file, layout.segment_size) for file in run)]
    for file in (file for run in runs if held and run not in held for file in run):
        layout.found(StrayFileFinding, file.path, why=StrayReason.FAR_AND_EMPTY)
    return [file for run in held or runs for file in run]


def _holds_records(file: File, size: int) -> bool:
    try:
        return base_of(file.path, size) is not None
    except StoreError:
        return True  # who knows


def _check_names(layout: Layout) -> None:
    """Finds segments that were renamed: each record says where in the log it belongs."""
    files, at, belongs = layout.segments, 0, ffi.new("int64_t *")
    names = [ffi.new("char[]", os.fsencode(file.path)) for file in files]
    paths, bases = ffi.new("char *[]", names), ffi.new("int64_t[]", [f.number for f in files])
    while True:
        at = lib.ps_log_misnamed(
            ffi.NULL, paths, bases, len(files), layout.segment_size, at, belongs
        )
        if at < 0:
            return
        file = files[at]
        layout.found(MisnamedSegmentFinding, file.path, start=file.number,
                     end=file.number + file.size, belongs_at=int(belongs[0]))  # fmt: skip
        at += 1


def check_folders(layout: Layout, folders: list[Path]) -> None:
    """Finds a folder of the log that is missing together with segments: most likely a disk that is
    not mounted. Before the first of its segments is made, it need not be there."""
    gaps = any(isinstance(f, MissingSegmentFinding) for f in layout.findings)
    found = {f.file for f in layout.findings if isinstance(f, LogFolderFinding)}
    for folder in folders:
        there = os.path.lexists(folder)
        if layout.name(folder) not in found and not folder.is_dir() and (gaps or there):
            fault = FileFault.NOT_A_DIRECTORY if there else FileFault.MISSING
            layout.found(LogFolderFinding, folder, fault=fault)


def _segments(layout: Layout, settings: Settings) -> None:
    files: list[File] = []
    folders = settings.commitlog_dirs(layout.root)
    for folder in folders:
        if is_circle(folder):
            Path(folder).stat()  # raises: where a folder of the log leads nobody knows
        found, others = _numbered(folder)
        files += found
        for path in others:
            layout.found(StrayFileFinding, path, why=StrayReason.NOT_A_SEGMENT)
    files = _once(layout, files)
    name = "mappedFileSizeCommitLog"
    size = int(settings[name] or 0)
    if name not in settings.explicit:
        size = _segment_size(files, size)
    layout.segment_size = size
    if files and files[-1].size == 0:
        files.pop()  # left by a crash between making a file and giving it its length
    files = _without_far_files(layout, _in_place(layout, files))
    for file in files:
        if file.size != size:
            layout.found(SegmentSizeFinding, file.path, start=0, end=file.size,
                         size=file.size, usual_size=size)  # fmt: skip
    for before, after in pairwise(files):
        if before.number + size < after.number:
            layout.found(MissingSegmentFinding, f"commitlog/{before.number + size:020d}",
                         start=before.number + size, end=after.number)  # fmt: skip
    check_folders(layout, folders)
    layout.segments = files
    _check_names(layout)


def _queues(layout: Layout, settings: Settings) -> None:
    folder = layout.root / "consumequeue"
    beside: list[Path] = []
    for topic in _folders(folder, beside):
        others: list[Path] = []
        for queue in _folders(topic.path, others):
            number = int(queue.name) if _DIGITS.fullmatch(queue.name) else -1
            if not 0 <= number <= 65535:
                continue
            found, strays = _numbered(queue.path)
            layout.queues[topic.name, number] = found
            if strays:
                names = tuple(path.name for path in strays)
                layout.found(QueueStrayFinding, strays[0].parent, topic=topic.name, queue=number,
                             count=len(strays), names=names)  # fmt: skip
        layout.in_the_way += [path for path in others if _DIGITS.fullmatch(path.name)]
    if not (folder / "CURRENT").is_file():  # else all of them are files of RocksDB
        layout.in_the_way += beside
    name = "mappedFileSizeConsumeQueue"
    size = int(settings[name] or 0)
    if name not in settings.explicit:
        size = _queue_file_size(layout.queues.values(), size)
    layout.queue_file_size = -(-size // UNIT) * UNIT


def _explained(fd: int, slots: int, entries: int) -> float:
    """Returns how many of the first entries are chained as by that many slots; infinity means all
    of them, and that slots lead to them."""
    head = os.pread(fd, _HEADER, 0)
    count = min(int.from_bytes(head[36:40], "big", signed=True), entries, 2000)
    heads: dict[int, int] = {}
    at = _HEADER + slots * _SLOT + _ENTRY
    data = os.pread(fd, _ENTRY * max(0, count - 1), at)
    if data[4:12] not in (b"", head[16:24]):
        return 0  # the header has the place of the first one
    whole = data[: len(data) // _ENTRY * _ENTRY]
    for n, (hash_, _, _, previous) in enumerate(struct.iter_unpack(">iqii", whole), 1):
        if hash_ < 0 or previous != heads.get(hash_ % slots, 0):
            return n - 1
        heads[hash_ % slots] = n
    # A few are chained by chance, in the zeros of slots: they are led to, too.
    told = {h: os.pread(fd, _SLOT, _HEADER + h * _SLOT) for h in heads} if len(heads) < 9 else {}
    led = all(int.from_bytes(raw, "big") >= heads[h] for h, raw in told.items())
    return float("inf") if led else len(whole) // _ENTRY


def _usual_layouts(file: File, settings: Settings) -> Iterator[tuple[int, int]]:
    """Yields slots and entries as the settings have them, or of a usual ratio."""
    wanted = (int(settings["maxHashSlotNum"] or 0), int(settings["maxIndexNum"] or 0))
    rest = file.size - _HEADER
    if rest == wanted[0] * _SLOT + wanted[1] * _ENTRY:
        yield wanted
    for ratio in _RATIOS:
        unit = _SLOT + ratio * _ENTRY
        if rest > 0 and rest % unit == 0:
            yield rest // unit, rest // unit * ratio


def _any_layouts(file: File, fd: int) -> Iterator[tuple[int, int]]:
    """Yields slots and entries of any ratio, where the first entry is the header's."""
    begin = os.pread(fd, 8, 16)
    if int.from_bytes(os.pread(fd, 4, 36), "big", signed=True) < 2:
        return  # nothing in it speaks for anything
    # Five slots are as long as one entry: each fifth number leaves no rest.
    for at in range(_HEADER + file.size % _ENTRY, file.size - 2 * _ENTRY, _ENTRY):
        slots = (at - _HEADER) // _SLOT
        if slots > 0 and os.pread(fd, 8, at + _ENTRY + 4) == begin:
            yield slots, (file.size - at) // _ENTRY


def _index_layout(file: File, settings: Settings) -> tuple[int, int] | None:
    """Returns slots and entries of an index file, which its entries alone tell, or None when none
    fit."""
    best, most = None, -1.0
    with open_quietly(file.path) as opened:
        fd = opened.fileno()
        for layouts in (_usual_layouts(file, settings), _any_layouts(file, fd)):
            for layout in layouts:
                explained = _explained(fd, *layout)
                if explained > most:
                    best, most = layout, explained
                if explained == float("inf"):
                    return layout
    return best


def _index(layout: Layout, settings: Settings) -> None:
    files, others = _numbered(layout.root / "index")
    for path in others:
        if _SEGMENT.fullmatch(path.name) or is_circle(path):
            layout.found(IndexSizeFinding, path, fault=FileFault.NOT_A_FILE)
    for file in files:
        if file.size == 0:
            layout.found(IndexSizeFinding, file.path, start=0, end=0, fault=FileFault.EMPTY)
            continue
        shape = _index_layout(file, settings) if file.size <= _INDEX_MOST else None
        if shape is None:
            layout.found(IndexSizeFinding, file.path, start=0, end=file.size,
                         fault=FileFault.WRONG_SIZE, size=file.size)  # fmt: skip
        else:
            layout.index.append((file.path, *shape))


def _lights(layout: Layout, settings: Settings) -> None:
    folder = layout.root / "lightqueue"
    if not folder.is_dir():
        return
    files, others = _numbered(folder)
    strays = [path for path in others if _SEGMENT.fullmatch(path.name)]
    names = folder / "names"
    if os.path.lexists(names) and not names.is_file():
        strays.append(names)
    for path in strays:
        layout.found(StrayFileFinding, path, why=StrayReason.IN_A_LIGHT_FILES_PLACE)
    if not strays:
        layout.lights = [file for file in files if _SEGMENT.fullmatch(file.path.name)]


def look(root: Path, settings: Settings) -> Layout:
    """Lists the folders of a store. Raises: NotAStore, Forbidden, StoreIOError; StrayFile where
    the log alone is one that is not read."""
    return _look(root, settings, _segments, _queues, _index, _lights)


def look_at_log(root: Path, settings: Settings) -> Layout:
    """Lists the segments of the log alone, since queues may be ten thousands of folders. Raises: as
    :func:`look`."""
    return _look(root, settings, _segments)


def _look(root: Path, settings: Settings, *parts: Callable[[Layout, Settings], None]) -> Layout:
    if not any(folder.is_dir() for folder in settings.commitlog_dirs(root)):
        refuse_kept_elsewhere(root)
        raise NotAStore("there is no commitlog folder", str(root))
    layout = Layout(Path(os.path.abspath(root)))  # noqa: PTH100 - as commitlog_dirs
    for name in ("consumequeue", "index", "lightqueue"):
        folder = layout.root / name
        if os.path.lexists(folder) and not folder.is_dir():
            layout.found(StrayFileFinding, folder, why=StrayReason.IN_A_FOLDERS_PLACE)
    try:
        for each in kept_elsewhere(layout.root):
            layout.found(KeptElsewhereFinding, each.folder, what=each.what, mend_by=each.next_step)
        for part in parts:
            part(layout, settings)
    except OSError as failed:
        raise os_error(failed, failed.filename or root, "cannot look at the store") from failed
    return layout


def last_with_data(layout: Layout) -> int:
    """Returns the number of the last segment that holds anything; files made ahead follow it."""
    for i in reversed(range(len(layout.segments))):
        try:
            with open_quietly(layout.segments[i].path) as file:
                if any(file.read(8)):
                    return i
        except FileNotFoundError:
            continue  # a writer has taken it away since: it held nothing, or is long past
        except OSError:
            return i
    return 0
