"""The Spark source beside a source that yields one prepared batch over and over, in the same run.

The prepared batch is what the pipe from a Python worker to Spark can carry at most; a ratio to it
says what reading a store adds. Both take turns. Figures of the driver's planning need no session.

    python -m benches spark [--only columns,partition,plan]
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pystore
from benches.harness import ROOT, SCALE, Given, Row, bodies, family_cpu_s, flat, fresh
from benches.jobs import session
from spark_ext import schema

TOPIC = "bench"
SIZE = 200
QUEUES = 4
COUNT = max(QUEUES * 100_000, int(8_000_000 * SCALE))
PAYLOAD = f"{SIZE} B bodies"
TURNS = 3
PARTITIONS = 200
BIG_GB = 100


@contextmanager
def messages() -> Iterator[Path]:
    """A store with the messages of the bench, in the page cache."""
    path = fresh("spark")
    at_once = 100_000
    column = flat(bodies(at_once, SIZE))
    with pystore.open(path) as opened:
        for i in range(COUNT // at_once):
            opened.put_many(TOPIC, column, tags="tag", queue=i % QUEUES)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def prepared(ddl: str, sample: Path) -> Any:
    """A source with the same columns that yields one batch of the store over and over."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from spark_ext import options, plan, schema, stores
    from spark_ext.batch import read_part

    class Again(DataSourceReader):
        def __init__(self, wanted: Any) -> None:
            self.layout = schema.layout(wanted)

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(i) for i in range(QUEUES * 4)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            stores.settle_worker()
            o = options.parse_read({"path": str(sample)}, streaming=False)
            batch = next(read_part(plan.plan(o)[0], self.layout, o))
            left = COUNT // (QUEUES * 4)
            while left > 0:
                yield batch.slice(0, min(left, batch.num_rows))
                left -= batch.num_rows

    class Prepared(DataSource):
        @classmethod
        def name(cls) -> str:
            return "prepared"

        def schema(self) -> str:
            return ddl

        def reader(self, schema: Any) -> DataSourceReader:
            return Again(schema)

    return Prepared


def seconds(frame: Any) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def both(frame: Any) -> tuple[float, float]:
    """Wall and processor time of a job."""
    before = family_cpu_s()
    wall = seconds(frame)
    return wall, family_cpu_s() - before


