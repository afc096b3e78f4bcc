"""Our broker and Apache's, one after the other in the same run, under the same official client.

    python -m benches broker --peers ours,5.3.3,5.5.0 --only send,batch --warm 20 --measure 15

The client is Apache's own Java client of 5.3.3 (tests/reference/src/Load.java), for every peer.
Each row warms up for --warm seconds, the first for three times as long, the virtual machines of
client and broker together, before --measure seconds count. Processor time is that of the whole
broker process over the measured window (/proc/PID/stat), memory its anonymous pages
(/proc/PID/smaps_rollup). Every peer runs with its default settings, asynchronous flush, on an empty
folder; its name server is a process apart. Rows run in the order in which they are named: `pop` at
the end, for a broker goes through what was popped a minute later.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from subprocess import CalledProcessError

from rich.console import Console

from benches import harness, spread
from benches.brokers import HEAP, Peer, ask, connect, heartbeat, make_topics, peer_of, set_pop_mode
from benches.harness import Figure, Given, Row

console = Console(stderr=True, highlight=False)


class Bench:
    """The rows of one peer in one round."""

    def __init__(self, peer: Peer, warm: int, measure: int) -> None:
        self.peer = peer
        self.times = (warm, measure)
        self.backlog = 0

    # ---- rows; the table of benches names each ----

    def start(self) -> list[Figure]:
        """Five starts on an empty folder; the last one stays for the other rows."""
        took = []
        for number in range(5):
            if number:
                self.peer.stop_broker()
            took.append(self.peer.start_broker())
        return [("start to the first accepted message", "s", True, sorted(took)[2])]

    def idle(self) -> list[Figure]:
        time.sleep(5)
        return [("anonymous memory, idle", " MB", True, self.peer.anonymous_mb())]

    def send(self) -> list[Figure]:
        """The first load of a broker, whose virtual machine needs longer to warm up."""
        name = "send, 64 threads, 128 bytes"
        warm, measure = self.times
        said = self.peer.load("send", "bench-send", 64, 128, 3 * warm, measure)
        memory = ("anonymous memory after it", " MB", True, self.peer.anonymous_mb())
        return [*self._rate(name, said), ("p99 of it", " ms", True, said["p99_us"] / 1000), memory]

    def batch(self) -> list[Figure]:
        said = self.peer.load("batch", "bench-batch", 64, 128, *self.times, 16)
        self.backlog = said["total"]
        return self._rate("batches of 16, 64 threads, 128 bytes", said)

    def consume(self) -> list[Figure]:
        """Reads what `batch` left; short, for the backlog must outlast it."""
        if not self.backlog:
            self.backlog = self.peer.load("batch", "bench-batch", 64, 128, 0, 30, 16)["total"]
        said = self.peer.load("consume", "bench-batch", 20, 128, 4, 5)
        if said["total"] >= 0.97 * self.backlog:
            console.print(f"{self.peer.name}: the backlog of {self.backlog} did not outlast it")
        return self._rate("consume a backlog, 20 threads", said)

    def pop(self) -> list[Figure]:
        """The same by a group that pops, each message acknowledged: part of a backlog of its own,
        that outlasts it."""
        said = self.peer.load("batch", "bench-pop", 64, 128, 0, 15, 16)
        set_pop_mode(self.peer.port, "bench-pop", "load-pop")
        taken = self.peer.load("pop", "bench-pop", 20, 128, *self.times)
        if taken["total"] >= 0.97 * said["total"]:
            console.print(f"{self.peer.name}: the backlog of {said['total']} did not outlast it")
        return self._rate("POP over remoting, each acknowledged, 20 threads", taken)

    def latency(self) -> list[Figure]:
        said = self.peer.load("send", "bench-latency", 64, 128, *self.times, 16, 10_000)
        name = "send at 10,000/s"
        made: list[Figure] = [
            (f"{name}, {p}", " ms", True, said[f"{key}_us"] / 1000)
            for p, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))
        ]
        return [*made, (f"{name}, reached", "/s", False, said["per_s"]), self._cpu(name, said)]

    def e2e(self) -> list[Figure]:
        said = self.peer.load("e2e", "bench-e2e", 4, 128, *self.times, 16, 1000)
        return [
            (f"send to receipt at 1,000/s, {p}", " ms", True, said[f"{p}_us"] / 1000)
            for p in ("p50", "p99")
        ]

    def delayed(self) -> list[Figure]:
        """The client also takes what is delivered: beside plain sends of which it does the same."""
        made: list[Figure] = []
        modes = {"both": "sends with a consumer", "delayed": "the same, delay level 1"}
        for mode, name in modes.items():
            said = self.peer.load(mode, f"bench-{mode}", 64, 128, *self.times)
            delivered = (f"{name}: delivered meanwhile", "/s", False, said["delivered_per_s"])
            made += [*self._rate(f"{name}, 64 threads", said), delivered]
        return made

    def tx(self) -> list[Figure]:
        """A half and its commit each."""
        said = self.peer.load("tx", "bench-tx", 32, 128, *self.times)
        return self._rate("transactions, 32 threads, 128 bytes", said)

    def quiet(self) -> list[Figure]:
        return self._many(100, 1_000)

    def many(self) -> list[Figure]:
        return self._many(5_000, 10_000, self._spread)

    # ---- what they share ----

    def _rate(self, name: str, said: dict[str, float]) -> list[Figure]:
        if said["errors"]:
            console.print(f"{self.peer.name}: {name}: {said['errors']} errors")
        return [(name, "/s", False, said["per_s"]), self._cpu(name, said)]

    def _cpu(self, name: str, said: dict[str, float]) -> tuple[str, str, bool, float]:
        used = said["broker_cpu_s"] / max(said["messages"], 1) * 1e6
        return (f"{name}: broker's processor time a million", " s", True, used)

    def _spread(self, wires: list[socket.socket], topics: list[str]) -> list[Figure]:
        """Sends while all of these stand; then over one of them, and over all of them."""
        name = f"{len(wires):,} connections, {len(topics):,} topics"
        said = self.peer.load("send", "bench-send", 64, 128, *self.times)
        made = self._rate(f"send, 64 threads, 128 bytes, beside {name}", said)
        for wide, words in ((wires[:1], topics[:1]), (wires, topics)):
            self._heartbeats(wires)  # a broker closes who said nothing for two minutes
            said = spread.load(wide, words, *self.times, self.peer.cpu_s)
            over = f"{len(wide):,} connections, {len(words):,} topics"
            made += self._rate(f"64 sends on their way, spread over {over}", said)
        return made

    @staticmethod
    def _heartbeats(wires: list[socket.socket]) -> None:
        for number, wire in enumerate(wires):
            code, _ = ask(wire, heartbeat(f"many-{number}"))
            assert code == 0, f"a heartbeat got {code}"

    def _many(
        self,
        connections: int,
        topics: int,
        also: Callable[[list[socket.socket], list[str]], list[Figure]] = lambda _wires, _topics: [],
    ) -> list[Figure]:
        names = make_topics(self.peer.port, topics)
        name = f"{connections:,} connections, {topics:,} topics"
        with ExitStack() as stack:
            wires: list[socket.socket] = []
            for _ in range(connections):
                wires.append(stack.enter_context(connect(self.peer.port)))
            self._heartbeats(wires)
            time.sleep(10)
            began, used = time.monotonic(), self.peer.cpu_s()
            numbers = cycle(range(connections))
            for tick in range(20):  # each client's heartbeat comes every 30 s
                for number in islice(numbers, connections // 30):
                    ask(wires[number], heartbeat(f"many-{number}"))
                time.sleep(max(0.0, began + tick + 1 - time.monotonic()))
            share = (self.peer.cpu_s() - used) / (time.monotonic() - began) * 100
            memory = self.peer.anonymous_mb()
            return [
                (f"idle with {name}: processor", " %", True, share),
                (f"idle with {name}: anonymous memory", " MB", True, memory),
                *also(wires, names),
            ]


def run(
    peers: Sequence[str], only: Sequence[str], rounds: int, times: tuple[int, int]
) -> list[Row]:
    found = harness.Figures()
    for number in range(rounds):
        for name in peers:
            with peer_of(name) as peer:
                bench = Bench(peer, *times)
                if "start" not in only:
                    peer.start_broker()
                for row in only:
                    work: Callable[[], list[Figure]] = getattr(bench, row)
                    try:
                        found.note(name, work())
                    except (OSError, AssertionError, CalledProcessError) as error:
                        # One broker that gives up on one row must not cost the others' figures.
                        console.print(f"round {number + 1}: {name}: {row} failed: {error!r}")
    return found.rows


def bench(given: Given) -> list[Row]:
    given.facts |= {"heap of the Java brokers": HEAP, "warm": f"{given.warm} s"}
    return run(given.peers, given.only, given.rounds, (given.warm, given.measure))
