"""Delay levels: how late messages come at 5,000 due a second, and what ten million pending cost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop

import pystore
from benches.harness import SCALE, TOPIC, Row, new_store, scaled
from broker.hot.core import Core
from broker.services.schedule import Schedule

WAITS = "SCHEDULE_TOPIC_XXXX"
RATE = 5000
CHUNK = 20_000
IDLE_S = max(1.0, min(30.0, 30 * SCALE))
SETTINGS: dict[str, Any] = {"messageDelayLevel": "1s 2h"}


def percentile(values: list[int], share: float) -> float:
    return float(sorted(values)[min(len(values) - 1, int(len(values) * share))])


def anonymous_mb() -> float:
    """Anonymous memory of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))


def put_delayed(store: pystore.Store, count: int) -> None:
    """As a broker stores them, many at once: their level is the queue of the schedule topic."""
    properties = {"DELAY": "2", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    for left in range(count, 0, -CHUNK):
        bodies = [b"x"] * min(CHUNK, left)
        store.put_many(WAITS, bodies, properties=properties, queue=1)


async def started(store: pystore.Store) -> Schedule:
    core = Core(store, cluster="DefaultCluster")
    core.attach(asyncio.get_running_loop())
    schedule = Schedule(store, core)
    schedule.start_levels()
    return schedule


async def deliver(store: pystore.Store, count: int) -> list[int]:
    """Puts at that rate; by how many milliseconds each message came late."""
    schedule = await started(store)
    began = time.perf_counter()
    for put in range(0, count, RATE // 100):
        for _ in range(RATE // 100):
            store.put(TOPIC, b"x" * 128, queue=0, delay_level=1)
        await asyncio.sleep(max(0.0, began + (put + 1) / RATE - time.perf_counter()))
    while schedule.delivered < count:
        await asyncio.sleep(0.01)
    await schedule.stop_levels()
    first = store.range(TOPIC, 0)[1] - count
    late: list[int] = []
    for topic, sign, offset in ((WAITS, -1, 0), (TOPIC, 1, first)):
        stamps: list[int] = []
        while len(stamps) < count:
            batch = store.read(topic, 0, offset + len(stamps), max_messages=4096)
            stamps += [message.store_timestamp for message in batch]
        late = stamps if sign < 0 else [came - put for came, put in zip(stamps, late, strict=True)]
    return [value - 1000 for value in late]


def test_delivery_error(measure: Any) -> None:
    median, late = [], []

    def one_round() -> None:
        with new_store("delays", **SETTINGS) as store:
            errors = uvloop.run(deliver(store, scaled(5 * RATE)))
            assert min(errors) >= 0
            median.append(percentile(errors, 0.5))
            late.append(percentile(errors, 0.99))

    measure.benchmark.pedantic(one_round, rounds=3, warmup_rounds=0)
    mode = f"{RATE} due a second"
    measure.add(Row("delayed, late p50", "128 B", mode, "ms", median, smaller=True))
    measure.add(Row("delayed, late p99", "128 B", mode, "ms", late, target=20, smaller=True))


def test_pending_cost(measure: Any) -> None:
    """What a schedule takes while nothing of it is due: of a processor, and of memory."""
    count = scaled(10_000_000)
    used, memory = [], []

    async def idle(store: pystore.Store) -> None:
        schedule = await started(store)
        await asyncio.sleep(1)
        began = time.process_time()
        await asyncio.sleep(IDLE_S)
        used.append((time.process_time() - began) / IDLE_S * 100)
        await schedule.stop_levels()

    def one_round() -> None:
        with new_store("pending", **SETTINGS) as store:
            before = anonymous_mb()
            put_delayed(store, count)
            store.flush()
            for _ in range(3):
                uvloop.run(idle(store))
            memory.append(anonymous_mb() - before)

    measure.benchmark.pedantic(one_round, rounds=1, warmup_rounds=0)
    payload = f"{count:,} pending"
    measure.add(Row("delays, idle", payload, "of one processor", "%", used, smaller=True))
    measure.add(Row("delays, memory", payload, "anonymous", "MB", memory, smaller=True))
