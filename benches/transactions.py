"""Transactions beside Apache's brokers, and a million open ones in ours.

    python -m benches transactions [--peers ours,5.3.3,5.5.0] [--rounds 3] [--keep FILE]

Beside: a half and its commit each by 32 threads of Apache's own client of 5.3.3, the row `tx` of
benches.broker, the brokers in turns; the factors are taken round by round against the better of
the others. Alone: rounds of checks over a million open halves, growth of the log, starts of every
kind. There the producer is a task of this process that counts the bytes it is asked with and
answers nothing; the clock of the broker is set by hand, everything else is as it ships. Rounds with
nobody to ask come every 30 simulated seconds for an hour.
"""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from benches import broker as beside
from benches import harness
from benches.brokers import HEAP
from benches.harness import Given, Row
from broker.broker import Broker
from broker.wire import codec
from broker.wire.command import Command
from pystore import Store
from pystore.format.names import HALF_TOPIC
from pystore.store.pending_log import find_pending

#: What is aimed at: seconds of a round, times the rate, part of the processor time.
_ROUND_S, _FACTOR_RATE, _FACTOR_CPU = 2.0, 2.0, 5.0
BODY = 128
GROUP = "makers"
SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 256 << 20, "listenPort": 0}


def fill(path: Path, count: int) -> float:
    """Stores halves as the broker would; seconds."""
    began = time.perf_counter()
    with Store(path, None, mappedFileSizeCommitLog=SETTINGS["mappedFileSizeCommitLog"]) as store:
        for first in range(0, count, 10_000):
            rows = range(first, min(first + 10_000, count))
            store.put_many(
                HALF_TOPIC, [b"x" * BODY for _ in rows], queue=0,
                properties=[
                    {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"{i:032X}",
                     "__transactionId__": f"{i:032X}", "REAL_TOPIC": "orders", "REAL_QID": "0"}
                    for i in rows
                ],
            )  # fmt: skip
    return time.perf_counter() - began


class Clock:
    def __init__(self) -> None:
        self.ms = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self.ms


async def producer(port: int, seen: list[int]) -> asyncio.Task[None]:
    """Registers, then counts what it is asked; answers nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    body = {"clientID": "bench", "consumerDataSet": [], "producerDataSet": [{"groupName": GROUP}]}
    writer.write(codec.encode(Command(34, {}, json.dumps(body).encode(), opaque=1)))
    await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])

    async def drain() -> None:
        try:
            while data := await reader.read(1 << 20):
                seen[0] += len(data)
        finally:
            writer.close()

    return asyncio.create_task(drain())


class Alone:
    """The rows of one run."""

    def __init__(self, count: int) -> None:
        self.payload = f"{count:,} open, {BODY} B"
        self.rows: list[Row] = []

    def add(self, what: str, value: float, unit: str, target: float | None = None) -> None:
        self.rows.append(Row(what, self.payload, "alone", unit, [value], target, smaller=True))
        print(f"{what:<66} {harness.figure(value)}{unit}", flush=True)


async def measure(path: Path, count: int, out: Alone) -> None:
    clock = Clock()
    began = time.perf_counter()
    async with Broker(path, now_ms=clock, **SETTINGS) as broker:
        out.add("start, all from the log and into LMDB", time.perf_counter() - began, "s")
        service = broker.services.transactions
        assert service is not None
        service._next_round = float("inf")
        assert service.halves.state().open == count
        size, slowest, cpu = broker.store.info().log_max, 0.0, time.process_time()
        for _ in range(120):
            clock.ms += 30_000
            service.configure()
            report = await service.check()
            assert (report.asked, report.unheard) == (0, count)
            slowest = max(slowest, report.seconds)
        out.add("round, no producer: slowest of 120", slowest, "s", _ROUND_S)
        out.add("processor time of those 120", time.process_time() - cpu, "s")
        out.add("log growth in that hour", broker.store.info().log_max - size, "bytes", 0)

        seen = [0]
        drain = await producer(broker.port, seen)
        for number in range(2):
            clock.ms += 30_000
            service.configure()
            seen[0] = 0
            report = await service.check()
            assert report.asked == count
            what = f"round {number + 1}, one producer that is asked about each"
            out.add(what, report.seconds, "s", _ROUND_S if number == 0 else None)
        drain.cancel()
        began = time.perf_counter()
    out.add("stop", time.perf_counter() - began, "s")
    began = time.perf_counter()
    async with Broker(path, now_ms=clock, **SETTINGS) as broker:
        out.add("start, from LMDB", time.perf_counter() - began, "s")
        service = broker.services.transactions
        assert service is not None
        assert service.halves.state().open == count
        service._next_round = float("inf")
        assert {half.checks for half in service.halves.all()} == {2}
        found = await asyncio.to_thread(find_pending, broker.store, anew=True)
        assert len(found.rows) == count


def alone(count: int) -> list[Row]:
    out = Alone(count)
    with tempfile.TemporaryDirectory(prefix="pystore-bench-") as folder:
        path = Path(folder) / "store"
        fill(path, count)
        uvloop.run(measure(path, count, out))
    return out.rows


def factors(rows: list[Row]) -> list[Row]:
    """Ours against the better of the others, round by round."""
    made = []
    for what in dict.fromkeys(row.bench for row in rows):
        of = {row.mode: row for row in rows if row.bench == what}
        ours, others = of.pop("ours", None), list(of.values())
        if ours is None or not others:
            continue
        best = min if ours.smaller else max
        rounds = []
        for i, value in enumerate(ours.rounds):
            other = best(row.rounds[i] for row in others)
            rounds.append(other / value if ours.smaller else value / other)
        target = _FACTOR_CPU if ours.smaller else _FACTOR_RATE
        made.append(Row(f"{what}: times better", "", "ours", "x", rounds, target))
    return made


def bench(given: Given) -> list[Row]:
    given.facts |= {"heap of the Java brokers": HEAP, "warm": f"{given.warm} s"}
    times = (given.warm, given.measure)
    rows = beside.run(given.peers, ["tx"], given.rounds, times) if given.peers else []
    rows += factors(rows)
    return rows + (alone(given.count) if given.count else [])
