"""A topic of JSON bodies into an Iceberg table: `pystore spark table`, beside Spark's own way from
files of the same JSON.

    python -m benches iceberg [--rounds 3] [--count 1000000] [--peers ours,spark]

Both on two cores, into tables partitioned by day. The first run is left out: it warms what compiles
itself. Ours keeps what came with the body, too: queue, offset, times, tags, keys, properties.
Spark's way is `spark.read.schema(…).json(…)` into Iceberg's own runtime, which is there up to Spark
4.1 and is fetched into build/peers with a Spark of that version. Its schema is given to it, ours is
found.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pystore
from benches.harness import SCRATCH, TOPIC, Figures, Given, Row, family_cpu_s, flat, fresh
from benches.jobs import job, session
from benches.peer_servers import FETCHED, fetch_jars

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>iceberg</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.iceberg</groupId>
<artifactId>iceberg-spark-runtime-4.1_2.13</artifactId><version>1.12.0</version></dependency>
</dependencies></project>
"""
SPARK = "pyspark>=4.1,<4.2"
CHUNK = 50_000
DAY_MS = 86_400_000
BEGAN_MS = 1_795_910_400_000
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, at BIGINT, state STRING, items ARRAY<STRING>"
#: Writes a table for each line, its name.
THEIRS = f"""
import sys
from pyspark.sql import SparkSession, functions as f
folder, warehouse, jar = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jar)
    .config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    .config("spark.driver.memory", "2g").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", warehouse).getOrCreate()
)
print("ready", flush=True)
for line in sys.stdin:
    rows = spark.read.schema("{SCHEMA}").json(folder)
    rows = rows.withColumn("day", f.to_date(f.timestamp_millis("at")))
    rows.writeTo("lake.shop." + line.strip()).partitionedBy("day").create()
    print("written", flush=True)
spark.stop()
"""


def order(number: int) -> bytes:
    states = ("placed", "paid", "sent", "returned")
    body = {
        "id": number, "customer": f"customer-{number * 7919 % 100_003}",
        "amount": number % 99_991 / 100, "at": BEGAN_MS + number % DAY_MS,
        "state": states[number % len(states)],
        "items": [f"sku-{number % 977}", f"sku-{number % 31}"],
    }  # fmt: skip
    return json.dumps(body).encode()


def make(store: Path, folder: Path, count: int) -> int:
    """Makes a store, and files with the same JSON; returns the bytes of JSON."""
    folder.mkdir()
    total = 0
    with pystore.open(store, mappedFileSizeCommitLog=64 << 20) as opened:
        for first in range(0, count, CHUNK):
            bodies = [order(number) for number in range(first, min(first + CHUNK, count))]
            opened.put_many(TOPIC, flat(bodies), queues=[at % 4 for at in range(len(bodies))])
            text = b"\n".join(bodies)
            (folder / f"{first:09d}.json").write_bytes(text)
            total += len(text)
    return total


@contextmanager
def theirs(folder: Path) -> Iterator[Callable[[str], None]]:
    """Yields what writes a table of a name. Raises: Missing, subprocess.CalledProcessError."""
    jar = fetch_jars(FETCHED / "iceberg", POM)[0]
    home = FETCHED / "spark-4.1"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", SPARK], check=True)
        (home / "ready").touch()
    words = [str(python), "-c", THEIRS, str(folder), str(fresh("iceberg-theirs")), str(jar)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        said, told = running.stdout, running.stdin
        assert said is not None and told is not None

        def write(table: str) -> None:
            print(table, file=told, flush=True)
            if said.readline() != "written\n":
                raise RuntimeError(f"Spark ended with {running.wait()}")

        if said.readline() != "ready\n":
            raise RuntimeError(f"Spark ended with {running.wait()}")
        yield write
        told.close()


def catalog(warehouse: Path) -> dict[str, str]:
    where = {"uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
    return {"type": "sql", **where}


def ours(store: Path, warehouse: Path, table: str) -> None:
    given = [f"--property={name}={value}" for name, value in catalog(warehouse).items()]
    job("table", store, TOPIC, f"shop.{table}", "--json-bodies", *given)


def cost(work: Callable[[], None]) -> tuple[float, float]:
    """Returns seconds, and those of processor time of this process and all below it."""
    began, cpu = time.perf_counter(), family_cpu_s()
    work()
    return time.perf_counter() - began, family_cpu_s() - cpu


def bench(given: Given) -> list[Row]:
    from pyiceberg.catalog import load_catalog

    store, folder, warehouse = fresh("iceberg-store"), fresh("iceberg-json"), fresh("iceberg-ours")
    size = make(store, folder, given.count)
    warehouse.mkdir()
    figures = Figures(f"JSON of {size // given.count} B")
    with (
        theirs(folder) if "spark" in given.peers else nullcontext() as write,
        session("local[2]"),  # after it: its environment is not for the other
    ):
        for number in range(given.rounds + 1):
            costs = {}
            if write:
                costs["Spark's own"] = cost(partial(write, f"t{number}"))
            costs["pystore spark table"] = cost(partial(ours, store, warehouse, f"t{number}"))
            if number == 0:
                continue
            for mode, (took, cpu) in costs.items():
                figures.add("JSON to Iceberg", mode, "rows/s", given.count / took, smaller=False)
                figures.add("processor time", mode, "s a million", cpu / given.count * 1e6)
            if write:
                rate = costs["Spark's own"][0] / costs["pystore spark table"][0]
                figures.add("rate, of Spark's own", "pystore spark table", "x", rate,
                            target=0.5, smaller=False)  # fmt: skip
        table = load_catalog("default", **catalog(warehouse)).load_table(f"shop.t{given.rounds}")
        assert table.scan().count() == given.count
    for path in store, folder, warehouse, SCRATCH / "iceberg-theirs":
        shutil.rmtree(path, ignore_errors=True)
    return figures.rows
