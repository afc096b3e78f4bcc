"""The store alone: putting, reading, filtering, opening, memory, delay levels.

    python -m benches store [--only put,read,..]

append: one C thread with the dispatcher beside it, and the memcpy that is the floor
(benches/c/append.c). put: many at once, and one call a message. sync: SYNC_FLUSH under 64 threads.
read: a backlog in the page cache as views, messages and Arrow. sql: SQL92, the match alone and what
it adds to a read. recovery: a start after a crash, with every record checked and every queue
rebuilt, and one after a clean exit. queues: a start with very many queues. memory: anonymous memory
of a process that uses a store. levels: how late messages of delay levels come, and what ten million
pending ones cost.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvloop

import pystore
from benches.harness import (
    QUEUES,
    ROOT,
    SCALE,
    SCRATCH,
    TOPIC,
    Given,
    Row,
    anonymous_mb,
    bodies,
    flat,
    fresh,
    into_cache,
    new_store,
    scaled,
    seconds,
)
from broker.hot.core import Core
from broker.services.schedule import Schedule
from pystore.filter.sql92 import compiled
from pystore.format.properties import encode_properties
from pystore.native import ffi, lib

SIZE = 128
PAYLOAD = f"{SIZE} B bodies"
MODE = "ASYNC_FLUSH, 4 queues"
AT_ONCE = 512
CACHED = f"page cache, {AT_ONCE:,} a call"
THREADS = 64
GIB = 1 << 30
#: Bytes of log in the store that was closed cleanly; PS_BENCH_OPEN_GB makes it smaller.
OPEN_BYTES = int(float(os.environ.get("PS_BENCH_OPEN_GB", 10 * SCALE)) * GIB)


# ---- putting ----


def append() -> Iterator[Row]:
    program = ROOT / "build" / "benches" / "append"
    subprocess.run(["make", "-s", str(program.relative_to(ROOT))], cwd=ROOT, check=True)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    # Many rounds: one whose memory the hypervisor has taken back meanwhile is several times slower.
    words = [str(program), str(SCRATCH), str(scaled(2_000_000)), str(SIZE), "9"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said["round"] > 1:  # the first touches memory for the first time
            rates[said["mode"], "to the last put"].append(said["per_s"])
            rates[said["mode"], "to the last queue unit"].append(said["dispatched_per_s"])
    names = {"put": "ps_put", "put_many": "ps_put_many_messages, 1,000"}
    for (mode, until), rounds in rates.items():
        if mode in names:
            what = f"C append, {names[mode]}"
            yield Row(what, PAYLOAD, f"{MODE}, {until}", "/s", rounds, 8e6)
        elif until == "to the last put":
            yield Row("C append, memcpy, no CRC", PAYLOAD, MODE, "/s", rounds)


def put_rates(work: Callable[[pystore.Store], int], rounds: int = 5) -> list[float]:
    """Messages a second, each round in a store of its own. work: returns how many it has put."""
    rates = []
    for _ in range(rounds + 1):
        with new_store("put") as store:
            began = time.perf_counter()
            count = work(store)
            rates.append(count / (time.perf_counter() - began))
    return rates[1:]


def put() -> Iterator[Row]:
    call = scaled(100_000)
    values = bodies(call, SIZE)
    forms = {
        "buffer and offsets": flat(values), "Arrow array": pa.array(values, pa.binary()),
        "list of bytes": values,
    }  # fmt: skip

    def many(column: Any, store: pystore.Store) -> int:
        calls = scaled(1_000_000) // call
        for _ in range(calls):
            store.put_many(TOPIC, column)
        store.refresh()
        return calls * call

    def one(count: int, options: dict[str, Any], store: pystore.Store) -> int:
        for i in range(count):
            store.put(TOPIC, values[i % 1000], queue=i % QUEUES, **options)
        return count

    for form, column in forms.items():
        mode = "ASYNC_FLUSH, 8 queues, to the last queue unit"
        yield Row(f"put_many, {form}", PAYLOAD, mode, "/s", put_rates(partial(many, column)), 3.6e6)
    mode = f"{MODE}, one thread"
    rates = put_rates(partial(one, scaled(300_000), {}))
    yield Row("put, one call a message", PAYLOAD, mode, "/s", rates, 0.9e6)
    keyed = {"tags": "paid", "keys": "order-17"}  # costs an index entry, too
    rates = put_rates(partial(one, scaled(200_000), keyed))
    yield Row("put with tag and key", PAYLOAD, mode, "/s", rates)


def sync() -> Iterator[Row]:
    """How many puts one sync of the disk serves: each thread waits for it after each message."""
    each = max(20, scaled(64_000) // THREADS)
    body = bodies(1, SIZE)[0]
    rates, syncs, shared = [], [], []
    for _ in range(3):
        with new_store("sync", flushDiskType="SYNC_FLUSH") as store:

            def work(number: int, store: pystore.Store = store) -> None:
                for _ in range(each):
                    store.put(TOPIC, body, queue=number % QUEUES)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
            before, began = store.info(), time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took, after = time.perf_counter() - began, store.info()
            puts, fsyncs = after.puts - before.puts, after.fsyncs - before.fsyncs
            rates.append(puts / took)
            syncs.append(fsyncs / took)
            shared.append(puts / max(1, fsyncs))
    mode = f"SYNC_FLUSH, {THREADS} threads"
    yield Row("sync flush, puts", PAYLOAD, mode, "/s", rates)
    yield Row("sync flush, fdatasync calls", PAYLOAD, mode, "/s", syncs)
    yield Row("sync flush, puts a sync", PAYLOAD, mode, "", shared, 20)


# ---- reading ----


@contextmanager
def backlog(count: int, **options: Any) -> Iterator[pystore.Reader]:
    """Messages in one queue, in the page cache."""
    path = fresh("backlog")
    column = flat(bodies(50_000, SIZE))
    with pystore.open(path) as store:
        for _ in range(max(1, count // 50_000)):
            store.put_many(TOPIC, column, queue=0, **options)
    with pystore.Reader(path) as reader:
        yield reader
    shutil.rmtree(path)


def batches(reader: pystore.Reader, **options: Any) -> Iterator[pystore.Batch]:
    at, end = 0, reader.range(TOPIC, 0)[1]
    while at < end:
        batch = reader.read(TOPIC, 0, at, max_messages=AT_ONCE, **options)
        yield batch
        at = batch.next_offset


def arrow_rows(reader: pystore.Reader, options: dict[str, Any]) -> int:
    """Reads the queue to its end by pyarrow on one thread."""
    stream = reader.arrow(TOPIC, 0, **options)
    return sum(len(part) for part in pa.RecordBatchReader.from_stream(stream))


def rates_of(work: Callable[[], int], count: int, expected: int, rounds: int = 5) -> list[float]:
    """Rows or messages a second. work: returns how many it has seen, which must be `expected`."""
    assert work() == expected
    gc.collect()
    return [count / seconds(work) for _ in range(rounds)]


def read() -> Iterator[Row]:
    with backlog(scaled(2_000_000)) as reader:
        count = reader.range(TOPIC, 0)[1]

        def views() -> int:
            return sum(len(batch.raw_bodies()) for batch in batches(reader))

        def objects() -> int:
            return sum(1 for batch in batches(reader) for _ in batch)

        def with_bodies() -> int:
            return sum(1 for batch in batches(reader) for each in batch if each.body is not None)

        for what, work, rounds, target in (
            ("batch.raw_bodies()", views, 5, 5e6), ("Message objects", objects, 5, 5e6),
            ("Message objects and body", with_bodies, 3, None),
        ):  # fmt: skip
            rates = rates_of(work, count, count, rounds)
            yield Row(f"read, {what}", PAYLOAD, CACHED, "/s", rates, target)
        for columns, aim in (
            (["body"], 25e6), (["queueOffset", "storeTimestamp", "body"], None), (None, None),
        ):  # fmt: skip
            options = {} if columns is None else {"columns": columns}
            rates = rates_of(partial(arrow_rows, reader, options), count, count)
            mode = f"page cache, columns {', '.join(columns) if columns else 'by default'}"
            yield Row("Arrow stream", PAYLOAD, mode, " rows/s", rates, aim)


#: What a client sets, and what a consumer asks for: 162 bytes.
PROPERTIES = {
    "UNIQ_KEY": "FD000000000000000000000000000002689B30946E0967AA27C50000",
    "KEYS": "order-2026-000017", "CLUSTER": "DefaultCluster", "TAGS": "paid", "region": "EU",
    "amount": "17", "rate": "0.25", "WAIT": "true",
}  # fmt: skip
EXPRESSIONS = {
    "one comparison": "amount > 3",
    "two and text": "amount > 3 AND region = 'EU' AND rate < 0.5",
    "IN of a hundred": "region IN (" + ",".join(f"'R{i}'" for i in range(99)) + ",'EU')",
}


def sql() -> Iterator[Row]:
    raw, count = encode_properties(PROPERTIES), scaled(500_000)
    match, size, held = lib.ps_sql92_match, len(raw), ffi.from_buffer(raw)
    for name, text in EXPRESSIONS.items():
        # One message after the other, in the processor's cache; Python's call is in it.
        expression = compiled(text)
        assert match(expression, held, size) == 1

        def work(expression: Any = expression) -> int:
            for _ in range(count):
                match(expression, held, size)
            return count

        rates = rates_of(work, count, count, 3)
        what = "SQL92 match, called from Python"
        yield Row(what, f"{size} B properties", name, "/s", rates)
    payload = f"{PAYLOAD}, {len(PROPERTIES)} properties"
    with backlog(scaled(1_000_000), properties=PROPERTIES) as reader:
        held_there = reader.range(TOPIC, 0)[1]
        for asked in (None, "amount > 3", "amount > 30", EXPRESSIONS["two and text"]):
            options = {"columns": ["queueOffset", "storeTimestamp"], "sql": asked}
            found = 0 if asked == "amount > 30" else held_there
            rates = rates_of(partial(arrow_rows, reader, options), held_there, found, 3)
            mode = f"page cache, {asked or 'no filter'}"
            yield Row("Arrow stream with SQL92", payload, mode, " rows/s", rates)

        def passing() -> int:
            return sum(len(batch) for batch in batches(reader, sql="amount > 3"))

        rates = rates_of(passing, held_there, held_there, 3)
        yield Row("read with SQL92", payload, f"{CACHED}, amount > 3", "/s", rates)


# ---- opening ----


def recovery() -> Iterator[Row]:
    for size in (128, 1024):
        path, total = fresh("crashed"), int(1.5 * SCALE * GIB)
        column = flat(bodies(max(100, (16 << 20) // size), size))
        with pystore.open(path) as store:
            while store.info().log_max < total:
                store.put_many(TOPIC, column)
        into_cache(path)
        rates, records = [], []
        for _ in range(4):
            (path / "abort").touch()
            (path / "checkpoint").unlink()
            with pystore.open(path) as store:
                report = store.report
            assert report.mode is pystore.RecoveryMode.ABNORMAL
            assert report.scanned_from == report.log_min
            rates.append(report.scanned_bytes / report.seconds)
            records.append(report.records / report.seconds)
        payload = f"{size} B bodies, {total >> 20:,} MiB"
        mode = "abort file, no checkpoint, page cache, CRC checked, queues rebuilt"
        yield Row("recovery, log", payload, mode, "B/s", rates[1:], 1.5e9)
        yield Row("recovery, records", payload, mode, "/s", records[1:])
        shutil.rmtree(path)
    yield clean_open()


def clean_open() -> Row:
    """Segments really written, 1,000 queues: opened, and closed outside the clock."""
    path = fresh("clean")
    column = flat(bodies(1000, 4096))
    with pystore.open(path) as store:
        while store.info().log_max < OPEN_BYTES:
            for i in range(250):
                store.put_many(f"{TOPIC}-{i}", column, queues=[k % 4 for k in range(1000)])
    times = []
    for _ in range(6):
        began = time.perf_counter()
        with pystore.open(path) as store:
            times.append(time.perf_counter() - began)
            files, queues_held = store.info().log_files, store.info().queues
    shutil.rmtree(path)
    payload = (
        f"{files} segments of 1 GiB, written in full with 4 KiB bodies, {queues_held:,} queues"
    )
    return Row("open", payload, "after a clean exit", "s", times[1:], 0.3, smaller=True)


#: Queues of a topic: ids go up to 65,535.
A_TOPIC = 50_000
#: What a process may spend on mappings here; the kernel allows 65,530.
MAPPINGS = 20_000


def queues() -> Iterator[Row]:
    """One message in each queue; listed and looked at, not mapped."""
    for given, target in ((50_000, 2.0), (200_000, 6.0)):
        count, path = scaled(given), fresh("queues")
        sizes: dict[str, Any] = {
            "mappedFileSizeConsumeQueue": 1000, "mappedFileSizeCommitLog": 64 << 20,
        }  # fmt: skip
        with pystore.open(path, messageIndexEnable=False, **sizes) as store:
            for i in range(count):
                store.put(f"{TOPIC}-{i // A_TOPIC}", b"x" * 20, queue=i % A_TOPIC)
        times: dict[str, list[float]] = {"open": [], "reader": []}
        for _ in range(4):
            for name, make in (("open", pystore.open), ("reader", pystore.Reader)):
                before = time.process_time()
                with make(path, messageIndexEnable=False) as opened:
                    times[name].append(time.process_time() - before)
                    assert opened.info().queues == count
                    maps = Path("/proc/self/maps").read_text().splitlines()
                    assert sum(str(path) in line for line in maps) <= MAPPINGS
        for name, rounds in times.items():
            payload = f"{count:,} queues of one message"
            mode = f"{name}, processor time, within {MAPPINGS:,} mappings"
            yield Row("open, queues", payload, mode, "s", rounds[1:], target, smaller=True)
        shutil.rmtree(path)


# ---- memory ----

#: What a small service does with a store, in a process that has imported nothing else.
PROGRAM = """
import json, sys
import pystore

