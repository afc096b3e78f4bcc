"""Reading the tier as a store is read: ``pystore.Reader`` of an address or of a tier's folder.

There is no log over all queues here: messages come by queue, and a physical offset is the place in
the log of a queue, as upstream gives it to clients.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pystore.cold.ahead import in_order
from pystore.cold.blocks import BLOCK, RUN_BYTES, BlockCache
from pystore.cold.failures import TierDamaged, TierUnreachable
from pystore.cold.manifest import SEGMENT_MAX, Row, crc_of
from pystore.cold.objects import address_of
from pystore.cold.pieces import OF_A_LOG, PieceRecords, QueuePiece
from pystore.cold.reading_on import ReadingOn
from pystore.cold.segment import (
    check_segment,
    checks_of,
    choose_units,
    encloses,
    excerpt,
    key_bytes,
    key_slice,
    keys_of,
    numbers_of,
    units_of_row,
)
from pystore.cold.tier import Extent, Place, QueueSpan, Recent, Tier, TierView, open_tier
from pystore.cold.units import fetch_records, fetch_units, log_bytes, prepare_sums
from pystore.errors import NotFound, ReadOnly, StoreClosed
from pystore.files.mapped import MappedFile
from pystore.format.records import MAGIC_HEAD, Buffer
from pystore.format.units import UNIT, units_of
from pystore.metadata import Metadata
from pystore.native import ffi, utf8
from pystore.settings import load
from pystore.store._messages import Batch, GetStatus, Message
from pystore.store._reading import Progress, Reader
from pystore.store._report import RecoveryReport, report_of
from pystore.store._results import Info, QueueInfo
from pystore.store.light_queues import LightQueues

if TYPE_CHECKING:
    from pystore.store._arrow import ArrowStream

__all__ = ["ColdReader"]

_log = logging.getLogger("pystore")
_FAR = (1 << 63) - 1
#: Units that a filtered read looks at before it gives up, as the core's reads do.
_LEAST_UNITS = 800
#: Bytes of whole segments that who reads all has, or that are on their way, and so many at once.
_AHEAD, _AT_ONCE = 36 << 20, 4
#: Blocks in memory, and requests for such on their way, for queues that are read on beside the one
#: whose segments are fetched whole; units of their next segment.
_BLOCKS, _RUNS_AHEAD, _UNITS_AHEAD = 12 << 20, 1, 4096
#: Reads of a queue, each from where the one before has ended, until it counts as being read on.
_READS = 2
#: Of upstream's tier, units by which the size of records is estimated.
_UNITS_SAMPLED = 32
#: Queues whose last reads are known.
_CURSORS = 1024
#: Segments whose keys are looked at at once: of a thousand, eight requests follow each other.
_KEYS_AT_ONCE = 128
#: Bytes of records of a piece of upstream's tier, unless one message is larger.
_PIECE = 16 << 20
#: Messages that a segment's table names for a key that they do not have: more are no chance.
_FALSE_MAX = 64
_FOLLOW_S = 1.0


class _QueueCursor(NamedTuple):
    """Where a read of a queue has ended. reads: how many before it ended where the next began.
    near_end: what comes after the extent was asked for already."""

    offset: int
    extent: Extent
    reads: int
    near_end: bool


class ColdReader(Reader):
    """A tier opened for reading. Its queues are as they were at the last ``refresh()``."""

    is_cold = True
    #: Whether what comes wrong twice is passed over, as a damaged record of a store is; else a read
    #: of it raises TierDamaged.
    passes_over = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        conf: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        progress: Progress | None = None,
        **settings: object,
    ) -> None:
        self._open = False
        self.settings = load(conf, settings)
        self._begin(open_tier(path), None, path)

    @classmethod
    def over(cls, tier: TierView, blocks: BlockCache) -> ColdReader:
        """Returns a reader of a tier that is open already, which passes nothing over. blocks: the
        caller's to close."""
        reader = cls.__new__(cls)
        reader.passes_over = False
        reader.settings = load(None, {})
        reader._begin(tier, blocks, tier.objects.address)
        return reader

    def _begin(
        self, tier: TierView, blocks: BlockCache | None, path: str | os.PathLike[str]
    ) -> None:
        self.tier: TierView = tier
        self.path = Path(path)
        #: As a person would write it; `path` loses a slash of an address.
        self.address = address_of(path)
        self.report: RecoveryReport = report_of(ffi.new("ps_report *"))
        self._keep_calls()
        self._blocks = blocks or BlockCache(tier.objects, _BLOCKS, ahead=_RUNS_AHEAD)
        #: None: who has opened the tier sees to its memory.
        self._on = ReadingOn(self.pieces, self._checks) if blocks is None else None
        self._spans: dict[tuple[str, int], QueueSpan] = {}
        self._all = False
        self._damaged_reads = 0
        self._cursors: Recent[tuple[str, int], _QueueCursor] = Recent(_CURSORS)
        self._open = True

    # ---- life ----

    def c_handle(self) -> Any:
        """Refuses: a tier has no store in the C core. Raises: ReadOnly, StoreClosed."""
        self._check_open()
        raise ReadOnly("a cold tier has no commit log", self.address)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed(f"the tier was closed: {self.address}")

    @property
    def closed(self) -> bool:
        return not self._open

    def __enter__(self) -> ColdReader:
        self._check_open()
        return self

    def close(self) -> None:
        self._open = False
        self._blocks.close()
        if self._on is not None:
            self._on.stop()

    def __repr__(self) -> str:
        return f"<pystore.ColdReader {self.address} {'open' if self._open else 'closed'}>"

    # ---- facts ----

    @property
    def disk_full(self) -> bool:
        return False

    @property
    def metadata(self) -> Metadata:
        """Refuses: a tier has messages alone. Raises: NotFound."""
        raise NotFound("a cold tier has no topics' settings, groups or offsets", self.address)

    @property
    def lights(self) -> LightQueues:
        """Refuses: light queues are not written out. Raises: NotFound."""
        raise NotFound("a cold tier has no light queues", self.address)

    def spans(self, topic: str | None = None) -> list[QueueSpan]:
        """Returns what there is of every queue, or of a topic's, whose manifests alone are then
        fetched."""
        self._check_open()
        if not self._all:
            found = {(span.topic, span.queue): span for span in self.tier.spans(topic)}
            if topic is not None:
                return list(found.values())
            self._spans, self._all = found, True
        return [span for span in self._spans.values() if topic in (None, span.topic)]

    def _span(self, topic: str, queue: int) -> QueueSpan | None:
        self._check_open()
        known = self._spans.get((topic, queue))
        if known is None and not self._all:
            known = self.tier.span(topic, queue)
            if known is not None:
                self._spans[topic, queue] = known
        return known

    def queues(self, topic: str | None = None) -> list[QueueInfo]:
        return [
            QueueInfo(span.topic, span.queue, span.start, span.end, -1)
            for span in self.spans(topic)
        ]

    def range(self, topic: str, queue: int) -> tuple[int, int]:
        span = self._span(topic, queue)
        return (0, 0) if span is None else (span.start, span.end)

    def info(self) -> Info:
        """Returns what of a store's facts a tier has; the rest is 0 or -1."""
        spans = self.spans()
        facts: dict[str, Any] = dict.fromkeys(Info.__slots__, 0)
        times = [span for span in spans if span.time_max >= 0]
        facts |= {
            "path": self.address, "checkpoint": (0, 0, 0, 0, 0),
            "damaged_reads": self._damaged_reads,
            "topics": len({span.topic for span in spans}), "queues": len(spans),
            "index_files": sum(span.segments for span in spans),
            "store_timestamp_min": min((span.time_min for span in times), default=-1),
            "store_timestamp_max": max((span.time_max for span in times), default=-1),
        }  # fmt: skip
        for name in ("writable", "disk_full", "sync_flush", "abort_present"):
            facts[name] = False
        return Info(**facts)

    def refresh(self) -> None:
        """Looks for newer manifests. Raises: TierUnreachable."""
        self._check_open()
        self.tier.refresh()
        self.look_again()

    def look_again(self) -> None:
        """Takes over what others have found of the tier meanwhile."""
        self._spans, self._all = {}, False
        self._cursors = Recent(_CURSORS)
        if not isinstance(self.tier, Tier):
            self._blocks.forget_all()
        if self._on is not None:
            self._on.stop()

    def view(self) -> int:
        """Returns 0: what others have written shows in a listing alone."""
        return 0

    # ---- reading ----

    def read(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int | None = None,
        tags: str | None = None,
        sql: str | None = None,
        transfer_limits: bool = False,
        filter_work: int = 0,
    ) -> Batch:
        """Returns messages of a queue as a Reader of a store does: two requests where neither units
        nor records are at hand. The units tell which tags a message may have, so that records of
        others are not fetched.

        transfer_limits, filter_work: of a broker's reads alone, and not looked at here.
        """
        options = self._options(tags, sql, max_messages, max_bytes)
        span = self._span(topic, queue)
        if span is None:
            return _nothing(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0)
        batch = self._at_hand(span, offset, options)
        if batch is not None:
            return batch
        status, at = _within(span, offset)
        if status is not None:
            return _nothing(status, at, span.start, span.end)
        cursor = self._cursors.get((topic, queue))
        reads = 0 if cursor is None or cursor.offset != offset else cursor.reads + 1
        on = reads >= _READS
        if on and self._on is not None and self._on.begin(topic, queue, offset, span.end):
            batch = self._at_hand(span, offset, options)
            if batch is not None:
                return batch
        extent: Extent | None
        if cursor is not None and cursor.extent.first <= offset < cursor.extent.end:
            extent, near = cursor.extent, cursor.near_end
        else:
            extent, near = next(self.tier.extents(topic, queue, offset, span.end), None), False
        if extent is None or extent.first > offset:  # a hole
            beyond = span.end if extent is None else extent.first
            return _nothing(GetStatus.MESSAGE_WAS_REMOVING, beyond, span.start, span.end)
        batch = self._read_extent(extent, (topic, queue), offset, options, on)
        at = batch.next_offset
        if on and not near and at >= extent.first + extent.count // 2:
            near = True
            self._prepare(topic, queue, extent.end, span.end)
        self._cursors.put((topic, queue), _QueueCursor(at, extent, reads, near), 1)
        batch.min_offset, batch.max_offset = span.start, span.end
        if batch.damaged and not self.passes_over:
            raise TierDamaged(f"{batch.damaged} records of {topic}/{queue} were damaged twice, the"
                              f" first at offset {batch.first_damaged}", extent.key)  # fmt: skip
        if batch.damaged:
            self._damaged_reads += batch.damaged
            self._log_damage(topic, queue, batch)
        return batch

    def _at_hand(self, span: QueueSpan, offset: int, options: Any) -> Batch | None:
        """Returns what a read gives of a segment that is here whole; None: it is not."""
        if self._on is None:
            return None
        most = options.max_messages
        if options.tag_count or options.sql != ffi.NULL:
            most = max(most, _LEAST_UNITS)
        batch = self._on.read((span.topic, span.queue), offset, most, options)
        if batch is not None:
            batch.min_offset, batch.max_offset = span.start, span.end
        return batch

    def _prepare(self, topic: str, queue: int, offset: int, end: int) -> None:
        """Fetches meanwhile what a read of an offset will need."""
        for extent in islice(self.tier.extents(topic, queue, offset, end), 1):
            units = extent.at, extent.at + _UNITS_AHEAD * UNIT.size
            self._blocks.prepare(extent.key, units[0], min(units[1], extent.whole), extent.whole)
            if extent.row is not None:
                self._blocks.prepare(extent.key, 0, min(RUN_BYTES, extent.whole), extent.whole)

    def _read_extent(
        self, extent: Extent, place: tuple[str, int], offset: int, options: Any, on: bool
    ) -> Batch:
        most = options.max_messages
        filtered = bool(options.tag_count) or options.sql != ffi.NULL
        count = min(extent.end - offset, max(most, _LEAST_UNITS) if filtered else most)
        prepare_sums(self._blocks, extent)
        units = fetch_units(self._blocks, extent, offset, count, summed=filtered,
                            strict=not self.passes_over)  # fmt: skip
        choice = choose_units(units, options)
        while choice.high - choice.low > SEGMENT_MAX and choice.last > choice.first:
            middle = (choice.first + choice.last) // 2
            units = units[: (middle + 1) * UNIT.size]
            choice = choose_units(units, options)
        if extent.row is None and choice.high - choice.low > BLOCK:
            units = self._with_heads(extent.log, units)
            choice = choose_units(units, options)
        if choice.first < 0:
            return _nothing(GetStatus.NO_MATCHED_MESSAGE, offset + choice.looked, 0, 0)
        first, last = offset + choice.first, offset + choice.last
        part = units[choice.first * UNIT.size : (choice.last + 1) * UNIT.size]
        for again in (False, True):
            if again:  # what came may have been wrong, and not what is there
                for each in extent.log:
                    self._blocks.forget(each.key)
            records, right = self._records(extent, choice.low, choice.high, on and not again)
            batch = excerpt(records, choice.low, part, first, place, options,
                            checks=self._checks(right))  # fmt: skip
            if right is not False and not batch.damaged:
                break
        if right is False and not batch.damaged:
            what = f"records of {place[0]}/{place[1]} from {first} on"
            if not self.passes_over:
                raise TierDamaged(f"{what} failed checks twice", extent.key)
            _log.warning("Read in the cold tier: %s failed checks twice: %s", what, extent.key)
        if batch.next_offset == last + 1:
            batch.next_offset = offset + choice.looked  # the units after it are of other tags
        return batch

    def _with_heads(self, log: tuple[Place, ...], units: bytes) -> bytes:
        """Returns units of RocketMQ's own tier, of which those of large records lead nowhere if
        there is no such record: nothing has checked them, and each may ask for 64 MiB."""
        made = bytearray(units)
        for at, (place, size, code) in enumerate(UNIT.iter_unpack(units)):
            if size > BLOCK and not self._begins(log, place, size):
                UNIT.pack_into(made, at * UNIT.size, place, 0, code)
        return bytes(made)

    def _begins(self, log: tuple[Place, ...], place: int, size: int) -> bool:
        head: bytes = size.to_bytes(4, "big") + MAGIC_HEAD
        if log_bytes(self._blocks, log, place, place + len(head)) == head:
            return True
        for each in log:  # what came may have been wrong, and not what is there
            self._blocks.forget(each.key)
        return log_bytes(self._blocks, log, place, place + len(head)) == head

    def _checks(self, covered: bool | None) -> int:
        """Returns which of its own sums a record is checked by, as a store of these settings
        does; `covered` as of ``checks_of``."""
        covered = covered and not self.settings.checkCRCOnRead
        return checks_of(summed=self.tier.summed, covered=covered)

    def _records(self, extent: Extent, low: int, high: int, on: bool) -> tuple[Buffer, bool | None]:
        if high - low > SEGMENT_MAX:  # units lie
            return b"", None
        return fetch_records(self._blocks, extent, low, high, on=on)

    def units(
        self, topic: str, queue: int, offset: int = 0, count: int = 4096
    ) -> list[tuple[int, int, int]]:
        if self._span(topic, queue) is None:
            raise self._missing(topic, queue)
        found: list[tuple[int, int, int]] = []
        at = offset
        for extent in self.tier.extents(topic, queue, offset, offset + count):
            if extent.first > at:
                break
            end = min(extent.end, offset + count)
            place = extent.at + (at - extent.first) * UNIT.size
            size = (end - at) * UNIT.size
            found += units_of(self._blocks.get(extent.key, place, place + size, extent.whole))
            at = end
        return found

    def record_bytes(self, topic: str, queue: int, offset: int) -> int:
        """Returns about how many bytes records have from an offset on, without a request where a
        manifest tells; 0: nothing is there. Raises: NotFound."""
        extent = next(self.tier.extents(topic, queue, offset, offset + 1), None)
        if extent is None or extent.row is None:
            sizes = [size for _, size, _ in self.units(topic, queue, offset, _UNITS_SAMPLED)]
            return sum(sizes) // len(sizes) if sizes else 0
        return extent.row.records // extent.row.count

    def probe(self, topic: str, queue: int, offset: int) -> tuple[int, int] | None:
        """Returns by which two numbers the segment of a message is told from others: its place in
        the queue's log, and its CRC. Of upstream's tier, which has neither, place and size of the
        record. None: it is not there. Raises: NotFound."""
        extent = next(self.tier.extents(topic, queue, offset, offset + 1), None)
        if extent is not None and extent.row is not None:
            return extent.row.base, extent.row.crc
        units = self.units(topic, queue, offset, 1)
        return units[0][:2] if units else None

    def segment_begins(self, topic: str, queue: int, offset: int) -> int:
        """Returns the first offset of the segment that has an offset; of upstream's tier, and where
        there is none, that offset."""
        extent = next(self.tier.extents(topic, queue, offset, offset + 1), None)
        return offset if extent is None or extent.row is None else extent.first

    def offset_at(self, topic: str, queue: int, timestamp: int, *, upper: bool = False) -> int:
        span = self._span(topic, queue)
        if span is None:
            raise self._missing(topic, queue)
        low, high = span.start, span.end
        for extent in self.tier.extents(topic, queue, low, high):
            if extent.time_max >= timestamp + upper:
                low, high = max(low, extent.first), min(high, extent.end)
                break
            if extent.row is not None:
                low = extent.end
        while low < high:
            middle = (low + high) // 2
            stored = self._stored_at(topic, queue, middle)
            if stored is not None and stored < timestamp + upper:
                low = middle + 1
            else:
                high = middle
        return max(span.start, low - upper)

    def _stored_at(self, topic: str, queue: int, offset: int) -> int | None:
        batch = self.read(topic, queue, offset, max_messages=1)
        return batch[0].store_timestamp if batch else None

    def message(self, offset: int) -> Message:
        raise NotFound("a place in the log of a queue does not tell which queue", self.address)

    def log(self, offset: int | None = None, **more: Any) -> Batch:
        raise NotFound("a cold tier has no log over all queues: use messages()", self.address)

    # ---- reading all ----

    def pieces(
        self, topic: str | None = None, queue: int | None = None, *, start: int = 0,
        end: int = _FAR, time_min: int = 0, time_max: int = _FAR, sum_later: bool = False,
    ) -> Iterator[QueuePiece]:  # fmt: skip
        """Yields the records of queues in pieces, whole segments fetched ahead, each checked by its
        CRC. start, end: queue offsets. time_min, time_max: store times in ms, inclusive; segments
        without one are not fetched. sum_later: of segments that are in memory the caller looks at
        the sums of records, so that it brings these from memory once (`QueuePiece.sums`).

        Raises: TierDamaged, TierUnreachable."""
        wanted = self._parts(self._extents(topic, queue, start, end, time_min, time_max))

        def within(span: QueueSpan) -> tuple[int, int]:
            return max(start, span.start), min(end, span.end)

        def is_whole(span: QueueSpan, extent: Extent) -> bool:
            low, high = within(span)
            return low <= extent.first and extent.end <= high

        def at_hand(each: tuple[QueueSpan, Extent]) -> QueuePiece | None:
            return self._piece_at_hand(*each) if sum_later and is_whole(*each) else None

        for each, piece in in_order(
            lambda each: self._piece(*each), wanted, _AT_ONCE, size=_weight, room=_AHEAD,
            at_hand=at_hand,
        ):  # fmt: skip
            yield piece if is_whole(*each) else piece.cut(*within(each[0]))
            del piece  # its memory is for those that come

    def _spans_of(self, topic: str | None, queue: int | None) -> list[QueueSpan]:
        if topic is None or queue is None:
            return [span for span in self.spans(topic) if queue in (None, span.queue)]
        known = self._span(topic, queue)
        return [] if known is None else [known]

    def _extents(
        self, topic: str | None, queue: int | None, start: int, end: int, time_min: int,
        time_max: int,
    ) -> Iterator[tuple[QueueSpan, Extent]]:  # fmt: skip
        for span in self._spans_of(topic, queue):
            low, high = max(start, span.start), min(end, span.end)
            times = time_min, time_max
            for extent in self.tier.extents(span.topic, span.queue, low, high, times):
                timed = extent.time_max >= 0
                if timed and (extent.time_max < time_min or extent.time_min > time_max):
                    continue
                yield span, extent

    def _parts(
        self, extents: Iterator[tuple[QueueSpan, Extent]]
    ) -> Iterator[tuple[QueueSpan, Extent]]:
        """Yields extents of upstream's tier in parts whose records fit into memory."""
        for span, extent in extents:
            if extent.row is not None:
                yield span, extent
                continue
            first, low, high = 0, _FAR, 0
            for number, (at, size, _) in enumerate(units_of(self._units_of(extent))):
                if number > first and max(high, at + size) - min(low, at) > _PIECE:
                    yield span, _part(extent, first, number)
                    first, low, high = number, _FAR, 0
                low, high = min(low, at), max(high, at + size)
            yield span, _part(extent, first, extent.count)

    def _units_of(self, extent: Extent) -> bytes:
        end = extent.at + extent.count * UNIT.size
        return bytes(self.tier.objects.get(extent.key, extent.at, end))

    def _piece_at_hand(self, span: QueueSpan, extent: Extent) -> QueuePiece | None:
        """Returns a segment that is in memory and has sums of records, of which all but these
        records was looked at. None: it is to be fetched, or is not as it should be."""
        row = extent.row
        if row is None or not row.has_record_sums:
            return None
        with contextlib.suppress(TierDamaged, TierUnreachable):
            file = self.tier.objects.mapped(extent.key, row.size, row.base)
            if file is not None and file.at_hand:
                where = f"{self.tier.objects.address}/{extent.key}"
                return _piece_of(span, row, file.view, file, where, records=False)
        return None

    def _piece(self, span: QueueSpan, extent: Extent) -> QueuePiece:
        row, (topic, queue) = extent.row, span[:2]
        if row is not None:
            file = self.tier.objects.mapped(extent.key, row.size, row.base)
            data = file.view if file is not None else self.tier.objects.get(extent.key, 0, row.size)
            where = f"{self.tier.objects.address}/{extent.key}"
            return _piece_of(span, row, data, file, where, records=True)
        raw = self._units_of(extent)
        reach = choose_units(raw)
        records, _ = self._records(extent, reach.low, reach.high, False)
        missing = reach.high - reach.low - len(records)
        if missing:
            raise TierDamaged(
                f"units of {topic}/{queue} lead to {missing} bytes of its log that are not there",
                self.address,
            )
        return QueuePiece(topic, queue, extent.first, extent.end, reach.low, memoryview(records),
                          memoryview(raw), None)  # fmt: skip

    def timed(
        self, topic: str, queue: int, start: int, end: int, time_min: int, time_max: int
    ) -> tuple[int, int]:
        within = [
            extent for _, extent in self._extents(topic, queue, start, end, time_min, time_max)
        ]
        if not within:
            return start, start
        return max(start, within[0].first), min(end, within[-1].end)

    def holes(self, topic: str, queue: int, start: int, end: int) -> int:
        """Returns how many of the offsets [start, end) no segment has: they were lost before they
        were written out."""
        extents = self.tier.extents(topic, queue, start, end)
        return end - start - sum(min(end, e.end) - max(start, e.first) for e in extents)

    def batches(self, *, check_crc: bool = False, **range_: Any) -> Iterator[Batch]:
        """Yields the messages of `pieces`, a batch a piece. check_crc: also look at the sums of
        each message that is as it was written out. Raises: TierDamaged, TierUnreachable,
        FileSizeMismatch where the file of a segment is cut off meanwhile."""
        for piece in self.pieces(**range_):
            batch = self._batch_of(piece, check_crc=check_crc)
            if batch.damaged:
                raise TierDamaged(
                    f"{batch.damaged} messages of {piece.topic}/{piece.queue} are damaged, the"
                    f" first at offset {batch.first_damaged}",
                    self.address,
                )
            del piece
            yield batch
            del batch  # its memory is for those that come

    def _batch_of(self, piece: QueuePiece, *, check_crc: bool = False) -> Batch:
        """Returns all messages of a piece, however large it is."""
        checks = self._checks(piece.covered and not check_crc)
        options = self._options(None, None, piece.end - piece.first, _FAR)
        place = piece.topic, piece.queue
        return excerpt(piece.records, piece.base, piece.units, piece.first, place, options,
                       checks=checks, file=piece.file)  # fmt: skip

    def messages(self, *, check_crc: bool = False) -> Iterator[Message]:
        """Yields every message, queue by queue. Raises: as ``batches``."""
        for batch in self.batches(check_crc=check_crc):
            yield from batch

    def arrow(
        self, topic: str | None = None, queue: int | None = None, *, start: int = 0,
        end: int = _FAR, store_time: tuple[int | None, int | None] = (None, None), **options: Any,
    ) -> ArrowStream:  # fmt: skip
        """Returns messages of a queue, a topic or everything as an Arrow stream; options as those
        of ``pystore.ArrowStream``. start, end: queue offsets. Segments outside of `store_time` are
        not fetched. Raises: NotFound, BadArgument."""
        from pystore.store._arrow import ArrowStream

        if topic is not None and not self._spans_of(topic, queue):
            raise self._missing(topic, queue)
        low, high = store_time
        pieces = partial(
            self.pieces, topic, queue, start=start, end=end, time_min=low or 0,
            time_max=_FAR if high is None else high, sum_later=True,
        )  # fmt: skip
        topics = set(options.get("topics", ()))
        more = {name: value for name, value in options.items() if name not in OF_A_LOG}
        records = PieceRecords(pieces, topics)
        return ArrowStream(None, None, None, records=records, store_time=store_time, **more)

    # ---- keys ----

    def query(  # type: ignore[override]
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int = _FAR,
        max_messages: int = 0,
        tags: bool = False,
    ) -> list[Message]:
        """Returns messages that carry `key` in KEYS or as UNIQ_KEY, oldest first: a request a
        segment, many at once, and one for each message found. tags: only for upstream's index."""
        wanted = utf8(key, "the key")
        crc = crc_of(wanted)
        found: list[Message] = []
        extents = self._parts(self._extents(topic, None, 0, _FAR, begin, end))
        for _, messages in in_order(
            lambda each: self._having(*each, crc=crc, key=key), extents, _KEYS_AT_ONCE,
            size=_keys_weight,
        ):  # fmt: skip
            found += [m for m in messages if begin <= m.store_timestamp <= end]
        found.sort(key=lambda m: (m.store_timestamp, m.queue, m.queue_offset))
        return found[-max_messages:] if max_messages else found

    def _having(self, span: QueueSpan, extent: Extent, *, crc: int, key: str) -> list[Message]:
        if extent.row is None:
            batch = self._batch_of(self._piece(span, extent))
            return [m for m in batch if _has_key(m, key)]
        numbers = self._numbers(extent, extent.row, crc)
        if numbers is None:
            _log.warning("The keys of %s have another CRC: all its messages are read", extent.key)
            return [m for m in self._each_of(span, extent) if _has_key(m, key)]
        found: list[Message] = []
        looked = 0
        for number in sorted(numbers):
            if extent.first + number >= span.start:
                batch = self.read(span.topic, span.queue, extent.first + number, max_messages=1)
                found += [m for m in batch if _has_key(m, key)]
                looked += 1
            if looked - len(found) > _FALSE_MAX:
                raise TierDamaged("a segment's keys are not those of its messages", extent.key)
        return found

    def _each_of(self, span: QueueSpan, extent: Extent) -> Iterator[Message]:
        """Yields what is whole of an extent."""
        at = max(extent.first, span.start)
        while at < extent.end:
            batch = self.read(span.topic, span.queue, at, max_messages=extent.end - at)
            yield from (m for m in batch if m.queue_offset < extent.end)
            if batch.next_offset <= at:
                return
            at = batch.next_offset

    def _numbers(self, extent: Extent, row: Row, crc: int) -> set[int] | None:
        """Returns which messages of a segment have a key of that sum; None: its keys are wrong."""
        if row.keys == 0:
            return set()
        low, high = key_slice(row, crc)
        table = self._keys(extent, row, low, high)
        if table is not None:
            before, after = encloses(table, crc)
            if (low > 0 and not before) or (high < row.keys and not after):
                table = self._keys(extent, row, 0, row.keys)
        if table is None:
            return None
        return {number for number in numbers_of(table, crc) if number < extent.count}

    def _keys(self, extent: Extent, row: Row, low: int, high: int) -> bytes | None:
        """Returns keys of a segment; None: they came wrong twice."""
        start, end = key_bytes(row, low, high)
        for _ in range(2):
            table = keys_of(self.tier.objects.get(extent.key, start, end), row, low)
            if table is not None:
                return table
        return None

    # ---- following ----

    def _follow_step(
        self, topic: str, queue: int, offset: int, tags: str | None, sql: str | None
    ) -> Batch:
        batch = self.read(topic, queue, offset, max_messages=256, tags=tags, sql=sql)
        if batch.next_offset == offset and not batch:
            time.sleep(_FOLLOW_S)
            self.refresh()
        return batch


