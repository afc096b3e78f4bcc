"""Timers at a broker: how late they are delivered, and how fast, when many are due together.

    python -m benches.timers [--rate 5000] [--seconds 3] [--together 100000]

Puts them into a store, opens a broker on it before they are due, and reads from the log when each
was stored in its topic. Prints one JSON line a figure. late_ms: store time against the time asked
for. put_s, deliver_s: of the same number of plain puts, and from the time asked for to the last
delivery; their ratio is what a busy machine does not change.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import pystore
from broker import Broker

__all__ = ["main"]

SETTINGS = {"mappedFileSizeCommitLog": 256 << 20}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--together", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pystore-bench-") as made:
        print(json.dumps(spread(Path(made) / "a", given.rate, given.seconds)), flush=True)
        print(json.dumps(together(Path(made) / "b", given.together)), flush=True)


if __name__ == "__main__":
    main()
