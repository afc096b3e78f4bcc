"""Writing out, as a master does: what is settled, queue by queue, and not too often.

A queue with a whole segment is written at once; one with less waits (tieredUploadWaitMillis), and
for its turn among those of little (tieredPutsPerHour). On a disk that is fuller than
diskMaxUsedSpaceRatio nobody waits: a request costs less than a refused send.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from broker.loop.rate_limited_log import RateLimitedLogger
from broker.loop.safe_log import SafeLogger
from broker.services.cold.behind import Behind, BehindQueue
from broker.services.cold.handle import TierHandle
from broker.services.cold.limits import TierLimits, limits_of
from broker.services.cold.pace import BytePace, PutBudget, WriterStopped
from broker.services.config import Config
from broker.services.topics import Topics
from pystore import Store
from pystore.cold.failures import TierDamaged, TierTaken
from pystore.cold.manifest import Manifest
from pystore.cold.push import SEGMENT_BYTES, PushReport, QueuePusher
from pystore.cold.tier import QueueSpan, Tier, span_of
from pystore.cold.upkeep import collect, expired_below
from pystore.errors import BadArgument

__all__ = ["UploadCounts", "Uploads"]

log = SafeLogger("broker.cold")
_quiet = RateLimitedLogger(log)

#: Of a queue with little: the segment, and its manifest.
_PUTS = 2
_THREADS = 4
#: Orphans are collected an hour after the start, and once a day.
_COLLECT_FIRST_S, _COLLECT_S = 3600.0, 86_400.0
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class UploadCounts:
    """What was done since the start. puts: objects. last_ms: when something was last written.
    strange: queues that are not those of the tier, by place, each with what was said of it."""

    bytes: int = 0
    messages: int = 0
    puts: int = 0
    deleted: int = 0
    collected: int = 0
    errors: int = 0
    last_ms: int = 0
    strange: dict[tuple[str, int], str] = field(default_factory=dict)


class Uploads:
    """What the thread of the tier does while this broker is the master."""

    def __init__(
        self, store: Store, settings: Config, topics: Topics, handle: TierHandle, behind: Behind,
        epoch: int, stopping: threading.Event, segment_bytes: int = SEGMENT_BYTES,
    ) -> None:  # fmt: skip
        self._store, self._settings, self._topics = store, settings, topics
        self._handle, self._behind = handle, behind
        self._epoch = epoch
        self._stopping = stopping
        self._segment_bytes = segment_bytes
        self._pool = ThreadPoolExecutor(_THREADS, "pystore-upload")
        self._pace = BytePace(stopping)
        #: By topic and queue: where it begins, and when the newest message of its first segment was
        #: stored, ms. Until that is old enough nobody asks its manifest.
        self._firsts: dict[tuple[str, int], tuple[int, int]] = {}
        self._puts = PutBudget()
        self._delete_s = time.monotonic()
        self._collect_s = self._delete_s + _COLLECT_FIRST_S
        self.counts = UploadCounts()
        #: A later master writes to the tier: this one does not any more.
        self.fenced = False
        #: The disk is so full that nobody waits.
        self.pressed = False

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- a round ----

    def round(self, tier: Tier) -> bool:
        """Writes out what is to be, a step of each queue; returns whether there is more at once.

        Raises: WriterStopped, TierUnreachable, StoreError."""
        if self.fenced:
            return False
        limits = limits_of(self._settings)
        self.pressed = self._is_pressed()
        self._pace.rate = 0 if self.pressed else limits.rate
        more = False
        try:
            self._empty_deleted(tier, limits)
            for queue in self._in_order():
                self._pace.pass_bytes(0)
                more |= self._serve(tier, queue, limits)
            self._delete_old(tier, limits)
            self._collect(tier)
        except TierTaken as taken:
            self._look_who(taken)
        except Exception as failed:
            self.counts.errors += not isinstance(failed, WriterStopped)
            raise
        return more

    def _is_pressed(self) -> bool:
        settings = self._settings.current
        most = settings.clamped("diskMaxUsedSpaceRatio")
        for folder in settings.commitlog_dirs(self._store.path):
            found = shutil.disk_usage(folder)
            if found.used * 100 > most * (found.used + found.free):
                return True
        return False

    def _in_order(self) -> Iterator[BehindQueue]:
        """Yields queues: what has waited longest first, or, where room is needed, what lies first
        in the log."""
        queues = [
            q for q in self._behind.queues.values() if q.info.topic not in self._handle.hidden
        ]
        if self.pressed:
            return iter(sorted(queues, key=lambda each: each.place))
        return iter(sorted(queues, key=lambda each: each.since_s))

    def _serve(self, tier: Tier, queue: BehindQueue, limits: TierLimits) -> bool:
        """Writes a step of a queue whose turn it is; returns whether it has more at once."""
        due = self.pressed or time.monotonic() - queue.since_s >= limits.wait_s
        full = queue.size >= self._segment_bytes
        if not due and not full:
            return False
        if not full and not self._puts.take(_PUTS, limits.puts, must=self.pressed):
            return False
        topic, number = queue.info.topic, queue.info.queue
        before = self._handle.manifest(topic, number)
        if before is None:
            self._refuse(topic, number, self._handle.damaged[topic, number])
            return False
        low = self._expired(tier, before, limits)
        report = PushReport()
        pusher = QueuePusher(
            self._store, tier, queue.info, report, self._pool, epoch=self._epoch,
            segment_bytes=self._segment_bytes, pace=self._pace,
        )  # fmt: skip
        try:
            made = pusher.step(before, whole=not due, expired=low)
        except BadArgument as strange:
            self._refuse(topic, number, str(strange))
            return False
        finally:
            self.counts.puts += report.objects
            if not full and report.objects > _PUTS:  # a page, too
                self._puts.take(report.objects - _PUTS, limits.puts, must=True)
        if made is before:
            queue.record = max(1, queue.record * 9 // 10)  # fewer bytes than it was taken for
            return False
        self._wrote(made, report)
        return full and (topic, number) in self._behind.queues

    def _wrote(self, made: Manifest, report: PushReport) -> None:
        self._handle.note(made)
        self._behind.took(made.topic, made.queue)
        self.counts.bytes += report.bytes
        self.counts.messages += report.messages
        self.counts.last_ms = time.time_ns() // 1_000_000
        self.counts.strange.pop((made.topic, made.queue), None)

    def _refuse(self, topic: str, number: int, why: str) -> None:
        """Leaves a queue alone that is not the one of the tier, or whose manifest is damaged: an
        operator says which counts."""
        if (topic, number) not in self.counts.strange:
            log.warning("Nothing is written out of a queue: %s", why)
        self.counts.strange[topic, number] = why

    def _look_who(self, taken: TierTaken) -> None:
        """Looks who has written: a later master, or one that was one until now."""
        self.counts.errors += 1
        self._handle.look()
        self.see_epoch()
        if not self.fenced:
            _quiet.warning("taken", "Another broker writes to the cold tier: %s", taken)

    def see_epoch(self) -> None:
        """Ends writing out where the last look found a later master, and goes on where none is
        there any more."""
        before, self.fenced = self.fenced, self._handle.epoch > self._epoch
        if self.fenced and not before:
            log.warning("Nothing more is written out: %s", self.fence)

    @property
    def fence(self) -> str:
        """What keeps this broker from writing out, and what to do where nobody else is to."""
        return (
            f"the tier was written to in epoch {self._handle.epoch}, and this master is of epoch"
            f" {self._epoch}; if no later one is left: pystore cold epoch TIER {self._epoch}"
        )

    # ---- taking away ----

    def _empty_deleted(self, tier: Tier, limits: TierLimits) -> None:
        """Empties queues of topics that were deleted."""
        deleted = self._store.deletions() if self._handle.hidden else {}
        for topic in list(self._handle.hidden):
            if topic not in deleted and self._store.queues(topic):
                continue  # it is about to be deleted
            for number in self._handle.queues_of(topic):
                manifest = self._handle.manifest(topic, number)
                if manifest is not None and not self._handle.is_present(manifest):
                    self._puts.take(1, limits.puts, must=True)
                    self._publish(tier, manifest.emptied(self._later(manifest), tier.writer))
                    self._firsts.pop((topic, number), None)
                    self.counts.strange.pop((topic, number), None)
            self._handle.show(topic)

    def _later(self, manifest: Manifest) -> int:
        """Returns the epoch to write in. Raises: TierTaken where a later master has written."""
        if manifest.epoch > self._epoch:
            raise TierTaken(f"{manifest.topic} was written to in epoch {manifest.epoch}")
        return self._epoch

    def _publish(self, tier: Tier, manifest: Manifest) -> None:
        self._handle.note(tier.publish(manifest))
        self.counts.puts += 1

    def _keeps_from(self, topic: str, limits: TierLimits) -> int:
        """Returns the store time, ms, before which messages of a topic are too old; 0: none are."""
        if not limits.deletes:
            return 0
        config = self._topics.get(topic)
        hours = int(config.attributes.get("reserve.time") or 0) if config is not None else 0
        kept_ms = hours * _HOUR_MS if hours > 0 else limits.reserved_ms
        return 0 if kept_ms < 0 else time.time_ns() // 1_000_000 - kept_ms

    def _is_young(self, span: QueueSpan, before_ms: int) -> bool:
        """Says whether the first segment of a queue is known to have later messages."""
        start, newest_ms = self._firsts.get((span.topic, span.queue), (-1, 0))
        return span.time_min >= before_ms or (start == span.start and newest_ms >= before_ms)

    def _expired(self, tier: Tier, manifest: Manifest, limits: TierLimits) -> int:
        """Returns the queue offset below which segments are older than their topic's time."""
        before_ms = self._keeps_from(manifest.topic, limits)
        if not before_ms or self._is_young(span_of(manifest), before_ms):
            return 0
        try:
            low = expired_below(tier, manifest, before_ms)
            for row in islice(tier.rows(manifest, low, manifest.end), 1):
                self._firsts[manifest.topic, manifest.queue] = low, row.time_max
            return low
        except TierDamaged as wrong:  # of a page: what is older stays
            _quiet.warning("pages", "What is old in the cold tier cannot be told: %s", wrong)
            return 0

    def _delete_old(self, tier: Tier, limits: TierLimits) -> None:
        """Takes out of manifests what is older than its time; the objects go with `collect`."""
        now_s = time.monotonic()
        if now_s < self._delete_s:
            return
        for span in self._handle.spans():
            if self._is_young(span, self._keeps_from(span.topic, limits)):
                continue
            manifest = self._handle.manifest(span.topic, span.queue)
            low = 0 if manifest is None else self._expired(tier, manifest, limits)
            if manifest is None or low <= manifest.start:
                continue
            if not self._puts.take(1, limits.puts):
                return  # it goes on in the next round
            kept = manifest.kept_from(low, self._later(manifest), tier.writer)
            self.counts.deleted += manifest.segments - kept.segments
            self._publish(tier, kept)
            self._pace.pass_bytes(0)
        self._delete_s = now_s + limits.delete_pause_s

    def _collect(self, tier: Tier) -> None:
        """Deletes objects that no manifest names, once a day."""
        now_s = time.monotonic()
        if now_s >= self._collect_s:
            self._collect_s = now_s + _COLLECT_S
            self.counts.collected += collect(tier)[0]