def _piece_of(
    span: QueueSpan, row: Row, data: Buffer, file: MappedFile | None, where: str, *, records: bool
) -> QueuePiece:
    """Returns a segment as a piece. records: whether its records are looked at, too; else by who
    reads them. Raises: TierDamaged."""
    sums = check_segment(data, row, where, records=records)
    return QueuePiece(
        span.topic, span.queue, row.first, row.end, row.base, memoryview(data)[: row.records],
        units_of_row(data, row), file, sums[:0] if records else sums, where, True,
    )  # fmt: skip


def _part(extent: Extent, first: int, end: int) -> Extent:
    """Returns the units [first, end) of an extent."""
    at = extent.at + first * UNIT.size
    return extent._replace(first=extent.first + first, count=end - first, at=at)


def _weight(found: tuple[QueueSpan, Extent]) -> int:
    """Returns about how many bytes an extent takes in memory."""
    row = found[1].row
    return _PIECE if row is None else row.size


def _keys_weight(found: tuple[QueueSpan, Extent]) -> int:
    row = found[1].row
    return _PIECE if row is None else row.size - row.records


def _within(span: QueueSpan, offset: int) -> tuple[GetStatus | None, int]:
    """Returns what a read of an offset meets that the queue does not have, and where to go on."""
    if span.end == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < span.start:
        return GetStatus.OFFSET_TOO_SMALL, span.start
    if offset == span.end:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > span.end:
        return GetStatus.OFFSET_OVERFLOW_BADLY, span.end
    return None, offset


def _nothing(status: GetStatus, at: int, low: int, high: int) -> Batch:
    """Returns a batch without a message."""
    batch = excerpt(b"", 0, b"", at, ("", 0), ffi.NULL)
    batch.status, batch.next_offset = status, at
    batch.min_offset, batch.max_offset = low, high
    return batch


def _has_key(message: Message, key: str) -> bool:
    return key == message.uniq_key or key in message.keys
