"""Manifests: which segments a queue has in the tier. A new object a change, never one in place.

A manifest is JSON with the rows of the newest segments, and ends with the CRC-32 of what comes
before; the rows of older ones stand in pages, JSON too, which are written once. Whoever reads one
checks it: another program may have written it, and a wrong digit would hide messages.
"""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any, NamedTuple

from pystore.cold.failures import TierDamaged
from pystore.cold.places import MANIFESTS, NUMBER_MAX
from pystore.format.records import Buffer
from pystore.format.units import UNIT
from pystore.native import ffi, lib

__all__ = [
    "MANIFEST_MAX",
    "PAGES_MAX",
    "ROWS_A_PAGE",
    "SEGMENT_MAX",
    "Manifest",
    "ManifestPage",
    "Row",
    "Seam",
    "crc_of",
    "page_key",
    "page_of",
    "parse_manifest",
    "parse_page",
    "spilled",
    "with_sum",
]  # fmt: skip

#: The first format is this one without a sum at the end. Of the second the segments have no sums of
#: keys, of the third none of records; a manifest of this one may have such segments, too.
UNSUMMED, FORMAT = 1, 4
#: What comes before the sum of a manifest.
_SUM = b',"crc":'
#: No object is larger; what claims to be is refused before memory is taken for it.
SEGMENT_MAX = 64 << 20
MANIFEST_MAX = 4 << 20
#: Rows of a page, at most; no change adds more of them. With each change the rows that are in no
#: page are written again, and with them a line a page: so pages are small as long as there are few,
#: and have four rows more each.
ROWS_A_PAGE = 256
_ROWS_A_PAGE_MIN, _ROWS_MORE = 32, 4
#: So many of the newest rows go to no page. No manifest has more rows than ROWS_MAX.
_ROWS_KEPT = 16
ROWS_MAX = ROWS_A_PAGE + _ROWS_KEPT
#: What a reader takes: manifests were written once that had more.
_ROWS_READ = 320 + ROWS_A_PAGE
PAGES_MAX = 1 << 14
#: The JSON of a stranger takes fifty times its size in memory, so one is looked at at a time.
_parsing = threading.Lock()
_NUMBERS = ("epoch", "writer", "low", "end", "next_base", "last_end", "last")


