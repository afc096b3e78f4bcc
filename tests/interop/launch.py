"""Brokers and name servers of either make, as processes of their own that tests start and end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_port
from waiting import BOUND_S, until

SCRIPT = Path(__file__).resolve().parents[1] / "reference" / "reference"
PYSTORE = Path(sys.executable).parent / "pystore"
#: Files small enough for a test; delays that a test can wait for.
SETTINGS = {
    "mappedFileSizeCommitLog": 64 << 20,
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "enablePropertyFilter": "true",
}
#: A Java virtual machine that has just started is slow; it shall not answer "busy" for that.
JAVA_SETTINGS = {"waitTimeMillsInSendQueue": 10000, "waitTimeMillsInPullQueue": 10000}
#: Request and response codes.
ROUTE, CLUSTER = 105, 106


def ask(
    address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: code, fields and body of the answer."""
    head = {"code": code, "language": "OTHER", "version": 479, "opaque": 1, "flag": 0}
    header = json.dumps({**head, "extFields": dict(ext or {})}).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as wire:
        wire.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        frame = wire.makefile("rb")
        total, n = struct.unpack(">ii", frame.read(8))
        said = json.loads(frame.read(n & 0xFFFFFF))
        return said["code"], said.get("extFields") or {}, frame.read(total - 4 - (n & 0xFFFFFF))


def wait(what: str, holds: Callable[[], object]) -> None:
    """Until it holds; a server that does not answer yet does not count. Raises: AssertionError."""

    def answered() -> object:
        with suppress(OSError, struct.error):
            return holds()
        return False

    until(answered, what, 0.02)


@dataclass
class Server:
    """A name server, a broker or both in one process."""

    words: list[str]
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "out"

    def start(self) -> None:
        assert self.process is None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.words,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=os.environ | self.env,
            )

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """A clean end, or kill when it does not come; its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process = None

    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_text("utf-8", "replace")[-3000:] if self.log.exists() else ""


@dataclass
class Peer:
    """A running broker with the name server it is registered with."""

    make: str
    namesrv: str
    broker: str
    folder: Path
    broker_server: Server
    servers: list[Server]

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def wait_ready(self) -> None:
        """Until the name server tells the broker's address and the route that new topics need."""

        def there() -> bool:
            if self.broker_server.process and self.broker_server.process.poll() is not None:
                raise RuntimeError(f"the broker ended:\n{self.broker_server.said()}")
            code, _, body = ask(self.namesrv, CLUSTER)
            known = code == 0 and f'"{self.broker}"'.encode() in body
            code, _, body = ask(self.namesrv, ROUTE, {"topic": "TBW102"})
            return known and code == 0 and f'"{self.broker}"'.encode() in body

        wait(f"registration of {self.broker} ({self.make})", there)

    def kill(self) -> None:
        self.broker_server.kill()

    def restart(self) -> None:
        self.broker_server.start()

    def stop(self) -> None:
        for server in reversed(self.servers):
            server.stop()


def _java(folder: Path, settings: Mapping[str, Any], version: str, namesrv: str | None) -> Peer:
    port, namesrv_port = free_port(), free_port()
    if namesrv is not None:
        namesrv_port = int(namesrv.rpartition(":")[2])
    env = {
        "RMQ_VERSION": version,
        "RMQ_NAMESRV_PORT": str(namesrv_port),
        "RMQ_BROKER_PORT": str(port),
        "HEAP": os.environ.get("HEAP", "512m"),
        "DIRECT": "512m",
        "NAMESRV_HEAP": "128m",
    }
    given = [f"{name}={value}" for name, value in (JAVA_SETTINGS | dict(settings)).items()]
    names = Server([str(SCRIPT), "namesrv", str(folder)], folder / "namesrv", env)
    server = Server([str(SCRIPT), "broker", str(folder), *given], folder / "broker", env)
    servers = [server] if namesrv else [names, server]
    where = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{port}"
    return Peer("java", *where, folder, server, servers)


def _ours(folder: Path, settings: Mapping[str, Any], version: str, namesrv: str | None) -> Peer:
    port = free_port()
    namesrv_port = free_port() if namesrv is None else int(namesrv.rpartition(":")[2])
    settings = dict(settings)
    grpc_port = settings.pop("grpc_port", None)
    conf = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": f"127.0.0.1:{namesrv_port}",
        "storePathRootDir": folder / "store",
        "autoCreateTopicEnable": "true",
        **settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "broker.conf"
    file.write_text("".join(f"{name}={value}\n" for name, value in conf.items()), "utf-8")
    words = [str(PYSTORE), "broker", "-c", str(file)]
    if grpc_port is not None:
        words += ["--grpc-port", str(grpc_port)]
    if namesrv is None:
        words += ["--with-namesrv", "--namesrv-port", str(namesrv_port)]
    # A name server keeps files in ~/namesrv.
    server = Server(words, folder / "broker", {"HOME": str(folder)})
    where = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{port}"
    return Peer("ours", *where, folder, server, [server])


MAKES = {"java": _java, "ours": _ours}


@contextmanager
def name_server(make: str, folder: Path) -> Iterator[str]:
    """A name server alone; its address."""
    port = free_port()
    if make == "java":
        words = [str(SCRIPT), "namesrv", str(folder)]
        env = {"RMQ_NAMESRV_PORT": str(port), "NAMESRV_HEAP": "128m"}
    else:
        words, env = [str(PYSTORE), "namesrv", "--port", str(port)], {"HOME": str(folder)}
    server = Server(words, folder, env)
    server.start()
    try:
        address = f"127.0.0.1:{port}"
        wait(f"the name server ({make})", lambda: ask(address, CLUSTER)[0] == 0)
        yield address
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    make: str,
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    version: str = "5.3.3",
    namesrv: str | None = None,
) -> Iterator[Peer]:
    """A broker of that make, registered; ended and its folder deleted afterwards.

    namesrv: of a name server that runs already; without one the peer gets its own.
    """
    peer = MAKES[make](folder, SETTINGS | dict(settings or {}), version, namesrv)
    try:
        for server in peer.servers:
            server.start()
            if server is not peer.broker_server:
                wait("the name server", lambda: ask(peer.namesrv, CLUSTER)[0] == 0)
        peer.wait_ready()
        yield peer
    finally:
        peer.stop()
        shutil.rmtree(folder, ignore_errors=True)
