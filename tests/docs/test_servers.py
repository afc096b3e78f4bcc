"""Commands of the documents that run until Ctrl-C: each line is started as the page has it, used,
and stopped by SIGINT. Ports, addresses and files that the page takes for granted are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ports import free_port
from run_page import blocks_of
from test_docs import PAGES, ROOT
from waiting import BOUND_S

from broker import Admin, Broker, Message, Producer
from broker.doctor import examine_network
from pystore.cli import main

#: A port of gRPC that is free; None: built without nghttp2.
GRPC = 0 if importlib.util.find_spec("broker.grpc._http2") is not None else None
PROGRAM = "import sys; from pystore.cli import main; sys.exit(main(sys.argv[1:]))"
#: Store of a broker, port of its clients and of its name server.
OWN = ["--store", "own", "--port", "0", "--namesrv-port", "0"]


class Place(NamedTuple):
    """What stands for the machine of a page: a running broker, and a folder with files."""

    broker: Broker
    folder: Path

    def words(self, line: str) -> list[str]:
        """A command of a page, as it can run here."""
        addresses = ("192.168.1.10:9876", "10.0.0.1:9876", "127.0.0.1:9876")
        for address in addresses:
            line = line.replace(address, self.broker.namesrv_address)
        line = line.replace("/data/rocketmq/store", "java").replace("192.168.1.20", "127.0.0.1")
        return shlex.split(line, comments=True)[1:]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("servers") / "store"
    small = {"mappedFileSizeCommitLog": 4 << 20, "drain_s": 0.1}
    with Broker(folder, listenPort=0, with_namesrv=True, grpc_port=GRPC, **small) as made:
        made.create_topic("orders")
        yield made


@pytest.fixture
def place(
    broker: Broker, tmp_path: Path, golden: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Place:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    golden("normal-exit").rename(tmp_path / "java")
    (tmp_path / "broker.conf").write_text("brokerName=broker-conf\nstorePathRootDir=own\n")
    (tmp_path / "namesrv.conf").write_text("listenPort=9876\n")
    (tmp_path / "rmq-proxy.json").write_text("{}")
    (tmp_path / "tools.yml").write_text("accessKey: admin\nsecretKey: secret\n")
    return Place(broker, tmp_path)


@contextlib.contextmanager
def started(words: list[str]) -> Iterator[dict[str, Any]]:
    """What a server says when it is ready. It ends with code 0 by Ctrl-C."""
    words = [*words, *([] if "--json" in words else ["--json"])]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            assert process.wait(BOUND_S) == 0
        finally:
            process.kill()


def get(url: str) -> tuple[int, bytes]:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=BOUND_S)
    connection.request("GET", f"/{path}")
    with contextlib.closing(connection), connection.getresponse() as answer:
        return answer.status, answer.read()


# ---- servers ----


def serves(said: dict[str, Any]) -> None:
    """A broker: it takes a message."""
    with Producer("docs", said["namesrv"]) as producer:
        assert producer.send(Message("docs", b"1")).status.name == "SEND_OK"


def serves_grpc(said: dict[str, Any]) -> None:
    assert asyncio.run(examine_network(said["grpc"])) == ("proxy", [])


def knows(said: dict[str, Any]) -> None:
    """A name server."""
    with Admin(said["address"]) as admin:
        assert admin.topic_names() == []


def shows(said: dict[str, Any]) -> None:
    """Pages."""
    status, body = get(said["address"])
    assert status in (200, 303), body


class Row(NamedTuple):
    """more: words after those of the line, which replace them. use: what is done with it."""

    more: list[str]
    use: Callable[[dict[str, Any]], None]


#: By the line of a page.
ROWS = {
    "pystore broker --with-namesrv": Row(OWN, serves),
    "pystore broker -c broker.conf -n 192.168.1.10:9876": Row(["--port", "0"], serves),
    "pystore broker --store ./store --port 0 --with-namesrv --namesrv-port 0 --json": Row(
        [], serves
    ),
    "pystore broker --with-namesrv --grpc": Row([*OWN, "--grpc-port", "0"], serves_grpc),
    "pystore broker --with-namesrv --set logLevels=broker.remoting=ERROR,broker.access=INFO": Row(
        OWN, serves
    ),
    "pystore namesrv": Row(["--port", "0"], knows),
    "pystore namesrv --port 9876": Row(["--port", "0"], knows),
    "pystore namesrv -c namesrv.conf --set orderMessageEnable=true": Row(["--port", "0"], knows),
    "pystore proxy -n 10.0.0.1:9876": Row(
        ["--grpc-port", "0", "--remoting-port", "0"], serves_grpc
    ),
    "pystore proxy -n 10.0.0.1:9876 --proxy-conf rmq-proxy.json --json": Row(
        ["--grpc-port", "0", "--remoting-port", "0"], serves_grpc
    ),
    "pystore web /data/rocketmq/store": Row([], shows),
    "pystore web 127.0.0.1:9876": Row([], shows),
}
#: Those with a test of their own below.
APART = {
    "pystore broker --with-namesrv --set metricsExporterType=PROM",
    "pystore broker --store ./store --with-namesrv --secure --set brokerIP1=192.168.1.20",
    "pystore web 127.0.0.1:9876 --write --credentials tools.yml",
    "pystore broker -c broker.conf",  # howto.md: of a move, which tests/interop makes with Java
}


def lines_of(*pages: Path) -> list[str]:
    """Commands of blocks that are marked as not run."""
    return [
        line[2:].partition("  #")[0].strip()
        for page in pages
        for block in blocks_of(page)
        if block.language == "console" and block.why is not None
        for line in block.text.replace("\\\n", "").splitlines()
        if line.startswith("$ ")
    ]


def test_every_server_that_a_page_starts_has_a_row() -> None:
    servers = {
        line
        for line in lines_of(*PAGES)
        if line.startswith(("pystore broker", "pystore namesrv", "pystore proxy", "pystore web"))
    }
    assert servers == {*ROWS, *APART}


@pytest.mark.parametrize("line", ROWS)
def test_a_server_of_the_documents_runs_until_ctrl_c(line: str, place: Place) -> None:
    row = ROWS[line]
    if row.use is serves_grpc and GRPC is None:
        pytest.skip("built without nghttp2")
    with started([*place.words(line), *row.more]) as said:
        row.use(said)


def test_the_page_of_metrics(place: Place) -> None:
    start, *others = lines_of(ROOT / "docs" / "metrics.md")
    asks = [line for line in others if line.startswith("curl ")]
    port = str(free_port())
    more = [*OWN, "--set", f"metricsPromExporterPort={port}"]
    with started([*place.words(start), *more]) as said:
        serves(said)
        for ask in asks:
            status, body = get(ask.removeprefix("curl ").replace("5557", port))
            assert status == 200 and body


def test_pages_whose_visitors_sign_in(place: Place) -> None:
    (line,) = (each for each in lines_of(ROOT / "docs" / "web.md") if "--write" in each)
    with started(place.words(line)) as said:
        assert "?" not in said["address"], "no secret in the address where visitors sign in"
        assert b"secret" in get(said["address"])[1]


def test_the_page_of_access(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """From nothing to a broker with TLS and accounts, and the commands that need them."""
    pytest.importorskip("cryptography")
    lines = lines_of(ROOT / "docs" / "access.md")
    start = next(line for line in lines if line.startswith("pystore broker"))
    more = ["--port", "0", "--namesrv-port", "0"]
    with started([*place.words(start), *more]) as said:
        for line in lines:
            if line.startswith(("pystore acl add", "pystore send", "pystore consume")):
                line = line.replace("192.168.1.20:10911", said["address"])
                words = place.words(line.replace("192.168.1.20:9876", said["namesrv"]))
                ends = ["--count", "1"] if words[0] == "consume" else []
                assert main([*words, *ends]) == 0, line
        assert "hello" in capfd.readouterr().out
        secure = place.folder / "store.secure"
        administer = ["--broker", said["address"], "--trust", str(secure / "broker.crt")]
        administer += ["--credentials", str(secure / "admin.yml")]
        rights = ["--secret", "orders.yml", "--allow", "Topic:orders=Pub,Sub"]
        assert main(["acl", "add", "orders", *rights, *administer]) == 0
    (check,) = (line for line in lines if line.startswith("pystore acl check"))
    assert main(place.words(check)) == 0
    assert "Topic:orders" in capfd.readouterr().out


# ---- Apache's client ----


def blocks_with_apaches_client() -> list[Any]:
    return [
        pytest.param(block.text, id=f"{page.name}:{block.line}")
        for page in (ROOT / "README.md", ROOT / "docs" / "grpc.md")
        for block in blocks_of(page)
        if block.language == "python" and block.why is not None and "rocketmq import" in block.text
    ]


@pytest.mark.parametrize("code", blocks_with_apaches_client())
def test_apaches_python_client_as_the_pages_have_it(code: str, place: Place) -> None:
    """In a process of its own: the client keeps its threads."""
    pytest.importorskip("rocketmq")
    if GRPC is None:
        pytest.skip("built without nghttp2")
    with Producer("docs", place.broker.namesrv_address) as producer:
        producer.send(Message("orders", b"12 apples"))
    code = code.replace("127.0.0.1:8081", place.broker.grpc_address)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"],
        capture_output=True, text=True, timeout=BOUND_S, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-3000:]


def test_a_producer_of_remoting_through_a_proxy(place: Place) -> None:
    """The block of grpc.md that sends to the proxy's other port."""
    if GRPC is None:
        pytest.skip("built without nghttp2")
    (code,) = (
        block.text
        for block in blocks_of(ROOT / "docs" / "grpc.md")
        if block.why is not None and "10.0.0.7:8080" in block.text
    )
    words = place.words("pystore proxy -n 10.0.0.1:9876 --grpc-port 0 --remoting-port 0")
    before = sum(len(queue) for queue in place.broker.store.queues("orders"))
    with started(words) as said:
        exec(code.replace("10.0.0.7:8080", said["remoting"]), {})
    assert sum(len(queue) for queue in place.broker.store.queues("orders")) == before + 1