def turns(
    spark: Any, store: Path, ddl: str
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Wall and processor time of ours and of the prepared batch, a pair a round."""
    spark.dataSource.register(prepared(ddl, store))

    def ours() -> Any:
        return spark.read.format("rocketmq").schema(ddl).load(str(store))

    def theirs() -> Any:
        return spark.read.format("prepared").load()

    seconds(ours())  # warms workers, code and page cache
    seconds(theirs())
    pairs = [(both(ours()), both(theirs())) for _ in range(TURNS)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def columns(spark: Any, store: Path) -> Iterator[Row]:
    """Everything to the noop sink, beside the prepared batch."""
    three = "queueOffset long NOT NULL, storeTimestamp timestamp NOT NULL, body binary NOT NULL"
    mode = "2 cores, noop sink"
    for name, ddl, target, share in (
        ("offset, time, body", three, 4e6, 0.8),
        ("the default columns", schema.ddl((), "json"), None, 0.8),
        ("all 20 columns", schema.ddl(tuple(schema.COLUMNS), "map"), None, 0.8),
        ("queueOffset, tags", "queueOffset long NOT NULL, tags string", 8e6, None),
    ):
        ours, theirs = turns(spark, store, ddl)
        ratios = [[b[i] / a[i] for a, b in zip(ours, theirs, strict=True)] for i in (0, 1)]
        for label, unit, rounds, goal in (
            ("", " rows/s", [COUNT / wall for wall, _ in ours], target),
            (": prepared batch", " rows/s", [COUNT / wall for wall, _ in theirs], None),
            (": ratio", "x", ratios[0], share),
            (": processor time", " us/row", [1e6 * cpu / COUNT for _, cpu in ours], None),
            (": prepared, processor time", " us/row", [1e6 * c / COUNT for _, c in theirs], None),
            (": ratio of it", "x", ratios[1], share),
        ):
            what, smaller = f"spark, {name}{label}", unit == " us/row"
            yield Row(what, PAYLOAD, mode, unit, rounds, goal, smaller=smaller)


def small_partitions() -> Any:
    """A source of as many partitions as it is asked for, ten rows each, and nothing to read."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from spark_ext import stores

    class Ten(DataSourceReader):
        def __init__(self, count: int) -> None:
            self.count = count

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(i) for i in range(self.count)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            stores.settle_worker()
            field = pa.field("queueOffset", pa.int64(), nullable=False)
            yield pa.record_batch([pa.array(range(10), pa.int64())], schema=pa.schema([field]))

    class Small(DataSource):
        @classmethod
        def name(cls) -> str:
            return "small"

        def schema(self) -> str:
            return "queueOffset long NOT NULL"

        def reader(self, schema: Any) -> DataSourceReader:
            return Ten(int(self.options["minPartitions"]))

    return Small


def partition(spark: Any, store: Path) -> Iterator[Row]:
    """What a partition costs beyond its rows, beside what Spark charges a source that does
    nothing."""
    spark.dataSource.register(small_partitions())
    rows = 2_000
    end = json.dumps({TOPIC: {str(q): rows if q == 0 else 0 for q in range(QUEUES)}})

    def run(name: str, partitions: int) -> tuple[float, float]:
        reader = spark.read.format(name).option("minPartitions", partitions)
        if name == "rocketmq":
            reader = reader.option("endingOffsets", end).schema("queueOffset long NOT NULL")
        return both(reader.load(str(store)))

    def costs(name: str) -> tuple[float, float]:
        many, one = run(name, PARTITIONS), run(name, 1)
        wall, cpu = (1000 * (a - b) / (PARTITIONS - 1) for a, b in zip(many, one, strict=True))
        return wall, cpu

    costs("rocketmq"), costs("small")
    pairs = [(costs("rocketmq"), costs("small")) for _ in range(TURNS)]
    mode = f"2 cores, {PARTITIONS} of them"
    for label, rounds, goal in (
        ("", [ours[0] for ours, _ in pairs], 15),
        (": a source that does nothing", [theirs[0] for _, theirs in pairs], None),
        (": processor time", [ours[1] for ours, _ in pairs], None),
        (": nothing, processor time", [theirs[1] for _, theirs in pairs], None),
    ):
        yield Row(f"spark, a partition{label}", "10 rows", mode, " ms", rounds, goal, smaller=True)


# ---- planning, without a session ----


def grow_sparse(path: Path, segments: int) -> None:
    """Makes a store look as large as it is to be: as many segments, mostly holes.

    The one segment of the store is moved to the end of the log, its records with it; the segments
    before it hold nothing but a blank that closes each. Queues go on pointing to the records.
    """
    log = path / "commitlog"
    (only,) = sorted(log.iterdir())
    size = only.stat().st_size
    shift = size * (segments - 1)
    moved = log / f"{shift:020d}"
    only.rename(moved)
    with moved.open("r+b") as out:
        at = 0
        while True:
            out.seek(at)
            head = out.read(36)
            length, magic = struct.unpack(">iI", head[:8])
            if magic != 0xDAA320A7:
                break
            out.seek(at + 28)
            out.write(struct.pack(">q", at + shift))
            at += length
    for base in range(0, shift, size):
        with (log / f"{base:020d}").open("wb") as out:
            out.truncate(size)
            out.write(struct.pack(">iI", size, 0xCBD43194))
    for unit_file in (path / "consumequeue").rglob("0*"):
        if unit_file.is_file():
            data = bytearray(unit_file.read_bytes())
            for i in range(0, len(data), 20):
                place, length = struct.unpack_from(">qi", data, i)
                if length:
                    struct.pack_into(">q", data, i, place + shift)
            unit_file.write_bytes(data)
    for derived in ("checkpoint", "index"):
        target = path / derived
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)


