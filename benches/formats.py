"""The same rows out of a store, out of Parquet and out of a Kafka broker, by Spark, in turns.

    python -m benches formats [--only queues,rows] [--rounds 3] [--keep FILE]

Each participant serves the same messages: our source the files of a store, Spark's Parquet reader
the files that Spark wrote of them, Spark's Kafka source one broker of this machine. Beside rates by
the clock stand rates by processor time, of the driver, the virtual machine, the Python workers and
the broker: on a machine that others use, only these say what the work costs. At last a store of
many short queues.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pystore
from benches import harness
from benches.harness import TOPIC, Given, Row, bodies, family_cpu_s, flat, fresh, into_cache
from benches.jobs import fill, session
from benches.peer_servers import FETCHED, Missing, fetch_jars, kafka
from spark_ext.source import RocketmqSource

SIZE = 200
COUNT = 5_000_000
#: How long an idle query is watched.
IDLE_S = 10.0
#: Of the short queues.
TOPICS, QUEUES_EACH, ROWS_EACH = 20, 1_000, 5
KAFKA_SOURCE = "spark-sql-kafka-0-10_2.13"
#: Where Maven does not have it in PySpark's own version.
KAFKA_SOURCE_BEFORE = "4.2.0"
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>source</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>{name}</artifactId>
<version>{version}</version><exclusions><exclusion>
<groupId>org.apache.spark</groupId><artifactId>spark-sql_2.13</artifactId>
</exclusion></exclusions></dependency></dependencies></project>
"""


class Cost(NamedTuple):
    """Seconds by the clock, and of processors."""

    wall: float
    cpu: float


def cost(work: Callable[[], object]) -> Cost:
    used, began = family_cpu_s(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - began, family_cpu_s() - used)


def kafka_source() -> tuple[str, list[Path]]:
    """Spark's Kafka source: its version, and its jars. Raises: Missing."""
    import pyspark

    for version in (pyspark.__version__, KAFKA_SOURCE_BEFORE):
        pom = POM.format(name=KAFKA_SOURCE, version=version)
        try:
            return version, fetch_jars(FETCHED / f"spark-kafka-{version}", pom)
        except Missing as missing:
            why = missing
    raise why


# ---- the same rows ----


def everything(frame: Any) -> Callable[[], object]:
    return frame.write.format("noop").mode("overwrite").save  # type: ignore[no-any-return]


def summed(frame: Any, column: str) -> Callable[[], object]:
    """A query of its own each time: Spark keeps the shuffle of one that is run again."""
    return lambda: frame.selectExpr(f"sum({column})").collect()


def works(spark: Any, store: Path, parquet: Path, address: str) -> dict[str, dict[str, Any]]:
    """By query: who does it, and how."""
    ours = spark.read.format("rocketmq").load(str(store))
    named = spark.read.format("rocketmq").option("columns", "queueOffset").load(str(store))
    files = spark.read.parquet(str(parquet))
    broker = {"kafka.bootstrap.servers": address, "subscribe": TOPIC, "minPartitions": "8"}
    peer = spark.read.format("kafka").options(**broker).load()
    return {
        "default columns": {
            "ours": everything(ours), "Parquet": everything(files), "Kafka": everything(peer),
        },
        "sum of offsets": {
            "ours": summed(named, "queueOffset"),
            "ours, without `columns`": summed(ours, "queueOffset"),
            "Parquet": summed(files, "queueOffset"), "Kafka": summed(peer, "offset"),
        },
        "count()": {
            "ours": named.count, "ours, without `columns`": ours.count, "Parquet": files.count,
            "Kafka": peer.count,
        },
    }  # fmt: skip


