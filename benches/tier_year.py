"""What a year of quiet topics makes of a cold tier, and what it costs: a broker's part of it runs
over an object store in memory that counts, on a clock that is moved.

    python -m benches.tier_year [--topics 10000] [--days 365] [--puts-an-hour 1000]
        [--put-price 5] [--get-price 0.4] [--storage-price 0.023] [--write]

Prices: dollars for a million PUTs or LISTs, for a million GETs, for a GB a month. A topic has one
queue and a message each time that it has its turn. With a tenth of the topics and of the PUTs an
hour each queue fares the same, in a tenth of the time.

--write simulates a year of few queues and the first day of 10,000, and makes tier_year.json and the
tables of docs/cold.md of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pystore
from benches.harness import ROOT, fresh
from broker.services.cold import behind, cold, handle, uploads
from broker.services.cold.cold import Cold
from broker.services.cold.pace import PutBudget
from broker.services.config import Config
from pystore.cold import objects as objects_module
from pystore.cold.blocks import BlockCache
from pystore.cold.failures import TierDamaged
from pystore.cold.manifest import Manifest, Row, page_of, spilled
from pystore.cold.objects import StoredObject
from pystore.cold.places import MANIFESTS
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier

__all__ = [
    "FIGURES",
    "CountedObjects",
    "Year",
    "costs_of",
    "figures_of",
    "of_one_queue",
    "simulate",
]

FIGURES = ROOT / "benches" / "tier_year.json"
#: Queues and PUTs an hour of the year in the manual, and of the day: each queue has its turn every
#: 20 hours.
FEW, WHOLE = (20, 4), (10_000, 1000)
#: Segments of a queue in a year, and of a manifest.
QUEUES = (365, 1), (65_700, 8)

NAMES = "c1", "broker-a"
_HOUR_S, _DAY_S = 3600.0, 86_400.0
_LISTED = 1000  # keys of a request
_MIB = 1 << 20


class MovedClock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic

    def thread_time(self) -> float:
        return 0.0

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    def sleep(self, _: float) -> None:
        return


@dataclass
class RequestCounts:
    """puts, bytes_put: by kind: segment, manifest, page."""

    puts: Counter[str] = field(default_factory=Counter)
    bytes_put: Counter[str] = field(default_factory=Counter)
    gets: int = 0
    bytes_got: int = 0
    lists: int = 0


class CountedObjects:
    """An object store in memory."""

    address = "memory:///year"

    def __init__(self, clock: MovedClock) -> None:
        self._clock = clock
        self._data: dict[str, tuple[bytes, float]] = {}
        self._keys: list[str] = []
        self.counts = RequestCounts()
        self.largest_manifest = 0
        #: PUTs of the last hour, and the most that any hour had.
        self._lately: deque[float] = deque()
        self.most_in_an_hour = 0

    @property
    def size(self) -> int:
        return sum(len(data) for data, _ in self._data.values())

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str, start: int, end: int) -> bytes:
        self.counts.gets += 1
        if key not in self._data:
            raise TierDamaged("an object is not there", key)
        data = self._data[key][0][start:end]
        self.counts.bytes_got += len(data)
        return data

    def size_of(self, key: str) -> int | None:
        self.counts.gets += 1  # a HEAD costs as much
        return len(self._data[key][0]) if key in self._data else None

    def put_new(self, key: str, data: bytes | bytearray) -> bool:
        kind = "page" if "/page-" in key else "manifest" if key.startswith(MANIFESTS) else "segment"
        now_s = self._clock.now_s
        self.counts.puts[kind] += 1
        self.counts.bytes_put[kind] += len(data)
        if kind == "manifest":
            self.largest_manifest = max(self.largest_manifest, len(data))
        self._lately.append(now_s)
        while self._lately[0] <= now_s - _HOUR_S:
            self._lately.popleft()
        self.most_in_an_hour = max(self.most_in_an_hour, len(self._lately))
        if key in self._data:
            return self._data[key][0] == data
        self._data[key] = bytes(data), now_s
        insort(self._keys, key)
        return True

    def find(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        at = bisect_right(self._keys, max(prefix, after))
        self.counts.lists += 1
        for number, key in enumerate(self._keys[at:], 1):
            if not key.startswith(prefix):
                return
            self.counts.lists += number % _LISTED == 0
            data, made_s = self._data[key]
            yield StoredObject(key, len(data), self._clock.now_s - made_s)

    def folders(self, prefix: str = "") -> Iterator[str]:
        below = (key[len(prefix) :] for key in self._keys if key.startswith(prefix))
        yield from sorted({key.partition("/")[0] for key in below if "/" in key})

    def has(self, folder: str) -> bool:
        return any(self.find(f"{folder}/"))

    def below(self, prefix: str) -> CountedObjects:
        assert not prefix
        return self

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            if self._data.pop(key, None) is not None:
                del self._keys[bisect_right(self._keys, key) - 1]


@dataclass
class Day:
    """counts: of that day alone. objects, size: that are there at its end."""

    counts: RequestCounts
    objects: int
    size: int


@dataclass
class Year:
    """restart_gets, restart_bytes: of a broker that starts at the end. query_gets: of a query by
    key over a topic, whose segments these are."""

    topics: int
    days: list[Day]
    largest_manifest: int
    most_in_an_hour: int
    restart_gets: int
    restart_bytes: int
    query_gets: int
    query_segments: int


def _part(store: pystore.Store, objects: CountedObjects, clock: MovedClock, puts: int) -> Cold:
    given = {
        "tieredStoreFilePath": objects.address, "tieredPutsPerHour": puts,
        "tieredUploadWaitMillis": 0, "tieredUploadRateMax": 0, "tieredStoreFileReservedTime": -1,
        "diskMaxUsedSpaceRatio": 95,
    }  # fmt: skip
    topics: Any = SimpleNamespace(get=lambda _: None)
    made = Cold(store, Config(store.settings.replaced(**given)), topics, *NAMES, 0)
    made.handle._opened = lambda: Tier(objects, *NAMES)  # type: ignore[method-assign]
    made.uploads._puts = PutBudget(clock.monotonic)
    made.lead()
    return made


def simulate(topics: int, days: int, puts_an_hour: int) -> Year:
    """Returns what became of the tier of one broker."""
    clock = MovedClock()
    objects = CountedObjects(clock)
    path = fresh(f"tier-year-{os.getpid()}")  # tests run side by side
    modules = uploads, behind, cold, handle, objects_module
    patches = [patch.object(module, "time", clock) for module in modules]
    for each in patches:
        each.start()
    try:
        with pystore.open(path, mappedFileSizeConsumeQueue=20_000) as store:
            return _run(store, objects, clock, topics, days, puts_an_hour)
    finally:
        for each in patches:
            each.stop()
        shutil.rmtree(path, ignore_errors=True)


def _run(
    store: pystore.Store, objects: CountedObjects, clock: MovedClock, topics: int, days: int,
    puts_an_hour: int,
) -> Year:  # fmt: skip
    part = _part(store, objects, clock, puts_an_hour)
    # As many PUTs as the bound lets pass at once are gained anew in a step (pace.py).
    burst = max(2, puts_an_hour // 60)
    step_s = 1.001 * _HOUR_S * burst / (puts_an_hour - burst)
    names = [f"topic-{number:05d}" for number in range(topics)]
    put, found, until_s = 0, [], clock.now_s
    for _ in range(days):
        objects.counts = RequestCounts()
        until_s += _DAY_S
        while clock.now_s < until_s:
            clock.now_s += step_s
            for _ in range(burst // 2):  # a message a turn
                store.put(names[put % topics], bytes(200), queue=0, keys=f"key-{put}")
                put += 1
            store.flush()
            while part.round():
                pass
        found.append(Day(objects.counts, len(objects), objects.size))
    part.uploads.close()
    objects.counts = counts = RequestCounts()
    part = _part(store, objects, clock, puts_an_hour)
    part._resting.set()
    part.round()
    part.uploads.close()
    restart = counts.gets, counts.bytes_got
    tier = Tier(objects, *NAMES)
    reader = ColdReader.over(tier, BlockCache(objects))
    span = reader.spans(names[0])[0]
    objects.counts = counts = RequestCounts()
    assert len(reader.query(names[0], "key-0")) == 1
    reader.close()
    return Year(topics, found, objects.largest_manifest, objects.most_in_an_hour, *restart,
                counts.gets, span.segments)  # fmt: skip


def costs_of(day: Day, put: float, get: float, storage: float) -> dict[str, float]:
    """Returns dollars a day of requests and of what is kept. put, get: for a million. storage: for
    a GB a month."""
    return {
        "puts": sum(day.counts.puts.values()) * put / 1e6,
        "lists": day.counts.lists * put / 1e6,
        "gets": day.counts.gets * get / 1e6,
        "storage": day.size / 1e9 * storage / 30,
    }


def of_one_queue(segments: int, a_manifest: int) -> tuple[int, int, int]:
    """Returns PUTs, bytes of manifests and pages that were written, and the largest manifest, of a
    queue that had so many segments of 16 MiB in a year. a_manifest: segments that come at once."""
    made, puts, written, largest = Manifest("orders", 0), 0, 0, 0
    rng, step_ms = random.Random(49), 365 * 86_400_000 // segments
    for first in range(0, segments, a_manifest):
        rows = tuple(
            Row(n * 17 * _MIB, 17 * _MIB, 16 * _MIB, n * 16_000, 16_000, 16_000,
                1_800_000_000_000 + n * step_ms, 1_800_000_000_000 + (n + 1) * step_ms,
                rng.getrandbits(32), rng.getrandbits(32), 0)
            for n in range(first, min(segments, first + a_manifest))
        )  # fmt: skip
        made, older = spilled(made.with_rows(rows, 0, rng.getrandbits(62)))
        if older:
            page, data = page_of(older, rng.getrandbits(62))
            made = made._replace(pages=(*made.pages, page))
            puts, written = puts + 1, written + len(data)
        size = len(made.encoded())
        puts, written, largest = puts + 1 + len(rows), written + size, max(largest, size)
    return puts, written, largest


def figures_of(year: Year, puts_an_hour: int) -> dict[str, Any]:
    """Returns what is kept of a simulation."""
    count = len(year.days)
    return {
        "topics": year.topics, "puts an hour": puts_an_hour,
        "most in an hour": year.most_in_an_hour, "largest manifest": year.largest_manifest,
        "restart gets": year.restart_gets, "query gets": year.query_gets,
        "query segments": year.query_segments,
        "days": [_figures_of_day(number, year.days[number - 1])
                 for number in sorted({1, count // 4, count} - {0})],
    }  # fmt: skip


def _figures_of_day(number: int, day: Day) -> dict[str, int]:
    return {
        "day": number, "puts": sum(day.counts.puts.values()),
        "written": day.counts.bytes_put["manifest"] + day.counts.bytes_put["page"],
        "lists": day.counts.lists, "objects": day.objects, "kept": day.size,
    }  # fmt: skip


def _write(given: argparse.Namespace) -> None:
    """Simulates, and makes the figures and the tables of them."""
    names = "puts", "written", "largest"
    figures = {
        "put price": given.put_price,
        "queues": [
            {"segments": queue[0], **dict(zip(names, of_one_queue(*queue), strict=True))}
            for queue in QUEUES
        ],
        "year": figures_of(simulate(FEW[0], 365, FEW[1]), FEW[1]),
        "whole": figures_of(simulate(WHOLE[0], 1, WHOLE[1]), WHOLE[1]),
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "tools" / "gen_cold_costs.py"], check=True)


def _show(year: Year, given: argparse.Namespace) -> None:
    print("| day | PUTs | manifests and pages written | GETs | LISTs | objects | kept | a day |")
    print("|---|---|---|---|---|---|---|---|")
    count = len(year.days)
    for number in sorted({1, count // 12, count // 4, count // 2, count} - {0}):
        day = year.days[number - 1]
        written = day.counts.bytes_put["manifest"] + day.counts.bytes_put["page"]
        costs = costs_of(day, given.put_price, given.get_price, given.storage_price)
        print(
            f"| {number} | {sum(day.counts.puts.values()):,} | {written / _MIB:,.1f} MiB |"
            f" {day.counts.gets:,} | {day.counts.lists:,} | {day.objects:,} |"
            f" {day.size / _MIB:,.1f} MiB | {sum(costs.values()):.4f} $ |"
        )
    print(
        f"at most {year.most_in_an_hour:,} PUTs in an hour; the largest manifest"
        f" {year.largest_manifest:,} bytes; a restart {year.restart_gets:,} GETs,"
        f" {year.restart_bytes / _MIB:.1f} MiB; a query by key over {year.query_segments:,}"
        f" segments {year.query_gets:,} GETs"
    )


def main() -> None:
    asked = argparse.ArgumentParser(description="A year of quiet topics.")
    asked.add_argument("--topics", type=int, default=10_000)
    asked.add_argument("--days", type=int, default=365)
    asked.add_argument("--puts-an-hour", type=int, default=1000)
    asked.add_argument("--put-price", type=float, default=5.0)
    asked.add_argument("--get-price", type=float, default=0.4)
    asked.add_argument("--storage-price", type=float, default=0.023)
    asked.add_argument("--write", action="store_true", help="make the tables of docs/cold.md")
    given = asked.parse_args()
    if given.write:
        _write(given)
        return
    for segments, a_manifest in QUEUES:
        puts, written, largest = of_one_queue(segments, a_manifest)
        print(
            f"a queue of {segments:,} segments a year, {a_manifest} a manifest: {puts:,} PUTs,"
            f" {puts * given.put_price / 1e6:.3f} $; {written / 1e6:.1f} MB of manifests and pages,"
            f" the largest {largest / 1024:.0f} KiB"
        )
    _show(simulate(given.topics, given.days, given.puts_an_hour), given)


if __name__ == "__main__":
    main()