PLANNER = """
import json, sys, time
from spark_ext import options, plan
began = time.perf_counter()
parts = plan.plan(options.parse_read(json.loads(sys.argv[1]), streaming=False))
seconds = time.perf_counter() - began
# Not getrusage: its peak is inherited from the process that started this one.
peak = next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]
print(json.dumps({"seconds": seconds, "parts": len(parts), "mb": int(peak) / 1024}))
"""


def planned(path: Path, **options: object) -> dict[str, Any]:
    """A planner's process of its own, as Spark's is, for its time and its peak memory."""
    given = {"path": str(path), **{k: str(v) for k, v in options.items()}}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", PLANNER, json.dumps(given)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def plan_of_large_store() -> Iterator[Row]:
    """A hundred segments of 1 GiB, sparse: time and memory of the plan."""
    path = fresh("spark-large")
    with pystore.open(path) as opened:
        for queue in range(QUEUES):
            opened.put_many(TOPIC, flat(bodies(50_000, SIZE)), queue=queue)
    grow_sparse(path, BIG_GB)
    runs = [planned(path) for _ in range(TURNS)]
    shutil.rmtree(path)
    what = f"spark, plan of {BIG_GB} GiB"
    mode = f"{BIG_GB} segments, sparse"
    times, memory = [r["seconds"] for r in runs], [r["mb"] for r in runs]
    yield Row(what, PAYLOAD, mode, " s", times, 5, smaller=True)
    yield Row(f"{what}, memory", PAYLOAD, mode, " MB", memory, 200, smaller=True)


def plan_of_range() -> Iterator[Row]:
    """The same range of time out of a store ten times as large costs the same."""
    rounds: dict[str, list[float]] = {"small": [], "large": []}
    stores: dict[str, tuple[Path, int, int]] = {}
    column = flat(bodies(100_000, SIZE))
    for name, repeats in (("small", 2), ("large", 20)):
        path = fresh(f"spark-{name}")
        with pystore.open(path) as opened:
            for _ in range(max(1, int(repeats * max(SCALE, 0.1)))):
                opened.put_many(TOPIC, column, queue=0)
            time.sleep(0.02)
            begin = opened.put(TOPIC, b"begin", queue=0).store_timestamp
            opened.put_many(TOPIC, column, queue=0)
            end = opened.put(TOPIC, b"end", queue=0).store_timestamp
            time.sleep(0.02)
            for _ in range(max(1, int(repeats * max(SCALE, 0.1)))):
                opened.put_many(TOPIC, column, queue=0)
        stores[name] = (path, begin, end)
    for _ in range(TURNS):
        for name, (path, begin, end) in stores.items():
            told = planned(path, startingTimestamp=begin, endingTimestamp=end)
            rounds[name].append(told["seconds"])
    for path, _, _ in stores.values():
        shutil.rmtree(path)
    ratios = [b / a for a, b in zip(rounds["small"], rounds["large"], strict=True)]
    for name, times in rounds.items():
        yield Row(f"spark, plan of a time range, {name} store", PAYLOAD, "", " s", times)
    what = "spark, plan: ten times the store"
    yield Row(what, PAYLOAD, "same range", "x", ratios, 1.5, smaller=True)


def bench(given: Given) -> Iterator[Row]:
    if {"columns", "partition"} & set(given.only):
        with session("local[2]") as spark, messages() as store:
            if "columns" in given.only:
                yield from columns(spark, store)
            if "partition" in given.only:
                yield from partition(spark, store)
    if "plan" in given.only:
        yield from plan_of_large_store()
        yield from plan_of_range()
