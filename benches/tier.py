"""What the cold tier costs a broker: writing out to a folder, and sends beside it.

    python -m benches tier [--rounds 3] [--mb 2000] [--turns 8] [--seconds 2]

A store of messages of 1 KiB in 4 queues is written out by itself, into a folder of the same disk;
then two brokers on such stores take sends in batches over a connection each: one without a tier,
and one that writes out, at its default rate and as fast as it can. They take turns, the other one
stopped meanwhile, and each pair of turns gives a ratio: what else the machine does meets both.
"""

from __future__ import annotations

import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pystore
from benches.cold import fill
from benches.harness import ROOT, Figures, Given, Row, fresh
from benches.sends import frame
from broker.wire import codec
from pystore.cold.push import push
from pystore.cold.tier import new_tier

QUEUES = 4
AT_ONCE = 64
WAYS = {"default rate": 100, "any rate": 0}

#: Runs in a process of its own; says how much went out whenever it is asked.
BROKER = """
import sys
from broker.broker import Broker

settings = {"tieredStoreFilePath": sys.argv[2], "tieredUploadRateMax": sys.argv[3],
            "tieredUploadWaitMillis": 0} if sys.argv[2] else {}
with Broker(sys.argv[1], listenPort=0, **settings) as broker:
    broker.create_topic("orders", 4)
    print(broker.port, flush=True)
    cold = broker.services.cold
    for line in sys.stdin:
        print(cold.uploads.counts.bytes if cold is not None else 0, flush=True)
"""


class Turn(NamedTuple):
    """Sends a second, how long the slowest of a hundred batches took in ms, and the MB/s that went
    out meanwhile."""

    rate: float
    slow_ms: float
    out: float


class Running:
    """A broker, stopped but for its turns, and a connection to it."""

    def __init__(self, process: subprocess.Popen[str], sock: socket.socket) -> None:
        self._process, self._sock = process, sock
        process.send_signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> Turn:
        self._process.send_signal(signal.SIGCONT)
        sends(self._sock, seconds / 10)
        before, began = self._written(), time.perf_counter()
        rate, slow_ms = sends(self._sock, seconds)
        out = (self._written() - before) / (time.perf_counter() - began) / 1e6
        self._process.send_signal(signal.SIGSTOP)
        return Turn(rate, slow_ms, out)

    def _written(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def written_out(store: Path, cold: Path) -> tuple[float, float]:
    """Returns MB/s and the seconds of processor time a GB of writing a store out."""
    shutil.rmtree(cold, ignore_errors=True)
    with pystore.Reader(store) as reader:
        tier = new_tier(cold, "c", "b")
        cpu, began = time.process_time(), time.perf_counter()
        done = push(reader, tier)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return done.bytes / took / 1e6, cpu / done.bytes * 1e9


def sends(sock: socket.socket, seconds: float) -> tuple[float, float]:
    """Returns sends a second, and how long the slowest of a hundred batches took, in ms."""
    data, taken = b"".join(frame(n, "single") for n in range(AT_ONCE)), 0
    times: list[float] = []
    began = last = time.perf_counter()
    while last - began < seconds:
        sock.sendall(data)
        left, answers = bytearray(), 0
        while answers < AT_ONCE:
            left += sock.recv(1 << 16)
            while len(left) >= 4 and len(left) - 4 >= struct.unpack_from(">i", left)[0]:
                end = 4 + struct.unpack_from(">i", left)[0]
                if not times and codec.decode(bytes(left[:end])).code != 0:
                    raise RuntimeError("a send was refused")
                del left[:end]
                answers += 1
        now = time.perf_counter()
        times.append(now - last)
        taken, last = taken + answers, now
    times.sort()
    return taken / (last - began), times[len(times) * 99 // 100] * 1000


@contextmanager
def running(store: Path, cold: Path | None, rate: int) -> Iterator[Running]:
    where = [str(store), str(cold or ""), str(rate)]
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, *where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield Running(process, sock)
        finally:
            process.send_signal(signal.SIGCONT)
            process.stdin.close()


def take_turns(plain: Running, tiered: Running, turns: int, seconds: float) -> list[list[Turn]]:
    """Returns pairs of a turn without a tier and one with it; each goes first in every other."""
    pairs = []
    for number in range(turns):
        order = [plain, tiered] if number % 2 == 0 else [tiered, plain]
        pair = [each.turn(seconds) for each in order]
        pairs.append(pair if number % 2 == 0 else pair[::-1])
    return pairs


def quarters(figures: Figures, what: str, unit: str, values: list[float], *, smaller: bool) -> None:
    """Adds the median and the quartiles of what the turns of a round gave."""
    cuts = quantiles(values, n=4, method="inclusive")
    for name, cut in zip(("lower quartile", "median", "upper quartile"), cuts, strict=True):
        figures.add(f"{what}, {name}", "ours", unit, cut, smaller=smaller)


def bench(given: Given) -> list[Row]:
    figures = Figures("1 KiB")
    for _ in range(given.rounds):
        for way, rate in WAYS.items():
            plain, store, cold = fresh("tier-none"), fresh("tier"), fresh("tier-cold")
            fill(plain, QUEUES, given.mb << 20)
            per_s, cpu = written_out(plain, cold)
            figures.add("writing out to a folder", "ours", "MB/s", per_s, smaller=False)
            figures.add("writing out, processor time", "ours", "s/GB", cpu)
            shutil.rmtree(cold)
            fill(store, QUEUES, given.mb << 20)
            with running(plain, None, 0) as alone, running(store, cold, rate) as beside:
                pairs = take_turns(alone, beside, given.turns, given.seconds)
            without, beside_it = zip(*pairs, strict=True)
            figures.add("sends without a tier", "ours", "messages/s",
                        median(each.rate for each in without), smaller=False)  # fmt: skip
            figures.add(f"batches of {AT_ONCE} sends without a tier, p99", "ours", "ms",
                        median(each.slow_ms for each in without))  # fmt: skip
            quarters(figures, f"{way}: rate to that without", "x",
                     [b.rate / a.rate for a, b in pairs], smaller=False)  # fmt: skip
            quarters(figures, f"{way}: p99 to that without", "x",
                     [b.slow_ms / a.slow_ms for a, b in pairs], smaller=True)  # fmt: skip
            quarters(figures, f"{way}: written out", "MB/s",
                     [each.out for each in beside_it], smaller=False)  # fmt: skip
            for each in (plain, store, cold):
                shutil.rmtree(each, ignore_errors=True)
    return figures.rows