def of_rows(count: int, rounds: int) -> list[Row]:
    version, jars = kafka_source()
    store, parquet = fresh("formats-store"), fresh("formats-parquet")
    fill(store, count, SIZE)
    into_cache(store)
    with (
        kafka() as server,
        session("local[2]", **{"spark.jars": ",".join(map(str, jars))}) as spark,
    ):
        frame = spark.read.format("rocketmq").load(str(store))
        frame.write.parquet(str(parquet))
        rows = frame.selectExpr("body AS value", "keys AS key", f"'{TOPIC}' AS topic")
        rows.write.format("kafka").option("kafka.bootstrap.servers", server.address).save()
        by_query = works(spark, store, parquet, server.address)
        counts = {who: work() for who, work in by_query["count()"].items()}
        assert set(counts.values()) == {count}, counts
        taken: dict[tuple[str, str], list[Cost]] = {}
        for number in range(rounds + 1):
            for query, whos in by_query.items():
                for who, work in whos.items():
                    found = cost(work)
                    print(f"{query}, {who}: {count / found.wall:,.0f} rows/s", file=sys.stderr)
                    if number:
                        taken.setdefault((query, who), []).append(found)
    shutil.rmtree(store)
    shutil.rmtree(parquet)
    made = []
    payload = f"{SIZE} B bodies, {count:,} messages"
    for (query, who), costs in taken.items():
        name = f"{who} {version}" if who == "Kafka" else who
        made.append(Row(name, payload, query, "rows/s", [count / c.wall for c in costs]))
        made.append(Row(name, payload, query, "rows/cpu-s", [count / c.cpu for c in costs]))
        if not who.startswith("ours"):
            mine = taken[query, "ours"]
            ratios = [b.cpu / a.cpu for a, b in zip(mine, costs, strict=True)]
            made.append(Row(f"ours / {who}, by processor time", payload, query, "x", ratios))
    return made


# ---- many short queues ----


def fill_many(path: Path) -> None:
    each = QUEUES_EACH * ROWS_EACH
    queues = [i % QUEUES_EACH for i in range(each)]
    with pystore.open(path, mappedFileSizeConsumeQueue=6000) as store:
        for n in range(TOPICS):
            store.put_many(f"T{n}", flat(bodies(each, SIZE)), queues=queues, tags="tag")


def idle_s() -> float:
    return max(1.0, IDLE_S * min(1.0, harness.SCALE))


def idle_poll(store: Path, columns: Any) -> float:
    """Returns what a poll costs a query that has read all: ms of processor time."""
    reader: Any = RocketmqSource({"path": str(store)}).streamReader(columns)
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    for watched in (1.0, idle_s()):  # first it counts what it has read
        polls, used, until = 0, time.thread_time(), time.monotonic() + watched
        while time.monotonic() < until:
            assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
            reader.reportLatestOffset()
            polls += 1
    return (time.thread_time() - used) * 1000 / polls


def idle_share(spark: Any, store: Path) -> float:
    """Returns how much of a processor an idle query takes, with Spark's machine and workers."""
    frame = spark.readStream.format("rocketmq").load(str(store))
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()
            time.sleep(1)
            used = family_cpu_s()
            time.sleep(idle_s())
            return (family_cpu_s() - used) / idle_s()
        finally:
            query.stop()


def of_many_queues(rounds: int) -> list[Row]:
    count = TOPICS * QUEUES_EACH * ROWS_EACH
    many = fresh("formats-many")
    fill_many(many)
    read: list[Cost] = []
    with session("local[2]") as spark:
        for number in range(rounds + 1):
            frame = spark.read.format("rocketmq").load(str(many))
            parts = frame.rdd.getNumPartitions()
            found = cost(everything(frame))
            if number:
                read.append(found)
        polls = [idle_poll(many, frame.schema) for _ in range(rounds)]
        rest = [idle_share(spark, many) for _ in range(rounds)]
    shutil.rmtree(many)
    what = f"{TOPICS * QUEUES_EACH:,} queues, {count:,} messages"
    return [
        Row("one poll of an idle query", what, "mean of 10 s", "cpu-ms", polls, 2.0, smaller=True),
        Row("an idle query, Spark's own work too", what, "10 s", "cpu-s/s", rest, smaller=True),
        Row("read of short queues", what, f"{parts} partitions", "s", [c.wall for c in read], 3.0,
            smaller=True),
        Row("read of short queues", what, f"{parts} partitions", "cpu-s", [c.cpu for c in read],
            smaller=True),
    ]  # fmt: skip


def bench(given: Given) -> Iterator[Row]:
    # First: Spark's virtual machine takes the jars of its first session alone.
    try:
        if "rows" in given.only:
            yield from of_rows(harness.scaled(COUNT), given.rounds)
    except Missing as missing:
        print(f"Kafka: {missing}", file=sys.stderr)
    if "queues" in given.only:
        yield from of_many_queues(given.rounds)
