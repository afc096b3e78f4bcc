"""Timers at a broker: how late they are delivered, and how fast, when many are due together.

    python -m benches timers [--rate 5000] [--seconds 3] [--together 100000]
    python -m benches timers --pending 10000000

Puts them into a store, opens a broker on it before they are due, and reads from the log when each
was stored in its topic. Prints one JSON line a figure. late_ms: store time against the time asked
for. put_s, deliver_s: of the same number of plain puts, and from the time asked for to the last
delivery; their ratio is what a busy machine does not change.

--pending: a broker finds so many timers in its log, without a saved state (first), for times that
do not come; is killed with SIGKILL, started, stopped cleanly (stop_s), started again and left
alone for half a minute. A start is counted, after the imports, until the broker serves (open_s),
and until it knows of every timer (all_s). bytes_a_timer: anonymous memory beyond that of a broker
without timers. idle_core: the share of a core that all threads of the process use. Some 4 GB on the
disk for ten million.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pystore
from benches.harness import ROOT, SCRATCH, Figures, Given, Row, anonymous_mb, command_of
from broker import Broker
from pystore.format.names import TIMER_TOPIC
from pystore.store.timers import slot_of

SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 256 << 20}
BODY = b"x" * 100


def put(path: Path, times: list[int]) -> float:
    """Timers for these times, ms since 1970; then as many plain messages: seconds for those."""
    with pystore.open(path, **SETTINGS) as store:
        for i, due in enumerate(times):
            properties = {"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": f"{i:032X}"}
            store.put("timed", BODY, properties=properties, queue=0)
        began = time.perf_counter()
        for i in range(len(times)):
            store.put("plain", BODY, properties={"UNIQ_KEY": f"{i:032X}"}, queue=0)
        return time.perf_counter() - began


def delivered(path: Path, times: list[int]) -> list[tuple[int, int]]:
    """(time asked for, store time) of each, once all have come."""
    with Broker(path, listenPort=0, **SETTINGS) as broker:
        while broker.store.range("timed", 0)[1] < len(times):
            time.sleep(0.05)
    found = []
    with pystore.Reader(path) as reader:
        for message in reader.messages():
            if message.topic == "timed":
                asked = int(message.properties["TIMER_DELIVER_MS"])
                found.append((asked, message.store_timestamp))
    return found


def spread(folder: Path, rate: int, seconds: int, figures: Figures) -> None:
    start = time.time_ns() // 1_000_000 + 2000 + rate * seconds // 20
    times = [start + i * 1000 // rate for i in range(rate * seconds)]
    put(folder, times)
    late = sorted(stored - asked for asked, stored in delivered(folder, times))
    for what, value in (
        ("earliest", late[0]), ("p50", late[len(late) // 2]),
        ("p99", late[len(late) * 99 // 100]), ("latest", late[-1]),
    ):  # fmt: skip
        what = f"{rate} due a second, stored after their time, {what}"
        figures.add(what, "ours", " ms", value)


def together(folder: Path, count: int, figures: Figures) -> None:
    due = time.time_ns() // 1_000_000 + 4000 + count // 10
    put_s = put(folder, [due] * count)
    if time.time_ns() // 1_000_000 > due:
        raise SystemExit("the machine is so slow that the timers were due before the broker opened")
    last = max(stored for _, stored in delivered(folder, [due] * count))
    deliver_s, what = (last - due) / 1000, f"{count:,} due in one millisecond"
    figures.add(f"{what}, until the last is stored", "ours", " s", deliver_s)
    figures.add(f"{what}, to plain puts of as many", "ours", " x", deliver_s / put_s)


# ---- many that wait ----

HOURS_AHEAD, SPREAD_MS, CHUNK = 6, 48 * 3_600_000, 50_000


def fill(folder: Path, count: int) -> None:
    """Their records, with the properties that the broker's sends have: put many at once."""
    first = time.time_ns() // 1_000_000 + HOURS_AHEAD * 3_600_000
    row = b"TIMER_DELIVER_MS\1%d\2UNIQ_KEY\1%032X\2TIMER_OUT_MS\1%d\2"
    row += b"REAL_TOPIC\1timed\2REAL_QID\0010\2"
    with pystore.open(folder, **SETTINGS) as store:
        for start in range(0, count, CHUNK):
            numbers = range(start, min(count, start + CHUNK))
            times = [first + i * 7919 % SPREAD_MS for i in numbers]
            pairs = zip(numbers, times, strict=True)
            said = [row % (due, i, slot_of(due, 1000)) for i, due in pairs]
            store.put_many(TIMER_TOPIC, [BODY] * len(said), properties=said, queue=0)


def hold(folder: str, count: int) -> None:
    """A broker with so many timers; tells after how many seconds it has them, and waits for the end
    of its input."""
    asyncio.run(_hold(folder, count))


async def _hold(folder: str, count: int) -> None:
    began = time.perf_counter()
    async with Broker(folder, listenPort=0, **SETTINGS) as broker:
        schedule = broker.services.schedule
        assert schedule is not None and schedule.timers is not None
        while schedule.timers.timers.count() < count:
            await asyncio.sleep(0.01)
        print(time.perf_counter() - began, flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Held:
    """The process of hold()."""

    def __init__(self, folder: Path, count: int) -> None:
        self.process = subprocess.Popen(
            command_of(hold, str(folder), count),
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.took_s = float(self.process.stdout.readline())

    def anonymous_mb(self) -> float:
        return anonymous_mb(self.process.pid)

    def busy(self, seconds: float) -> float:
        """The share of a core that it uses while nothing happens."""

        def used() -> float:
            tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
            return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

        before = used()
        time.sleep(seconds)
        return (used() - before) / seconds

    def end(self, *, kill: bool) -> float:
        """Seconds that it took."""
        began = time.perf_counter()
        if kill:
            self.process.kill()
        self.process.communicate()
        return time.perf_counter() - began


def pending(folder: Path, count: int, figures: Figures) -> None:
    held = Held(folder.with_name("empty"), 0)
    without_mb = held.anonymous_mb()
    held.end(kill=True)
    fill(folder, count)
    held, what = Held(folder, count), f"{count:,} pending"
    figures.add(f"{what}: start without a saved state", "ours", " s", held.took_s)
    for name, kill in (("kill -9", True), ("a clean stop", False)):
        ended_s = held.end(kill=kill)
        held = Held(folder, count)
        figures.add(f"{what}: start after {name}", "ours", " s", held.took_s)
    figures.add(f"{what}: a clean stop", "ours", " s", ended_s)
    figures.add(f"{what}: idle", "ours", " % of a core", held.busy(30) * 100)
    memory_mb = held.anonymous_mb()
    figures.add(f"{what}: anonymous memory", "ours", " MB", memory_mb)
    each = (memory_mb - without_mb) * (1 << 20) / count
    figures.add(f"{what}: memory of each", "ours", " B", each)
    held.end(kill=True)


def bench(given: Given) -> list[Row]:
    figures = Figures("100 B")
    if given.pending:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as made:
            pending(Path(made) / "store", given.pending, figures)
        return figures.rows
    with tempfile.TemporaryDirectory(prefix="pystore-bench-") as made:
        spread(Path(made) / "a", given.rate, given.seconds, figures)
        together(Path(made) / "b", given.together, figures)
    return figures.rows
