"""Timers at a broker: how late they are delivered, and how fast, when many are due together.

    python -m benches.timers [--rate 5000] [--seconds 3] [--together 100000]
    python -m benches.timers --pending 10000000

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

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pystore
from benches.harness import ROOT, SCRATCH, anonymous_mb
from broker import Broker
from pystore.format.names import TIMER_TOPIC
from pystore.store.timers import slot_of

__all__ = ["main"]

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


def spread(folder: Path, rate: int, seconds: int) -> dict[str, object]:
    start = time.time_ns() // 1_000_000 + 2000 + rate * seconds // 20
    times = [start + i * 1000 // rate for i in range(rate * seconds)]
    put(folder, times)
    late = sorted(stored - asked for asked, stored in delivered(folder, times))
    return {
        "bench": "timers_spread", "rate": rate, "timers": len(late), "early": late[0] < 0,
        "late_ms_p50": late[len(late) // 2], "late_ms_p99": late[len(late) * 99 // 100],
        "late_ms_max": late[-1],
    }  # fmt: skip


def together(folder: Path, count: int) -> dict[str, object]:
    due = time.time_ns() // 1_000_000 + 4000 + count // 10
    put_s = put(folder, [due] * count)
    if time.time_ns() // 1_000_000 > due:
        raise SystemExit("the machine is so slow that the timers were due before the broker opened")
    last = max(stored for _, stored in delivered(folder, [due] * count))
    deliver_s = (last - due) / 1000
    return {
        "bench": "timers_together", "timers": count, "put_s": round(put_s, 3),
        "deliver_s": deliver_s, "ratio": round(deliver_s / put_s, 2),
    }  # fmt: skip


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


async def hold(folder: Path, count: int) -> None:
    """A broker with so many timers; tells when it has them, and waits for the end of its input."""
    began = time.perf_counter()
    async with Broker(folder, listenPort=0, **SETTINGS) as broker:
        opened = time.perf_counter() - began
        schedule = broker.services.schedule
        assert schedule is not None and schedule.timers is not None
        while schedule.timers.timers.count() < count:
            await asyncio.sleep(0.01)
        took = time.perf_counter() - began
        print(json.dumps({"open_s": round(opened, 3), "all_s": round(took, 3)}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Held:
    """The process of hold()."""

    def __init__(self, folder: Path, count: int) -> None:
        words = [sys.executable, "-m", "benches.timers", "--hold", str(folder)]
        words += ["--pending", str(count)]
        self.process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.took: dict[str, float] = json.loads(self.process.stdout.readline())

    def anonymous_mb(self) -> float:
        return round(anonymous_mb(self.process.pid), 1)

    def busy(self, seconds: float) -> float:
        """The share of a core that it uses while nothing happens."""

        def used() -> float:
            tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
            return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

        before = used()
        time.sleep(seconds)
        return round((used() - before) / seconds, 5)

    def end(self, *, kill: bool) -> float:
        """Seconds that it took."""
        began = time.perf_counter()
        if kill:
            self.process.kill()
        self.process.communicate()
        return round(time.perf_counter() - began, 3)


def pending(folder: Path, count: int) -> dict[str, object]:
    held = Held(folder.with_name("empty"), 0)
    without_mb = held.anonymous_mb()
    held.end(kill=True)
    began = time.perf_counter()
    fill(folder, count)
    print(f"filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    held = Held(folder, count)
    found: dict[str, object] = {"bench": "timers_pending", "timers": count, "first": held.took}
    for name, kill in (("after_kill", True), ("after_stop", False)):
        ended_s = held.end(kill=kill)
        held = Held(folder, count)
        found[name] = held.took
    found |= {"stop_s": ended_s, "idle_core": held.busy(30), "anonymous_mb": held.anonymous_mb()}
    found["bytes_a_timer"] = round((held.anonymous_mb() - without_mb) * (1 << 20) / count, 2)
    held.end(kill=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--together", type=int, default=100_000)
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--hold", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold is not None:
        asyncio.run(hold(given.hold, given.pending))
        return
    if given.pending:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as made:
            print(json.dumps(pending(Path(made) / "store", given.pending)), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="pystore-bench-") as made:
        print(json.dumps(spread(Path(made) / "a", given.rate, given.seconds)), flush=True)
        print(json.dumps(together(Path(made) / "b", given.together)), flush=True)


if __name__ == "__main__":
    main()
