"""What a year of quiet topics makes of a cold tier, and what it costs: a broker's part of it runs
over an object store in memory that counts, on a clock that is moved.

    python -m benches.tier_year [--topics 10000] [--days 365] [--puts-an-hour 1000]
        [--put-price 5] [--get-price 0.4] [--storage-price 0.023]
        [--write [--parts queues,many,year,whole]]

Prices: dollars for a million PUTs or LISTs, for a million GETs, for a GB a month. A topic has one
queue and a message each time that it has its turn. With a tenth of the topics and of the PUTs an
hour each queue fares the same, in a tenth of the time.

--write simulates a year of few queues, the first day of 10,000 and two days of 30 brokers, and
makes tier_year.json and the tables of docs/cold.md of them. A part that is done is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, takewhile
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
from pystore.cold.objects import RemoteObjects, StoredObject
from pystore.cold.places import MANIFESTS, broker_folder
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier, brokers_at
from pystore.format.records import Buffer

__all__ = [
    "FIGURES",
    "CountedObjects",
    "Year",
    "Years",
    "costs_of",
    "figures_of",
    "figures_of_many",
    "of_one_queue",
    "simulate",
    "simulate_many",
]

FIGURES = ROOT / "benches" / "tier_year.json"
#: Queues and PUTs an hour of the year in the manual, and of the day: each queue has its turn every
#: 20 hours.
FEW, WHOLE = (20, 4), (10_000, 1000)
#: Brokers of one object store, each with so few queues, and days of them.
BROKERS, THEIR_DAYS = 30, 2
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


@dataclass
class Bucket:
    """Objects, and when each was written; their keys, sorted."""

    data: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)


class CountedObjects:
    """What lies in an object store in memory below a prefix: each part counts its own requests."""

    def __init__(self, clock: MovedClock, bucket: Bucket | None = None, prefix: str = "") -> None:
        self._clock = clock
        self._bucket = bucket or Bucket()
        self._prefix = prefix
        self.address = f"memory:///year/{prefix}".rstrip("/")
        self.counts = RequestCounts()
        self.largest_manifest = 0
        #: PUTs of the last hour, and the most that any hour had.
        self._lately: deque[float] = deque()
        self.most_in_an_hour = 0

    def _here(self) -> Iterator[str]:
        at = bisect_left(self._bucket.keys, self._prefix)
        return takewhile(self._is_here, islice(self._bucket.keys, at, None))

    def _is_here(self, key: str) -> bool:
        return key.startswith(self._prefix)

    @property
    def size(self) -> int:
        return sum(len(self._bucket.data[key][0]) for key in self._here())

    def __len__(self) -> int:
        return sum(1 for _ in self._here())

    def _found(self, key: str) -> bytes | None:
        data, _ = self._bucket.data.get(self._prefix + key, (None, 0.0))
        return data

    def get(self, key: str, start: int, end: int) -> bytes:
        self.counts.gets += 1
        data = self._found(key)
        if data is None:
            raise TierDamaged("an object is missing", key)
        self.counts.bytes_got += len(data[start:end])
        return data[start:end]

    def mapped(self, key: str, size: int, base: int) -> None:
        return None

    def size_of(self, key: str) -> int | None:
        self.counts.gets += 1  # a HEAD costs as much
        data = self._found(key)
        return None if data is None else len(data)

    def put_new(self, key: str, data: Buffer) -> bool:
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
        if (found := self._found(key)) is not None:
            return found == data
        self._bucket.data[self._prefix + key] = bytes(data), now_s
        insort(self._bucket.keys, self._prefix + key)
        return True

    def find(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        keys, whole = self._bucket.keys, self._prefix + prefix
        at = bisect_right(keys, max(whole, self._prefix + after))
        self.counts.lists += 1
        for number, key in enumerate(keys[at:], 1):
            if not key.startswith(whole):
                return
            self.counts.lists += number % _LISTED == 0
            data, made_s = self._bucket.data[key]
            age_s = self._clock.now_s - made_s
            yield StoredObject(key.removeprefix(self._prefix), len(data), age_s)

    # As RemoteObjects does: a listing a folder.
    folders = RemoteObjects.folders
    has = RemoteObjects.has

    def below(self, prefix: str) -> CountedObjects:
        if not prefix:
            return self
        return CountedObjects(self._clock, self._bucket, f"{self._prefix}{prefix}/")

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            if self._bucket.data.pop(self._prefix + key, None) is not None:
                del self._bucket.keys[bisect_right(self._bucket.keys, self._prefix + key) - 1]


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


@dataclass
class Years:
    """Of the brokers of one object store. root_lists: requests of who looks which there are."""

    brokers: list[Year]
    root_lists: int


class _YearBroker:
    """A broker's part of a tier, a step of simulated time at a time."""

    def __init__(self, store: pystore.Store, objects: CountedObjects, clock: MovedClock,
                 topics: int, puts_an_hour: int) -> None:  # fmt: skip
        self._store, self.objects, self._clock = store, objects, clock
        self._puts_an_hour = puts_an_hour
        self._names = [f"topic-{number:05d}" for number in range(topics)]
        self._put = 0
        self.days: list[Day] = []
        self._part = self._begun()

    def _begun(self) -> Cold:
        given = {
            "tieredStoreFilePath": self.objects.address, "tieredPutsPerHour": self._puts_an_hour,
            "tieredUploadWaitMillis": 0, "tieredUploadRateMax": 0,
            "tieredStoreFileReservedTime": -1, "diskMaxUsedSpaceRatio": 95,
        }  # fmt: skip
        topics: Any = SimpleNamespace(get=lambda _: None)
        made = Cold(self._store, Config(self._store.settings.replaced(**given)), topics, *NAMES, 0)
        made.handle._opened = lambda: Tier(self.objects, *NAMES)  # type: ignore[method-assign]
        made.uploads._puts = PutBudget(self._clock.monotonic)
        made.lead()
        return made

    def step(self, turns: int) -> None:
        """Puts a message of each of so many topics, whose turn it is, and writes out."""
        for _ in range(turns):
            name = self._names[self._put % len(self._names)]
            self._store.put(name, bytes(200), queue=0, keys=f"key-{self._put}")
            self._put += 1
        self._store.flush()
        while self._part.round():
            pass

    def end_day(self) -> None:
        self.days.append(Day(self.objects.counts, len(self.objects), self.objects.size))
        self.objects.counts = RequestCounts()

    def end(self) -> Year:
        """Starts again, asks for a key, and returns what became of the tier."""
        self._part.uploads.close()
        objects = self.objects
        objects.counts = counts = RequestCounts()
        part = self._begun()
        part._resting.set()
        part.round()
        part.uploads.close()
        restart = counts.gets, counts.bytes_got
        reader = ColdReader.over(Tier(objects, *NAMES), BlockCache(objects))
        span = reader.spans(self._names[0])[0]
        objects.counts = counts = RequestCounts()
        assert len(reader.query(self._names[0], "key-0")) == 1
        reader.close()
        return Year(len(self._names), self.days, objects.largest_manifest,
                    objects.most_in_an_hour, *restart, counts.gets, span.segments)  # fmt: skip


