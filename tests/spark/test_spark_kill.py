"""Processes of a write that are killed for real, with SIGKILL, while they work.

Who holds a store's lock is the process that commits, and who has a spool file open is the worker
that writes it: so a test finds the one to kill as an operator would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S, until

import pystore
from pystore.cli._session import holder_of
from spark_ext import sink
from tests.spark.conftest import LOG4J, TooLate
from tests.spark.test_sink import SMALL, bodies, leftovers

pytestmark = pytest.mark.spark

ROWS = 90_000


def committing(path: Path, already: int = 0) -> int | None:
    """The process that holds the store's lock, once it has put more than `already` bytes.

    It is stopped while it is looked at, and stays so when it is returned: else the commit would be
    over before a starved test has decided.
    """
    # The lock is only looked at: to take it would get into the way of the one that commits.
    pid = holder_of(path).pid if any((path / "spark" / "ledger").glob("*.json")) else 0
    if not pid or pid == os.getpid():
        return None
    found = False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            found = bool(sink.pending(path)) and _end(path) > already
        finally:
            if not found:
                os.kill(pid, signal.SIGCONT)
    return pid if found else None


def writing(path: Path) -> int | None:
    """A worker that has a spool file of the store open."""
    spool = f"{path}.spool/"
    if not Path(spool).exists():
        return None
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(fd.readlink()).startswith(spool) and int(fd.parts[2]) != os.getpid():
                return int(fd.parts[2])
        except OSError:
            continue
    return None


def numbers(spark: Any, slow: bool = False) -> Any:
    """ROWS messages from three tasks; slow: each task halts for a while after its first rows."""
    sleep = "reflect('java.lang.Thread', 'sleep', 700L)"
    halt = f"CASE WHEN id % 30000 = 25000 THEN {sleep} END" if slow else "NULL"
    columns = ["lpad(cast(id AS string), 8, '0') AS body", f"cast({halt} AS string) AS tags"]
    return spark.range(0, ROWS, 1, 3).selectExpr(*columns)


def killed(work: Callable[[], Any], victim: Callable[[], int | None]) -> None:
    """Kills the process that `victim` finds while `work` runs, which must fail of it.

    Raises: TooLate.
    """
    hit: list[int] = []
    over = threading.Event()

    def look() -> int | None:
        return -1 if over.is_set() else victim()

    def kill() -> None:
        pid = until(look)
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
            hit.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        failure = error
    finally:
        over.set()
        killer.join()
    if not hit or failure is None:
        raise TooLate("it ended before it could be killed") from failure


def save(frame: Any, path: Path, job: str) -> None:
    writer = frame.write.format("rocketmq").mode("append").option("topic", "t")
    writer.option("storeConf", json.dumps(SMALL)).option("jobId", job).save(str(path))


def some(path: Path) -> int:
    """How many rows are there, fewer than all. Raises: TooLate."""
    count = len(bodies(path))
    if count >= ROWS:
        raise TooLate("every row was there when the process was killed")
    return count


def each_once(path: Path) -> None:
    assert bodies(path) == [f"{i:08d}" for i in range(ROWS)]
    assert sink.pending(path) == []
    assert not leftovers(path)


def test_the_process_that_commits_is_killed(spark, store_path):
    killed(lambda: save(numbers(spark), store_path, "load"), lambda: committing(store_path))
    assert some(store_path) > 0
    (entry,) = sink.pending(store_path)
    assert (entry.job, entry.rows) == ("load", ROWS)
    save(numbers(spark), store_path, "load")  # as an operator runs a failed job again
    each_once(store_path)


def test_it_is_killed_again_while_it_finishes_the_first(spark, store_path):
    run = lambda: save(numbers(spark), store_path, "load")  # noqa: E731
    killed(run, lambda: committing(store_path))
    end = _end(store_path)
    killed(run, lambda: committing(store_path, end))
    some(store_path)
    assert sink.finish(store_path, json.dumps(SMALL)) > 0
    assert bodies(store_path) == [f"{i:08d}" for i in range(ROWS)]
    assert sink.pending(store_path) == []


def _end(path: Path) -> int:
    with pystore.Reader(path) as reader:
        return int(reader.info().log_max)


@pytest.mark.long
def test_the_commit_of_a_streams_batch_is_killed(spark, tmp_path, store_path):
    source = tmp_path / "source"
    with pystore.open(source) as store:
        store.put_many("s", [f"{i:08d}".encode() for i in range(ROWS)], queue=0)

    def stream() -> None:
        frame = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", ROWS // 2).load(str(source))
        query = (
            frame.selectExpr("body", "'t' AS topic")
            .writeStream.format("rocketmq")
            .option("storeConf", json.dumps(SMALL))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(store_path))
        )
        query.awaitTermination(BOUND_S)

    killed(stream, lambda: committing(store_path))
    some(store_path)
    stream()
    each_once(store_path)


def test_a_worker_in_mid_task_is_killed(spark, store_path):
    # local[2] tries a task once.
    killed(lambda: save(numbers(spark, slow=True), store_path, "load"), lambda: writing(store_path))
    assert not store_path.exists() or bodies(store_path) == []
    assert sink.pending(store_path) == []
    save(numbers(spark), store_path, "load")
    each_once(store_path)


# ---- a driver of its own, which is killed with all that belongs to it ----

DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.spark.test_spark_kill import numbers, save
spark = (
    SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF").config("spark.driver.memory", "1g")
    .config("spark.local.dir", sys.argv[1]).getOrCreate()
)
for name in ("first", "second"):
    save(numbers(spark, slow=name == "first"), Path(sys.argv[1]) / name, "load")
    print("saved", name, flush=True)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A Spark that tries a task four times and writes into the stores first and second."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(LOG4J)
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), root]),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    errors = (tmp_path / "errors").open("w")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    errors.close()
    with process:
        yield process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_a_task_tried_again_and_a_driver_killed(spark, driver, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    os.kill(until(lambda: writing(first)), signal.SIGKILL)
    assert driver.stdout.readline() == "saved first\n", (tmp_path / "errors").read_text()
    each_once(first)  # the attempt that died left a spool, which is gone and was never put
    if until(lambda: committing(second) or driver.poll() is not None) is True:
        raise TooLate("the driver ended before it could be killed")
    os.killpg(driver.pid, signal.SIGKILL)  # driver, virtual machine, daemons, workers
    driver.wait()
    some(second)
    save(numbers(spark), second, "load")
    each_once(second)
