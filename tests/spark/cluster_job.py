"""What test_cluster.py submits: `cluster_job.py WHAT JSON`; the last line it prints is JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType

import spark_ext
from pystore.cli import main as main_of_pystore
from spark_ext.jobs import archive, spread


@udf(StringType())
def where(_: int) -> str:
    """The executor's folder and the packages that it uses."""
    import pystore

    return f"{Path.cwd()} {pystore.__file__}"


def read(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """Rows, and the executors that were there."""
    frame = _load(spark.read, given).select("body", "brokerName", where("queueId").alias("where"))
    rows = frame.collect()
    return {
        "bodies": sorted(bytes(row.body).decode() for row in rows),
        "brokers": sorted({row.brokerName for row in rows}),
        "where": sorted({row.where for row in rows}),
    }


@udf(StringType())
def network(_: int) -> str:
    """The executor's network namespace, and the address that it was given."""
    return f"{Path('/proc/self/ns/net').readlink()} {os.environ['SPARK_LOCAL_IP']}"


def networks(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    rows = _load(spark.read, given).select(network("queueId").alias("network")).distinct().collect()
    return {"networks": sorted(row.network.split() for row in rows)}


def _load(reader: Any, given: dict[str, Any]) -> DataFrame:
    for name, value in given["options"].items():
        reader = reader.option(name, value)
    return reader.format("rocketmq").load(given["path"])


def save(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """Rows from three tasks, each of which halts for a while after its first rows."""
    rows = given["rows"]
    sleep = f"reflect('java.lang.Thread', 'sleep', {given['halt_ms']}L)"
    halt = f"CASE WHEN id % {rows // 3} = {rows // 4} THEN {sleep} END"
    frame = spark.range(0, rows, 1, 3).selectExpr(
        "lpad(cast(id AS string), 8, '0') AS body", f"cast({halt} AS string) AS tags"
    )
    writer = frame.write.format("rocketmq").mode("append").option("topic", "t")
    for name, value in given["options"].items():
        writer = writer.option(name, value)
    writer.save(given["path"])
    return {}


def stream(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """From a store into a store; all that is there, or until it is killed."""
    frame = _load(spark.readStream, given).selectExpr("body", "'copy' AS topic")
    writer = frame.writeStream.format("rocketmq")
    for name, value in given["sink"].items():
        writer = writer.option(name, value)
    query = writer.trigger(availableNow=True).start(given["into"])
    query.awaitTermination()
    return {"batches": [p["numInputRows"] for p in query.recentProgress]}


def jobs(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """The report of each job; while one of `killed` works, an executor dies."""
    archive._ALONE_BYTES = spread._ALONE_BYTES = 0  # else the driver does it, of so small a store
    reports = []
    for words, killed in given["jobs"]:
        over, hit = threading.Event(), list[int]()
        killer = threading.Thread(target=_kill_executor, args=(spark, over, hit))
        if killed:
            killer.start()
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            code = main_of_pystore(["spark", *words, "--json"])
        over.set()
        if killed:
            killer.join()
        text = said.getvalue()
        found = json.loads(text) if text else wrong.getvalue()[-2000:]
        reports.append({"code": code, "hit": len(hit), "said": found})
    return {"reports": reports}


def _kill_executor(spark: SparkSession, over: threading.Event, hit: list[int]) -> None:
    """SIGKILL to one of the application's executors while a task runs. Until then it is stopped, so
    that no task of it ends before it is seen."""
    tracker, name = spark.sparkContext.statusTracker(), spark.sparkContext.applicationId.encode()
    victim = _executor_of(name)
    while victim is None and not over.wait(0.05):
        victim = _executor_of(name)  # another one is starting
    if victim is None:
        return
    os.kill(victim, signal.SIGSTOP)
    while not over.wait(0.01):
        stages = [tracker.getStageInfo(i) for i in tracker.getActiveStageIds()]
        if any(each is not None and each.numActiveTasks for each in stages):
            hit.append(victim)
            break
    os.kill(victim, signal.SIGKILL if hit else signal.SIGCONT)


def _executor_of(application: bytes) -> int | None:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in words and application in words:
                return int(folder.name)
    return None


def main() -> None:
    what, given = sys.argv[1], json.loads(sys.argv[2])
    spark = spark_ext.session(SparkSession.builder.appName(what))
    known = {"read": read, "networks": networks, "save": save, "stream": stream, "jobs": jobs}
    print(json.dumps(known[what](spark, given)))
    spark.stop()


if __name__ == "__main__":
    main()
