"""What replication costs and how fast it is, ours and Apache's, in turns within one run:

    python -m benches replication [--only WORK,WORK] [--rounds 3] [--seconds 5] [--gb 2]

`async`: an asynchronous master under 64 sends in flight, with a slave and without one: rate, its
processor time a message, how far the slave is behind. `sync`: synchronous pairs, ours and Apache's,
under the same. `one`: one sender that waits for each answer. `catch-up`: a new slave copies a log
of --gb, beside `cp` of the same files. `start`: a slave of an empty master, from the start of its
process until it is in sync, and its memory.

Everything runs on this machine: client, master and slave share its processors. Senders are one
AsyncProducer, the same for both makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

import pystore
from benches import harness
from benches.brokers import PYSTORE, REFERENCE, Peer, ask, connect, frame, peer_of
from benches.harness import ROOT, Given, Row, command_of
from broker import AsyncProducer, Message, SendResult, SendStatus
from broker.wire import mqjson

BODY, IN_FLIGHT, WARM_S, TOPIC = b"x" * 128, 64, 2.0, "bench"
#: A virtual machine compiles what it runs first.
JAVA_WARM_S = 15.0 * harness.SCALE
HA_STATUS, RUNTIME_INFO, MAKE_TOPIC = 907, 28, 17
#: Between two looks at how far a slave is behind.
LOOK_S = 0.02
APACHE = "5.3.3"


# ---- brokers ----


class Member(Peer):
    """A broker of a pair, at a name server that another peer has."""

    def __init__(self, make: str, folder: Path, namesrv_port: int, **settings: object) -> None:
        super().__init__(make, folder, namesrv_port=namesrv_port)
        self._settings = settings

    def begin(self) -> float:
        """Returns when its process began, on the clock of time.perf_counter()."""
        given = {
            "brokerName": "broker-a", "brokerClusterName": "DefaultCluster",
            "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", **self._settings,
        }  # fmt: skip
        words = [str(REFERENCE), "broker", str(self.folder)]
        if self.name == "ours":
            given |= {"listenPort": self.port, "namesrvAddr": self.namesrv,
                      "storePathRootDir": self.folder / "store"}  # fmt: skip
            conf = self.folder / "broker.conf"
            self.folder.mkdir(parents=True, exist_ok=True)
            conf.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
            words = [str(PYSTORE), "broker", "-c", str(conf)]
        else:
            words += [f"{name}={value}" for name, value in given.items()]
        began = time.perf_counter()
        self.broker = self.run("broker", words)
        return began

    def until_up(self) -> None:
        until(lambda: self.asked(RUNTIME_INFO), f"{self.name} answers")

    def asked(self, code: int, **ext: object) -> Any:
        with connect(self.port) as wire:
            said, body = ask(wire, frame(code, ext))
        return (mqjson.loads(body) if body else True) if said == 0 else None

    def make_topic(self) -> None:
        made = self.asked(
            MAKE_TOPIC, topic=TOPIC, defaultTopic="TBW102", readQueueNums=4, writeQueueNums=4,
            perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
        )  # fmt: skip
        assert made, "the topic could not be made"

    def behind(self) -> int | None:
        """Bytes that the only slave lacks; None: there is none."""
        rows = self.asked(HA_STATUS)["haConnectionInfo"]
        return int(rows[0]["diff"]) if rows else None

    def end(self) -> int:
        return int(self.asked(RUNTIME_INFO)["table"]["commitLogMaxOffset"])


def until(holds: Callable[[], object], what: str, pause_s: float = 0.01) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with suppress(OSError):
            if holds():
                return
        time.sleep(pause_s)
    raise TimeoutError(what)


@contextmanager
def pair_of(make: str, role: str, **settings: object) -> Iterator[tuple[Member, Member]]:
    """A master that runs and the slave for it, which does not yet."""
    folder = harness.SCRATCH / f"replication-{make}-{role}-{os.getpid()}"
    names = Peer(make, folder)
    shared = {"inSyncReplicas": 2 if role == "SYNC_MASTER" else 1, **settings}
    master = Member(make, folder / "m", names.namesrv_port, brokerRole=role, brokerId=0, **shared)
    slave = Member(make, folder / "s", names.namesrv_port, brokerRole="SLAVE", brokerId=1, **shared)
    try:
        names.start_names()
        master.begin()
        master.until_up()
        master.make_topic()
        yield master, slave
    finally:
        for each in (slave, master, names):
            each.stop()
        shutil.rmtree(folder, ignore_errors=True)


# ---- senders ----


async def _send(namesrv: str, seconds: float, warm: float) -> tuple[int, float]:
    """Acknowledged messages and seconds, of 64 sends in flight."""
    count = 0

    def ended(send: asyncio.Future[SendResult]) -> None:
        nonlocal count
        count += send.exception() is None and send.result().status is SendStatus.SEND_OK

    async with AsyncProducer("bench", namesrv, max_in_flight=IN_FLIGHT) as producer:
        message = Message(TOPIC, BODY)
        for limit in (warm, seconds):
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < limit:
                for _ in range(100):
                    (await producer.submit(message)).add_done_callback(ended)
            await producer.flush()
            spent = time.perf_counter() - began
        await asyncio.sleep(0)  # the callback of the last one
        return count, spent


async def _send_one(namesrv: str, seconds: float, warm: float) -> list[float]:
    """Seconds that each send took."""
    async with AsyncProducer("bench", namesrv) as producer:
        message = Message(TOPIC, BODY)
        for limit in (warm, seconds):
            began, took = time.perf_counter(), []
            while time.perf_counter() - began < limit:
                at = time.perf_counter()
                await producer.send(message)
                took.append(time.perf_counter() - at)
        return took


def percentile(values: list[float], part: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * part))]


class Turn:
    """One measured turn of a master: messages a second, and processor time a message, in us."""

    def __init__(self, brokers: list[Member], seconds: float, warm: float) -> None:
        master = brokers[0]
        uvloop.run(_send(master.namesrv, 0.0, warm))
        before, end = sum(each.cpu_s() for each in brokers), master.end()
        count, spent = uvloop.run(_send(master.namesrv, seconds, 0.0))
        self.rate = count / spent
        self.cpu_us = (sum(each.cpu_s() for each in brokers) - before) / max(count, 1) * 1e6
        self.bytes_s = (master.end() - end) / spent


# ---- works ----


def asynchronous(rounds: int, seconds: float) -> list[Row]:
    rates: dict[str, list[float]] = {"no slave": [], "a slave": []}
    cpus: dict[str, list[float]] = {"no slave": [], "a slave": []}
    late: list[float] = []
    with pair_of("ours", "ASYNC_MASTER") as (master, slave):
        for _ in range(rounds):
            for kind in rates:
                if kind == "a slave":
                    slave.begin()
                    until(lambda: master.behind() == 0, "the slave is in sync")
                    watcher = subprocess.Popen(
                        command_of(watch, master.port), cwd=ROOT, stdout=subprocess.PIPE, text=True
                    )
                turn = Turn([master], seconds, WARM_S)
                rates[kind].append(turn.rate)
                cpus[kind].append(turn.cpu_us)
                if kind == "a slave":
                    watcher.terminate()
                    found = json.loads(watcher.communicate()[0])
                    late.append(percentile(found, 0.99) / turn.bytes_s * 1000)
                    slave.stop_broker()
    return [
        *(Row("async, 64 senders", kind, "ours", "messages/s", rates[kind]) for kind in rates),
        *(
            Row("async, 64 senders", kind, "ours", "master's us a message", cpus[kind],
                smaller=True)
            for kind in cpus
        ),
        Row("async, 64 senders", "a slave", "ours", "ms behind, p99", late, 20, smaller=True),
    ]  # fmt: skip


def watch(port: int) -> None:
    """Bytes that the slave is behind, again and again until SIGTERM, once at least; prints all of
    them."""
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(1))
    seen: list[int] = []
    time.sleep(WARM_S)
    with connect(port) as wire:
        while not over or not seen:
            _, body = ask(wire, frame(HA_STATUS, {}))
            rows = json.loads(body)["haConnectionInfo"]
            if rows:
                seen.append(max(0, rows[0]["diff"]))
            time.sleep(LOOK_S)
    print(json.dumps(seen))


@contextmanager
def _in_sync(make: str) -> Iterator[tuple[Member, Member]]:
    with pair_of(make, "SYNC_MASTER") as (master, slave):
        slave.begin()
        until(lambda: master.behind() == 0, f"the slave of {make} is in sync")
        yield master, slave


def synchronous(rounds: int, seconds: float) -> list[Row]:
    rates: dict[str, list[float]] = {"ours": [], APACHE: []}
    cpus: dict[str, list[float]] = {"ours": [], APACHE: []}
    with _in_sync("ours") as ours, _in_sync(APACHE) as theirs:
        pairs = {"ours": list(ours), APACHE: list(theirs)}
        uvloop.run(_send(theirs[0].namesrv, 0.0, JAVA_WARM_S))
        for _ in range(rounds):
            for make, pair in pairs.items():
                turn = Turn(pair, seconds, WARM_S)
                rates[make].append(turn.rate)
                cpus[make].append(turn.cpu_us)
    return [
        *(Row("sync, 64 senders", "a slave", make, "messages/s", rates[make]) for make in rates),
        *(
            Row("sync, 64 senders", "a slave", make, "both brokers' us a message", cpus[make],
                smaller=True)
            for make in cpus
        ),
    ]  # fmt: skip


def one_sender(rounds: int, seconds: float) -> list[Row]:
    took: dict[tuple[str, str], list[float]] = {
        ("ours", "no slave"): [], ("ours", "a slave"): [], (APACHE, "a slave"): [],
    }  # fmt: skip
    with (
        pair_of("ours", "ASYNC_MASTER") as alone,
        _in_sync("ours") as ours,
        _in_sync(APACHE) as theirs,
    ):
        masters = dict(zip(took, (alone[0], ours[0], theirs[0]), strict=True))
        uvloop.run(_send(theirs[0].namesrv, 0.0, JAVA_WARM_S))
        for _ in range(rounds):
            for kind, master in masters.items():
                found = uvloop.run(_send_one(master.namesrv, seconds, WARM_S / 2))
                took[kind].append(percentile(found, 0.5) * 1e6)
    return [
        Row("sync, one sender", slave, make, "us, p50", rounds_, smaller=True)
        for (make, slave), rounds_ in took.items()
    ]


def catching_up(rounds: int, gigabytes: float) -> list[Row]:
    rates: dict[str, list[float]] = {"cp": [], "a slave": []}
    memory = []
    with peer_of("ours") as names:
        folder = names.folder / "m"
        size = _fill(folder / "store", gigabytes)
        master = Member("ours", folder, names.namesrv_port, brokerRole="ASYNC_MASTER", brokerId=0)
        master.begin()
        master.until_up()
        try:
            for number in range(rounds):
                copy = names.folder / "cp"
                rates["cp"].append(size / _cp(folder / "store" / "commitlog", copy) / 1e6)
                slave = Member(
                    "ours", names.folder / f"s{number}", names.namesrv_port, brokerRole="SLAVE",
                    brokerId=1,
                )  # fmt: skip
                began = slave.begin()
                until(lambda: master.behind() == 0, "the slave has all", 0.005)
                rates["a slave"].append(size / (time.perf_counter() - began) / 1e6)
                memory.append(slave.anonymous_mb())
                slave.stop_broker()
                shutil.rmtree(slave.folder)
        finally:
            master.stop_broker()
    what = f"{size / 1e9:.1f} GB, process start included"
    return [
        *(Row("catching up", what, kind, "MB/s", rates[kind]) for kind in rates),
        Row("catching up", what, "a slave", "MB anonymous", memory, 60, smaller=True),
    ]


def _cp(log: Path, copy: Path) -> float:
    """Seconds."""
    words = ["cp", "-r", str(log), str(copy)]
    took = harness.seconds(lambda: subprocess.run(words, check=True))
    shutil.rmtree(copy)
    return took


def _fill(store: Path, gigabytes: float) -> int:
    """Returns bytes of the log."""
    bodies = harness.bodies(1000, 4000)
    with pystore.open(store) as made:
        while made.info().log_max < gigabytes * 1e9:
            made.put_many(TOPIC, bodies, queues=[n % 4 for n in range(1000)])
        return int(made.info().log_max)


def starting(rounds: int) -> list[Row]:
    took, memory = [], []
    with pair_of("ours", "ASYNC_MASTER") as (master, slave):
        uvloop.run(_send(master.namesrv, 0.2, 0.0))
        for _ in range(rounds):
            shutil.rmtree(slave.folder, ignore_errors=True)
            began = slave.begin()
            until(lambda: master.behind() == 0, "the slave is in sync", 0.002)
            took.append(time.perf_counter() - began)
            memory.append(slave.anonymous_mb())
            slave.stop_broker()
    return [
        Row("a slave's start", "to in sync", "ours", "s", took, 1, smaller=True),
        Row("a slave's start", "in sync", "ours", "MB anonymous", memory, 60, smaller=True),
    ]


def bench(given: Given) -> Iterator[Row]:
    works: dict[str, Callable[[], list[Row]]] = {
        "async": lambda: asynchronous(given.rounds, given.seconds),
        "sync": lambda: synchronous(given.rounds, given.seconds),
        "one": lambda: one_sender(given.rounds, given.seconds),
        "catch-up": lambda: catching_up(given.rounds, given.gb),
        "start": lambda: starting(given.rounds),
    }
    for name in given.only:
        yield from works[name]()
