"""A store from a bare heap of segments: no queues, no index, no configuration, names lost."""

from __future__ import annotations

import os
import shutil
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pystore import settings as _settings
from pystore.audit.sizes import SEGMENT_LEAST, Piece, blank_end, usual_size
from pystore.errors import BadArgument, Forbidden, NotAStore
from pystore.files import make_folders, named_errors, sync_folder
from pystore.files.quiet import open_quietly
from pystore.files.sparse import copy_range
from pystore.repair.census import Balance, Census, found_in
from pystore.repair.reasons import balance_of
from pystore.repair.repair import Repair, repair

__all__ = ["Salvaged", "salvage"]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """segments: file and first byte in the log, of those taken over. skipped: files that hold no
    record. left: files with records that were not taken over, how many they hold, and why. repair:
    what was mended in the new store. balance: the records of the heap beside those of the store."""

    segments: list[tuple[str, int]]
    skipped: list[str]
    repair: Repair
    left: list[tuple[str, int, str]]
    balance: Balance


@dataclass(slots=True)
class _HeapFile:
    """A file of the heap. base: first byte in the log, as most of its records have it. end: of its
    last record. blank: where the blank after that one says that the segment ends, 0 without."""

    path: Path
    size: int
    places: array[int] = field(default_factory=lambda: array("q"))
    sums: array[int] = field(default_factory=lambda: array("I"))
    any: bool = False
    base: int = 0
    end: int = 0
    blank: int = 0

    def look(self) -> None:
        """Reads all of it. Raises: OSError."""
        votes: Counter[int] = Counter()
        at = array("q")
        with open_quietly(self.path) as file:
            for found in found_in(file):
                votes[found.place - found.at] += found.place >= found.at
                self.any, self.end = True, found.at + len(found.record)
                if not found.filler:
                    at.append(found.at)
                    self.places.append(found.place)
                    self.sums.append(zlib.crc32(found.record))
            self.blank = blank_end(file, self.end)
        self.base = votes.most_common(1)[0][0] if votes else 0

    def piece(self) -> Piece:
        return Piece(self.base, self.size, self.end, self.blank, 1 + len(self.places))


def salvage(
    heap: str | os.PathLike[str], into: str | os.PathLike[str],
    conf: str | os.PathLike[str] | None = None, **settings: Any,
) -> Salvaged:  # fmt: skip
    """Makes a store of the segments in a folder, whatever their names, and repairs it.

    The segments are copied with their holes; nothing in the heap changes. Their places in the log,
    and their size, are read from their records. The store's records are compared with the heap's.
    `heap` is a folder with segments, such as that of a whole store. `into` is the folder for the
    store and must not exist; nothing is left of it when this raises. Until the store is whole it is
    beside it as ``INTO.unfinished``, which a salvage that was killed leaves behind.

    Raises: NotAStore when no file holds a record, BadArgument, DiskFull, StoreIOError."""
    source, target = Path(heap), Path(into)
    if target.exists():
        raise BadArgument("the folder for the store exists already", str(target))
    if not source.is_dir():
        raise NotAStore("not a directory", str(source))
    # First of all: a setting that is wrong is refused before anything is copied.
    mode = _settings.load(conf, settings).file_mode
    files = _files_below(source)
    found = [each for each in files if each.any]
    if not found:
        raise NotAStore("no file in it holds a record of a commit log", str(source))
    skipped = [str(each.path.relative_to(source)) for each in files if not each.any]
    size = int(settings.get("mappedFileSizeCommitLog") or _segment_size(found))
    unfinished = target.with_name(f"{target.name}.unfinished")
    if unfinished.exists():
        raise BadArgument("an unfinished salvage lies here: delete it first", str(unfinished))
    try:
        done = _salvage(source, found, skipped, unfinished, size, conf, settings, mode)
        unfinished.rename(target)
        sync_folder(target.parent)
        _moved(done.repair, str(unfinished), str(target))
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return done


