"""Proxies in cluster mode, of either make, as processes of their own before a running peer; the
gRPC service of a broker of ours, in either mode."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import launch
from ports import free_port
from waiting import BOUND_S

from broker import Broker, NameServer
from broker.testing import SETTINGS

__all__ = ["Addresses", "proxy", "service_of_ours"]


class Addresses(NamedTuple):
    """grpc, remoting: ``host:port`` of a proxy. log: what it wrote."""

    grpc: str
    remoting: str
    log: Path


@contextmanager
def proxy(
    make: str, namesrv: str, folder: Path, *, version: str = "5.3.3", **settings: Any
) -> Iterator[Addresses]:
    """make: ours or java, of this version. settings: of rmq-proxy.json."""
    folder.mkdir(parents=True, exist_ok=True)
    made = (
        _ours(namesrv, folder, settings)
        if make == "ours"
        else _java(namesrv, folder, settings, version)
    )
    with made as addresses:
        yield addresses


@contextmanager
def _ours(namesrv: str, folder: Path, settings: dict[str, Any]) -> Iterator[Addresses]:
    conf, log = folder / "rmq-proxy.json", folder / "log"
    conf.write_text(json.dumps(settings))
    words = [launch.PYSTORE, "proxy", "-n", namesrv, "--remoting-port", "0"]
    if "grpcServerPort" not in settings:
        words += ["--grpc-port", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*words, "--json", "--proxy-conf", conf],
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Addresses(said["grpc"], said["remoting"], log)
    finally:
        process.terminate()
        process.communicate(timeout=BOUND_S)


@contextmanager
def _java(
    namesrv: str, folder: Path, settings: dict[str, Any], version: str
) -> Iterator[Addresses]:
    given = {
        "remotingListenPort": free_port(), "grpcServerPort": free_port(),
        "localServeAddr": "127.0.0.1", **settings,
    }  # fmt: skip
    words = [f"{name}={json.dumps(value).strip(chr(34))}" for name, value in given.items()]
    env = {
        "RMQ_NAMESRV_PORT": namesrv.rpartition(":")[2], "RMQ_VERSION": version, "HEAP": "512m",
    }  # fmt: skip
    server = launch.Server([str(launch.SCRIPT), "proxy", str(folder), *words], folder, env)
    server.start()
    try:
        launch.wait("Apache's proxy", lambda: "startup successfully" in server.said())
        yield Addresses(
            f"127.0.0.1:{given['grpcServerPort']}", f"127.0.0.1:{given['remotingListenPort']}",
            server.log,
        )  # fmt: skip
    finally:
        server.stop()


@contextmanager
def service_of_ours(
    mode: str, folder: Path, topics: Mapping[str, str], **settings: Any
) -> Iterator[tuple[str, str]]:
    """Addresses of the service and of the name server. mode: local or cluster. topics: message
    types, by name."""
    with ExitStack() as undo:
        names = undo.enter_context(NameServer.in_thread(listenPort=0, kvConfigPath=""))
        given = {**SETTINGS, "listenPort": 0, "namesrvAddr": names.address, "drain_s": 0.2}
        broker = undo.enter_context(
            Broker(folder / "store", **{**given, "grpc_port": 0, **settings})
        )
        for name, kind in topics.items():
            broker.create_topic(name, message_type=kind)
        address = broker.grpc_address
        if mode == "cluster":
            address = undo.enter_context(proxy("ours", names.address, folder / "proxy")).grpc
        yield address, names.address
