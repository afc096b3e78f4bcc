"""What consumers of a cold tier wait for, and what they cost senders. The tier is a folder whose
every request takes 30 ms more.

    python -m benches cold_reads [--rounds 3] [--mb 2000] [--readers 16] [--seconds 8] [--looks 200]

Messages of 1 KiB in as many queues as there are readers are pushed in objects of 1 MiB, and deleted
locally. Whoever looks pulls one offset of an object that nobody has asked for; whoever reads on
pulls a queue from its first message. Sends are timed beside nobody, beside readers of a broker that
has the same messages in its log, and beside those of the tier: readers, sender and broker share two
cores, so only the last two say what the tier costs.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import pystore
from benches.cold import Readers, delays, fill, pull
from benches.harness import ROOT, TOPIC, Figures, Given, Row, fresh
from broker.wire import codec
from broker.wire.codes import ResponseCode
from broker.wire.command import Command
from pystore.cold.push import push
from pystore.cold.tier import new_tier

OBJECT = 1 << 20

#: Runs in a process of its own. A line asks how many requests there were.
BROKER = """
import sys, time
from broker.broker import Broker
from pystore.cold.objects import FolderObjects

requests = 0

def slow(self, key, start, end, get=FolderObjects.get):
    global requests
    requests += 1
    time.sleep(0.03)
    return get(self, key, start, end)

FolderObjects.get = slow
settings = {"fileReservedTime": 10000}
if sys.argv[2]:
    settings |= {"tieredStoreFilePath": sys.argv[2], "tieredCacheBytes": 0}
with Broker(sys.argv[1], listenPort=0, brokerName="b", brokerClusterName="c", **settings) as broker:
    broker.create_topic("orders", int(sys.argv[3]))
    broker.create_topic("bench", 32)
    while sys.argv[2] and not broker.services.cold.reads.is_known:
        time.sleep(0.1)
    print(broker.port, flush=True)
    while sys.stdin.readline():
        print(requests, flush=True)
"""


def make(store: Path, cold: Path, queues: int, size: int) -> dict[int, int]:
    """Makes a store whose messages are in the tier alone, and the tier. Returns by queue its first
    local offset."""
    fill(store, queues, size, mappedFileSizeCommitLog=OBJECT)
    with pystore.Reader(store) as reader:
        push(reader, new_tier(cold, "c", "b"), segment_bytes=OBJECT)
    with pystore.open(store, mappedFileSizeCommitLog=OBJECT) as opened:
        opened.put_many(TOPIC, [b"last"] * queues, queues=list(range(queues)))
        opened.clean(immediate=True)
        return {queue: opened.range(TOPIC, queue)[0] for queue in range(queues)}


def ask(sock: socket.socket, data: bytes) -> Command:
    sock.sendall(data)
    left = bytearray()
    while len(left) < 4 or len(left) - 4 < struct.unpack_from(">i", left)[0]:
        left += sock.recv(1 << 18)
    return codec.decode(bytes(left))


def looks(port: int, local: dict[int, int], count: int) -> list[float]:
    """Returns what the first pull of an offset took, in ms, each of an object of its own."""
    found: list[float] = []
    step = OBJECT // 1024  # messages of an object, a few more than it has
    places = [(queue, at) for queue, end in local.items() for at in range(step // 2, end, step)]
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for queue, at in places[:: max(1, len(places) // count)]:
            began = time.perf_counter()
            answer = ask(sock, pull(queue, at))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            found.append((time.perf_counter() - began) * 1000)
    return sorted(found)


class Serving:
    """A broker with the slow tier; without one, where cold is None."""

    def __init__(self, store: Path, cold: Path | None, queues: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(store), str(cold or ""), str(queues)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def requests(self) -> int:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def stop(self) -> None:
        self._process.communicate("")


def bench(given: Given) -> list[Row]:
    figures = Figures("1 KiB, 30 ms a request")
    for _ in range(given.rounds):
        store, cold = fresh("cold-reads"), fresh("cold-reads-tier")
        local = make(store, cold, given.readers, given.mb << 20)
        broker = Serving(store, cold, given.readers)
        before = broker.requests()
        took = looks(broker.port, local, given.looks)
        asked = (broker.requests() - before) / len(took)
        cuts = statistics.quantiles(took, n=100)
        figures.add("first message of an offset, requests", "ours", "", asked, target=2)
        figures.add("first message of an offset, p50", "ours", "ms", cuts[49], target=80)
        figures.add("first message of an offset, p99", "ours", "ms", cuts[98], target=250)
        sends_beside(figures, broker, given, "cold")
        broker.stop()
        shutil.rmtree(store)
        shutil.rmtree(cold)
        fill(store, given.readers, given.mb << 20, mappedFileSizeCommitLog=OBJECT)
        broker = Serving(store, None, given.readers)
        sends_beside(figures, broker, given, "")
        sends_beside(figures, broker, given, "local")
        broker.stop()
        shutil.rmtree(store)
    return figures.rows


def sends_beside(figures: Figures, broker: Serving, given: Given, what: str) -> None:
    """Times sends beside readers of a kind, as long as these read; without one, alone."""
    delays(broker.port, 0.3, None)
    group = Readers(broker.port, given.readers) if what else None
    began = time.perf_counter()
    sends = statistics.quantiles(delays(broker.port, given.seconds, group), n=100)
    way = f"beside {what} readers" if what else "alone"
    figures.add("a send, p50", way, "ms", sends[49])
    figures.add("a send, p99", way, "ms", sends[98])
    if group is not None:
        rate = group.stop() / (time.perf_counter() - began) / 1e6
        figures.add(f"read by {given.readers} readers meanwhile", way, "MB/s", rate)
