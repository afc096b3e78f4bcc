"""Keeps Spark's classes as a virtual machine loads and verifies them: `python archive.py FILE`.

With -XX:SharedArchiveFile=FILE a session starts and makes its first query in half of the processor
time. A machine whose class path is another one, or of another version, leaves the file alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GIVE_UP_S = 300.0


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def work(spark: Any, folder: str) -> None:
    """A little of everything that tests ask of Spark."""
    rows = spark.range(100).selectExpr("id", "id % 3 AS k", "cast(id AS string) AS s")
    rows.mapInArrow(same, "id long, k long, s string").createOrReplaceTempView("rows")
    rows.write.parquet(f"{folder}/rows")
    read = spark.read.schema("id long, k long, s string").parquet(f"{folder}/rows")
    read.groupBy("k").count().orderBy("k").collect()
    spark.sql("SELECT a.s, b.id FROM rows a JOIN rows b USING (id) WHERE b.k > 1").toArrow()
    stream = spark.readStream.schema("id long, k long, s string").parquet(f"{folder}/rows")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/seen")
    writer.trigger(availableNow=True).start(f"{folder}/copy").awaitTermination()


def main(file: Path) -> None:
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "2")
        spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
        work(spark, folder)
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # it ends, and writes the file before
        gateway.proc.wait(GIVE_UP_S)
    made.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
