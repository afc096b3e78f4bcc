"""A broker of very many topics at half of what one connection can send: how long the slowest sends
take, minute by minute, and what happens to the memory.

    python -m benches many_topics [--topics 20000] [--seconds 1200] [--window 60]
                                  [--offsets 1000000]

The broker and its name server are one process of `pystore broker`. The load is one connection that
waits for each answer; half load is half of the rate that it reaches so. Memory is anonymous memory
of the process (RssAnon), processor time is the process's, for a send, all that it does by itself
included. At last a broker in this process stops while so many committed offsets have changed since
they were written, 10 of each group.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import uvloop

from benches.brokers import PYSTORE
from benches.harness import Figures, Given, Row, anonymous_mb, cpu_s
from broker.broker import Broker
from broker.wire import codec
from broker.wire.command import Command
from pystore import Store

#: Topics that one request makes.
_TOGETHER = 1000
#: Seconds for which the full rate is measured.
_FULL_S = 5.0


class Client:
    """One connection that waits for each answer."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), 60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: bytes) -> Command:
        self._sock.sendall(frame)
        (size,) = struct.unpack(">i", self._exactly(4))
        return codec.decode(struct.pack(">i", size) + self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self._sock.recv(size - len(found)) or _end()
        return found


def _end() -> bytes:
    raise ConnectionResetError("the broker has closed the connection")


def make_topics(client: Client, count: int) -> None:
    for first in range(0, count, _TOGETHER):
        rows = [
            {"topicName": f"topic-{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for n in range(first, min(count, first + _TOGETHER))
        ]
        body = json.dumps({"topicConfigList": rows}).encode()
        answer = client.ask(codec.encode(Command(18, {}, body)))
        assert answer.code == 0, answer.remark


def send(topic: int) -> bytes:
    ext = {"a": "bench", "b": f"topic-{topic}", "c": "TBW102", "d": "1", "e": "0", "f": "0",
           "g": "0", "h": "0", "i": "", "j": "0", "k": "false", "l": "0"}  # fmt: skip
    return codec.encode(Command(310, ext, bytes(100), opaque=1))


def took_of(client: Client, frames: list[bytes], seconds: float, rate: float = 0.0) -> list[float]:
    """Milliseconds of each send. rate: a second; 0: as fast as answers come."""
    found: list[float] = []
    start = time.perf_counter()
    while (began := time.perf_counter()) < start + seconds:
        answer = client.ask(frames[len(found) % len(frames)])
        assert answer.code == 0, answer.remark
        now = time.perf_counter()
        found.append((now - began) * 1000)
        if rate:
            time.sleep(max(0.0, start + len(found) / rate - now))
    return found


def measure(pid: int, port: int, given: Given, figures: Figures) -> None:
    client, topics, seconds = Client(port), given.topics, given.seconds
    figures.add("empty", "ours", " MB", anonymous_mb(pid))
    make_topics(client, topics)
    frames = [send(n * 7919 % topics) for n in range(min(topics, 5000))]
    full_s = min(_FULL_S, seconds)
    rate = len(took_of(client, frames, full_s)) / full_s / 2
    figures.add("half load", "ours", "/s", rate, smaller=False)
    start = time.monotonic()
    while (at := time.monotonic() - start) < seconds:
        used = cpu_s(pid)
        took = sorted(took_of(client, frames, min(given.window, seconds - at), rate))
        each = (cpu_s(pid) - used) / len(took) * 1e6
        for what, value in (("p50", took[len(took) // 2]), ("longest", took[-1]),
                            ("p99.9", took[int(len(took) * 0.999)])):  # fmt: skip
            figures.add(f"a send at half load, {what}", "ours", " ms", value)
        figures.add("a send at half load, broker's processor time", "ours", " us", each)
        figures.add("anonymous memory", "ours", " MB", anonymous_mb(pid))


async def stop_of(path: Path, count: int, figures: Figures) -> None:
    broker = Broker(path, listenPort=0)
    await broker.start()
    try:
        offsets = broker.services.offsets
        for n in range(count):
            offsets.commit(f"group-{n // 10}", "orders", n % 10, 0)
    finally:
        began, used = time.perf_counter(), time.process_time()
        await broker.stop()
    took, used = time.perf_counter() - began, time.process_time() - used
    what = f"a stop with {count:,} changed offsets"
    figures.add(what, "ours", " s", took)
    figures.add(f"{what}: processor time", "ours", " s", used)
    with Store(path, None) as store:
        found = sum(1 for each in store.metadata.offsets.all() if each.topic == "orders")
        assert found == count, found


def bench(given: Given) -> list[Row]:
    figures = Figures(f"{given.topics:,} topics, 100 B")
    with tempfile.TemporaryDirectory() as folder:
        words = [str(PYSTORE), "broker", "--store", f"{folder}/store", "--port", "0", "--json",
                 "--with-namesrv", "--namesrv-port", "0"]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            try:
                said = json.loads(broker.stdout.readline())
                port = int(str(said["address"]).rpartition(":")[2])
                measure(broker.pid, port, given, figures)
            finally:
                broker.terminate()
        uvloop.run(stop_of(Path(folder) / "offsets", given.offsets, figures))
    return figures.rows
