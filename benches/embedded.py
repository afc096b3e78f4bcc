"""A broker embedded in a process that computes: what the host costs the broker.

    python -m benches embedded [--before PATH] [--rounds 5] [--seconds 2]

--before: a built checkout of an earlier commit, measured in turns with this one. The broker runs in
a process of its own beside 0, 1 or 2 threads that compute in Python without a pause; this process
sends messages of 128 bytes over one connection and waits for their answers, with 64 or 1 of them in
flight, and 64 over TLS; and 64 over gRPC, with a client of grpcio, in plain text and over TLS. A
figure is a rate, or how long the slowest percent waited. They depend on what else the machine does:
only those of one run are to be compared.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio

from benches.harness import Figures, Given, Row, ratio
from benches.sends import frame
from broker.grpc.schema import SERVICE, pb
from broker.remoting.selfsigned import self_signed
from broker.remoting.tls import client_context
from broker.wire import codec
from broker.wire.command import Command

#: Messages in flight, whether they go over gRPC, and whether over TLS.
WAYS = {
    "64 in flight": (64, False, False),
    "1 in flight": (1, False, False),
    "64 in flight over TLS": (64, False, True),
    "64 in flight over gRPC": (64, True, False),
    "64 in flight over gRPC and TLS": (64, True, True),
}
COMPUTING = (0, 1, 2)

#: Runs in the tree that is measured.
HOST = """
import sys, threading
from broker.broker import Broker
from broker.remoting.tls import TlsSettings

def compute():
    total = 0
    while True:
        for i in range(100_000):
            total = (total + i * i) % 1_000_003

with Broker(sys.argv[1], listenPort=0, grpc_port=0, tls=TlsSettings(
    cert_path=sys.argv[3], key_path=sys.argv[4]), mappedFileSizeCommitLog=64 << 20) as broker:
    broker.create_topic("orders-grpc", queues=4)
    for _ in range(int(sys.argv[2])):
        threading.Thread(target=compute, daemon=True).start()
    print(broker.port, broker.grpc_port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def host(tree: Path, computing: int) -> Iterator[tuple[int, int, bytes]]:
    """The ports, for remoting and gRPC, of a broker of that tree, beside so many threads, and its
    certificate."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    python = tree / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory(dir=base) as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        for path, text in zip((cert, key), self_signed("localhost"), strict=True):
            path.write_text(text)
        words = [
            str(python), "-c", HOST,
            str(Path(folder) / "store"), str(computing), str(cert), str(key),
        ]  # fmt: skip
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tree
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                port, grpc_port = map(int, process.stdout.readline().split())
                yield port, grpc_port, cert.read_bytes()
                process.stdin.close()
                process.wait(60)
            finally:
                process.kill()


def run(sock: socket.socket, frames: list[bytes], in_flight: int, seconds: float) -> list[float]:
    """How long each answered message took, in seconds."""
    began: deque[float] = deque()
    took: list[float] = []
    left, number, now = b"", 0, time.perf_counter()
    end, wanted = now + seconds, in_flight
    while wanted or began:
        part = [frames[(number + i) % len(frames)] for i in range(wanted)]
        number += wanted
        began.extend([now] * wanted)
        sock.sendall(b"".join(part))
        left += sock.recv(1 << 18)
        now, at, count = time.perf_counter(), 0, 0
        while len(left) - at >= 4:
            size = 4 + struct.unpack_from(">i", left, at)[0]
            if len(left) - at < size:
                break
            at += size
            count += 1
        left = left[at:]
        took += [now - began.popleft() for _ in range(count)]
        wanted = count if now < end else 0
    return took


def channel_to(port: int, trusted: bytes | None) -> grpc.aio.Channel:
    if trusted is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    return grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(trusted))


async def run_grpc(port: int, trusted: bytes | None, in_flight: int, seconds: float) -> list[float]:
    """The same over gRPC; trusted: the certificate of a server that is asked by TLS."""
    took: list[float] = []
    metadata = [("x-mq-client-id", "bench"), ("x-mq-language", "PYTHON")]
    async with channel_to(port, trusted) as channel:
        call = channel.unary_unary(f"/{SERVICE}/SendMessage")
        numbers, end = itertools.count(), time.perf_counter() + seconds

        async def send() -> None:
            while (began := time.perf_counter()) < end:
                data = await call(send_request(next(numbers)), metadata=metadata)
                took.append(time.perf_counter() - began)
                assert pb.SendMessageResponse.FromString(data).status.code == pb.Code.OK

        await asyncio.gather(*(send() for _ in range(in_flight)))
    return took


def send_request(number: int) -> bytes:
    """A SendMessage of one message."""
    made = pb.Message(topic=pb.Resource(name="orders-grpc"), body=b"x" * 128)
    own = made.system_properties
    own.message_id, own.message_type = f"01{number:032X}", pb.MessageType.NORMAL
    own.body_encoding, own.born_host = pb.Encoding.IDENTITY, "bench"
    own.born_timestamp.GetCurrentTime()
    data: bytes = pb.SendMessageRequest(messages=[made]).SerializeToString()
    return data


def stored(sock: socket.socket) -> int:
    """Messages of the topic, as the broker counts them."""
    count = 0
    for queue in range(4):
        ext = {"topic": "orders", "queueId": str(queue)}
        sock.sendall(codec.encode(Command(30, ext)))
        said = codec.decode(sock.recv(1 << 16))
        assert said.code == 0, said.remark
        count += int(said.ext["offset"])
    return count


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def measure(tree: Path, computing: int, seconds: float) -> dict[str, tuple[float, float]]:
    """By way: messages a second, and ms that the slowest percent took at least."""
    found = {}
    frames = [frame(i, "tables") for i in range(10_000)]
    with (
        host(tree, computing) as (port, grpc_port, cert),
        connected(port) as sock,
        client_context().wrap_socket(connected(port)) as ciphered,
    ):
        count = len(run(sock, frames, 64, 0.2)) + len(run(ciphered, frames, 64, 0.2))
        for way, (in_flight, over_grpc, over_tls) in WAYS.items():
            began = time.perf_counter()
            if over_grpc:
                trusted = cert if over_tls else None
                took = sorted(asyncio.run(run_grpc(grpc_port, trusted, in_flight, seconds)))
            else:
                took = sorted(run(ciphered if over_tls else sock, frames, in_flight, seconds))
                count += len(took)
            rate = len(took) / (time.perf_counter() - began)
            found[way] = rate, took[len(took) * 99 // 100] * 1000
        assert stored(sock) == count, "not every message that was answered is stored"
    return found


def bench(given: Given) -> list[Row]:
    figures = Figures("128 B")
    for _ in range(given.rounds):
        for computing in COMPUTING:
            for name, tree in given.trees.items():
                for way, (rate, wait) in measure(tree, computing, given.seconds).items():
                    what = f"{way}, {computing} computing"
                    figures.add(what, name, "/s", rate, smaller=False)
                    figures.add(f"{what}: slowest percent", name, "ms", wait)
    found = {(row.bench, row.mode): row for row in figures.rows}
    return [
        *found.values(),
        *(
            ratio(
                f"{way}: rate with {computing} computing / with none", name,
                found[f"{way}, {computing} computing", name], found[f"{way}, 0 computing", name],
                0.6 if (way, computing) == ("64 in flight", 1) else None,
            )
            for way in WAYS for computing in COMPUTING if computing for name in given.trees
        ),
    ]  # fmt: skip
