"""Writing out: what a store has of each queue beyond the tier becomes segments there.

A segment is written first, its manifest after it, each as a new object, so that a kill between two
steps leaves at most an object that no manifest names. Two writers of a queue do not mix: a version
of a manifest is made once, and who comes second hears of it (TierTaken).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pystore.cold.failures import TierTaken
from pystore.cold.manifest import SEGMENT_MAX, Manifest, Row
from pystore.cold.places import is_kept
from pystore.cold.segment import crc_of, make_segment
from pystore.cold.tier import Tier
from pystore.errors import BadArgument
from pystore.native import ffi, lib
from pystore.store._messages import Batch
from pystore.store._reading import Base
from pystore.store._results import QueueInfo

__all__ = ["PushReport", "QueuePusher", "continues", "push"]

SEGMENT_BYTES = 16 << 20
_MESSAGES = 1 << 17
#: So many bytes of segments go with one manifest, where there is much to write out.
_BYTES_A_MANIFEST = 128 << 20
_STEPS_OVER = 1000


@dataclass(slots=True)
class PushReport:
    """What was written out. holes: offsets that the store had lost before they were written."""

    queues: int = 0
    messages: int = 0
    bytes: int = 0
    objects: int = 0
    holes: int = 0


def push(
    source: Base, tier: Tier, *, topics: Iterable[str] = (), segment_bytes: int = SEGMENT_BYTES,
    epoch: int = 0, progress: Callable[[int, int], None] | None = None,
) -> PushReport:  # fmt: skip
    """Writes out everything that the tier does not have yet.

    topics: only these; none: all that are not the system's. source: a store, or another tier.
    progress: called with queues done, and queues in all.

    Raises: TierTaken, TierUnreachable, BadArgument for a queue that is not the one in the tier."""
    if not 1 << 10 <= segment_bytes <= SEGMENT_MAX >> 1:
        raise BadArgument(f"a segment of {segment_bytes} bytes is not between 1 KiB and 512 MiB")
    report = PushReport()
    chosen = set(topics)
    queues = [
        q
        for q in source.queues()
        if is_kept(q.topic, tier.cluster, tier.broker) and (not chosen or q.topic in chosen)
    ]
    for done, queue in enumerate(queues):
        if progress is not None:
            progress(done, len(queues))
        QueuePusher(source, tier, queue, report, segment_bytes, epoch).run()
    return report


def continues(source: Base, manifest: Manifest, queue: QueueInfo) -> bool:
    """Says whether a queue of the source is the one whose beginning the tier has: it reaches as
    far, and has the tier's last record there, unless it has that one no more."""
    if manifest.end > queue.max_offset:
        return False
    if not manifest.end or manifest.end <= queue.min_offset:
        return True
    batch = source.read(queue.topic, queue.queue, manifest.end - 1, max_messages=1)
    if not batch:
        return True
    record = bytearray(batch[0].record)
    place = manifest.last_end - len(record)
    lib.ps_record_move(ffi.from_buffer("uint8_t[]", record), len(record), place)
    return crc_of(record) == manifest.last


class QueuePusher:
    """Writes out one queue. to: the queue offset to stop at; None: what the store has."""

    def __init__(
        self, source: Base, tier: Tier, queue: QueueInfo, report: PushReport,
        segment_bytes: int = SEGMENT_BYTES, epoch: int = 0, to: int | None = None,
    ) -> None:  # fmt: skip
        self._source = source
        self._tier = tier
        self._queue = queue
        self._report = report
        self._segment_bytes = segment_bytes
        self._epoch = epoch
        self._to = queue.max_offset if to is None else min(to, queue.max_offset)

    def run(self) -> Manifest:
        """Writes everything out; returns the queue's manifest. Raises: TierTaken, TierUnreachable,
        BadArgument."""
        topic, number = self._queue.topic, self._queue.queue
        manifest = self._tier.manifest(topic, number, fresh=True)
        self._check(manifest)
        if manifest.epoch > self._epoch:
            raise TierTaken(
                f"{topic}/{number} was written to in epoch {manifest.epoch}, and this writer is of"
                f" epoch {self._epoch}",
                self._tier.objects.address,
            )
        wrote = False
        while rows := self._rows(manifest):
            manifest = manifest.with_rows(tuple(rows), self._epoch, self._tier.writer)
            manifest = self._tier.publish(manifest)
            wrote = True
            self._report.objects += 1
        self._report.queues += wrote
        return manifest

    def _check(self, manifest: Manifest) -> None:
        """Checks that the queue is the one whose beginning the tier has. Raises: BadArgument."""
        if not continues(self._source, manifest, self._queue):
            topic, number = self._queue.topic, self._queue.queue
            error = BadArgument(
                f"{topic}/{number} is not the queue that the tier has up to offset {manifest.end}:"
                " its topic was deleted and made again, or this is another store",
                self._tier.objects.address,
            )
            error.next_step = (
                f"push to another address, or take the old one away: pystore cold rm ADDRESS"
                f" --topic '{topic}'"
            )
            raise error

    def _rows(self, manifest: Manifest) -> list[Row]:
        """Writes segments for the next manifest; none: everything is written."""
        rows: list[Row] = []
        at, base, total = max(manifest.end, self._queue.min_offset), manifest.next_base, 0
        while at < self._to and total < _BYTES_A_MANIFEST:
            batch = self._batch(at)
            if not batch:
                if batch.next_offset <= at:
                    break
                at = batch.next_offset
                continue
            row = self._write(batch, base)
            self._report.holes += row.first - (rows[-1].end if rows else max(
                manifest.end, self._queue.min_offset))  # fmt: skip
            rows.append(row)
            at, base, total = row.end, row.base + row.size, total + row.size
        return rows

    def _batch(self, at: int) -> Batch:
        most = min(self._to - at, _MESSAGES)
        return self._source.read(
            self._queue.topic, self._queue.queue, at, max_messages=most,
            max_bytes=self._segment_bytes,
        )  # fmt: skip

    def _write(self, batch: Batch, base: int) -> Row:
        """Writes the segment of a batch. An object that stands in its place is of a writer that was
        killed, or is about to write its manifest: it is stepped over, and a collector takes it once
        it is a day old."""
        topic, number = self._queue.topic, self._queue.queue
        for _ in range(_STEPS_OVER):
            row, data = make_segment(batch, base, self._epoch)
            if self._tier.objects.put_new(self._tier.key_of(topic, number, base), data):
                self._report.objects += 1
                self._report.messages += row.count
                self._report.bytes += row.size
                return row
            base += row.size
        raise TierTaken(
            f"{_STEPS_OVER} objects that no manifest names lie where segments of {topic}/{number}"
            " would go",
            self._tier.objects.address,
        )
