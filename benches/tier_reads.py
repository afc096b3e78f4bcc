"""What reading a cold tier costs beside reading the local store: a topic from its beginning, a
query by key, an hour of a year, Spark's whole scan.

    python -m benches tier_reads [--only scan,key,hour,spark] [--rounds 3] [--mb 1000]
        [--objects 1000] [--hours 8760]

Messages of 1 KiB in 4 queues. A tier lies in a folder, and is read from there and from a server of
that folder whose every request takes 30 ms more and of which one in a hundred fails. Each figure is
of a process of its own; memory is what it has grown by since the tier was opened.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pystore
from benches.cold import fill
from benches.harness import (
    ROOT,
    TOPIC,
    Figures,
    Given,
    Row,
    bodies,
    command_of,
    family_cpu_s,
    flat,
    fresh,
    new_store,
    resident_mb,
)
from benches.object_server import ADDRESS, serving
from pystore.cold.push import push
from pystore.cold.segment import excerpt
from pystore.cold.tier import new_tier
from pystore.format.units import UNIT
from pystore.native import ffi

PULLED = 32
HOUR_MS = 3_600_000
YEAR_BEGAN = 1_750_000_000_000
#: Messages of an hour of the year: a segment each, of 0.8 MB.
OF_AN_HOUR = 720
AT_OFFSET, AT_PLACE, AT_STORE_TIME = 20, 28, 56  # of a record whose hosts are IPv4
WAYS = {"32 at a time": 0.7, "whole, by batches": 0.7, "as Arrow": 0.7}


def sizes(reader: pystore.Reader, way: str) -> Iterator[int]:
    """Reads everything in one way; yields bytes of bodies."""
    if way == "as Arrow":
        import pyarrow as pa

        stream = reader.arrow(columns=["queueId", "queueOffset", "body"])
        for batch in pa.RecordBatchReader.from_stream(stream):
            yield batch.column("body").nbytes
        return
    if way == "whole, by batches" and reader.is_cold:
        for batch in reader.batches():  # type: ignore[attr-defined]
            yield sum(map(len, batch.bodies()))
        return
    count = PULLED if way == "32 at a time" else 1 << 14
    for queue in reader.queues(TOPIC):
        at = queue.min_offset
        while at < queue.max_offset:
            batch = reader.read(TOPIC, queue.queue, at, max_messages=count)
            yield sum(map(len, batch.bodies()))
            at = batch.next_offset


def highest_mb() -> float:
    """Returns the most resident memory that this process has had since it began."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def scan(path: str, way: str) -> tuple[float, float, float]:
    """Returns MB/s, processor seconds a GB, and by how many MB this process has grown."""
    with pystore.Reader(path) as reader:
        if reader.is_cold:
            reader.read(TOPIC, 0, 0)
        if way == "as Arrow":
            import pyarrow  # noqa: F401
        opened = resident_mb(os.getpid())
        began, cpu = time.perf_counter(), time.process_time()
        total = sum(sizes(reader, way))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        grown = highest_mb() - opened
    return total / took / 1e6, cpu / total * 1e9, grown


