"""Servers of other make, for a client's bench: fetched into build/peers, started on free ports.

nats-server comes by `go install`, Redis from Debian's package (or from the path), Kafka and Apache
RocketMQ's proxy from Maven. Each keeps its messages in files and, as our broker by default, leaves
it to the system when they reach the disk; Redis syncs its file each second.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benches.brokers import TOPIC, Peer, _end, ask, connect, frame, free_port, peer_of
from benches.harness import ROOT, cpu_s, fresh

__all__ = [
    "FETCHED", "Missing", "Server", "fetch_jars", "kafka", "make_topic", "nats", "proxy", "redis",
]  # fmt: skip

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
PROXY_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>proxy</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-proxy</artifactId>
<version>5.3.3</version></dependency></dependencies></project>
"""
#: In local mode the broker is in the proxy's process.
PROXY_BROKER = """brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
namesrvAddr={namesrv}
brokerIP1=127.0.0.1
listenPort={port}
traceTopicEnable=false
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
"""
#: What the proxy's store needs of Java 17.
OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)  # fmt: skip
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


@contextmanager
def proxy() -> Iterator[Server]:
    """Apache's proxy in local mode, with a topic `bench`. Raises: Missing."""
    home, folder = FETCHED / "proxy", _folder("proxy")
    fetch_jars(home, PROXY_POM)
    with peer_of("5.3.3") as peer:
        conf = folder / "broker.conf"
        conf.write_text(PROXY_BROKER.format(namesrv=peer.namesrv, port=peer.port, folder=folder))
        port = free_port()
        settings = {
            "rocketMQClusterName": "DefaultCluster", "grpcServerPort": port,
            "remotingListenPort": free_port(),
        }  # fmt: skip
        (folder / "proxy.json").write_text(json.dumps(settings))
        (folder / "conf").mkdir()
        for name in ("rmq.proxy", "rmq"):
            (folder / "conf" / f"{name}.logback.xml").write_text(QUIET)
        words = ["java", *OPENS, "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"]
        words += ["-cp", f"{folder}/conf:{home}/lib/*", f"-Duser.home={folder}"]
        words += ["org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-n", peer.namesrv]
        words += ["-pc", str(folder / "proxy.json"), "-bc", str(conf)]
        env = {"ROCKETMQ_HOME": str(folder), "RMQ_PROXY_HOME": str(folder)}
        with _running(words, port, folder, env) as server:
            make_topic(peer)
            yield server


QUIET = '<configuration><root level="ERROR"/></configuration>'


def make_topic(peer: Peer) -> None:
    """The topic `bench`, of the type that a proxy asks for."""
    ext = {
        "topic": "bench", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        "attributes": "+message.type=NORMAL",
    }  # fmt: skip
    with connect(peer.port) as wire:
        code, _ = ask(wire, frame(TOPIC, ext))
    if code:
        raise Missing(f"the broker does not make a topic: {code}")


def _folder(name: str) -> Path:
    path = fresh(f"{name}-{os.getpid()}")
    path.mkdir(parents=True)
    return path
