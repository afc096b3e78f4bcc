"""What upstream counts of transactions, and config/transactionMetrics: how many of each topic
are open, which upstream reads back. Here it is taken from the table, so that it never drifts."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from broker.hot.halves import Halves
from broker.metrics.page import MetricSample, buckets
from pystore import files

__all__ = ["Metrics"]

_MAX_BYTES = 16 << 20


class Metrics:
    """The file of metrics, and what it said last."""

    def __init__(self, path: Path, halves: Halves, file_mode: int, interval_s: float = 3.0) -> None:
        self._path, self._file_mode = path, file_mode
        self._halves = halves
        self._interval_s = interval_s
        self._counter = 0
        self._said: dict[str, int] | None = None
        self._written = 0.0
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            data = files.read_file(path)
            if data is not None and len(data) <= _MAX_BYTES:
                self._counter = int(json.loads(data)["dataVersion"]["counter"])

    def counts(self) -> dict[str, int]:
        """Returns the number of open transactions by topic."""
        return {each.name: each.open for each in self._halves.counts(topics=True)}

    def samples(self) -> Iterator[MetricSample]:
        """Returns upstream's metrics: the gauge is of now, the others count since the start."""
        tallies = sorted(self._halves.tallies())
        counts = dict.fromkeys((tally.topic for tally in tallies), 0) | self.counts()
        for topic, count in counts.items():
            yield MetricSample("rocketmq_half_messages", {"topic": topic}, count)
        for tally in tallies:
            label = {"topic": tally.topic}
            yield MetricSample("rocketmq_commit_messages_total", label, tally.commits)
            yield MetricSample("rocketmq_rollback_messages_total", label, tally.rollbacks)
            name = "rocketmq_finish_message_latency_milliseconds"
            yield from buckets(name, label, tally.latencies, tally.latency_s)

    def maybe_write(self) -> None:
        """Writes the file when it would say something else, at most every few seconds."""
        if time.monotonic() - self._written >= self._interval_s:
            self.write()

    def write(self) -> None:
        """Writes the file. Raises: StoreError when it cannot be written."""
        counts = self.counts()
        if counts == self._said or (self._said is None and not counts and not self._path.exists()):
            return
        now = time.time_ns() // 1_000_000
        self._counter += 1
        value = {
            "dataVersion": {"counter": self._counter, "stateVersion": 0, "timestamp": now},
            "transactionCount": {
                topic: {"count": count, "timeStamp": now} for topic, count in counts.items()
            },
        }
        with files.named_errors(self._path):
            files.make_folders(self._path.parent, self._file_mode)
            data = json.dumps(value, separators=(",", ":")).encode()
            files.replace_file(self._path, data, keep_old=True, mode=self._file_mode)
        self._said, self._written = counts, time.monotonic()
