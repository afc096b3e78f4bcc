"""What went in beside what came out: the records of a log, counted and summed without the core.

Every verb that makes or mends a store takes a census of its input and of its output, and compares
them. It reads the bytes by itself, so that a mistake of the core, of an audit or of a plan shows
as a difference, and does not hide in both.

A *plain* sum is over each record as it stands, with its place: for what must not move. The
*content* sum is over what a message keeps when it is put into another store: topic, queue, body as
stored, flags, properties, born time, reconsume times.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pystore.errors import RecordDamaged
from pystore.properties import parse_properties
from pystore.quiet import open_quietly
from pystore.repair.filler import TOPIC as FILLER
from pystore.sparse import data_ranges

__all__ = ["Balance", "Census", "Contents", "Found", "content_of", "content_of_record",
           "found_in"]  # fmt: skip

_HEAD = struct.Struct(">iIIiiqqiq")  # totalSize to bornTimestamp; docs/internals/format.md#record
_SMALLEST = 91
_V1, _V2 = 0xDAA320A7, 0xDAA320AB
_MAGIC_HEAD = b"\xda\xa3\x20"
_BORN_V6, _STORE_V6, _ROLLBACK = 0x10, 0x20, 0xC
_HOST_KINDS = _BORN_V6 | _STORE_V6
_RECORD_MOST = 1 << 30
_PIECE = 8 << 20
_SUM = (1 << 64) - 1


class Found(NamedTuple):
    """A whole record. at: byte of its file. place: of the log, as the record says. filler: whether
    a repair put it in the place of damage."""

    at: int
    place: int
    filler: bool
    record: memoryview


def _parts(record: memoryview) -> tuple[tuple[Any, ...], int, int, int] | None:
    """Head, where the body begins and ends, where the topic begins; None unless it adds up."""
    head = _HEAD.unpack_from(record)
    at = 56 + (12 if head[7] & _BORN_V6 else 0)  # the store time
    at += 16 + (12 if head[7] & _STORE_V6 else 0)
    at += 12
    size = len(record)
    if at + 4 > size:
        return None
    length = int.from_bytes(record[at : at + 4], "big", signed=True)
    begin = at + 4
    end = begin + length
    wide = 2 if head[1] == _V2 else 1
    if length < 0 or end + wide > size:
        return None
    topic = end + wide
    after = topic + int.from_bytes(record[end:topic], "big")
    if after + 2 > size or after + 2 + int.from_bytes(record[after : after + 2], "big") != size:
        return None
    if length and zlib.crc32(record[begin:end]) & 0x7FFFFFFF != head[2] & 0x7FFFFFFF:
        return None
    return head, begin, end, topic


def _is_filler(head: tuple[Any, ...], record: memoryview, topic: int) -> bool:
    if head[7] & _ROLLBACK != _ROLLBACK:
        return False
    return bytes(record[topic : topic + len(FILLER)]) == FILLER or (
        bytes(record[topic - 1 : topic + 1]) == b"\x01-"
    )


def found_in(file: BinaryIO) -> Iterator[Found]:
    """The whole records of a file that is open for reading, wherever they stand, in order. What
    lies within another record, its body, say, is none. Raises: OSError."""
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


def _in_window(fd: int, size: int, base: int, data: bytes) -> Generator[Found, None, int]:
    """Returns how far it came: to the last place where a record might begin."""
    window, at, end = memoryview(data), 0, len(data)
    last = base + end >= size
    while True:
        hit = data.find(_MAGIC_HEAD, at + 4)
        if hit < 0:
            return end if last else max(at, end - 6, 1)
        at = hit - 4
        if end - at < _HEAD.size and not last:
            return at if at > 0 else end
        record = _whole(fd, size, base, window, at)
        parts = None if record is None else _parts(record)
        if record is None or parts is None:
            at += 1
            continue
        head, _, _, topic = parts
        yield Found(base + at, head[6], _is_filler(head, record, topic), record)
        at += len(record)
        if at >= end:
            return at


def _whole(fd: int, size: int, base: int, window: memoryview, at: int) -> memoryview | None:
    """The bytes that a record at `at` of the window says that it has; None when it cannot be."""
    if len(window) - at < 8:
        return None
    total, magic = struct.unpack_from(">iI", window, at)
    if magic not in (_V1, _V2) or not _SMALLEST <= total <= min(_RECORD_MOST, size - base - at):
        return None
    record = window[at : at + total]
    if len(record) < total:
        record = memoryview(os.pread(fd, total, base + at))
    return record if len(record) == total else None


# ---- content ----


def content_of(
    topic: str, queue: int, body: bytes | memoryview, *, flag: int, sys_flag: int,
    properties: Mapping[str, str], born_timestamp: int, reconsume_times: int,
) -> int:  # fmt: skip
    """The content sum of a message. The kinds of its hosts' addresses and the CRC among its
    properties belong to a record, and not to the message."""
    head = f"{topic}\0{queue} {flag} {sys_flag & ~_HOST_KINDS} {born_timestamp} {reconsume_times}"
    pairs = sorted((k, v) for k, v in properties.items() if k and v and k != "__CRC32#")
    text = "\2".join([head, *(f"{k}\1{v}" for k, v in pairs)])
    first = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return first << 32 | zlib.crc32(body)


def content_of_record(record: memoryview) -> int:
    """The content sum of the message in a record. Raises: RecordDamaged for one that is not whole,
    as one whose body does not fit its CRC."""
    parts = _parts(record)
    if parts is None:
        place = _HEAD.unpack_from(record)[6] if len(record) >= _HEAD.size else 0
        raise RecordDamaged("the record is not whole, or its body does not fit its CRC",
                            offset=place)  # fmt: skip
    head, begin, end, topic = parts
    wide = 2 if head[1] == _V2 else 1
    after = topic + int.from_bytes(record[end : end + wide], "big")
    return content_of(
        bytes(record[topic:after]).decode("utf-8", "replace"), head[3], record[begin:end],
        flag=head[4], sys_flag=head[7], properties=parse_properties(bytes(record[after + 2 :])),
        born_timestamp=head[8],
        reconsume_times=int.from_bytes(record[begin - 16 : begin - 12], "big", signed=True),
    )  # fmt: skip


@dataclass(slots=True)
class Contents:
    """Messages by count and content sum, whatever their order."""

    records: int = 0
    checksum: int = 0

    def add(self, content: int) -> None:
        self.records += 1
        self.checksum = (self.checksum + content) & _SUM

    @classmethod
    def of(cls, *folders: Path, low: int = 0) -> Contents:
        """Of the records of a log in its folders, at or after a place. Raises: OSError."""
        made = cls()
        for path in sorted(path for folder in folders for path in folder.iterdir()):
            with open_quietly(path) as file:
                for found in found_in(file):
                    if found.place == int(path.name) + found.at >= low and not found.filler:
                        made.add(content_of_record(found.record))
        return made


# ---- records as they stand ----


@dataclass(slots=True)
class Census:
    """The whole records of a log that stand at their own places, but for what repairs put there.

    places, sums: of each, by number. strangers: how many stand elsewhere than they say.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    sums: array[int] = field(default_factory=lambda: array("I"))
    strangers: int = 0

    @property
    def records(self) -> int:
        return len(self.places)

    @property
    def checksum(self) -> int:
        """Of places and records, whatever their order."""
        total = 0
        for place, each in zip(self.places, self.sums, strict=True):
            total += (place << 32) ^ (each * 0x9E3779B97F4A7C15)
        return total & _SUM

    def count(self, found: Found, base: int) -> None:
        """A record of the file whose first byte is `base` of the log."""
        if found.filler:
            return
        if found.place != base + found.at:
            self.strangers += 1
            return
        self._take(found.place, found.record)

    def add(self, record: memoryview) -> None:
        """A record that stands at its place, whole or not."""
        parts = _parts(record)
        if parts is None or not _is_filler(parts[0], record, parts[3]):
            self._take(_HEAD.unpack_from(record)[6], record)

    def _take(self, place: int, record: memoryview) -> None:
        self.places.append(place)
        self.sums.append(zlib.crc32(record))

    @classmethod
    def of(cls, segments: Iterable[tuple[Path, int]]) -> Census:
        """Of a log's files and their first bytes in it. A file that cannot be read to its end
        counts as far as it can: what is there no more needs no reason. Raises: OSError."""
        made = cls()
        for path, base in segments:
            with open_quietly(path) as file:
                for found in found_in(file):
                    made.count(found, base)
        return made

    def without(self, other: Census) -> list[int]:
        """Places of the records that are not in the other, or stand otherwise there."""
        there = set(zip(other.places, other.sums, strict=True))
        pairs = zip(self.places, self.sums, strict=True)
        return sorted(place for place, each in pairs if (place, each) not in there)


@dataclass(slots=True)
class Balance:
    """Input and output of a verb: records and checksums, and why they differ.

    reasons: what is different, and why. unexplained: what is different for no reason that the
    verb knows; then it has failed, whatever else it says.
    """

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
        """Without a reason every difference is unexplained."""
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
        """Whether nothing differs without a reason."""
        return not self.unexplained

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "records in": self.records_in, "records out": self.records_out,
            "checksum in": f"{self.checksum_in:016x}", "checksum out": f"{self.checksum_out:016x}",
            "differs because": "; ".join(self.reasons) or None,
            "differs without a reason": "; ".join(self.unexplained) or None,
        }  # fmt: skip
