"""Memory of unfinished requests: one budget for all ports of a process, and nothing that ends a
connection while the event loop asks it for room to read into."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from loops import Wire, serving
from waiting import BOUND_S, until, until_async

from broker import Broker, NameServer
from broker.loop.budget import Budget
from broker.namesrv.registration import parse as parse_registration
from broker.processors.bodies import BATCH_ACK
from broker.wire import codec
from broker.wire.command import Command, texts
from broker.wire.handlers import Peer

MIB = 1 << 20
#: A frame that says it has 16 MiB less a byte, and half of it.
HALF = struct.pack(">iI", 16 * MIB - 5, 100) + bytes(8 * MIB)

PULL = texts({
    "consumerGroup": "readers", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
    "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
    "subVersion": 0, "expressionType": "TAG",
})  # fmt: skip

SERVES = """
import sys, tempfile
from broker import Broker
with tempfile.TemporaryDirectory() as folder:
    settings = {"bindAddress": "127.0.0.1", "maxUnfinishedBytes": 32 << 20}
    with Broker(folder, listenPort=0, **settings) as broker:
        print(broker.port, flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize("tls", [False, True])
def test_answers_that_are_not_read_are_in_the_budget(tmp_path: Path, tls: bool) -> None:
    """Of many connections that read nothing, each below the size from which on it is not served,
    those end that are too much."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1") as broker:
        broker.create_topic("orders", 1)
        for _ in range(32):
            broker.store.put("orders", bytes(20_000), queue=0)
        ask = codec.encode(Command(11, PULL))
        assert broker.loop is not None and broker._listeners is not None
        server, budget = broker._listeners.main, Budget.of(broker.loop)
        assert server is not None
        budget.limit = 8 * MIB
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(
                socket.create_connection(("127.0.0.1", broker.port), BOUND_S)
            )
            for _ in range(40):
                sock = socket.socket()
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.settimeout(BOUND_S)
                sock.connect(("127.0.0.1", broker.port))
                stack.enter_context(context.wrap_socket(sock) if tls else sock).sendall(ask * 60)
            # A turn that exceeds it ends connections, which it does last.
            until(lambda: len(server.connections) < 30 and budget.held <= budget.limit)
            first.sendall(codec.encode(Command(28)))
            assert first.recv(4)
        until(lambda: not server.connections)
        until(lambda: budget.held == 0)


def test_the_first_requests_of_a_client_may_be_many_large_pulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python answers them, and stops as soon as what it wrote is too much to be on its way."""
    monkeypatch.setattr("broker.loop.turns.TURN_S", BOUND_S)  # else its time is over first
    with Broker(tmp_path, listenPort=0, bindAddress="127.0.0.1") as broker:
        broker.create_topic("orders", 1)
        for _ in range(32):
            broker.store.put("orders", bytes(20_000), queue=0)
        asks = b"".join(codec.encode(Command(11, PULL, opaque=n)) for n in range(400))
        with socket.create_connection(("127.0.0.1", broker.port), BOUND_S) as sock:
            sock.sendall(asks)
            file = sock.makefile("rb")
            for _ in range(400):
                assert len(file.read(struct.unpack(">i", file.read(4))[0])) > 250_000


async def test_requests_that_wait_or_are_in_progress_are_in_the_budget() -> None:
    """And once the bodies of one connection are large together, no more of it is read."""
    begun, last = [], asyncio.Event()

    async def wait(peer: Peer, command: Command) -> Command:
        begun.append(command.opaque)
        await last.wait()
        return command.reply()

    budget = Budget.of(asyncio.get_running_loop())
    async with serving({1: wait}) as server, await Wire.to(server.port) as wire:
        for opaque in range(40):
            wire.write(Command(1, body=bytes(MIB), opaque=opaque))
        await until_async(lambda: any(one.paused for one in server.connections))
        await asyncio.sleep(0.05)
        assert len(begun) < 10
        assert 4 * MIB <= budget.held < 12 * MIB
        last.set()
        for _ in range(40):
            await wire.answer()
    await until_async(lambda: not server.connections)
    assert budget.held == 0


def test_an_error_of_a_long_body_keeps_nothing_of_it() -> None:
    """A thread's error stays until the garbage collector comes: a hundred of them were 800 MB."""
    for parse in (BATCH_ACK.loads, lambda body: parse_registration(body, False, 400)):
        with pytest.raises(ValueError, match="object") as caught:
            parse(b'{"acks":[1],"filterServerList":[],"topicConfigSerializeWrapper":7}')
        assert caught.value.__context__ is None
        names = {one.name for one in traceback.extract_tb(caught.value.__traceback__)}
        assert not names & {"__call__", "_parse"}


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
        first.sendall(HALF[:1])
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
            # A turn that exceeds it ends connections, which it does last.
            until(lambda: 0 < len(server.connections) < 6 and 0 < budget.held <= budget.limit)
        until(lambda: not server.connections)
        until(lambda: budget.held == 0)