def anonymous():
    with open("/proc/self/status") as status:
        return int(next(x for x in status if x.startswith("RssAnon")).split()[1]) * 1024

imported = anonymous()
with pystore.open(sys.argv[1]) as store:
    opened = anonymous()
    for i in range(20_000):
        store.put("bench", b"x" * 128, queue=i % 4, tags="paid", keys=f"order-{i}")
    for q in store.queues("bench"):
        at = 0
        while at < q.max_offset:
            batch = store.read("bench", q.queue, at, max_messages=1024)
            for message in batch:
                message.body, message.tags
            at = batch.next_offset
    assert store.query("bench", "order-17")
    used = anonymous()
assert not {"numpy", "pyarrow", "pandas"} & set(sys.modules)
print(json.dumps({"imported": imported, "opened": opened, "used": used}))
"""


def memory() -> Iterator[Row]:
    """RssAnon after open, and after 20,000 puts and a read of the whole store."""
    column = flat(bodies(10_000, SIZE))
    for given in (0, 100_000, 3_000_000):
        path, calls = fresh("memory"), scaled(given) // 10_000 if given else 0
        with pystore.open(path) as store:
            for _ in range(calls):
                store.put_many(TOPIC, column)
        words = [sys.executable, "-c", PROGRAM, str(path)]
        said = json.loads(
            subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        )
        shutil.rmtree(path)
        payload = f"{calls * 10_000:,} messages of {SIZE} B before"
        for name, mode in (("opened", "after open"), ("used", "after 20,000 puts and a full read")):
            yield Row(
                "anonymous memory", payload, mode, "B", [said[name]], 50e6, smaller=True,
                extra={"after import": said["imported"]},
            )  # fmt: skip


# ---- delay levels ----

WAITS = "SCHEDULE_TOPIC_XXXX"
RATE = 5000
IDLE_S = max(1.0, min(30.0, 30 * SCALE))
LEVELS = "1s 2h"


@asynccontextmanager
async def delivering(store: pystore.Store) -> AsyncIterator[Schedule]:
    core = Core(store, cluster="DefaultCluster")
    core.attach(asyncio.get_running_loop())
    schedule = Schedule(store, core)
    schedule.start_levels()
    yield schedule
    await schedule.stop_levels()


async def lateness(store: pystore.Store, count: int) -> list[int]:
    """Puts at that rate; by how many milliseconds each message came late, ascending."""
    async with delivering(store) as schedule:
        began = time.perf_counter()
        for put in range(0, count, RATE // 100):
            for _ in range(RATE // 100):
                store.put(TOPIC, b"x" * SIZE, queue=0, delay_level=1)
            await asyncio.sleep(max(0.0, began + (put + 1) / RATE - time.perf_counter()))
        while schedule.delivered < count:
            await asyncio.sleep(0.01)

    def stamps(topic: str, offset: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            batch = store.read(topic, 0, offset + len(found), max_messages=4096)
            found += [message.store_timestamp for message in batch]
        return found

    came, asked = stamps(TOPIC, store.range(TOPIC, 0)[1] - count), stamps(WAITS, 0)
    return sorted(a - b - 1000 for a, b in zip(came, asked, strict=True))


async def idle(store: pystore.Store) -> float:
    """What a schedule takes of a processor while nothing of it is due, in percent."""
    async with delivering(store):
        await asyncio.sleep(1)
        began = time.process_time()
        await asyncio.sleep(IDLE_S)
        return (time.process_time() - began) / IDLE_S * 100


def levels() -> Iterator[Row]:
    middle, late = [], []
    for _ in range(3):
        with new_store("delays", messageDelayLevel=LEVELS) as store:
            errors = uvloop.run(lateness(store, scaled(5 * RATE)))
            assert errors[0] >= 0
            middle.append(float(errors[len(errors) // 2]))
            late.append(float(errors[int(len(errors) * 0.99)]))
    mode = f"{RATE} due a second"
    yield Row("delayed, late p50", f"{SIZE} B", mode, "ms", middle, smaller=True)
    yield Row("delayed, late p99", f"{SIZE} B", mode, "ms", late, 20, smaller=True)
    # As a broker stores them, many at once: their level is the queue of the schedule topic.
    properties = {"DELAY": "2", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    count, call = scaled(10_000_000), scaled(20_000)
    with new_store("pending", messageDelayLevel=LEVELS) as store:
        before = anonymous_mb(os.getpid())
        for _ in range(count // call):
            store.put_many(WAITS, [b"x"] * call, properties=properties, queue=1)
        store.flush()
        used = [uvloop.run(idle(store)) for _ in range(3)]
        grown = anonymous_mb(os.getpid()) - before
    payload = f"{count:,} pending"
    yield Row("delays, idle", payload, "of one processor", "%", used, smaller=True)
    yield Row("delays, memory", payload, "anonymous", "MB", [grown], smaller=True)


def bench(given: Given) -> Iterator[Row]:
    parts = (append, put, sync, read, sql, recovery, queues, memory, levels)
    for part in parts:
        if part.__name__ in given.only:
            yield from part()
