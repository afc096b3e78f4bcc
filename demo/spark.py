"""The last step of the demo: Spark over the raw segments, at rest and while they grow."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

import pystore
from demo.terminal import console

TOPIC = "flights"
NEW_TOPIC = "spark-demo"
ROUNDS = 4
PUT_A_ROUND = 250
PATIENCE_S = 60
LOG4J = """rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
"""

DELAYS = """
SELECT carrier, count(*) AS flights, avg(delay) AS delay
FROM (SELECT tags AS carrier,
             cast(get_json_object(cast(body AS string), '$.arr_delay') AS double) AS delay
      FROM messages)
GROUP BY carrier ORDER BY carrier
"""


def run(store_path: str | os.PathLike[str], flights: pd.DataFrame) -> bool:
    """Asks Spark about the store of the flights, beside pandas, then streams from it.

    flights: the table that the store was filled from. True when every answer is right, and when
    Spark is not here: the demo says so then.
    """
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    missing += [] if shutil.which("java") else ["Java"]
    if missing:
        console.print(f"  left out: {' and '.join(missing)} cannot be found")
        return True
    with (
        tempfile.TemporaryDirectory(prefix="spark-demo-") as scratch,
        session(Path(scratch)) as spark,
    ):
        right = delays(spark, Path(store_path), flights)
        return stream(spark, Path(store_path), Path(scratch)) and right


@contextmanager
def quiet() -> Iterator[None]:
    """The virtual machine inherits a standard error that goes nowhere: it greets at length."""
    warnings.filterwarnings("ignore", module="pyspark")
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def session(scratch: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    (scratch / "log4j2.properties").write_text(LOG4J)
    kept = dict(os.environ)
    root = str(Path(__file__).resolve().parents[1])
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join([root, *filter(None, [kept.get("PYTHONPATH")])]),
        SPARK_CONF_DIR=str(scratch),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    began = time.perf_counter()
    try:
        with quiet():
            spark = (
                SparkSession.builder.master("local[2]")
                .appName("flights")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "OFF")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
                .getOrCreate()
            )
        console.print(
            f"  PySpark {spark.version}, local[2], ready in {time.perf_counter() - began:.1f} s;"
            " it maps the store's own segments, no broker runs."
        )
        yield spark
        spark.stop()
    finally:
        os.environ.clear()
        os.environ.update(kept)


def delays(spark: Any, store: Path, flights: pd.DataFrame) -> bool:
    """Flights and mean delay of each carrier: SQL over the segments, and pandas on the table."""
    began = time.perf_counter()
    frame = spark.read.format("rocketmq").option("topic", TOPIC).schema("body binary, tags string")
    frame.load(str(store)).createOrReplaceTempView("messages")
    rows = spark.sql(DELAYS).collect()
    seconds = time.perf_counter() - began
    want = flights.groupby("carrier")["arr_delay"].agg(["size", "mean"])
    table = Table("carrier", "flights", "pandas", "mean delay, min", "pandas", "")
    wrong = set(want.index) ^ {row.carrier for row in rows}
    for row in rows:
        if row.carrier in wrong:
            continue
        size, mean = int(want["size"][row.carrier]), float(want["mean"][row.carrier])
        same = row.flights == size and abs(row.delay - mean) < 1e-9 * max(1.0, abs(mean))
        wrong |= set() if same else {row.carrier}
        mark = "[green]same[/]" if same else "[bold red]DIFFERS[/]"
        numbers = (f"{row.flights:,}", f"{size:,}", f"{row.delay:.3f}", f"{mean:.3f}")
        table.add_row(row.carrier, *numbers, mark)
    console.print(table)
    count = sum(row.flights for row in rows)
    console.print(
        f"  {count:,} messages parsed and aggregated in {seconds:.1f} s, of which a good part is"
        " the first query of a session."
    )
    return not wrong


def stream(spark: Any, store: Path, scratch: Path) -> bool:
    """A query runs while this process puts messages into the store that it reads."""
    source = spark.readStream.format("rocketmq").option("startingOffsets", "latest")
    with pystore.open(store) as writer:
        writer.put(NEW_TOPIC, b"", queue=0)
        frame = source.option("topic", NEW_TOPIC).load(str(store))
        query = (
            frame.select("body")
            .writeStream.format("memory")
            .queryName("seen")
            .option("checkpointLocation", str(scratch / "checkpoint"))
            .start()
        )
        try:
            first = query.lastProgress
            until(lambda: query.lastProgress is not None and query.lastProgress != first)
            put, waits = 0, []
            for _ in range(ROUNDS):
                bodies = [str(put + i) for i in range(PUT_A_ROUND)]
                writer.put_many(NEW_TOPIC, bodies, queue=0)
                put += len(bodies)
                began = time.perf_counter()
                until(lambda total=put: spark.table("seen").count() >= total)  # type: ignore[misc]
                waits.append(time.perf_counter() - began)
            seen = [int(bytes(row.body)) for row in spark.table("seen").collect()]
        finally:
            query.stop()
    right = sorted(seen) == list(range(put))
    mark = "[green]each once[/]" if right else "[bold red]DIFFERS[/]"
    console.print(
        f"  {put:,} messages put while a streaming query ran, {len(seen):,} seen by it, {mark};"
        f" {min(waits):.1f} to {max(waits):.1f} s from put to seen."
    )
    return right


def until(what: Any) -> None:
    """Waits until something is so, or the patience is at its end."""
    end = time.monotonic() + PATIENCE_S
    while not what() and time.monotonic() < end:
        time.sleep(0.1)
