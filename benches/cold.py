"""What readers of old messages cost senders: the delay of sends while pulls wait for the disk.

    python -m benches cold [--rounds 3] [--readers 32] [--seconds 8] [--mb 2000]

Each round takes the files of a store out of memory, starts a broker on it, and sends one message
after the other: alone, then beside readers that pull what is not in memory, each a queue of its own
from its first message on, then beside the same readers with all in memory.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pystore
from benches.harness import ROOT, TOPIC, Figures, Given, Row, bodies, command_of, flat, fresh
from benches.sends import frame
from broker.wire import codec
from broker.wire.codes import ResponseCode
from broker.wire.command import Command

SIZE = 1024
PULLED = 32  # messages of a pull
RECEIVED = 1 << 18
WAYS = ("alone", "beside cold readers", "beside warm readers")

#: Runs in a process of its own.
BROKER = """
import sys
from broker.broker import Broker

with Broker(sys.argv[1], listenPort=0) as broker:
    broker.create_topic("orders", 4)
    broker.create_topic("bench", 32)
    print(broker.port, flush=True)
    sys.stdin.read()
"""


def fill(path: Path, queues: int, size: int, **settings: Any) -> None:
    count = size // SIZE
    with pystore.open(path, **settings) as store:
        for at in range(0, count, 100_000):
            many = min(100_000, count - at)
            store.put_many(
                TOPIC, flat(bodies(many, SIZE)), queues=[i % queues for i in range(many)]
            )


def out_of_memory(path: Path) -> None:
    """Takes the files of a store, which nobody has mapped, out of the page cache."""
    os.sync()
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def read_all(port: int, count: int) -> None:
    """Pulls queues, one pull of each at a time, until all are read or nobody listens; prints the
    bytes. It has a process of its own: the sender must not wait for its turns."""
    chosen = selectors.DefaultSelector()
    for queue in range(count):
        sock = socket.create_connection(("127.0.0.1", port))
        chosen.register(sock, selectors.EVENT_READ, [queue, bytearray()])
        sock.sendall(pull(queue, 0))
    chosen.register(sys.stdin, selectors.EVENT_READ)
    taken = 0
    while len(chosen.get_map()) > 1:
        for key, _ in chosen.select():
            if key.fileobj is sys.stdin:
                print(taken)
                return
            taken += _read(chosen, key)
    print(taken)


def _read(chosen: selectors.BaseSelector, key: selectors.SelectorKey) -> int:
    sock: socket.socket = key.fileobj  # type: ignore[assignment]
    queue, left = key.data
    left += sock.recv(RECEIVED)
    if len(left) < 4 or len(left) - 4 < struct.unpack_from(">i", left)[0]:
        return 0
    answer = codec.decode(bytes(left))
    left.clear()
    if answer.code == ResponseCode.PULL_NOT_FOUND:
        chosen.unregister(sock)
    else:
        sock.sendall(pull(queue, int(answer.ext["nextBeginOffset"])))
    return len(answer.body or b"")


def waits_for_disk(pid: int) -> int:
    """Returns how often the network threads of a process have waited for the disk: major faults."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        _, name, rest = re.split(r"[()]", (task / "stat").read_text())
        if name.startswith("rmq-net"):
            count += int(rest.split()[9])
    return count


class Readers:
    """A process that runs read_all."""

    def __init__(self, port: int, count: int) -> None:
        self._process = subprocess.Popen(
            command_of(read_all, port, count),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def are_reading(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Returns how many bytes they have read."""
        return int(self._process.communicate()[0])


def pull(queue: int, offset: int) -> bytes:
    ext = {
        "consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue),
        "queueOffset": str(offset), "maxMsgNums": str(PULLED), "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return codec.encode(Command(11, ext, b"", opaque=queue))


def delays(port: int, seconds: float, readers: Readers | None) -> list[float]:
    """Returns what each send took, in ms, while the readers read."""
    found = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < until and (readers is None or readers.are_reading()):
            data = frame(number, "single")
            began = time.perf_counter()
            sock.sendall(data)
            sock.recv(RECEIVED)
            found.append((time.perf_counter() - began) * 1000)
            number += 1
            time.sleep(0.0005)
    return found


def one_round(store: Path, readers: int, seconds: float) -> dict[str, tuple[list[float], int]]:
    """Returns, of each way, what sends took in ms, and waits_for_disk."""
    found = {}
    for way in WAYS:
        if way == "beside cold readers":
            out_of_memory(store)
        with subprocess.Popen(
            [sys.executable, "-c", BROKER, store],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            port = int(process.stdout.readline())
            delays(port, 0.5, None)
            group = Readers(port, readers) if way != "alone" else None
            began, waited = time.perf_counter(), waits_for_disk(process.pid)
            sends = sorted(delays(port, seconds, group))
            found[way] = sends, waits_for_disk(process.pid) - waited
            took = time.perf_counter() - began
            if group is not None:
                rate = group.stop() / took / 1e6
                print(f"{way}: {rate:.0f} MB/s, {len(sends)} sends, {took:.1f} s", flush=True)
            process.stdin.close()
    return found


def bench(given: Given) -> list[Row]:
    store = fresh("cold")
    fill(store, given.readers, given.mb << 20)
    figures = Figures(f"{SIZE} B read")
    for _ in range(given.rounds):
        found = one_round(store, given.readers, given.seconds)
        for way, (took, waited) in found.items():
            cuts = statistics.quantiles(took, n=100)
            for what, value in (("p50", cuts[49]), ("p99", cuts[98])):
                figures.add(f"a send, {way}, {what}", "ours", "ms", value)
            figures.add(f"a send, {way}, waits of network threads", "ours", "", waited)
    shutil.rmtree(store)
    return figures.rows