def asked(path: str, key: str) -> tuple[float, float, int]:
    """Returns how many seconds a query by key took, the manifest being known, those of processor
    time, and what it found."""
    with pystore.Reader(path) as reader:
        reader.range(TOPIC, 0)
        began, cpu = time.perf_counter(), time.process_time()
        found = len(reader.query(TOPIC, key))
        return time.perf_counter() - began, time.process_time() - cpu, found


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function does in a process of its own."""
    done = subprocess.run(
        command_of(function, *arguments), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def tier_of(store: Path, cold: Path, **more: Any) -> None:
    """Writes a store out, past the system's cache, and reads it from there once: then both are in
    memory, as far as it goes, as their writer and a reader have left them."""
    with pystore.Reader(store) as reader:
        push(reader, new_tier(cold, "c", "b"), **more)
    with pystore.Reader(cold) as reader:
        for piece in reader.pieces():  # type: ignore[attr-defined]
            del piece


# ---- a topic from its beginning ----


def scans(given: Given, figures: Figures) -> None:
    store, cold = fresh("tier-reads"), fresh("tier-reads-cold")
    fill(store, 4, given.mb << 20)
    tier_of(store, cold)
    for _ in range(given.rounds):
        for way, share in WAYS.items():
            local = answer(scan, str(store), way)
            folder = answer(scan, str(cold), way)
            with serving(cold) as server:
                far = answer(scan, ADDRESS, way)
                requests = server.counts()[0]
            what = f"from the beginning, {way}"
            for mode, found in ("local store", local), ("folder", folder), ("30 ms, 1 % fail", far):
                figures.add(what, mode, "MB/s", found[0], smaller=False)
                figures.add(f"{what}, processor time", mode, "s/GB", found[1])
            figures.add(f"{what}, of the local store", "folder", "x", folder[0] / local[0],
                        target=share, smaller=False)  # fmt: skip
            for mode, found in ("folder", folder), ("30 ms, 1 % fail", far):
                figures.add(f"{what}, memory", mode, "MiB", found[2], target=64)
            figures.add(f"{what}, requests", "30 ms, 1 % fail", "", requests)
    shutil.rmtree(store)
    shutil.rmtree(cold)


# ---- by key ----


def keys(given: Given, figures: Figures) -> None:
    store, cold = fresh("tier-keys"), fresh("tier-keys-cold")
    count = given.objects * 100
    with pystore.open(store) as opened:
        for at in range(0, count, 10_000):
            many = min(10_000, count - at)
            opened.put_many(
                TOPIC, flat(bodies(many, 200)), queues=[0] * many,
                keys=[f"order-{number}" for number in range(at, at + many)],
            )  # fmt: skip
        record = opened.info().log_max // count
    tier_of(store, cold, segment_bytes=100 * record)
    for number in range(given.rounds):
        key = f"order-{count * (number + 1) // (given.rounds + 1)}"
        took, _, found = answer(asked, str(cold), key)
        with serving(cold) as server:
            far, cpu, again = answer(asked, ADDRESS, key)
            requests, _, in_sequence = server.counts()
        assert found == again == 1
        what = f"query by key, {given.objects} objects"
        figures.add(what, "folder", "s", took, target=1.0)
        figures.add(what, "30 ms, 1 % fail", "s", far, target=1.0)
        figures.add(f"{what}, processor time", "30 ms, 1 % fail", "s", cpu)
        figures.add(f"{what}, requests", "30 ms, 1 % fail", "", requests)
        figures.add(f"{what}, requests in sequence", "30 ms, 1 % fail", "", in_sequence)
    shutil.rmtree(store)
    shutil.rmtree(cold)


# ---- an hour of a year ----


class YearQueue:
    """A queue of very many hours, which is made as it is read: the messages of one hour, as a store
    has written them, with other offsets and times. What a writer to a tier asks for."""

    def __init__(self, hours: int) -> None:
        import numpy as np

        with new_store("tier-hour") as store:
            where = store.put_many(TOPIC, flat(bodies(OF_AN_HOUR, 1024)), queues=[0] * OF_AN_HOUR)
            batch = store.read(TOPIC, 0, 1, max_messages=OF_AN_HOUR, max_bytes=1 << 30)
            assert len(batch) == len(where.queue_offsets) == OF_AN_HOUR
            raw = b"".join(bytes(m.record) for m in batch)
        self.hours, self.record = hours, len(raw) // OF_AN_HOUR
        self._records = np.frombuffer(bytearray(raw), "u1").reshape(OF_AN_HOUR, self.record)
        places = (np.arange(OF_AN_HOUR) * self.record).astype(">i8")
        self._records[:, AT_PLACE : AT_PLACE + 8] = places[:, None].view("u1")
        self._units = b"".join(UNIT.pack(int(at), self.record, 0) for at in places)

    def queues(self) -> list[pystore.QueueInfo]:
        return [pystore.QueueInfo(TOPIC, 0, 0, self.hours * OF_AN_HOUR, -1)]

    def read(self, topic: str, queue: int, at: int, *, max_messages: int, **_: Any) -> Any:
        """Returns messages of an hour from an offset on."""
        import numpy as np

        first = at // OF_AN_HOUR * OF_AN_HOUR
        offsets = np.arange(first, first + OF_AN_HOUR, dtype=">i8")
        times = (YEAR_BEGAN + offsets * HOUR_MS // OF_AN_HOUR).astype(">i8")
        for column, values in (AT_OFFSET, offsets), (AT_STORE_TIME, times):
            self._records[:, column : column + 8] = values[:, None].view("u1")
        options = ffi.new("ps_read_options *")
        options.max_messages, options.max_bytes = max_messages, 1 << 30
        skip = at - first
        return excerpt(
            self._records.tobytes()[skip * self.record :], skip * self.record,
            self._units[skip * UNIT.size :], at, (topic, queue), options,
        )  # fmt: skip


def make_year(cold: Path, hours: int) -> None:
    """Writes out a queue of so many hours, a segment each. Nothing is synced."""
    source: Any = YearQueue(hours)
    with patch("os.fsync"):
        push(source, new_tier(cold, "c", "b"), segment_bytes=OF_AN_HOUR * source.record)


def hour_rows(path: str, start: int) -> int:
    """Returns how many rows the Spark source reads of an hour, in this process."""
    from spark_ext import options, plan, schema
    from spark_ext.batch import read_part

    given = {
        "path": path, "topic": TOPIC, "minStoreTimestamp": str(start),
        "maxStoreTimestamp": str(start + HOUR_MS - 1),
    }  # fmt: skip
    o = options.parse_read(given, streaming=False)
    names = ("queueId", "queueOffset", "storeTimestamp", "body")
    layout = schema.ColumnLayout(names, (False,) * len(names), "json")
    return sum(b.num_rows for part in plan.plan(o) for b in read_part(part, layout, o))


def hours(given: Given, figures: Figures) -> None:
    cold = fresh("tier-hours-cold")
    make_year(cold, given.hours)
    whole = sum(path.stat().st_size for path in cold.rglob("COMMIT_LOG/*"))
    what = f"Spark, an hour of {given.hours}"
    for number in range(given.rounds):
        start = YEAR_BEGAN + HOUR_MS * (given.hours * (number + 1) // (given.rounds + 1))
        with serving(cold) as server:
            began = time.perf_counter()
            rows = answer(hour_rows, ADDRESS, start)
            took = time.perf_counter() - began
            requests, sent, _ = server.counts()
        figures.add(what, "30 ms, 1 % fail", "s", took)
        figures.add(f"{what}, requests", "30 ms, 1 % fail", "", requests)
        figures.add(f"{what}: all bytes by bytes read", "30 ms, 1 % fail", "x", whole / sent,
                    target=given.hours * 8000 / 8760, smaller=False)  # fmt: skip
        assert rows == OF_AN_HOUR, rows
    shutil.rmtree(cold)


# ---- Spark ----


def spark(given: Given, figures: Figures) -> None:
    from benches.jobs import session as session_of

    store, cold = fresh("tier-spark"), fresh("tier-spark-cold")
    fill(store, 4, given.mb << 20)
    tier_of(store, cold)

    def both(session: Any, path: Path) -> tuple[float, float]:
        frame = session.read.format("rocketmq").load(str(path))
        began, cpu = time.perf_counter(), family_cpu_s()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began, family_cpu_s() - cpu

    with session_of("local[2]") as running:
        both(running, store)  # warms workers and code
        for _ in range(given.rounds):
            local, tiered = both(running, store), both(running, cold)
            for mode, (took, cpu) in ("local store", local), ("folder", tiered):
                figures.add("Spark, the whole", mode, "MB/s", given.mb / took, smaller=False)
                figures.add("Spark, the whole, processor time", mode, "s/GB", cpu / given.mb * 1e3)
            figures.add("Spark, the whole, of the local store", "folder", "x",
                        local[0] / tiered[0], target=0.8, smaller=False)  # fmt: skip
    shutil.rmtree(store)
    shutil.rmtree(cold)


PARTS = {"scan": scans, "key": keys, "hour": hours, "spark": spark}


def bench(given: Given) -> list[Row]:
    figures = Figures("1 KiB")
    for name in given.only:
        PARTS[name](given, figures)
    return figures.rows
