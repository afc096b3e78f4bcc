"""Lite topics beside Apache RocketMQ 5.5.0 with its file store and with RocksDB: what a send costs,
how long a message and a subscription take, memory, descriptors and disk, a restart, expiry.

    python -m benches lite [--only sends,delivery,..] [--peers ours,5.5.0,5.5.0-rocksdb]
                           [--topics 10000] [--count 10000] [--rounds 3] [--keep FILE]

Each broker is a process of its own; a raw client in this process asks it over the classic wire,
one message of 64 bytes a lite topic. Processor time is the broker's, with what it does by itself
until half a second after the last answer. 64 sends are under way, before Apache's 8: it refuses
more of those that make a lite topic, and who is refused as the broker is busy sends again.

    sends      plain ones, to lite topics that are there, to ever new ones
    subscribe  so many names, a thousand a request; and with an offset option
    delivery   one by one to a client that subscribes to all: from the send to the poll's answer
    memory     above that of an empty broker, with descriptors, mappings, and disk above the records
    restart    a clean stop; from the start of the process to the first message of a pop
    takeover   the master of a pair is killed, its slave acts: to the first message of a pop
    expiry     all of them at once, each with an offset of the group: plain sends before, meanwhile
               and after, also without the time for which others had the processor, and how long the
               broker works on one piece before it answers a question that Python serves. The
               slowest of thousands of sends is a machine's; what expiry adds is said by how many
               take more than twice the p99 of before, beside how many do when nothing expires

`subscribe` and `delivery` have `--topics` of them, and so have the others but `sends`.
With `--clients 10000`, `memory` and `restart` have so many clients, whose subscriptions share the
lite topics, each with an offset of the group; `restart` says the broker's processor time, too.
Of 5.5.0 `restart`, `takeover` and `expiry` are not asked: its clients bring their sets back every
30 s, and it walks over all queues.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benches import harness
from benches.brokers import PYSTORE, Peer, free_port, peer_of
from benches.harness import SCRATCH, Figures, Given, Row
from benches.liteclient import GROUP, PARENT, LiteWire, name_of
from benches.replication import Member, until
from broker.wire.codes import RequestCode

_OURS_ALONE = {"restart", "takeover", "expiry"}
_SETTLES_S, _STARTS_S, _WAITS_MS, _DISPATCH_S = 0.5, 120.0, 20_000, 300.0
_DELIVERIES, _THERE = 400, 1000
#: Minutes, the least that a topic can say; and when the broker looks.
_TTL_MIN, _LOOKS_MS = 1, 100_000


class Bench:
    """A peer, and the rounds of its rows."""

    def __init__(self, name: str, topics: int, clients: int, count: int, rng: int) -> None:
        self.name, self.topics, self.clients, self.count = name, topics, clients, count
        self.random = random.Random(rng)
        self.figures = Figures("64 bytes")

    def note(self, bench: str, unit: str, value: float, target: float | None = None) -> None:
        self.figures.add(bench, self.name, unit, value, target=target)

    # ---- the broker ----

    @contextmanager
    def broker(self, **settings: object) -> Iterator[Peer]:
        with peer_of(self.name.partition("-")[0]) as peer:
            self.start(peer, **settings)
            yield peer

    def start(self, peer: Peer, **settings: object) -> float:
        """Returns when the process began."""
        more = {"maxLiteSubscriptionCount": 10_000_000, "brokerName": "broker-a", **settings}
        if self.name != "ours":
            more |= {"enableLmq": "true", "enableMultiDispatch": "true"}
            more |= {"waitTimeMillsInSendQueue": 10_000}  # it has just started, and is slow
        if self.name.endswith("-rocksdb"):
            more["storeType"] = "defaultRocksDB"
        return peer.launch(**more)

    def connect(self, peer: Peer, client_id: str = "bench-client") -> LiteWire:
        """Connects as soon as the broker answers."""
        end = time.monotonic() + _STARTS_S
        while True:
            try:
                wire = LiteWire(peer.port, client_id, 64 if self.name == "ours" else 8)
                wire.put_send(None)
                wire.sent()
            except (OSError, AssertionError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)
            else:
                return wire

    @contextmanager
    def made(self, expiration: int = -1, **settings: object) -> Iterator[tuple[Peer, LiteWire]]:
        with self.broker(**settings) as peer:
            wire = self.connect(peer)
            wire.make(expiration)
            yield peer, wire
            wire.close()

    def subscribe(self, wire: LiteWire, first: int = 0) -> None:
        """Has the clients subscribe, each to its share, the first one with the wire's id; several
        clients from the first message on, so that the group has an offset in each."""
        share = self.topics // self.clients
        option = {"type": "OFFSET", "value": 0} if self.clients > 1 else {}
        for n in range(self.clients):
            names = [name_of(first + i) for i in range(n * share, (n + 1) * share)]
            wire.subscribe(names, "" if n == 0 else f"client-{n}", **option)

    # ---- scenes ----

    def scene(self, name: str) -> None:
        getattr(self, "subscribe_all" if name == "subscribe" else name)()

    def sends(self) -> None:
        """In turns, each kind in pieces, so that a busy moment of the machine meets all of them."""
        with self.made() as (peer, wire):
            wire.send_all(name_of(n) for n in range(_THERE))
            used, pieces, number = {"plain": 0.0, "existing": 0.0, "new": 0.0}, 10, _THERE
            for _ in range(pieces):
                for kind in used:
                    each = range(number, number + self.count // pieces)
                    number = each.stop
                    before = peer.cpu_s()
                    wire.send_all(
                        None if kind == "plain" else name_of(n if kind == "new" else n % _THERE)
                        for n in each
                    )
                    time.sleep(_SETTLES_S)
                    used[kind] += peer.cpu_s() - before
            plain = used["plain"]
            for kind, target in (("plain", None), ("existing", 1.2), ("new", 1.5)):
                took = used[kind] / (self.count // pieces * pieces) * 1e6
                self.note(f"send, {kind}: processor time", " us", took)
                if target is not None:
                    self.note(f"send, {kind}: to a plain one", "", used[kind] / plain, target)

    def subscribe_all(self) -> None:
        with self.made() as (peer, wire):
            wire.send_all(name_of(n) for n in range(self.topics))
            time.sleep(_SETTLES_S)
            names, said = [name_of(n) for n in range(self.topics)], f"subscribing {self.topics:,}"
            took = harness.seconds(lambda: wire.subscribe(names))
            self.note(said, " s", took, 0.5 if self.topics == 10_000 else None)
            while wire.take(32).messages:  # what is out is forgotten by another offset
                pass
            before = peer.cpu_s()
            wire.subscribe(names[:1000], type="OFFSET", value=0)
            self.note("1,000 names with an offset option: processor time", " ms",
                      (peer.cpu_s() - before) * 1e3, 50)  # fmt: skip

    def delivery(self) -> None:
        with self.made() as (peer, wire):
            wire.subscribe([name_of(n) for n in range(self.topics)])
            sender, took = self.connect(peer), list[float]()
            for n in range(_DELIVERIES):
                wire.put_pop(_WAITS_MS)
                time.sleep(0.003)  # it waits by now
                name = name_of(self.random.randrange(self.topics))
                began = time.perf_counter()
                sender.put_send(name, n)
                got = wire.popped()
                took.append((time.perf_counter() - began) * 1e3)
                sender.sent()
                assert [each for each, _ in got.messages] == [name], got
                wire.ack(got)
            took.sort()
            said = f"send to delivery, {self.topics:,} subscribed"
            self.note(f"{said}: p50", " ms", took[len(took) // 2], 0.5)
            self.note(f"{said}: p99", " ms", took[int(len(took) * 0.99)], 5)
            sender.close()

    def memory(self) -> None:
        with self.made() as (peer, wire):
            assert peer.broker is not None
            pid, store = peer.broker.pid, peer.folder / "store"
            time.sleep(2 * _SETTLES_S)
            empty = harness.anonymous_mb(pid), _files(pid), _mappings(pid), _derived(store)
            empty_mb = harness.resident_mb(pid)
            wire.send_all(name_of(n) for n in range(self.topics))
            if self.clients > 1:
                self.subscribe(wire)
            wire.until_dispatched(self.topics, _DISPATCH_S)
            time.sleep(4 * _SETTLES_S)
            full = harness.anonymous_mb(pid), _files(pid), _mappings(pid), _derived(store)
            said = f"{self.topics:,} lite topics"
            for what, unit, one, other, share, target in (
                ("memory", " MB", full[0], empty[0], 1, 20),
                ("descriptors", "", full[1], empty[1], 1, 10),
                ("mappings", "", full[2], empty[2], 1, 20),
                ("disk each", " B", full[3], empty[3], self.topics, 100),
            ):  # fmt: skip
                asked = target if self.clients == 1 else None
                self.note(f"{said}: {what}", unit, (one - other) / share, asked)
            if self.clients > 1:
                said = f"{said}, {self.clients:,} clients"
                self.note(f"{said}: resident", " MB", harness.resident_mb(pid))
                more = harness.resident_mb(pid) - empty_mb
                self.note(f"{said}: resident above the empty broker", " MB", more, 200)

    def restart(self) -> None:
        with self.made() as (peer, wire):
            wire.send_all(name_of(n) for n in range(self.topics))
            self.subscribe(wire)
            time.sleep(_SETTLES_S)
            wire.close()
            peer.stop_broker()
            began = self.start(peer)
            wire = self.connect(peer)
            wire.put_pop(_WAITS_MS)
            got = wire.popped()
            took = time.perf_counter() - began
            assert got.messages, got
            of = f", {self.clients:,} clients" if self.clients > 1 else ""
            said = f"restart to the first delivery, {self.topics:,} lite topics{of}"
            self.note(said, " s", took, 1 if self.clients == 1 else 5)
            if self.clients > 1:
                self.note(f"{said}: processor time", " s", peer.cpu_s())

    def takeover(self) -> None:
        folder = SCRATCH / f"lite-takeover-{os.getpid()}"
        names = Peer("ours", folder)
        acts = {"enableSlaveActingMaster": "true", "maxLiteSubscriptionCount": 10_000_000}
        pair = [
            Member("ours", folder / role, names.namesrv_port, brokerRole=role, brokerId=n,
                   haListenPort=free_port(), **acts)
            for n, role in enumerate(("SYNC_MASTER", "SLAVE"))
        ]  # fmt: skip
        words = [str(PYSTORE), "namesrv", "--port", str(names.namesrv_port)]
        names.names = names.run("names", [*words, "--set", "supportActingMaster=true"])
        try:
            for each in pair:
                each.begin()
                each.until_up()
            self._take_over(*pair)
        finally:
            for peer in (*pair, names):
                peer.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def _take_over(self, master: Member, slave: Member) -> None:
        """The master is killed; from the slave's last refusal to its first message."""
        wire = self.connect(master)
        wire.make()
        wire.send_all(name_of(n) for n in range(self.topics))
        self.subscribe(wire)
        until(lambda: master.behind() == 0, "a slave that has all of it", 0.1)
        client = {"parentTopic": PARENT, "group": GROUP, "clientId": "bench-client"}

        def knows() -> bool:
            said = slave.asked(RequestCode.GET_LITE_CLIENT_INFO, **client)
            return bool(said) and said["liteTopicCount"] == self.topics

        until(knows, "a slave that knows who subscribes", 0.1)
        wire.close()
        assert master.broker is not None
        wire = LiteWire(slave.port)
        master.broker.kill()
        killed = refused = time.perf_counter()
        while not wire.is_served():
            refused = time.perf_counter()
            time.sleep(0.001)
        came = time.perf_counter()
        wire.close()
        said = f"{self.topics:,} lite topics"
        self.note(f"change of role to the first delivery, {said}", " s", came - refused, 1)
        self.note(f"end of the master to the first delivery, {said}", " s", came - killed)

    def expiry(self) -> None:
        settings = {"minLiteTTl": 1000, "liteTtlCheckInterval": _LOOKS_MS}
        with self.broker(**settings) as peer:
            began = time.monotonic()
            wire = self.connect(peer)
            wire.make(_TTL_MIN)
            wire.send_all(name_of(n) for n in range(self.topics))
            # By an option, so that there are offsets that go, too.
            wire.subscribe([name_of(n) for n in range(self.topics)], type="OFFSET", value=1)
            assert time.monotonic() - began < _LOOKS_MS / 1000 - 60 * _TTL_MIN - 5, "it is too slow"
            calm = self._watch(peer, wire, began + _LOOKS_MS / 1000 - 8, until=None)
            busy = self._watch(peer, wire, time.monotonic() + 120, until=0)
            gone = self._watch(peer, wire, time.monotonic() + 8, until=None)
            said = f"{self.topics:,} expire"
            for of, before, meanwhile, after in zip(
                ("", ", of the broker"), calm, busy, gone, strict=False
            ):
                slow = sorted(before)[int(len(before) * 0.99)]
                self.note(f"{said}: p99 of the sends before{of}", " ms", slow)
                self.note(f"{said}: the slowest of them{of}", " ms", max(before))
                slowest = max(meanwhile)
                self.note(f"{said}: the slowest send meanwhile{of}", " ms", slowest, 2 * slow)
                shares = [_beyond(each, 2 * slow) for each in (before, after, meanwhile)]
                self.note(f"{said}: sends slower than p99 × 2, before{of}", " %", shares[0])
                self.note(f"{said}: the same after{of}", " %", shares[1])
                self.note(f"{said}: the same meanwhile{of}", " %", shares[2], max(shares[:2]))
            self.note(f"{said}: longest stall, processor time", " ms", max(busy[2]), 50)

    def _watch(
        self, peer: Peer, wire: LiteWire, end: float, until: int | None
    ) -> tuple[list[float], list[float], list[float]]:
        """Returns ms of each plain send; of that, what the broker took for it: the work of its
        network threads, and while they were held that of its other threads; and ms of the broker's
        processor time until it answered each question. until: ends when so many lite topics are
        left."""
        sends, sends_used, questions = list[float](), list[float](), list[float]()
        assert peer.broker is not None
        threads = _network_threads(peer.broker.pid)

        def scheduled() -> tuple[float, float]:
            """Seconds that network threads have worked; that they or this client have, or were
            ready to."""
            of_net = [harness.scheduled_s(each) for each in threads]
            ran = sum(each for each, _ in of_net)
            return ran, sum(harness.scheduled_s(os.getpid())) + sum(map(sum, of_net))

        while time.monotonic() < end:
            (ran, ready), used, began = scheduled(), peer.cpu_s(), time.perf_counter()
            wire.put_send(None)
            wire.sent()
            took = time.perf_counter() - began
            used, (ran_then, ready_then) = peer.cpu_s() - used, scheduled()
            ran, held = ran_then - ran, took - (ready_then - ready)
            sends.append(took * 1e3)
            sends_used.append((ran + min(max(held, 0), max(used - ran, 0))) * 1e3)
            used = peer.cpu_s()
            wire.put(RequestCode.GET_LITE_CLIENT_INFO, {
                "parentTopic": PARENT, "group": GROUP, "clientId": "nobody",
            })  # fmt: skip
            assert wire.get()[0]["code"] == 0
            questions.append((peer.cpu_s() - used) * 1e3)
            if until is not None and len(sends) % 50 == 0:
                raw = wire.ask(RequestCode.GET_BROKER_LITE_INFO)
                if f'"currentLmqNum":{until},'.encode() in raw.replace(b" ", b""):
                    break
            time.sleep(0.002)
        else:
            assert until is None, "the lite topics are still there"
        return sends, sends_used, questions


