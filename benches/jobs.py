"""Spark jobs, each beside the reference that it is measured against, in the same run.

    python -m benches jobs [--only archive,audits,batch] [--rounds 3] [--keep FILE]

archive   beside a source that yields prepared batches of the same rows, written by Spark's Parquet
          writer and not compared; then a second run with 1 % new
audits    verify and rebuild, on two executors of one core, beside `pystore verify` and
          `pystore rebuild` of one process that has one core
batch     all default columns of a store to the noop sink, on one and on two executors, each of
          which has one core of the machine for all that it runs

Beside both: the same work by one process and by two at once that share nothing, each on a core of
its own. No two executors are worth more than those.

Executors are processes of their own (`local-cluster`). What is timed begins in a warm session. A
part that fails is named and leaves the others; then nothing is kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pystore
from benches import harness
from benches.harness import (
    QUEUES,
    ROOT,
    TOPIC,
    Given,
    Row,
    bodies,
    command_of,
    flat,
    fresh,
    into_cache,
)
from pystore.cli import main as program

SIZE = 1024
#: Of the audits: records, not bytes, are what costs.
SMALL = 128
CHUNK = 50_000
#: No round of a part begins later than this after its first: all parts end within ten minutes.
ROUNDS_S = 90.0
#: Small enough that the log of a bench is many segments, as a large store's is.
SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 64 << 20}

# ---- sessions and stores ----


@contextlib.contextmanager
def session(master: str, **more: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), str(ROOT)])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "2g",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    } | more
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def executors(count: int) -> str:
    """The master of so many executors of one core."""
    return f"local-cluster[{count},1,1024]"


def pin_executors() -> None:
    """Gives each executor that this process has started, with all its threads and its Python
    processes, a core of its own: else the virtual machine and the Python process of one task work
    side by side on two, and one executor is two."""
    own = os.getpid()
    machines = [pid for pid in _processes(own) if b"CoarseGrainedExecutorBackend" in _words(pid)]
    for core, machine in zip(sorted(os.sched_getaffinity(0)), sorted(machines), strict=False):
        for pid in [machine, *_processes(machine)]:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), {core})


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _processes(above: int) -> list[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    layer = {above}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += layer
    return found


def fill(path: Path, count: int, size: int = SIZE) -> None:
    column = bodies(min(CHUNK, count), size)
    with pystore.open(path, **SETTINGS) as store:
        for first in range(0, count, CHUNK):
            n = min(CHUNK, count - first)
            keys = flat([b"k%09d" % (first + i) for i in range(n)])
            queues = [i % QUEUES for i in range(n)]
            store.put_many(TOPIC, flat(column[:n]), queues=queues, keys=keys, tags="tag")


def job(*words: object) -> float:
    """Seconds of a job, in the session that is there."""
    began = time.perf_counter()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = program(["spark", *map(str, words), "--json"])
    if code:
        raise RuntimeError(f"{words[0]} ended with {code}: {said.getvalue()[-500:]}")
    return time.perf_counter() - began


def seconds(frame: Any) -> float:
    return harness.seconds(frame.write.format("noop").mode("overwrite").save)


def rounds_within(rounds: int, budget_s: float) -> Iterator[int]:
    """So many rounds, of which none begins after the budget but the first."""
    end = time.monotonic() + budget_s
    for number in range(rounds):
        if number and time.monotonic() > end:
            return
        yield number


# ---- archive ----


def prepared(spark: Any, path: Path, count: int) -> Any:
    """The rows of an archive, from batches that are at hand."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from spark_ext.jobs.runs import FIELDS

    columns = f"{FIELDS}, topic string, day string"
    folder = fresh("jobs-sample")
    job("archive", path, folder)
    sample = spark.read.schema(columns).parquet(*map(str, folder.glob("run=*")))
    # Too many rows for Parquet's dictionaries, as a store's are; tasks map them, as they map a log.
    table = sample.limit(20_000).toArrow()
    shutil.rmtree(folder)
    file = str(fresh("jobs-sample.arrow"))
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table, max_chunksize=10_000)
    rows = table.num_rows
    store = spark.read.format("rocketmq").option("scan", "log").load(str(path))
    parts = store.rdd.getNumPartitions()

    class Again(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(i) for i in range(parts)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            batches = pa.ipc.open_file(pa.memory_map(file)).read_all().to_batches()
            left = count // parts
            while left > 0:
                for batch in batches[: max(1, -(-left * len(batches) // rows))]:
                    if left > 0:
                        yield batch.slice(0, left)
                        left -= batch.num_rows

    class Prepared(DataSource):
        @classmethod
        def name(cls) -> str:
            return "prepared-archive"

        def schema(self) -> str:
            return columns

        def reader(self, schema: Any) -> DataSourceReader:
            return Again()

    spark.dataSource.register(Prepared)
    return spark.read.format("prepared-archive").load()


def write_parquet(frame: Any, folder: Path) -> float:
    """By topic and day, as archive does, without its comparisons."""
    shutil.rmtree(folder, ignore_errors=True)
    writer = frame.write.partitionBy("topic", "day").option("compression", "zstd")
    return harness.seconds(lambda: writer.parquet(str(folder)))


def of_archive(count: int, rounds: int) -> list[Row]:
    path, archive = fresh("jobs-archive-store"), fresh("jobs-archive")
    fill(path, count)
    theirs, ours, again = [], [], []
    with session("local[2]") as spark:
        frame = prepared(spark, path, count)
        write_parquet(frame, archive)
        for _ in rounds_within(rounds, ROUNDS_S):
            theirs.append(write_parquet(frame, archive))
            shutil.rmtree(archive)
            ours.append(job("archive", path, archive))
            fill(path, count // 100)
            again.append(job("archive", path, archive))
            shutil.rmtree(archive)
    shutil.rmtree(path)
    mode, what = "2 cores, zstd", f"{SIZE} B bodies, {count:,} messages"
    pairs = list(zip(theirs, ours, strict=True))
    return [
        Row("archive", what, mode, "rows/s", [count / s for s in ours]),
        Row("prepared Arrow source to Parquet", what, mode, "rows/s", [count / s for s in theirs]),
        Row("archive / prepared", what, mode, "x", [a / b for a, b in pairs], 0.8),
        Row("archive with 1 % new / first", what, mode, "x",
            [b / a for a, b in zip(ours, again, strict=True)], 0.1, smaller=True),
    ]  # fmt: skip


# ---- verify and rebuild ----

ALONE = """
import os, sys, time
what, path, core = sys.argv[1:]
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(core)]})
import pystore
from pystore.audit import verify
from pystore.repair import rebuild

import pyarrow

def read(path):
    for batch in pyarrow.RecordBatchReader.from_stream(pystore.Reader(path).arrow("bench")):
        pass

print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
{"verify": verify, "rebuild": rebuild, "read": read}[what](path)
print(time.perf_counter() - began)
"""


def alone(what: str, path: Path, count: int = 1) -> float:
    """Seconds of the work in one process of one core, without its start; of the slowest of `count`
    that do it at the same time, each on a core of its own."""
    words = [sys.executable, "-c", ALONE, what, str(path)]
    tools = [
        subprocess.Popen([*words, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for core in range(count)
    ]
    for tool in tools:
        assert tool.stdout is not None
        tool.stdout.readline()
    for tool in tools:
        assert tool.stdin is not None
        tool.stdin.write(b"\n")
        tool.stdin.flush()
    took = [float(tool.communicate()[0] or "nan") for tool in tools]
    if any(tool.returncode for tool in tools):
        raise RuntimeError(f"{what} ended with {[tool.returncode for tool in tools]}")
    return max(took)


def control(what: str, words: str, path: Path, payload: str, rounds: int) -> Row:
    """What two cores of this machine are worth to work that shares nothing."""
    pairs = [(alone(what, path), alone(what, path, 2)) for _ in range(rounds)]
    mode = "two processes on a core each, nothing shared"
    return Row(f"control: {words}, two / one", payload, mode, "x", [2 * a / b for a, b in pairs])


def of_audits(count: int, rounds: int) -> list[Row]:
    path = fresh("jobs-audit")
    fill(path, count, SMALL)
    what = f"{SMALL} B bodies, {count:,} messages"
    rows = [control("verify", "pystore verify", path, what, rounds)]
    with session(executors(2)) as spark:
        spark.range(2).count()
        job("verify", path)
        for what in ("verify", "rebuild"):
            ours, theirs = [], []
            for _ in rounds_within(rounds, ROUNDS_S / 2):
                into_cache(path)
                theirs.append(alone(what, path))
                into_cache(path)
                ours.append(job(what, path))
                for side in path.glob("repair-*"):
                    shutil.rmtree(side)
            payload, mode = f"{SMALL} B bodies, {count:,} messages", "page cache, CRC checked"
            pairs = list(zip(theirs, ours, strict=True))
            rows += [
                Row(f"spark {what}, two executors", payload, mode, "rows/s",
                    [count / s for s in ours]),
                Row(f"pystore {what}, one core", payload, mode, "rows/s",
                    [count / s for s in theirs]),
                Row(f"{what}: rate a core / one process's", payload, mode, "x",
                    [a / b / 2 for a, b in pairs], 0.7),
            ]  # fmt: skip
    shutil.rmtree(path)
    return rows


# ---- one executor and two ----


def of_batch(count: int, rounds: int) -> list[Row]:
    path = fresh("jobs-batch")
    fill(path, count)
    into_cache(path)
    what, mode = f"{SIZE} B bodies, {count:,} messages", "default columns, noop sink"
    plain = control("read", "the same rows as Arrow", path, what, rounds)
    took: dict[int, list[float]] = {1: [], 2: []}
    # In turns: a machine that is slower for a minute is so for both.
    for _ in rounds_within(rounds, 1.5 * ROUNDS_S):
        for many, each in took.items():
            with session(executors(many)) as spark:
                frame = spark.read.format("rocketmq").option("minPartitions", 8).load(str(path))
                seconds(frame)
                pin_executors()
                seconds(frame)
                each.append(statistics.median(seconds(frame) for _ in range(rounds)))
    shutil.rmtree(path)
    return [
        plain,
        *(Row(f"batch, {n} executor{'s' * (n > 1)} of one core", what, mode, "rows/s",
              [count / s for s in each]) for n, each in took.items()),
        Row("batch: two executors / one", what, mode, "x",
            [a / b for a, b in zip(took[1], took[2], strict=False)], 1.8),
    ]  # fmt: skip


#: A part and how many messages it takes: enough that a start of Spark's tasks is little beside it.
WORKS: dict[str, tuple[Callable[[int, int], list[Row]], int]] = {
    "archive": (of_archive, 3_000_000), "audits": (of_audits, 16_000_000),
    "batch": (of_batch, 2_000_000),
}  # fmt: skip


def rows_of(name: str, rounds: int) -> list[Row]:
    """A part, in a process of its own: Spark's virtual machine keeps what its first session had.
    Raises: RuntimeError when the part fails."""
    file = fresh(f"jobs-{name}.json")
    done = subprocess.run(command_of(work_into, str(file), name, rounds), cwd=ROOT, check=False)
    if not file.exists():
        raise RuntimeError(f"ended with {done.returncode}, see above")
    found = json.loads(file.read_text("utf-8"))
    file.unlink()
    return [Row(**row) for row in found]


def work_into(file: str, name: str, rounds: int) -> None:
    """Does a part and writes its rows."""
    work, count = WORKS[name]
    rows = [asdict(row) for row in work(harness.scaled(count), rounds)]
    Path(file).write_text(json.dumps(rows), encoding="utf-8")


def bench(given: Given) -> Iterator[Row]:
    failed = []
    for name in given.only:
        began = time.perf_counter()
        try:
            yield from rows_of(name, given.rounds)
        except RuntimeError as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; nothing is kept")
