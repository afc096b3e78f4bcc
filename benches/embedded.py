"""A broker embedded in a process that computes: what the host costs the broker.

    python -m benches.embedded [--before PATH] [--rounds 5] [--seconds 2]

--before: a built checkout of an earlier commit, measured in turns with this one. The broker runs in
a process of its own beside 0, 1 or 2 threads that compute in Python without a pause; this process
sends messages of 128 bytes over one connection and waits for their answers, with 64 or 1 of them in
flight. A figure is a rate, or how long the slowest percent waited. They depend on what else the
machine does: only those of one run are to be compared.
"""

from __future__ import annotations

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

from benches import harness
from benches.harness import Row
from benches.sends import frame
from broker.wire import codec
from broker.wire.command import Command

IN_FLIGHT = (64, 1)
COMPUTING = (0, 1, 2)

#: Runs in the tree that is measured.
HOST = """
import sys, threading
from broker.broker import Broker

def compute():
    total = 0
    while True:
        for i in range(100_000):
            total = (total + i * i) % 1_000_003

with Broker(sys.argv[1], listenPort=0, mappedFileSizeCommitLog=64 << 20) as broker:
    for _ in range(int(sys.argv[2])):
        threading.Thread(target=compute, daemon=True).start()
    print(broker.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def host(tree: Path, computing: int) -> Iterator[int]:
    """The port of a broker of that tree, beside so many threads."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    python = tree / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory(dir=base) as folder:
        words = [str(python), "-c", HOST, str(Path(folder) / "store"), str(computing)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tree
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                yield int(process.stdout.readline())
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


def measure(tree: Path, computing: int, seconds: float) -> dict[int, tuple[float, float]]:
    """By messages in flight: messages a second, and ms that the slowest percent took at least."""
    found = {}
    frames = [frame(i, "tables") for i in range(10_000)]
    with (
        host(tree, computing) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        count = len(run(sock, frames, 64, 0.2))
        for in_flight in IN_FLIGHT:
            began = time.perf_counter()
            took = sorted(run(sock, frames, in_flight, seconds))
            rate = len(took) / (time.perf_counter() - began)
            count += len(took)
            found[in_flight] = rate, took[len(took) * 99 // 100] * 1000
        assert stored(sock) == count, "not every message that was answered is stored"
    return found


def rows_of(trees: dict[str, Path], rounds: int, seconds: float) -> list[Row]:
    """Rates and waits, then what is left of the rate beside threads that compute."""
    rates = {(n, c, name): Row(f"{n} in flight, {c} computing", "128 B", name, "/s", [])
             for n in IN_FLIGHT for c in COMPUTING for name in trees}  # fmt: skip
    waits = {key: Row(f"{row.bench}: slowest percent", "128 B", row.mode, "ms", [], smaller=True)
             for key, row in rates.items()}  # fmt: skip
    for _ in range(rounds):
        for computing in COMPUTING:
            for name, tree in trees.items():
                for in_flight, (rate, wait) in measure(tree, computing, seconds).items():
                    rates[in_flight, computing, name].rounds.append(rate)
                    waits[in_flight, computing, name].rounds.append(wait)
    shares = []
    for in_flight, computing, name in rates:
        if computing:
            alone = rates[in_flight, 0, name].rounds
            beside = rates[in_flight, computing, name].rounds
            share = [a / b for a, b in zip(beside, alone, strict=True)]
            bench = f"{in_flight} in flight: rate with {computing} computing / with none"
            target = 0.6 if (in_flight, computing) == (64, 1) else None
            shares.append(Row(bench, "128 B", name, "x", share, target=target))
    return [*rates.values(), *waits.values(), *shares]


def main() -> None:
    parser = harness.parser_of("embedded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    given, trees = harness.before_and_after(parser)
    facts = harness.machine()
    rows = rows_of(trees, given.rounds, given.seconds)
    harness.report(rows, facts, "embedded", "embedded", given.keep)


if __name__ == "__main__":
    main()