def simulate(topics: int, days: int, puts_an_hour: int) -> Year:
    """Returns what became of the tier of one broker."""
    return simulate_many(1, topics, days, puts_an_hour).brokers[0]


def simulate_many(brokers: int, topics: int, days: int, puts_an_hour: int) -> Years:
    """Returns what became of the tiers of so many brokers in one object store."""
    clock = MovedClock()
    root = CountedObjects(clock)
    path = fresh(f"tier-year-{os.getpid()}")  # tests run side by side
    modules = uploads, behind, cold, handle, objects_module
    small: dict[str, Any] = {
        "mappedFileSizeConsumeQueue": 20_000, "mappedFileSizeCommitLog": 64 << 20,
        "maxHashSlotNum": 10_000, "maxIndexNum": 40_000,
    }  # fmt: skip
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        for module in modules:
            stack.enter_context(patch.object(module, "time", clock))
        made = []
        for number in range(brokers):
            store = stack.enter_context(pystore.open(path / str(number), **small))
            below = root.below(broker_folder(NAMES[0], f"broker-{number:03}"))
            made.append(_YearBroker(store, below, clock, topics, puts_an_hour))
        _run(made, clock, days, puts_an_hour)
        root.counts = RequestCounts()
        assert len(brokers_at(root)) == brokers
        return Years([each.end() for each in made], root.counts.lists)


def _run(brokers: list[_YearBroker], clock: MovedClock, days: int, puts_an_hour: int) -> None:
    # As many PUTs as the bound lets pass at once are gained anew in a step (pace.py).
    burst = max(2, puts_an_hour // 60)
    step_s = 1.001 * _HOUR_S * burst / (puts_an_hour - burst)
    until_s = clock.now_s
    for _ in range(days):
        until_s += _DAY_S
        while clock.now_s < until_s:
            clock.now_s += step_s
            for each in brokers:
                each.step(burst // 2)
        for each in brokers:
            each.end_day()


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


def figures_of_many(years: Years) -> dict[str, Any]:
    """Returns of the last day what all brokers have, and what the busiest of them has."""
    last = [_figures_of_day(len(year.days), year.days[-1]) for year in years.brokers]
    names = [name for name in last[0] if name != "day"]
    return {
        "brokers": len(last), "day": last[0]["day"], "root lists": years.root_lists,
        "all": {name: sum(day[name] for day in last) for name in names},
        "most": {name: max(day[name] for day in last) for name in names},
    }  # fmt: skip


def _figures_of_day(number: int, day: Day) -> dict[str, int]:
    return {
        "day": number, "puts": sum(day.counts.puts.values()),
        "written": day.counts.bytes_put["manifest"] + day.counts.bytes_put["page"],
        "lists": day.counts.lists, "objects": day.objects, "kept": day.size,
    }  # fmt: skip


def _write(given: argparse.Namespace) -> None:
    """Simulates, and makes the figures and the tables of them, part by part: what a run that was
    ended has made is kept, and --parts names the rest."""
    names = "puts", "written", "largest"
    parts: dict[str, Callable[[], Any]] = {
        "queues": lambda: [
            {"segments": queue[0], **dict(zip(names, of_one_queue(*queue), strict=True))}
            for queue in QUEUES
        ],
        "many": lambda: figures_of_many(simulate_many(BROKERS, FEW[0], THEIR_DAYS, FEW[1])),
        "year": lambda: figures_of(simulate(FEW[0], 365, FEW[1]), FEW[1]),
        "whole": lambda: figures_of(simulate(WHOLE[0], 1, WHOLE[1]), WHOLE[1]),
    }  # fmt: skip
    for name in given.parts.split(",") if given.parts else parts:
        began_s = time.process_time()
        figures = json.loads(FIGURES.read_bytes()) | {"put price": given.put_price}
        figures[name] = parts[name]()
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {time.process_time() - began_s:.0f} s of processor time", flush=True)
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
    asked.add_argument("--parts", default="", help="of --write: queues,many,year,whole; else all")
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
