"""What test_cluster.py submits: `cluster_job.py WHAT JSON`; the last line it prints is JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType

import spark_ext


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


def main() -> None:
    what, given = sys.argv[1], json.loads(sys.argv[2])
    spark = spark_ext.session(SparkSession.builder.appName(what))
    known = {"read": read, "networks": networks, "save": save, "stream": stream}
    print(json.dumps(known[what](spark, given)))
    spark.stop()


if __name__ == "__main__":
    main()
