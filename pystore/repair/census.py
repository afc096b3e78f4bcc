"""What went in beside what came out: the records of a log, counted and summed.

Every verb that makes or mends a store takes a census of its input and of its output, and compares
them. It looks for records by itself, wherever they stand, so that a mistake of recovery, of an
audit or of a plan shows as a difference, and does not hide in both. What a record is, is decided
where it is for all (pystore/format/records.py).

A *plain* sum is over each record as it stands, with its place: for what must not move. The
*content* sum is over what a message keeps when it is put into another store: topic, queue, body as
stored, flags, properties, born time, reconsume times.
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pystore.errors import RecordDamaged
from pystore.files.quiet import open_quietly
from pystore.files.sparse import data_ranges
from pystore.format.properties import parse_properties
from pystore.format.records import (
    CHECK_BODY,
    HEAD_LEN,
    MAGIC_HEAD,
    RecordHead,
    check_record,
    read_records,
    record_size,
)
from pystore.native import lib
from pystore.repair.filler import SHORT_TOPIC as SHORT_FILLER
from pystore.repair.filler import TOPIC as FILLER

__all__ = ["Balance", "Census", "Contents", "FoundRecord", "content_of", "content_of_record",
           "found_in"]  # fmt: skip

_MAGIC_AT = int(lib.PS_AT_MAGIC)
_HOST_KINDS = int(lib.PS_SYS_BORN_V6 | lib.PS_SYS_STORE_V6)
_ROLLBACK = int(lib.PS_SYS_TX_ROLLBACK)
_RECORD_MOST = 1 << 30
_PIECE = 8 << 20
_SUM = (1 << 64) - 1


class FoundRecord(NamedTuple):
    """A whole record. `at` is its byte in the file, and `place` its log offset, as the record says.
    `filler` means that a repair put it in the place of damage."""

    at: int
    place: int
    filler: bool
    record: memoryview


def _is_filler(head: RecordHead, data: memoryview) -> bool:
    if head.sys_flag & _ROLLBACK != _ROLLBACK:
        return False
    return bytes(data[head.topic_at : head.topic_at + head.topic_len]) in (FILLER, SHORT_FILLER)


def found_in(file: BinaryIO) -> Iterator[FoundRecord]:
    """Yields the whole records of a file that is open for reading, wherever they are, in order.
    What is inside another record, in its body for example, does not count. Raises: OSError."""
    fd = file.fileno()
    size = os.fstat(fd).st_size
    least = 0
    for start, count in list(data_ranges(fd, 0, size)):
        at = max(start - 8, least)  # a length may begin with zeros that a hole holds
        while at < start + count:
            window = os.pread(fd, _PIECE, at)
            if not window:
                return
            done = yield from _in_window(fd, size, at, window)
            at = least = at + done


def _in_window(fd: int, size: int, base: int, data: bytes) -> Generator[FoundRecord, None, int]:
    """Returns how far it came: to the last place where a record might begin."""
    window, at, end = memoryview(data), 0, len(data)
    last = base + end >= size
    while True:
        hit = data.find(MAGIC_HEAD, at + _MAGIC_AT)
        if hit < 0:
            return end if last else max(at, end - 6, 1)
        at = hit - _MAGIC_AT
        if end - at < HEAD_LEN and not last:
            return at if at > 0 else end
        heads = read_records(window[at:], checks=CHECK_BODY)
        for head in heads:
            record = window[at + head.at : at + head.end]
            yield FoundRecord(base + at + head.at, head.physical_offset,
                        _is_filler(head, window[at:]), record)  # fmt: skip
        if heads:
            at += heads[-1].end
        elif (found := _beyond(fd, size, base, window, at)) is not None:
            yield found
            return found.at + len(found.record) - base
        else:
            at += 1
        if at >= end:
            return at


def _beyond(fd: int, size: int, base: int, window: memoryview, at: int) -> FoundRecord | None:
    """Returns the record that begins at `at` of the window and ends after it, or None when there is
    none."""
    total = record_size(window[at:])
    if total is None or not len(window) - at < total <= min(_RECORD_MOST, size - base - at):
        return None
    record = memoryview(os.pread(fd, total, base + at))
    head = check_record(record, checks=CHECK_BODY)
    if head is None:
        return None
    return FoundRecord(base + at, head.physical_offset, _is_filler(head, record), record)


# ---- content ----


def content_of(
    topic: str, queue: int, body: bytes | memoryview, *, flag: int, sys_flag: int,
    properties: Mapping[str, str], born_timestamp: int, reconsume_times: int,
) -> int:  # fmt: skip
    """Returns the content sum of a message. The kinds of its hosts' addresses and the CRC among its
    properties belong to a record, and not to the message."""
    head = f"{topic}\0{queue} {flag} {sys_flag & ~_HOST_KINDS} {born_timestamp} {reconsume_times}"
    pairs = sorted((k, v) for k, v in properties.items() if k and v and k != "__CRC32#")
    text = "\2".join([head, *(f"{k}\1{v}" for k, v in pairs)])
    first = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return first << 32 | zlib.crc32(body)


def content_of_record(record: memoryview, place: int) -> int:
    """Returns the content sum of the message in a record. Raises: RecordDamaged, which names the
    place, for one that is not whole, or whose body does not fit its CRC."""
    head = check_record(record, checks=CHECK_BODY)
    if head is None:
        text = "the record is not whole, or its body does not fit its CRC"
        raise RecordDamaged(text, offset=place)
    topic = bytes(record[head.topic_at : head.topic_at + head.topic_len])
    return content_of(
        topic.decode("utf-8", "replace"), head.queue, record[head.body_start : head.body_end],
        flag=head.flag, sys_flag=head.sys_flag,
        properties=parse_properties(bytes(record[head.properties_at : head.end])),
        born_timestamp=head.born_ms, reconsume_times=head.reconsume_times,
    )  # fmt: skip


@dataclass(slots=True)
class Contents:
    """Counts messages and sums up their contents, whatever their order."""

    records: int = 0
    checksum: int = 0

    def add(self, content: int) -> None:
        self.records += 1
        self.checksum = (self.checksum + content) & _SUM

    @classmethod
    def of(cls, *folders: Path, low: int = 0) -> Contents:
        """Returns the contents of the records of a log in its folders, at or after a log offset.
        Raises: OSError."""
        made = cls()
        for path in sorted(path for folder in folders for path in folder.iterdir()):
            with open_quietly(path) as file:
                for found in found_in(file):
                    if found.place == int(path.name) + found.at >= low and not found.filler:
                        made.add(content_of_record(found.record, found.place))
        return made


# ---- records as they stand ----


@dataclass(slots=True)
class Census:
    """The whole records of a log that are at their own places, without those that repairs put
    there.

    `places` and `sums` are those of each, by number. `strangers` counts records that are elsewhere
    than they say."""

    places: array[int] = field(default_factory=lambda: array("q"))
    sums: array[int] = field(default_factory=lambda: array("I"))
    strangers: int = 0

    @property
    def records(self) -> int:
        return len(self.places)

    @property
    def checksum(self) -> int:
        """Returns the checksum of places and records, whatever their order."""
        total = 0
        for place, each in zip(self.places, self.sums, strict=True):
            total += (place << 32) ^ (each * 0x9E3779B97F4A7C15)
        return total & _SUM

    def count(self, found: FoundRecord, base: int) -> None:
        """Counts a record of the file whose first byte is `base` of the log."""
        if found.filler:
            return
        if found.place != base + found.at:
            self.strangers += 1
            return
        self._take(found.place, found.record)

    def add(self, place: int, record: memoryview) -> None:
        """Adds a whole record that is at its place."""
        head = check_record(record)
        if head is None or not _is_filler(head, record):
            self._take(place, record)

    def _take(self, place: int, record: memoryview) -> None:
        self.places.append(place)
        self.sums.append(zlib.crc32(record))

    @classmethod
    def of(cls, segments: Iterable[tuple[Path, int]]) -> Census:
        """Returns the census of a log's files, given with their first bytes in it. A file that
        cannot be read to its end counts as far as it can be read: what is no longer there needs no
        reason. Raises: OSError."""
        made = cls()
        for path, base in segments:
            with open_quietly(path) as file:
                for found in found_in(file):
                    made.count(found, base)
        return made

    def without(self, other: Census) -> list[int]:
        """Returns the places of the records that are not in the other, or that differ there."""
        there = set(zip(other.places, other.sums, strict=True))
        pairs = zip(self.places, self.sums, strict=True)
        return sorted(place for place, each in pairs if (place, each) not in there)


@dataclass(slots=True)
class Balance:
    """Input and output of a verb: records and checksums, and why they differ.

    `reasons` say what is different, and why. `unexplained` is what is different for no reason that
    the verb knows; then it has failed, whatever else it says."""

    records_in: int
    records_out: int
    checksum_in: int
    checksum_out: int
    reasons: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)

    @classmethod
    def between(
        cls, before: Census | Contents, after: Census | Contents, reasons: Iterable[str] = ()
    ) -> Balance:
        """Returns the balance of two censuses. Without a reason every difference is unexplained."""
        made = cls(before.records, after.records, before.checksum, after.checksum, list(reasons))
        if not made.equal and not made.reasons:
            made.unexplained.append(
                f"{before.records} records went in and {after.records} came out"
                if before.records != after.records
                else "as many records came out as went in, with other content"
            )
        return made

    @property
    def equal(self) -> bool:
        return (self.records_in, self.checksum_in) == (self.records_out, self.checksum_out)

    @property
    def good(self) -> bool:
        """Returns whether nothing differs without a reason."""
        return not self.unexplained

    def as_dict(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        return {
            "records in": self.records_in, "records out": self.records_out,
            "checksum in": f"{self.checksum_in:016x}", "checksum out": f"{self.checksum_out:016x}",
            "differs because": "; ".join(self.reasons) or None,
            "differs without a reason": "; ".join(self.unexplained) or None,
        }  # fmt: skip
