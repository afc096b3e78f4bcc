"""Counters of the broker, and their windows of a minute, an hour and a day
(docs/internals/services.md#statistics).

The core counts what it serves; processors add what passes through Python. A sample is a copy of
all counters, taken by the housekeeping timer; a window is the difference of two samples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.services.hotpath import HotPath
from broker.services.puttimes import PutTimes

__all__ = ["Statistics"]

#: Seconds between the samples of a window, and how many are kept.
_MINUTE, _HOUR, _DAY = (10.0, 7), (600.0, 7), (3600.0, 25)

Counter = tuple[str, str]


@dataclass(slots=True)
class _Sample:
    when: float
    values: Mapping[Counter, int]


@dataclass(slots=True)
class _Window:
    pause: float
    kept: int
    samples: deque[_Sample] = field(default_factory=deque)

    def take(self, sample: _Sample) -> None:
        if not self.samples or sample.when - self.samples[-1].when >= self.pause * 0.999:
            self.samples.append(sample)
            while len(self.samples) > self.kept:
                self.samples.popleft()


def _midnight(when: float) -> float:
    day = time.localtime(when)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


class Statistics:
    """Counters by name (TOPIC_PUT_NUMS and so on) and key (``topic``, ``topic@group``, cluster)."""

    def __init__(
        self,
        core: HotPath,
        cluster: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._clock = clock
        self._wall = wall
        self._own: dict[Counter, int] = {}
        self.put_times = PutTimes(core)
        self._windows = {
            "statsMinute": _Window(*_MINUTE),
            "statsHour": _Window(*_HOUR),
            "statsDay": _Window(*_DAY),
        }
        #: For rates of 10 s, 1 min and 10 min.
        self._rates = _Window(10.0, 61)
        self._today = _midnight(wall())
        #: BROKER_PUT_NUMS and BROKER_GET_NUMS when yesterday and when today began.
        self.mornings: dict[str, tuple[int, int]] = {}

    # ---- counting ----

    def add(self, name: str, key: str, value: int = 1) -> None:
        counter = (name, key)
        self._own[counter] = self._own.get(counter, 0) + value

    @property
    def failed_puts(self) -> int:
        return self._core.totals().put_failures

    def forget(self, topic: str | None = None, group: str | None = None) -> None:
        """Drops what belongs to a deleted topic or group."""
        for counter in list(self._own):
            of_topic, _, of_group = counter[1].partition("@")
            if (topic is not None and of_topic == topic) or (group and of_group == group):
                del self._own[counter]

    def current(self) -> dict[Counter, int]:
        """Every counter now, those of the core and ours together."""
        values = dict(self._own)

        def more(name: str, key: str, value: int) -> None:
            values[name, key] = values.get((name, key), 0) + value

        for topic, group, messages, size in self._core.statistics():
            name, key = ("TOPIC_PUT", topic) if group is None else ("GROUP_GET", f"{topic}@{group}")
            if messages:
                more(f"{name}_NUMS", key, messages)
                more(f"{name}_SIZE", key, size)
        for total, part in (("PUT", "TOPIC_PUT_NUMS"), ("GET", "GROUP_GET_NUMS")):
            everything = sum(value for (name, _), value in values.items() if name == part)
            values[f"BROKER_{total}_NUMS", self._cluster] = everything
        totals = self._core.totals()
        values["FOUND", self._cluster] = totals.found
        values["MISS", self._cluster] = totals.misses
        values["FOUND_AND_MISS", self._cluster] = totals.found + totals.misses
        return values

    # ---- sampling ----

    def sample(self) -> None:
        """Called by the housekeeping timer every 10 s, and once at the start."""
        one = _Sample(self._clock(), self.current())
        self.put_times.sample(one.when)
        for window in (*self._windows.values(), self._rates):
            window.take(one)
        midnight = _midnight(self._wall())
        for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            now = one.values.get((name, self._cluster), 0)
            today = self.mornings.setdefault(name, (now, now))[1]
            if midnight != self._today:
                self.mornings[name] = (today, now)
        self._today = midnight

    # ---- asking ----

    def view(self, name: str, key: str) -> dict[str, dict[str, float]] | None:
        """BrokerStatsData: sum, tps and avgpt of each window; None for what was never counted."""
        now, current = self._clock(), self.current()
        if (name, key) not in current:
            return None
        made = {}
        for window_name, window in self._windows.items():
            first = window.samples[0] if window.samples else None
            total = self._grown(current, first, name, key)
            elapsed = max(now - first.when, 1.0) if first is not None else 1.0
            times = total
            if name.endswith("_SIZE"):
                times = self._grown(current, first, name[:-4] + "NUMS", key)
            average = total / times if times > 0 else 0.0
            made[window_name] = {"avgpt": average, "sum": total, "tps": round(total / elapsed, 2)}
        return made

    @staticmethod
    def _grown(current: Mapping[Counter, int], first: _Sample | None, name: str, key: str) -> int:
        before = first.values.get((name, key), 0) if first is not None else 0
        return max(0, current.get((name, key), 0) - before)

    def tps(self, name: str) -> Callable[[str], float]:
        """By key: a second, over the last minute. The counters are read once."""
        now, current = self._clock(), self.current()
        samples = self._windows["statsMinute"].samples
        first = samples[0] if samples else None
        elapsed = max(now - first.when, 1.0) if first is not None else 1.0
        return lambda key: round(self._grown(current, first, name, key) / elapsed, 2)

    def total(self, name: str) -> int:
        """Of a broker-wide counter since the start."""
        return self.current().get((name, self._cluster), 0)

    def rates(self, name: str) -> str:
        """Of a broker-wide counter: per second over 10 s, a minute, ten minutes, as 28 has it."""
        now, total = self._clock(), self.total(name)
        texts = []
        for span in (10.0, 60.0, 600.0):
            first = next((s for s in self._rates.samples if now - s.when <= span * 1.5), None)
            if first is None:
                texts.append("0.0")
                continue
            grown = total - first.values.get((name, self._cluster), 0)
            texts.append(str(round(max(0, grown) / max(now - first.when, 1.0), 3)))
        return " ".join(texts)
