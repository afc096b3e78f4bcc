"""A million open transactions: rounds of checks, growth of the log, starts of every kind.

    python -m benches.transactions [--count 1000000]

The producer is a task of this process that counts the bytes it is asked with and answers nothing;
the clock of the broker is set by hand, everything else is as it ships. Rounds with nobody to ask
come every 30 simulated seconds for an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import tempfile
import time
from pathlib import Path

import uvloop

from broker.broker import Broker
from broker.remoting import codec
from broker.remoting.command import Command
from pystore import Store
from pystore._pending import HALF_TOPIC, find_pending

BODY = 128
GROUP = "makers"
SETTINGS = {"mappedFileSizeCommitLog": 256 << 20, "listenPort": 0}


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


def say(what: str, value: str) -> None:
    print(f"{what:<66} {value}", flush=True)


async def measure(path: Path, count: int) -> None:
    clock = Clock()
    began = time.perf_counter()
    async with Broker(path, now_ms=clock, **SETTINGS) as broker:
        say("start, all from the log and into LMDB", f"{time.perf_counter() - began:.2f} s")
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
        say("round, no producer: slowest of 120", f"{slowest * 1000:.0f} ms")
        say("processor time of those 120", f"{time.process_time() - cpu:.2f} s")
        say("log growth in that hour", f"{broker.store.info().log_max - size} bytes")

        seen = [0]
        drain = await producer(broker.port, seen)
        for number in range(2):
            clock.ms += 30_000
            service.configure()
            seen[0] = 0
            report = await service.check()
            assert report.asked == count
            say(
                f"round {number + 1}, one producer that is asked about each",
                f"{report.seconds:.2f} s, {report.asked / report.seconds:,.0f} checks/s,"
                f" {seen[0] / 1e6:.0f} MB",
            )
        drain.cancel()
        began = time.perf_counter()
    say("stop", f"{time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    async with Broker(path, now_ms=clock, **SETTINGS) as broker:
        say("start, from LMDB", f"{time.perf_counter() - began:.2f} s")
        service = broker.services.transactions
        assert service is not None
        assert service.halves.state().open == count
        service._next_round = float("inf")
        assert {half.checks for half in service.halves.all()} == {2}
        found = await asyncio.to_thread(find_pending, broker.store, anew=True)
        assert len(found.rows) == count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="pystore-bench-") as folder:
        path = Path(folder) / "store"
        say(f"{count:,} halves of {BODY} bytes, stored", f"{fill(path, count):.2f} s")
        uvloop.run(measure(path, count))


if __name__ == "__main__":
    main()
