"""Tries an installed wheel, and nothing but it: what a user gets who never saw the source tree.

try_wheel.py [spark | grpc]: puts and reads by the store, the command line and a broker in this
process; with `spark` it also writes a store with Spark and reads it again, with `grpc` it opens the
gRPC port. Run it with the Python of an environment that holds the wheel alone, outside the tree
(`make test-wheel`, `make test-wheel-aarch64`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import broker
import pystore

BIN = Path(sys.executable).parent


def run(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def try_store(path: Path) -> None:
    with pystore.open(path) as store:
        store.put("orders", "one", keys="k1", queue=0)
        store.put_many("orders", ["two", "three"], queue=0)
    with pystore.Reader(path) as reader:
        assert [bytes(m.body) for m in reader.messages()] == [b"one", b"two", b"three"]
        assert [bytes(m.body) for m in reader.query("orders", "k1")] == [b"one"]


def try_program(path: Path) -> None:
    assert run(BIN / "pystore", "--version") == f"pystore {pystore.__version__}\n"
    assert "_pystore_completion" in run(BIN / "pystore", "--show-completion", "bash")
    assert '"body":"three"' in run(BIN / "pystore", "tail", path, "orders", "--json")
    for verb in ("broker", "namesrv", "tx"):
        run(BIN / "pystore", verb, "--help")


def try_broker(path: Path) -> None:
    with broker.Broker(path, listenPort=0, with_namesrv=True) as made:
        assert made.address.endswith(f":{made.port}")
        assert made.store.range("orders", 0) == (0, 3)


def try_grpc(path: Path) -> None:
    with broker.Broker(path, listenPort=0, grpc_port=0) as made:
        host, port = made.grpc_address.split(":")
        with socket.create_connection((host, int(port)), 30) as client:
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
            assert client.recv(9)[3] == 4, "the first frame of an HTTP/2 server has its settings"


def try_spark(path: Path) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
    try:
        rows = spark.range(100).selectExpr("cast(id AS string) AS body", "'numbers' AS topic")
        rows.write.format("rocketmq").mode("append").save(str(path))
        read = spark.read.format("rocketmq").load(str(path)).select("topic", "body").collect()
        assert sorted(int(bytes(r.body)) for r in read) == list(range(100))
        assert {r.topic for r in read} == {"numbers"}
    finally:
        spark.stop()
    assert not Path(f"{path}.spool").exists(), "spool files are left"


def main() -> None:
    assert Path(pystore.__file__).is_relative_to(sys.prefix), pystore.__file__
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        try_store(Path(folder) / "store")
        try_program(Path(folder) / "store")
        try_broker(Path(folder) / "store")
        if sys.argv[1:] == ["grpc"]:
            try_grpc(Path(folder) / "store")
        if sys.argv[1:] == ["spark"]:
            try_spark(Path(folder) / "sink")
    print(f"the wheel of {pystore.__version__} works, {' '.join(sys.argv[1:]) or 'without extras'}")


if __name__ == "__main__":
    main()
