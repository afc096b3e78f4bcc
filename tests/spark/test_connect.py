"""Spark Connect: the client has no Java, the server has the stores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import free_port
from waiting import BOUND_S, until

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("grpc_status", reason="pyspark[connect] is not installed")

import pystore
from tests.spark.clusters import BRIEF, ROOT, stopped
from tests.spark.conftest import LOG4J
from tests.spark.test_job_faults import JOBS, told, words

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

Run = Callable[..., subprocess.CompletedProcess[str]]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
CLIENT = """
import sys
import spark_ext
from pyspark.sql import SparkSession

url, store, copy, checkpoint = sys.argv[1:]
spark = spark_ext.session(SparkSession.builder.remote(url))
frame = spark.read.format("rocketmq").load(store)
frame.select("body", "topic").write.format("rocketmq").mode("append").save(copy)
stream = spark.readStream.format("rocketmq").option("startingOffsets", "earliest").load(copy)
writer = stream.select("body", "topic").writeStream.format("rocketmq")
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start(copy + "-2").awaitTermination()
print("there are", spark.read.format("rocketmq").load(copy + "-2").count())
spark.stop()
"""


JOBS_CLIENT = """
import sys
from pystore.cli import main
from spark_ext.jobs import archive, spread

archive._ALONE_BYTES = spread._ALONE_BYTES = 0  # else the client does it, of so small a store
main(["spark", *sys.argv[2:], "--master", sys.argv[1], "--json"])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """server(program, *words): runs a program whose first word is the address of a server."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    import pyspark

    folder = tmp_path_factory.mktemp("connect")
    home = Path(pyspark.__file__).parent
    (folder / "conf").mkdir()
    (folder / "conf" / "log4j2.properties").write_text(LOG4J)
    port = free_port()
    environment = os.environ | {
        "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
        "JAVA_TOOL_OPTIONS": BRIEF,
    }  # fmt: skip
    line = [
        home / "bin" / "spark-submit", "--class", SERVER, "--master", "local[1]",
        "--conf", "spark.driver.memory=768m", "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", "spark.sql.shuffle.partitions=2",
        "--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}", "spark-internal",
    ]  # fmt: skip

    def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, f"sc://127.0.0.1:{port}", *map(str, words)],
            env=environment | {"PATH": "/nonexistent"},
            capture_output=True, text=True, timeout=BOUND_S, check=False,
        )  # fmt: skip

    process = subprocess.Popen(line, env=environment, cwd=folder, start_new_session=True)
    with stopped(process):
        until(lambda: process.poll() is not None or _listens(port))
        yield run


def test_a_client_reads_writes_and_streams(server, tmp_path):
    with pystore.open(tmp_path / "store") as store:
        store.put_many("t", [b"a", b"b", b"c"])
    done = server(CLIENT, *(tmp_path / name for name in ("store", "copy", "checkpoint")))
    assert "there are 3" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_says_the_same_by_connect(server, run_job, busy, store_path, tmp_path, name):
    """The client has no Java, but sees the store and what the job writes."""
    store = busy(store_path)
    for out in ("here", "there"):
        (tmp_path / out).mkdir()
        if name == "restore":
            run_job("archive", store, tmp_path / out / "source")
    want = told(run_job(name, *words(name, store, tmp_path / "here")))
    done = server(JOBS_CLIENT, name, *words(name, store, tmp_path / "there"))
    assert done.stdout, done.stderr[-3000:]
    assert told(json.loads(done.stdout.splitlines()[-1])) == want


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
