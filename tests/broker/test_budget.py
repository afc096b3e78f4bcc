"""Memory of unfinished requests: one budget for all ports of a process, and nothing that ends a
connection while the event loop asks it for room to read into."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import BOUND_S, until

from broker import Broker, NameServer
from broker.remoting.budget import Budget
from broker.remoting.opening import ProxyHeader, proxied

MIB = 1 << 20
#: A frame that says it has 16 MiB less a byte, and half of it.
HALF = struct.pack(">iI", 16 * MIB - 5, 100) + bytes(8 * MIB)

SERVES = """
import sys, tempfile
from broker import Broker
with tempfile.TemporaryDirectory() as folder:
    settings = {"bindAddress": "127.0.0.1", "maxUnfinishedBytes": 32 << 20}
    with Broker(folder, listenPort=0, **settings) as broker:
        print(broker.port, flush=True)
        sys.stdin.read()
"""


class Someone:
    def __init__(self, known: bool = False) -> None:
        self.known = known
        self.ended = False

    def abort(self, why: str, detail: str = "") -> None:
        self.ended = True


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_strangers_end_before_those_who_were_let_in(loop: asyncio.AbstractEventLoop) -> None:
    budget = Budget.of(loop)
    budget.limit = 100
    known, large, small, last = Someone(known=True), Someone(), Someone(), Someone()
    for holder, size in ((known, 60), (large, 30), (small, 10), (last, 5)):
        budget.hold(holder, size)
    assert [each.ended for each in (known, large, small, last)] == [False, True, False, False]
    assert budget.held == 75


def test_who_asks_for_room_ends_only_after_it_has_read(loop: asyncio.AbstractEventLoop) -> None:
    budget = Budget.of(loop)
    budget.limit = 100
    reader = Someone()
    budget.hold(reader, 101)
    assert not reader.ended
    loop.run_until_complete(asyncio.sleep(0))
    assert reader.ended
    assert budget.held == 0


def test_a_flood_of_large_frames_ends_connections_and_not_the_broker() -> None:
    """uvloop crashes when a connection is closed while it asks for room to read into."""
    words = [sys.executable, "-c", SERVES]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = int(process.stdout.readline())
            for _ in range(3):
                with contextlib.ExitStack() as stack:
                    for _ in range(6):
                        sock = stack.enter_context(
                            socket.create_connection(("127.0.0.1", port), BOUND_S)
                        )
                        with contextlib.suppress(OSError):
                            sock.sendall(HALF)
                    assert process.poll() is None
            socket.create_connection(("127.0.0.1", port), BOUND_S).close()
        finally:
            process.stdin.close()
    assert process.returncode == 0


def test_a_name_server_has_the_same_budget() -> None:
    with NameServer.in_thread(listenPort=0, kvConfigPath="") as names:
        server = names._server
        assert server is not None
        first = socket.create_connection(("127.0.0.1", names.port), BOUND_S)
        until(lambda: server.connections)
        budget = Budget.of(next(iter(server.connections))._loop)
        budget.limit = 20 * MIB
        first.close()
        until(lambda: not server.connections)
        with contextlib.ExitStack() as stack:
            for _ in range(6):
                sock = stack.enter_context(
                    socket.create_connection(("127.0.0.1", names.port), BOUND_S)
                )
                with contextlib.suppress(OSError):
                    sock.sendall(HALF)
            until(lambda: 0 < len(server.connections) < 6)
            assert 0 < budget.held <= budget.limit
        until(lambda: not server.connections)
        assert budget.held == 0


def test_half_a_proxy_header_at_the_grpc_port_waits_for_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look(data: bytes) -> ProxyHeader | None:
        looks.append(data)
        return proxied(data)

    monkeypatch.setattr("broker.grpc.front.proxied", look)
    with (
        Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1", grpc_port=0) as broker,
        socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as sock,
    ):
        sock.sendall(b"PROXY TCP4 ")
        until(lambda: looks)
        broker.run(asyncio.sleep(0.2))
        assert len(looks) == 1
        sock.sendall(b"1.2.3.4 5.6.7.8 1 2\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4")
        assert sock.recv(9)[3] == 4  # the server's SETTINGS
        with socket.create_connection(("127.0.0.1", broker.grpc_port), BOUND_S) as other:
            other.sendall(b"PROXY TCP4 ")
            other.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):  # nobody reads what it sent
                assert other.recv(1) == b""
