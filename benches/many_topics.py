"""A broker of very many topics at half of what one connection can send: how long the slowest sends
take, minute by minute, and what happens to the memory.

    python -m benches.many_topics [--topics 20000] [--seconds 1200] [--window 60]
                                  [--offsets 1000000]

The broker and its name server are one process of `pystore broker`. The load is one connection that
waits for each answer; half load is half of the rate that it reaches so. Memory is anonymous memory
of the process (RssAnon), processor time is the process's, for a send, all that it does by itself
included. At last a broker in this process stops while so many committed offsets have changed since
they were written, 10 of each group.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import uvloop

from benches.brokers import PYSTORE
from benches.harness import cpu_s
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


def anonymous_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def measure(pid: int, port: int, topics: int, seconds: float, window: float) -> None:
    client = Client(port)
    empty = anonymous_mb(pid)
    make_topics(client, topics)
    frames = [send(n * 7919 % topics) for n in range(min(topics, 5000))]
    rate = len(took_of(client, frames, min(_FULL_S, seconds))) / min(_FULL_S, seconds) / 2
    print(f"{topics} topics: {empty:.0f} MB empty, {rate:.0f} sends/s are half load")
    print("   s    p50 ms  p99.9 ms    max ms   CPU us/send   anonymous MB", flush=True)
    start = time.monotonic()
    while (at := time.monotonic() - start) < seconds:
        used = cpu_s(pid)
        took = sorted(took_of(client, frames, min(window, seconds - at), rate))
        each = (cpu_s(pid) - used) / len(took) * 1e6
        slow = took[int(len(took) * 0.999)]
        print(
            f"{time.monotonic() - start:4.0f} {took[len(took) // 2]:9.3f} {slow:9.2f}"
            f" {took[-1]:9.2f} {each:13.0f} {anonymous_mb(pid):14.1f}",
            flush=True,
        )


async def stop_of(path: Path, count: int) -> None:
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
    print(f"stop with {count} changed offsets: {took:.2f} s, {used:.2f} s of the processor")
    with Store(path, None) as store:
        found = sum(1 for each in store.metadata.offsets.all() if each.topic == "orders")
        assert found == count, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.many_topics", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--window", type=float, default=60)
    parser.add_argument("--offsets", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [str(PYSTORE), "broker", "--store", f"{folder}/store", "--port", "0", "--json",
                 "--with-namesrv", "--namesrv-port", "0"]  # fmt: skip
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            try:
                said = json.loads(broker.stdout.readline())
                port = int(str(said["address"]).rpartition(":")[2])
                measure(broker.pid, port, given.topics, given.seconds, given.window)
            finally:
                broker.terminate()
        uvloop.run(stop_of(Path(folder) / "offsets", given.offsets))


if __name__ == "__main__":
    main()
