"""Writing out: what a store has of each queue beyond the tier becomes segments there.

A segment is written first, its manifest after it, each as a new object, so that a kill between two
steps leaves at most an object that no manifest names. Two writers of a queue do not mix: a version
of a manifest is made once, and who comes second hears of it (TierTaken).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from pystore.cold.buffers import BufferPool
from pystore.cold.failures import TierTaken
from pystore.cold.manifest import ROWS_A_PAGE, SEGMENT_MAX, Manifest, Row, Seam, crc_of
from pystore.cold.places import is_kept
from pystore.cold.segment import make_segment
from pystore.cold.tier import Tier
from pystore.errors import BadArgument
from pystore.native import ffi, lib
from pystore.store._messages import Batch
from pystore.store._reading import Base
from pystore.store._results import QueueInfo

__all__ = ["Paces", "PushReport", "QueuePusher", "continues", "push"]

SEGMENT_BYTES = 16 << 20
_MESSAGES = 1 << 17
#: So many bytes of segments go with one manifest, where there is much to write out.
_BYTES_A_MANIFEST = 128 << 20
_STEPS_OVER = 1000
#: Segments that are written at once.
_AT_ONCE = 4


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
        raise BadArgument(f"a segment of {segment_bytes} bytes is not between 1 KiB and 32 MiB")
    report = PushReport()
    chosen = set(topics)
    queues = [
        q
        for q in source.queues()
        if is_kept(q.topic, tier.cluster, tier.broker) and (not chosen or q.topic in chosen)
    ]
    buffers = BufferPool()
    with ThreadPoolExecutor(_AT_ONCE, "pystore-push") as pool:
        for done, queue in enumerate(queues):
            if progress is not None:
                progress(done, len(queues))
            QueuePusher(
                source, tier, queue, report, pool, segment_bytes=segment_bytes, epoch=epoch,
                buffers=buffers,
            ).run()  # fmt: skip
    return report


def continues(source: Base, manifest: Manifest | Seam, queue: QueueInfo) -> bool:
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


class Paces(Protocol):
    """Who holds a writer back, or ends it."""

    def pass_bytes(self, count: int) -> None:
        """Returns when so many bytes may be written. Raises: what ends the writer."""


class _NoPace:
    def pass_bytes(self, count: int) -> None:
        return


class QueuePusher:
    """Writes out one queue. to: the queue offset to stop at; None: what the store has. pool: whose
    threads write segments, several at a time. buffers: what segments are made in."""

    def __init__(
        self, source: Base, tier: Tier, queue: QueueInfo, report: PushReport, pool: Executor, *,
        segment_bytes: int = SEGMENT_BYTES, epoch: int = 0, to: int | None = None,
        pace: Paces | None = None, buffers: BufferPool | None = None,
    ) -> None:  # fmt: skip
        self._source = source
        self._tier = tier
        self._queue = queue
        self._report = report
        self._pool = pool
        self._segment_bytes = segment_bytes
        self._epoch = epoch
        self._to = queue.max_offset if to is None else min(to, queue.max_offset)
        self._pace: Paces = pace or _NoPace()
        self._buffers = buffers or BufferPool()

    def run(self) -> Manifest:
        """Writes everything out; returns the queue's manifest. Raises: TierTaken, TierUnreachable,
        BadArgument."""
        before = self._tier.manifest(self._queue.topic, self._queue.queue, fresh=True)
        manifest = self.step(before)
        while manifest.version != before.version and manifest.end < self._to:
            before, manifest = manifest, self.step(manifest)
        self._report.queues += manifest.version > 0 and manifest.writer == self._tier.writer
        return manifest

    def step(self, manifest: Manifest, *, whole: bool = False, expired: int = 0) -> Manifest:
        """Writes the next segments and their manifest, and returns that; the one that was given
        where nothing is to be written. whole: only segments of segment_bytes. expired: the queue
        offset below which segments go from the manifest, with the new ones. Raises: as run."""
        self._check(manifest)
        if manifest.epoch > self._epoch:
            topic, number = self._queue.topic, self._queue.queue
            raise TierTaken(
                f"{topic}/{number} was written to in epoch {manifest.epoch}, and this writer is of"
                f" epoch {self._epoch}",
                self._tier.objects.address,
            )
        rows = self._rows(manifest, whole)
        if not rows:
            return manifest
        made = manifest.with_rows(tuple(rows), self._epoch, self._tier.writer)
        if expired:
            made = made.without(expired)
        published = self._tier.publish(made)
        self._report.objects += 1 + len(published.pages) - len(made.pages)
        return published

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

    def _rows(self, manifest: Manifest, whole: bool) -> list[Row]:
        """Writes segments for the next manifest; none: everything is written."""
        rows: list[Row] = []
        sent: deque[tuple[Row, Future[bool]]] = deque()
        start = at = max(manifest.end, self._queue.min_offset)
        first = base = manifest.next_base
        tries = 0
        # Another writer may have left segments behind: then the first one goes alone.
        strange = manifest.writer != self._tier.writer
        try:
            while True:
                most = 1 if strange and not rows else _AT_ONCE
                room = ROWS_A_PAGE - len(rows)
                while len(sent) < min(most, room) and base - first < _BYTES_A_MANIFEST:
                    batch = self._batch(at)
                    if batch is None or (whole and batch.next_offset >= self._to):
                        break
                    row, data = make_segment(batch, base, self._epoch, self._buffers)
                    if row.size > SEGMENT_MAX:
                        raise self._too_large(row)
                    self._pace.pass_bytes(row.size)
                    sent.append((row, self._pool.submit(self._put, base, data)))
                    at, base = row.end, row.base + row.size
                if not sent:
                    break
                row, done = sent.popleft()
                if done.result():
                    rows.append(row)
                    continue
                # An object that stands in its place is of a writer that was killed, or is about to
                # write its manifest: it is stepped over, with what would have come after it, and a
                # collector takes it once it is a day old.
                wait(each for _, each in sent)
                sent.clear()
                at, tries = row.first, tries + 1
                if tries == _STEPS_OVER:
                    raise self._crowded()
        finally:
            wait(each for _, each in sent)
        for row in rows:
            self._report.objects += 1
            self._report.messages += row.count
            self._report.bytes += row.size
            self._report.holes += row.first - start
            start = row.end
        return rows

    def _put(self, base: int, data: memoryview) -> bool:
        key = self._tier.key_of(self._queue.topic, self._queue.queue, base)
        return self._tier.objects.put_new(key, data)

    def _too_large(self, row: Row) -> BadArgument:
        error = BadArgument(
            f"the message {row.first} of {self._queue.topic}/{self._queue.queue} does not fit into"
            f" an object of {SEGMENT_MAX} bytes",
            self._tier.objects.address,
        )
        error.next_step = "it stays in the store with what follows in its queue"
        return error

    def _crowded(self) -> TierTaken:
        return TierTaken(
            f"{_STEPS_OVER} objects that no manifest names lie where segments of"
            f" {self._queue.topic}/{self._queue.queue} would go",
            self._tier.objects.address,
        )

    def _batch(self, at: int) -> Batch | None:
        """Returns the next messages from an offset on; None: there are none."""
        while at < self._to:
            batch = self._source.read(
                self._queue.topic, self._queue.queue, at,
                max_messages=min(self._to - at, _MESSAGES), max_bytes=self._segment_bytes,
            )  # fmt: skip
            if batch:
                return batch
            if batch.next_offset <= at:
                return None
            at = batch.next_offset
        return None
