"""What the cold tier costs a broker: writing out to a folder, and sends beside it.

    python -m benches tier [--rounds 3] [--mb 2000] [--seconds 8]

A store of messages of 1 KiB in 4 queues is written out by itself, into a folder of the same disk;
then a broker on such a store takes sends in batches over one connection: without a tier, with one
and its default rate, and with one that may write as fast as it can.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pystore
from benches.cold import fill
from benches.harness import ROOT, Figures, Given, Row, fresh
from benches.sends import frame
from pystore.cold.push import push
from pystore.cold.tier import new_tier

QUEUES = 4
AT_ONCE = 64
WAYS = {"no tier": None, "default rate": 100, "any rate": 0}

#: Runs in a process of its own. Its last line says how much went out meanwhile.
BROKER = """
import sys
from broker.broker import Broker

settings = {"tieredStoreFilePath": sys.argv[2], "tieredUploadRateMax": sys.argv[3],
            "tieredUploadWaitMillis": 0} if sys.argv[2] else {}
with Broker(sys.argv[1], listenPort=0, **settings) as broker:
    broker.create_topic("bench", 4)
    print(broker.port, flush=True)
    sys.stdin.readline()
    cold = broker.services.cold
    print(cold.uploads.counts.bytes if cold is not None else 0, flush=True)
    sys.stdin.read()
"""


def written_out(store: Path, cold: Path) -> tuple[float, float]:
    """Returns MB/s and the seconds of processor time a GB of writing a store out."""
    shutil.rmtree(cold, ignore_errors=True)
    with pystore.Reader(store) as reader:
        tier = new_tier(cold, "c", "b")
        cpu, began = time.process_time(), time.perf_counter()
        done = push(reader, tier)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return done.bytes / took / 1e6, cpu / done.bytes * 1e9


def sends(port: int, seconds: float) -> tuple[float, float]:
    """Returns sends a second, and how long the slowest of a hundred batches took, in ms."""
    data, taken, times = b"".join(frame(n, "single") for n in range(AT_ONCE)), 0, []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = last = time.perf_counter()
        while last - began < seconds:
            sock.sendall(data)
            left, answers = bytearray(), 0
            while answers < AT_ONCE:
                left += sock.recv(1 << 16)
                while len(left) >= 4 and len(left) - 4 >= struct.unpack_from(">i", left)[0]:
                    del left[: 4 + struct.unpack_from(">i", left)[0]]
                    answers += 1
            now = time.perf_counter()
            times.append(now - last)
            taken, last = taken + answers, now
    times.sort()
    return taken / (last - began), times[len(times) * 99 // 100] * 1000


def beside(store: Path, cold: Path, rate: int | None, seconds: float) -> tuple[float, float, float]:
    """Returns what `sends` does, and the MB/s that went out meanwhile."""
    shutil.rmtree(cold, ignore_errors=True)
    where = [str(cold), str(rate)] if rate is not None else ["", ""]
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, str(store), *where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        sends(port, min(1.0, seconds))  # the tier has begun by then
        per_s, slow_ms = sends(port, seconds)
        process.stdin.write("\n")
        process.stdin.flush()
        out = int(process.stdout.readline())
        process.stdin.close()
    return per_s, slow_ms, out / (seconds + min(1.0, seconds)) / 1e6


def bench(given: Given) -> list[Row]:
    figures = Figures("1 KiB")
    for _ in range(given.rounds):
        for way, rate in WAYS.items():
            store, cold = fresh("tier"), fresh("tier-cold")
            fill(store, QUEUES, given.mb << 20)
            if rate is None:
                per_s, cpu = written_out(store, cold)
                figures.add("writing out to a folder", "ours", "MB/s", per_s)
                figures.add("writing out, processor time", "ours", "s/GB", cpu)
            rate_of_sends, slow, out = beside(store, cold, rate, given.seconds)
            figures.add(f"sends, {way}", "ours", "messages/s", rate_of_sends)
            figures.add(f"batches of {AT_ONCE} sends, {way}, p99", "ours", "ms", slow)
            figures.add(f"written out beside sends, {way}", "ours", "MB/s", out)
            shutil.rmtree(store)
            shutil.rmtree(cold, ignore_errors=True)
    return figures.rows
