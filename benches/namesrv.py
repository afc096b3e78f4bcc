"""A name server with 100 brokers of 10,000 topics each, and clients that ask for routes.

    python -m benches namesrv [--peers ours,5.3.3] [--brokers 100] [--topics 10000] [--seconds 30]

The brokers are simulated: a connection each, on which they register by real frames, all of their
topics in each, as brokers do every 30 s; all of them have the same topics, so that each route names
all brokers. `all`: from the first byte until the last broker has its answer. `again`: routes, one
after the other by 16 connections, while the brokers register again, evenly over 30 s. `quiet`: the
same without registrations. Clients are in a process of their own.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.queues import Queue

from benches import harness
from benches.brokers import ask, connect, frame, peer_of
from benches.harness import Figures, Given, Row, anonymous_mb, cpu_s

REGISTER, ROUTE = 103, 105
#: Seconds between two registrations of a broker, as both makes set it.
EVERY_S = 30.0
RETRY_S = 0.1
CLIENTS = 16


def registration(number: int, topics: int) -> bytes:
    """One broker's frame: master of a name of its own."""
    row = {"perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "topicSysFlag": 0, "order": False,
           "topicFilterType": "SINGLE_TAG", "attributes": {}}  # fmt: skip
    table = {f"topic-{n}": {"topicName": f"topic-{n}", **row} for n in range(topics)}
    version = {"stateVersion": 0, "counter": 1, "timestamp": 1_700_000_000_000}
    body = json.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": table},
        },
        separators=(",", ":"),
    ).encode()
    port = 20_000 + number
    said = {
        "brokerName": f"broker-{number}", "brokerAddr": f"10.0.0.1:{port}", "brokerId": 0,
        "clusterName": "DefaultCluster", "haServerAddr": f"10.0.0.1:{port + 1}",
        "compressed": "false", "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
    }  # fmt: skip
    return frame(REGISTER, said, body)


class Brokers:
    """All of them, each on its connection."""

    def __init__(self, port: int, brokers: int, topics: int) -> None:
        self.frames = [registration(number, topics) for number in range(brokers)]
        self.port = port
        self.wires = [connect(port) for _ in self.frames]
        self.refused = 0

    def register(self, number: int) -> None:
        """Again until it is taken: Apache's refuses some of a hundred at once, or cuts them off."""
        while True:
            try:
                if ask(self.wires[number], self.frames[number])[0] == 0:
                    return
            except OSError:
                self.wires[number].close()
                self.wires[number] = connect(self.port)
            self.refused += 1
            time.sleep(RETRY_S)

    def all_at_once(self) -> float:
        """Seconds; a thread each."""
        numbers = range(len(self.wires))
        with ThreadPoolExecutor(len(self.wires)) as pool:
            return harness.seconds(lambda: [*pool.map(self.register, numbers)])

    @contextmanager
    def registering(self) -> Iterator[None]:
        """Each of them every EVERY_S, evenly."""
        over = threading.Event()

        def work() -> None:
            number = 0
            while not over.wait(EVERY_S / len(self.wires)):
                self.register(number % len(self.wires))
                number += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        for wire in self.wires:
            wire.close()


def _ask_routes(
    port: int, topics: int, seconds: float, seed: int, found: Queue[list[float]]
) -> None:
    """Of one process of clients: how long each answer took, in seconds."""
    pick, took = random.Random(seed), []
    wires = [connect(port) for _ in range(CLIENTS)]
    for wire in wires:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for wire in wires:
            data = frame(ROUTE, {"topic": f"topic-{pick.randrange(topics)}"})
            began = time.perf_counter()
            code, body = ask(wire, data)
            took.append(time.perf_counter() - began)
            assert code == 0, body
    for wire in wires:
        wire.close()
    found.put(took)


def routes(port: int, topics: int, seconds: float) -> list[float]:
    """Sorted: how long answers took, in seconds."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    client = context.Process(target=_ask_routes, args=(port, topics, seconds, 1, found))
    client.start()
    took = sorted(found.get())
    client.join()
    return took


def measure(kind: str, given: Given, figures: Figures) -> None:
    ours = kind == "ours"
    with ExitStack() as stack:
        peer = stack.enter_context(peer_of(kind))
        assert peer.names is not None
        pid = peer.names.pid
        brokers = Brokers(peer.namesrv_port, given.brokers, given.topics)
        stack.callback(brokers.close)
        cpu = cpu_s(pid)
        figures.add(
            "all register", kind, "s", brokers.all_at_once(), target=10 if ours else None,
            refused=float(brokers.refused),
        )  # fmt: skip
        figures.add("all register", kind, "s of a core", cpu_s(pid) - cpu)
        figures.add("all register", kind, "MB anonymous", anonymous_mb(pid))
        for name in ("quiet", "registering"):
            with ExitStack() as during:
                if name == "registering":
                    during.enter_context(brokers.registering())
                cpu, began = cpu_s(pid), time.perf_counter()
                times = routes(peer.namesrv_port, given.topics, given.seconds)
                share = (cpu_s(pid) - cpu) / (time.perf_counter() - began)
            what, count = f"routes, {name}", len(times)
            figures.add(
                what, kind, "ms, p99", times[int(count * 0.99)] * 1e3, target=5 if ours else None,
                max=times[-1] * 1e3, count=float(count),
            )  # fmt: skip
            figures.add(what, kind, "ms, p50", times[count // 2] * 1e3)
            figures.add(what, kind, "answers/s", count / given.seconds, smaller=False)
            figures.add(what, kind, "of a core", share)
        figures.add("at the end", kind, "MB anonymous", anonymous_mb(pid))


def bench(given: Given) -> list[Row]:
    os.environ.setdefault("NAMESRV_HEAP", "4g")  # of Apache's: a quarter is not enough
    figures = Figures(f"{given.brokers} brokers x {given.topics} topics")
    for kind in given.peers:
        measure(kind, given, figures)
    return figures.rows
