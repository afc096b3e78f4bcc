"""Counters of the broker, and their windows of a minute, an hour and a day
(docs/internals/services.md#statistics).

The core counts what it serves; processors add what passes through Python. A sample is a copy of
all counters, taken by a job of the duty; a window is the difference of two samples. There are
some forty of them, of a broker that may have tens of thousands of topics: so a sample is numbers
alone, each counter's at its place, and no name is read to take it.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.hot.core import Core, MessageSums
from broker.services.puttimes import PutTimes

__all__ = ["Statistics"]

#: Seconds between the samples of a window, and how many are kept.
_MINUTE, _HOUR, _DAY = (10.0, 7), (600.0, 7), (3600.0, 25)

Counter = tuple[str, str]


@dataclass(slots=True)
class _Sample:
    """A copy of all counters. `core` has messages and bytes by place, `own` values by place, and
    `sums` those of the whole broker. `number` counts samples of the core."""

    when: float
    number: int
    core: Sequence[int]
    own: Sequence[int]
    sums: Mapping[str, int]


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


@dataclass(slots=True)
class _Value:
    """A counter now. `sum` is its name if it is of the whole broker. `core` and `own` are its
    places in samples, or -1; `since` is the number of the first sample that has it at `core`."""

    value: int
    sum: str
    core: int = -1
    own: int = -1
    since: int = 0


def _midnight(when: float) -> float:
    day = time.localtime(when)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


class Statistics:
    """Counters by name (TOPIC_PUT_NUMS and so on) and key (``topic``, ``topic@group``, cluster)."""

    def __init__(
        self,
        core: Core,
        cluster: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._clock = clock
        self._wall = wall
        #: Ours: the place of each, and the values.
        self._places: dict[Counter, int] = {}
        self._own = array("q")
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
        place = self._places.setdefault((name, key), len(self._own))
        if place == len(self._own):
            self._own.append(0)
        self._own[place] += value

    def own(self) -> dict[Counter, int]:
        """Returns the counters of what passes through Python."""
        return {counter: self._own[place] for counter, place in self._places.items()}

    def forget(self, topic: str | None = None, group: str | None = None) -> None:
        """Drops what belongs to a deleted topic or group."""
        for counter in list(self._places):
            of_topic, _, of_group = counter[1].partition("@")
            if (topic is not None and of_topic == topic) or (group and of_group == group):
                self._own[self._places.pop(counter)] = 0

    def current(self) -> dict[Counter, int]:
        """Returns every counter now, those of the core and ours together. Tests and tools look at
        it where few topics are there."""
        values = self.own()
        for topic, group, messages, size in self._core.statistics():
            name, key = ("TOPIC_PUT", topic) if group is None else ("GROUP_GET", f"{topic}@{group}")
            for kind, value in (("NUMS", messages), ("SIZE", size)):
                counter = f"{name}_{kind}", key
                values[counter] = values.get(counter, 0) + value
        sums = self.sums()
        return values | {(name, self._cluster): value for name, value in sums.items()}

    def sums(self) -> Mapping[str, int]:
        """Returns the counters of the whole broker since the start."""
        return self.sums_and_bytes()[0]

    def sums_and_bytes(self) -> tuple[Mapping[str, int], int]:
        """Returns these, and the bytes that groups were sent (the sum of GROUP_GET_SIZE): looks
        through all topics and groups, with the core's lock held."""
        sums = self._core.sums()
        return self._sums(sums), sums.get_bytes

    def _sums(self, sums: MessageSums) -> dict[str, int]:
        totals = self._core.totals()
        return {
            "BROKER_PUT_NUMS": sums.puts,
            "BROKER_GET_NUMS": sums.gets,
            "FOUND": totals.found,
            "MISS": totals.misses,
            "FOUND_AND_MISS": totals.found + totals.misses,
        }

    # ---- sampling ----

    def sample(self) -> None:
        """Takes a sample: as a job of the duty every 10 s, and once at the start."""
        counters = self._core.sample()
        sums = self._sums(counters.sums)
        one = _Sample(self._clock(), counters.number, counters.values, self._own[:], sums)
        self.put_times.sample(one.when)
        for window in self._windows.values():
            window.take(one)
        self._rates.take(_Sample(one.when, one.number, (), (), sums))
        midnight = _midnight(self._wall())
        for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            now = sums.get(name, 0)
            today = self.mornings.setdefault(name, (now, now))[1]
            if midnight != self._today:
                self.mornings[name] = (today, now)
        self._today = midnight

    # ---- asking ----

    def view(self, name: str, key: str) -> dict[str, dict[str, float]] | None:
        """Returns BrokerStatsData: `sum`, `tps` and `avgpt` of each window, or None for what was
        never counted."""
        now, value = self._clock(), self._value(name, key)
        times_name = name[:-4] + "NUMS" if name.endswith("_SIZE") else name
        count = value if times_name == name else self._value(times_name, key)
        if value is None:
            return None
        made = {}
        for window_name, window in self._windows.items():
            first = window.samples[0] if window.samples else None
            total = self._grown(value, first)
            elapsed = max(now - first.when, 1.0) if first is not None else 1.0
            times = self._grown(count, first) if count is not None else 0
            average = total / times if times > 0 else 0.0
            made[window_name] = {"avgpt": average, "sum": total, "tps": round(total / elapsed, 2)}
        return made

    def _value(self, name: str, key: str) -> _Value | None:
        """Returns a counter as it is now, or None when it was never counted."""
        if key == self._cluster:
            sums = self.sums()
            if name in sums:
                return _Value(sums[name], name)
        found = _Value(0, "", own=self._places.get((name, key), -1))
        if found.own >= 0:
            found.value = self._own[found.own]
        kind, _, unit = name.rpartition("_")
        if kind in ("TOPIC_PUT", "GROUP_GET") and unit in ("NUMS", "SIZE"):
            topic, _, group = key.partition("@")
            is_put = kind == "TOPIC_PUT"
            place, found.since, messages, size = self._core.counter(
                *((key, None) if is_put else (topic, group))
            )
            found.value += messages if unit == "NUMS" else size
            found.core = 2 * place + (unit == "SIZE") if place >= 0 else -1
            if messages:
                return found
        return found if found.own >= 0 else None

    @staticmethod
    def _grown(value: _Value, first: _Sample | None) -> int:
        """Returns by how much a counter grew since that sample."""
        if first is None:
            return value.value
        before = first.sums[value.sum] if value.sum else 0
        if 0 <= value.core < len(first.core) and value.since <= first.number:
            before += first.core[value.core]
        if 0 <= value.own < len(first.own):
            before += first.own[value.own]
        return max(0, value.value - before)

    def tps(self, name: str) -> Callable[[str], float]:
        """Returns a function from a key to its count a second, over the last minute."""
        now = self._clock()
        samples = self._windows["statsMinute"].samples
        first = samples[0] if samples else None
        elapsed = max(now - first.when, 1.0) if first is not None else 1.0

        def of(key: str) -> float:
            value = self._value(name, key)
            return round(self._grown(value, first) / elapsed, 2) if value is not None else 0.0

        return of

    def rates(self, name: str, total: int) -> str:
        """Returns the rates of a counter of the whole broker, which is `total` now: per second over
        10 s, a minute and ten minutes, as code 28 has it."""
        now = self._clock()
        texts = []
        for span in (10.0, 60.0, 600.0):
            first = next((s for s in self._rates.samples if now - s.when <= span * 1.5), None)
            if first is None:
                texts.append("0.0")
                continue
            grown = total - first.sums.get(name, 0)
            texts.append(str(round(max(0, grown) / max(now - first.when, 1.0), 3)))
        return " ".join(texts)