def _moved(made: Repair, was: str, now: str) -> None:
    """Corrects the paths of a report to where the store is now."""
    made.path = now
    if made.side is not None:
        made.side = made.side.replace(was, now, 1)
    for audit in (made.before, made.after):
        if audit is not None:
            audit.path = now


def _segment_size(found: list[_HeapFile]) -> int:
    longest = max(each.size for each in found)
    return usual_size([[each.piece() for each in found]], max(longest, SEGMENT_LEAST))


def _salvage(
    source: Path, found: list[_HeapFile], skipped: list[str], target: Path, size: int,
    conf: str | os.PathLike[str] | None, settings: dict[str, Any], mode: int,
) -> Salvaged:  # fmt: skip
    taken: dict[int, _HeapFile] = {}
    left: list[tuple[_HeapFile, str]] = []
    make_folders(target / "commitlog", mode)
    (target / "abort").touch(mode=mode)
    for each in sorted(found, key=lambda one: -len(one.places)):
        if not each.piece().fits(size):
            left.append((each, f"no segment of {size} bytes begins at {each.base} of the log"))
        elif each.base in taken:
            other = taken[each.base].path.relative_to(source)
            left.append((each, f"{other} holds this part of the log"))
        else:
            taken[each.base] = each
            place = target / "commitlog" / f"{each.base:020d}"
            with each.path.open("rb") as file:
                copy_range(file, 0, each.size, place, mode)
    if not taken:
        raise NotAStore(f"no file in it is a segment of {size} bytes", str(source))
    done = repair(target, conf, **{**settings, "mappedFileSizeCommitLog": size})
    after = Census.of((path, int(path.name)) for path in sorted((target / "commitlog").iterdir()))
    before, reasons = _gathered(source, taken.values())
    balance = balance_of(before, after, done.actions, reasons)
    names = sorted((str(one.path.relative_to(source)), base) for base, one in taken.items())
    return Salvaged(sorted(names, key=lambda each: each[1]), skipped, done,
                    _left(source, left, after, balance), balance)  # fmt: skip


def _gathered(source: Path, taken: Iterable[_HeapFile]) -> tuple[Census, list[str]]:
    """Returns the records that were taken over, and which of them no log can hold."""
    gathered, reasons = Census(), []
    for each in taken:
        strange = 0
        for place, crc in zip(each.places, each.sums, strict=True):
            if each.base <= place < each.base + each.size:
                gathered.places.append(place)
                gathered.sums.append(crc)
            else:
                strange += 1
        if strange:
            name = each.path.relative_to(source)
            reasons.append(f"{strange} records of {name} say that they stand in another file")
    return gathered, reasons


def _left(
    source: Path, left: list[tuple[_HeapFile, str]], after: Census, balance: Balance
) -> list[tuple[str, int, str]]:
    """Returns what was not taken over. What the store has all the same is not a difference."""
    there = set(zip(after.places, after.sums, strict=True)) if left else set()
    told = []
    for each, why in left:
        name = str(each.path.relative_to(source))
        lost = sum(pair not in there for pair in zip(each.places, each.sums, strict=True))
        if lost:
            text = f"{lost} of the {len(each.places)} records in {name} are not in the store: {why}"
            balance.unexplained.append(text)
        told.append((name, len(each.places), why if lost else "the store has its records"))
    return told


def _files_below(source: Path) -> list[_HeapFile]:
    """Returns what is known of the regular files in the folder. Raises: Forbidden, StoreIOError."""

    def refuse(failed: OSError) -> None:
        raise Forbidden("cannot list the folder", failed.filename, errno=failed.errno)

    paths = sorted(
        path
        for folder, _, names in os.walk(source, onerror=refuse)
        for name in names
        if (path := Path(folder) / name).is_file()
    )
    heaped = [_HeapFile(path, path.stat().st_size) for path in paths]
    for each in heaped:
        with named_errors(each.path, "cannot read the file"):
            each.look()
    return heaped
