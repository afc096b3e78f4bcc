"""Spark Connect: the client has no Java, the server has the stores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from waiting import BOUND_S, until

pytest.importorskip("pyspark", reason="PySpark is not installed")
pytest.importorskip("grpc_status", reason="pyspark[connect] is not installed")

import pystore
from tests.spark.clusters import ROOT, stopped
from tests.spark.conftest import LOG4J

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

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


def test_a_client_reads_writes_and_streams(tmp_path):
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    import pyspark

    with pystore.open(tmp_path / "store") as store:
        store.put_many("t", [b"a", b"b", b"c"])
    home = Path(pyspark.__file__).parent
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(LOG4J)
    port = free_port()
    environment = os.environ | {
        "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    line = [
        home / "bin" / "spark-submit", "--class", SERVER, "--master", "local[1]",
        "--conf", "spark.driver.memory=768m", "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.connect.grpc.binding.port={port}",
        "--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}", "spark-internal",
    ]  # fmt: skip
    server = subprocess.Popen(line, env=environment, cwd=tmp_path, start_new_session=True)
    with stopped(server):
        until(lambda: server.poll() is not None or _listens(port))
        folders = [str(tmp_path / name) for name in ("store", "copy", "checkpoint")]
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, f"sc://127.0.0.1:{port}", *folders],
            env=environment | {"PATH": "/nonexistent"},
            capture_output=True, text=True, timeout=BOUND_S, check=False,
        )  # fmt: skip
    assert "there are 3" in done.stdout, done.stderr[-3000:]


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
