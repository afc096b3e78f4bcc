"""Servers of other make, for a client's bench: fetched into build/peers, started on free ports.

nats-server comes by `go install`, Redis from Debian's package (or from the path), Kafka from Maven.
Each keeps its messages in files and, as our broker by default, leaves it to the system when they
reach the disk; Redis syncs its file each second.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benches.brokers import _end, free_port
from benches.harness import ROOT, cpu_s, fresh

__all__ = ["FETCHED", "Missing", "Server", "fetch_jars", "kafka", "nats", "redis"]

FETCHED = ROOT / "build" / "peers"
NATS = "github.com/nats-io/nats-server/v2@v2.15.2"
DEBIAN = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>3.9.1</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId>
<version>1.7.36</version></dependency></dependencies></project>
"""
KAFKA = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}
num.partitions=4
offsets.topic.replication.factor=1
"""


class Missing(Exception):
    """A server cannot be had here; the text says why."""


class Server:
    """A running server: its address, and the processor time of its process."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self._pid = pid

    def cpu_s(self) -> float:
        return cpu_s(self._pid)


def _fetch(words: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which(words[0]) is None:
        raise Missing(f"{words[0]} is not installed")
    done = subprocess.run(
        words, cwd=folder, env=os.environ | (env or {}), capture_output=True, text=True
    )
    if done.returncode:
        said = done.stderr.strip() or next((x for x in done.stdout.split("\n") if "ERROR" in x), "")
        raise Missing(f"{' '.join(words[:2])} failed: {said[-300:]}")


@contextmanager
def _running(
    words: list[str], port: int, folder: Path, env: dict[str, str] | None = None
) -> Iterator[Server]:
    with (folder / "out").open("ab") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=out, cwd=folder, env=os.environ | (env or {})
        )
    try:
        end = time.monotonic() + 300
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise Missing(f"{words[0]} does not run: {(folder / 'out').read_text()[-300:]}")
            time.sleep(0.05)
        yield Server(f"127.0.0.1:{port}", process.pid)
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def nats() -> Iterator[Server]:
    """Raises: Missing."""
    program = FETCHED / "bin" / "nats-server"
    if not program.exists():
        _fetch(["go", "install", NATS], FETCHED, {"GOBIN": str(program.parent)})
    folder, port = _folder("nats"), free_port()
    words = [str(program), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    with _running(words, port, folder) as server:
        yield server


@contextmanager
def redis() -> Iterator[Server]:
    """Raises: Missing."""
    program = shutil.which("redis-server")
    if program is None:
        root = FETCHED / "redis"
        program = str(root / "usr" / "bin" / "redis-server")
        if not Path(program).exists():
            _fetch(["apt-get", "download", *DEBIAN], root)
            for package in root.glob("*.deb"):
                _fetch(["dpkg", "-x", package.name, "."], root)
        os.environ["LD_LIBRARY_PATH"] = str(next(root.glob("usr/lib/*-linux-gnu")))
    folder, port = _folder("redis"), free_port()
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with _running([*words, "--save", "", "--appendonly", "yes"], port, folder) as server:
        yield server


def fetch_jars(home: Path, pom: str) -> list[Path]:
    """What a Maven project needs to run, fetched once. Raises: Missing."""
    if not (home / "ready").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(pom)
        copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        _fetch([*copy, "-DincludeScope=runtime"], home)
        (home / "ready").touch()
    return sorted((home / "lib").glob("*.jar"))


@contextmanager
def kafka() -> Iterator[Server]:
    """Raises: Missing."""
    home = FETCHED / "kafka"
    fetch_jars(home, POM)
    folder, port = _folder("kafka"), free_port()
    conf = folder / "server.properties"
    conf.write_text(
        KAFKA.format(port=port, controller=free_port(), folder=folder / "log"), encoding="utf-8"
    )
    java = ["java", "-Xms1g", "-Xmx1g", "-cp", f"{home}/lib/*"]
    made = [*java, "kafka.tools.StorageTool", "format", "-t", "bench-bench-bench-benchA"]
    _fetch([*made, "-c", str(conf)], folder)
    with _running([*java, "kafka.Kafka", str(conf)], port, folder) as server:
        yield server


def _folder(name: str) -> Path:
    path = fresh(f"{name}-{os.getpid()}")
    path.mkdir(parents=True)
    return path
