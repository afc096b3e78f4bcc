"""Processes of a write that are killed for real, with SIGKILL, while they work.

Who holds a store's lock is the process that commits, and who has a spool file open is the worker
that writes it: so a test finds the one to kill as an operator would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

import pystore
from pystore.cli._session import holder_of
from spark_ext import sink
from tests.spark.conftest import TooLate
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


def test_a_worker_in_mid_task_is_killed(spark, store_path):
    # local[2] tries a task once.
    killed(lambda: save(numbers(spark, slow=True), store_path, "load"), lambda: writing(store_path))
    assert not store_path.exists() or bodies(store_path) == []
    assert sink.pending(store_path) == []
    save(numbers(spark), store_path, "load")
    each_once(store_path)