class Row(NamedTuple):
    """A segment. base: its first byte in the queue's log. size: of the object. records: bytes of
    its records, which come first. first, count: queue offsets. keys: how many. time_min, time_max:
    store times, ms. crc: CRC-32 of the object. last: CRC-32 of its last record. epoch: of the
    writer."""

    base: int
    size: int
    records: int
    first: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    keys: int
    time_min: int
    time_max: int
    crc: int
    last: int
    epoch: int

    @property
    def end(self) -> int:
        """The queue offset after it."""
        return self.first + self.count

    @property
    def has_key_sums(self) -> bool:
        """Whether there are sums of its keys (csrc/flat/flat.h): it is as much larger."""
        return self.size >= self._plain + self._key_sums

    @property
    def has_record_sums(self) -> bool:
        """Whether there are sums of its records."""
        return self.size == self._plain + self._key_sums + self._record_sums

    @property
    def sums_at(self) -> int:
        """Where the sums of its records begin; where its tail does, if there are none."""
        end = self.size - int(lib.PS_FLAT_TAIL)
        return end - self._record_sums if self.has_record_sums else end

    @property
    def is_possible(self) -> bool:
        """Whether its sizes add up."""
        # A record has 91 bytes at least; a key has one, and stands between others.
        fits = self.count * lib.PS_RECORD_FIXED <= self.records and 2 * self.keys <= self.records
        sums = self.size - self._plain
        every = 0, self._key_sums, self._key_sums + self._record_sums
        return self.count > 0 and bool(fits) and sums in every

    @property
    def _plain(self) -> int:
        """Bytes of one without sums."""
        behind = self.count * UNIT.size + self.keys * int(lib.PS_FLAT_KEY)
        return self.records + behind + int(lib.PS_FLAT_TAIL)

    @property
    def _key_sums(self) -> int:
        return -(-self.keys // int(lib.PS_FLAT_KEYS)) * int(lib.PS_FLAT_SUM)

    @property
    def _record_sums(self) -> int:
        return -(-self.records // int(lib.PS_FLAT_BLOCK)) * int(lib.PS_FLAT_SUM)


class ManifestPage(NamedTuple):
    """Rows in an object of their own. number: in its key. size, crc: of the object. first, end:
    queue offsets. bytes: of the segments."""

    number: int
    size: int
    crc: int
    rows: int
    first: int
    end: int
    time_min: int
    time_max: int
    bytes: int


class Seam(NamedTuple):
    """By what a queue is known again, and which version of its manifest says it (Manifest)."""

    version: int
    epoch: int
    end: int
    last_end: int
    last: int


class Manifest(NamedTuple):
    """What the tier has of a queue. low: queue offsets below it are gone. end: the queue offset
    that comes next. next_base: where the next segment begins in the queue's log. writer: a number
    that no other writer has, so that each finds its own object again. last_end, last: where the
    last record that was written ends in the queue's log, and its CRC-32, whether its segment is
    still there or not: by them a queue is known again."""

    topic: str
    queue: int
    version: int = 0
    epoch: int = 0
    writer: int = 0
    low: int = 0
    end: int = 0
    next_base: int = 0
    last_end: int = 0
    last: int = 0
    pages: tuple[ManifestPage, ...] = ()
    rows: tuple[Row, ...] = ()

    @property
    def seam(self) -> Seam:
        return Seam(self.version, self.epoch, self.end, self.last_end, self.last)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of its queue, and was nothing since that was deleted."""
        return not self.end and not self.segments

    @property
    def start(self) -> int:
        """The first queue offset that is kept."""
        first = self.pages[0].first if self.pages else self.rows[0].first if self.rows else self.end
        return max(first, self.low)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(p.bytes for p in self.pages) + sum(r.size for r in self.rows)

    @property
    def segments(self) -> int:
        return sum(p.rows for p in self.pages) + len(self.rows)

    @property
    def times(self) -> tuple[int, int]:
        """The oldest and the newest store time in ms; (-1, -1) without a message."""
        every: list[ManifestPage | Row] = [*self.pages, *self.rows]
        spans = [(each.time_min, each.time_max) for each in every]
        if not spans:
            return -1, -1
        return min(low for low, _ in spans), max(high for _, high in spans)

    def with_rows(self, rows: tuple[Row, ...], epoch: int, writer: int) -> Manifest:
        """Returns the next version, with these segments behind the others."""
        last = rows[-1]
        return self._replace(
            version=self.version + 1, epoch=epoch, writer=writer, rows=(*self.rows, *rows),
            end=last.end, next_base=last.base + last.size, last_end=last.base + last.records,
            last=last.last,
        )  # fmt: skip

    def without(self, low: int) -> Manifest:
        """Returns it without the segments that end at or before a queue offset."""
        return self._replace(
            low=max(self.low, low), pages=tuple(page for page in self.pages if page.end > low),
            rows=tuple(row for row in self.rows if row.end > low),
        )  # fmt: skip

    def kept_from(self, low: int, epoch: int, writer: int) -> Manifest:
        """Returns the next version, without the segments that end at or before a queue offset."""
        return self.without(low)._replace(version=self.version + 1, epoch=epoch, writer=writer)

    def emptied(self, epoch: int, writer: int) -> Manifest:
        """Returns the next version, of a queue that was deleted: what is made under its name begins
        at offset 0."""
        return Manifest(self.topic, self.queue, self.version + 1, epoch, writer,
                        next_base=self.next_base)  # fmt: skip

    def encoded(self) -> bytes:
        about = self._asdict()
        return with_sum(_json({"format": FORMAT, **about, "columns": list(Row._fields),
                               "page columns": list(ManifestPage._fields)}))  # fmt: skip


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def with_sum(data: bytes) -> bytes:
    """Returns an object of JSON that is followed by its own sum."""
    return b"%b%b%d}" % (data[:-1], _SUM, crc_of(data[:-1]))


def crc_of(data: Buffer, crc: int = 0) -> int:
    """Returns the CRC-32 of bytes, by the core, which has the processor's instructions for it. crc:
    of what comes before them."""
    return int(lib.ps_flat_crc(crc, ffi.from_buffer("uint8_t[]", data), len(data)))


# ---- pages ----


def page_key(topic: str, queue: int, number: int) -> str:
    return f"{MANIFESTS}/{topic}/{queue}/page-{number:020d}"


def spilled(manifest: Manifest) -> tuple[Manifest, tuple[Row, ...]]:
    """Returns the manifest without the rows that are to go to a page, and these; none while there
    are few."""
    older = len(manifest.rows) - _ROWS_KEPT
    if older <= min(_ROWS_A_PAGE_MIN + _ROWS_MORE * len(manifest.pages), ROWS_A_PAGE):
        return manifest, ()
    older = min(older, ROWS_A_PAGE)
    return manifest._replace(rows=manifest.rows[older:]), manifest.rows[:older]


def page_of(rows: tuple[Row, ...], number: int) -> tuple[ManifestPage, bytes]:
    """Returns a page of these rows, and its object."""
    data = _json(rows)
    return ManifestPage(
        number, len(data), crc_of(data), len(rows), rows[0].first,
        rows[-1].end, min(r.time_min for r in rows), max(r.time_max for r in rows),
        sum(r.size for r in rows),
    ), data  # fmt: skip


def parse_page(data: bytes, page: ManifestPage, where: str) -> tuple[Row, ...]:
    """Returns the rows of a page. Raises: TierDamaged."""
    if crc_of(data) != page.crc:
        raise TierDamaged("a page of a manifest has another CRC", where)
    try:
        with _parsing:
            rows = _rows(json.loads(data), ROWS_A_PAGE)
    except (ValueError, TypeError, RecursionError) as wrong:
        raise _damaged(wrong, where) from None
    if len(rows) != page.rows or rows[0].first != page.first or rows[-1].end != page.end:
        raise TierDamaged("a page of a manifest is of other segments", where)
    return rows


# ---- reading ----


def parse_manifest(data: bytes, topic: str, queue: int, version: int, where: str) -> Manifest:
    """Returns the manifest of a queue. Raises: TierDamaged naming what is wrong."""
    try:
        with _parsing:
            raw = json.loads(data)
            found = _parsed(raw, topic, queue, version)
    except (ValueError, TypeError, KeyError, RecursionError) as wrong:
        raise _damaged(wrong, where) from None
    if raw["format"] == UNSUMMED:
        return found
    # After the rest, which says more of what a stranger has written.
    said, _, crc = data.rpartition(_SUM)
    if crc != b"%d}" % crc_of(said):
        raise TierDamaged("a manifest has another CRC than it says", where)
    return found


def _damaged(wrong: Exception, where: str) -> TierDamaged:
    text = str(wrong) if isinstance(wrong, ValueError) else f"{type(wrong).__name__}: {wrong}"
    return TierDamaged(f"a manifest is wrong: {text}", where)


def _parsed(raw: Any, topic: str, queue: int, version: int) -> Manifest:
    if raw["format"] not in range(UNSUMMED, FORMAT + 1):
        raise ValueError(f"it has format {raw['format']!r}, and this program knows {FORMAT}")
    if (raw["topic"], raw["queue"], raw["version"]) != (topic, queue, version):
        raise ValueError("it is of another queue or version")
    if raw["columns"] != list(Row._fields) or raw["page columns"] != list(ManifestPage._fields):
        raise ValueError("its columns are others")
    numbers = {name: raw[name] for name in _NUMBERS}
    _check_numbers(numbers.values())
    if numbers["low"] > numbers["end"]:
        raise ValueError(f"it begins at offset {numbers['low']}, and ends at {numbers['end']}")
    pages = _pages(raw["pages"])
    rows = _rows(raw["rows"], _ROWS_READ)
    found = Manifest(topic, queue, version, **numbers, pages=pages, rows=rows)
    spans: list[ManifestPage | Row] = [*pages, *found.rows]
    for before, after in itertools.pairwise(spans):
        if after.first < before.end:
            raise ValueError(f"offset {after.first} is in two segments")
    if spans and spans[-1].end != found.end:
        raise ValueError(f"its segments end at offset {spans[-1].end}, and it says {found.end}")
    if found.rows and found.rows[-1].base + found.rows[-1].size > found.next_base:
        raise ValueError("its next segment would begin within the last")
    return found


def _check_numbers(values: Any) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value <= NUMBER_MAX:
            raise ValueError(f"{_short(value)} is not a valid number")


def _short(value: Any) -> str:
    """Returns what stands there, as far as a sentence has room for it."""
    return str(value)[:40] if type(value) is int and value < 1 << 200 else repr(value)[:40]


def _pages(raw: Any) -> tuple[ManifestPage, ...]:
    if len(raw) > PAGES_MAX:
        raise ValueError(f"it has {len(raw)} pages")
    pages = tuple(ManifestPage(*each) for each in raw)
    for page in pages:
        _check_numbers(page)
        if not 0 < page.size <= MANIFEST_MAX or page.first >= page.end or page.rows < 1:
            raise ValueError(f"its page {page.number} cannot be")
    return pages


def _rows(raw: Any, most: int) -> tuple[Row, ...]:
    if len(raw) > most:
        raise ValueError(f"it has {len(raw)} rows")
    rows = tuple(Row(*each) for each in raw)
    for row in rows:
        _check_numbers(row)
        if not row.is_possible:
            raise ValueError(f"the sizes of its segment at {row.base} do not add up")
        if row.size > SEGMENT_MAX:
            raise ValueError(f"its segment at {row.base} has {row.size} bytes")
    for before, after in itertools.pairwise(rows):
        if after.base < before.base + before.size or after.first < before.end:
            raise ValueError(f"its segment at {after.base} lies within another")
    return rows