def _beyond(took: list[float], bound: float) -> float:
    """Returns how many of them are more, in percent."""
    return 100 * sum(each > bound for each in took) / len(took)


def _network_threads(pid: int) -> list[int]:
    names = Path(f"/proc/{pid}/task").glob("*/comm")
    return [int(each.parent.name) for each in names if each.read_text().startswith("rmq-net")]


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_bytes().splitlines())


def _derived(store: Path) -> int:
    """Bytes on the disk beside what any message has: the log, the index, the topic's own queues."""
    total = 0
    for path in store.rglob("*"):
        with suppress(OSError):
            if not {"commitlog", "index", PARENT}.intersection(path.parts):
                total += path.stat().st_blocks * 512
    return total


def bench(given: Given) -> list[Row]:
    benches = [Bench(each, given.topics, given.clients, given.count, 1) for each in given.peers]
    for _ in range(given.rounds):
        for scene in given.only:
            for each in benches:
                if each.name == "ours":
                    each.scene(scene)
                elif scene not in _OURS_ALONE:
                    # One that gives up must not cost the others' figures.
                    try:
                        each.scene(scene)
                    except (OSError, AssertionError) as error:
                        print(f"{each.name}: {scene} failed: {error!r}", file=sys.stderr)
    return [row for each in benches for row in each.figures.rows]
