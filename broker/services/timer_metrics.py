"""What upstream counts of timers, under its names (docs/metrics.md)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise

from broker.metrics.page import MetricSample, buckets
from pystore.store.timers import Timers

__all__ = ["SNAPSHOT_BOUNDS_S", "TimerMetrics"]

#: Upstream's of rocketmq_timer_message_snapshot.
SNAPSHOT_BOUNDS_S = (5, 60, 300, 900, 3600, 14400, 28800, 86400)
_RATE_S = 10.0


class TimerMetrics:
    """Figures of one broker's timers since its start, to which the schedule adds what its rounds
    did."""

    def __init__(
        self, timers: Timers, end: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Takes what is counted. end: returns the end of the timer topic's queue. clock: counts the
        seconds of the rates."""
        self.timers = timers
        self._end, self._clock = end, clock
        self.offset = 0  # of the queue: everything before it was read
        self.next_ms = -1  # when the first that waits is due
        self.delivered = self.recalled = self.skipped = self.errors = 0
        #: Of the deliveries, the largest, ms after their time.
        self.late_max_ms = 0
        self._kept: deque[tuple[float, int, int]] = deque()

    def sample(self) -> None:
        """Takes a sample once a second; the rates are made of these."""
        now = self._clock()
        self._kept.append((now, self.offset, self.delivered))
        while len(self._kept) > 1 and now - self._kept[0][0] > _RATE_S:
            self._kept.popleft()

    def rates(self) -> tuple[float, float]:
        """Returns how many timers were read and delivered a second, over the last ten seconds."""
        if not self._kept:
            return 0.0, 0.0
        when, offset, delivered = self._kept[0]
        seconds = max(1.0, self._clock() - when)
        return (self.offset - offset) / seconds, (self.delivered - delivered) / seconds

    def behind(self, now_ms: int) -> tuple[int, int, int]:
        """Returns how many records were not read yet, how many timers are due, and by how many ms
        the first of them is late."""
        due = self.timers.count(0, now_ms)
        late_ms = max(0, now_ms - self.next_ms) if due and self.next_ms >= 0 else 0
        return max(0, self._end() - self.offset), due, late_ms

    def samples(self, now_ms: int) -> Iterator[MetricSample]:
        """Returns the metrics. Gauges are of now, counters since the start; a bucket of the
        histogram has all up to its seconds."""
        unread, due, late_ms = self.behind(now_ms)
        enqueued, dequeued = self.rates()
        for name, value in (
            ("enqueue_lag", unread),
            ("enqueue_latency_milliseconds", 0),
            ("dequeue_lag", due),
            ("dequeue_latency_milliseconds", late_ms),
            ("lateness_max_milliseconds", self.late_max_ms),
            ("pending", self.timers.count()),
            ("enqueue_tps", round(enqueued, 2)),
            ("dequeue_tps", round(dequeued, 2)),
            ("recalled_total", self.recalled),
            ("skipped_total", self.skipped),
            ("errors_total", self.errors),
        ):
            yield MetricSample(f"rocketmq_timer_{name}", {}, value)
        for low, high in pairwise((0, *SNAPSHOT_BOUNDS_S)):
            count = self.timers.count(now_ms + low * 1000, now_ms + high * 1000)
            yield MetricSample(
                "rocketmq_timer_message_snapshot", {"timer_bound_s": str(high)}, count
            )
        for tally in sorted(self.timers.tallies()):
            label = {"topic": tally.topic}
            yield MetricSample("rocketmq_timing_messages", label, tally.waiting)
            yield MetricSample("rocketmq_timer_enqueue_total", label, tally.read)
            yield MetricSample("rocketmq_timer_dequeue_total", label, tally.delivered)
            name = "rocketmq_delay_message_latency_seconds"
            yield from buckets(name, label, tally.delays, tally.delay_ms / 1000)
