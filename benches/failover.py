"""Pairs whose master changes by itself, in turns within one run:

    python -m benches failover [--only sync,kill,move] [--groups controller,etcd,5.3.3]
                               [--rounds 20] [--seconds 5] [--client java] [--poll 100]

`controller`: ours under Apache's controller; `etcd`: ours under etcd; `5.3.3`: Apache's pair under
its controller, with allAckInSyncStateSet, which is what ours always does. For all of them a broker
that is silent for 3 s is dead (controllerHeartBeatTimeoutMills).

`kill`: from kill -9 of the master to the next acknowledged send of the official Java client (or of
ours for Python, or of the gRPC client through our proxy: --client python, proxy), and until its
name server names the next one. The Java client looks for routes every `--poll` ms (its
pollNameServerInterval: 30,000 by default) and at no other time, so that with 1,000 it waits half a
second on average, whatever the brokers do. `move`: the longest time without an acknowledged send of
that client around a planned move. `sync`: 64 sends in flight, both brokers in sync.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import uvloop

from benches import harness
from benches.brokers import PYSTORE, REFERENCE, Peer, ask, connect, frame, free_port
from benches.harness import Given, Row
from benches.replication import JAVA_WARM_S, WARM_S, Member, Turn, _send, until
from broker import Message, Producer, SendStatus
from broker.services.controlled.controller import ControllerRefused
from broker.services.controlled.etcd import EtcdController, Gateway
from broker.services.replication.elected_role import ElectionRecord
from broker.wire import mqjson

NAME, CLUSTER, TOPIC, APACHE = "broker-a", "DefaultCluster", "bench", "5.3.3"
ELECT, LOOK, LEADER, ROUTE = 1002, 1006, 1005, 105
LIFE_MS = 3000
#: An answer may have been on its way when the master was killed.
ON_ITS_WAY_S = 0.02
#: Kills or moves of one group before the next has its turn.
BLOCK = 4
#: A pair that has no other master by then will have none.
LONGEST_S = 60.0


class Controller(Protocol):
    """Who is the master, and how many are in sync."""

    address: str

    def state(self) -> tuple[str, int]: ...

    def move(self, number: int) -> bool: ...


class Apache(Controller):
    """Apache's, in a name server of Apache's."""

    def __init__(self, port: int) -> None:
        self.port, self.address = port, f"127.0.0.1:{port}"

    def leads(self) -> bool:
        with connect(self.port) as wire:
            return ask(wire, frame(LEADER, {}))[0] == 0

    def _row(self) -> dict[str, Any]:
        with connect(self.port) as wire:
            code, body = ask(wire, frame(LOOK, {}, json.dumps([NAME]).encode()))
        table = mqjson.loads(body)["replicasInfoTable"] if code == 0 else {}
        return dict(table.get(NAME) or {})

    def state(self) -> tuple[str, int]:
        row = self._row()
        alive = [x["brokerAddress"] for x in row.get("inSyncReplicas") or () if x["alive"]]
        master = row.get("masterAddress") or ""
        return (master if master in alive else ""), len(alive)

    def move(self, number: int) -> bool:
        fields = {
            "clusterName": CLUSTER, "brokerName": NAME, "brokerId": number,
            "designateElect": "true", "invokeTime": int(time.time() * 1000),
        }  # fmt: skip
        with connect(self.port) as wire:
            return ask(wire, frame(ELECT, fields))[0] == 0


class Etcd(Controller):
    def __init__(self, port: int) -> None:
        self.address = f"etcd://127.0.0.1:{port}"
        gateway = Gateway(self.address)
        self._controller = EtcdController(gateway, CLUSTER, NAME, Path("none"), 0o644, LIFE_MS)

    def state(self) -> tuple[str, int]:
        record: ElectionRecord = asyncio.run(self._controller.look())
        return record.address, len(record.in_sync)

    def move(self, number: int) -> bool:
        with suppress(ControllerRefused):
            asyncio.run(self._controller.move(number))
            return True
        return False


class Group:
    """Two brokers that are in sync, their controller and their name server."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.make = APACHE if kind == APACHE else "ours"
        # A name server of Apache's has the controller; under etcd it is ours.
        self.names = Peer("ours" if kind == "etcd" else APACHE, folder)
        self.controller: Controller
        self.members: list[Member] = []
        self._etcd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port = free_port()
        if self.kind == "etcd":
            self._start_etcd(port)
            self.names.start_names()
        else:
            self._start_controller(port)
        for number in (1, 2):
            self.members.append(self._member(number))
            self.members[-1].begin()
            self.until_in_sync(number)
        self.master.make_topic()
        time.sleep(4)  # a slave asks for topics every three seconds

    def _start_etcd(self, port: int) -> None:
        peer, address = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{port}"
        words = [
            shutil.which("etcd") or "etcd", "--data-dir", str(self.folder / "etcd"),
            "--listen-client-urls", address, "--advertise-client-urls", address,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--log-level", "error",
        ]  # fmt: skip
        self._etcd = self.names.run("etcd", words)
        self.controller = Etcd(port)
        until(lambda: connect(port), "etcd")

    def _start_controller(self, port: int) -> None:
        given = [
            "enableControllerInNamesrv=true", "controllerType=DLedger", "controllerDLegerGroup=g",
            f"controllerDLegerPeers=n0-127.0.0.1:{port}", "controllerDLegerSelfId=n0",
            f"controllerStorePath={self.folder}/controller", "notifyBrokerRoleChanged=true",
            "enableElectUncleanMaster=false",
        ]  # fmt: skip
        words = [str(REFERENCE), "namesrv", str(self.folder), *given]
        self.names.names = self.names.run("names", words)
        self.controller = made = Apache(port)
        until(made.leads, "the controller's leader")

    def _member(self, number: int) -> Member:
        folder = self.folder / f"m{number}"
        given: dict[str, object] = {
            "brokerId": -1, "brokerRole": "SLAVE", "enableControllerMode": "true",
            "controllerAddr": self.controller.address, "allAckInSyncStateSet": "true",
            "controllerHeartBeatTimeoutMills": LIFE_MS, "haListenPort": free_port(),
        }  # fmt: skip
        if self.make == APACHE:
            given |= {
                "storePathEpochFile": f"{folder}/store/epochFileCheckpoint", "inSyncReplicas": 2,
                "storePathBrokerIdentity": f"{folder}/store/brokerIdentity",
                "waitTimeMillsInSendQueue": 10_000,
            }  # fmt: skip
        return Member(self.make, folder, self.names.namesrv_port, **given)

    def until_in_sync(self, count: int = 2) -> None:
        def holds() -> bool:
            address, found = self.controller.state()
            return bool(address) and found == count

        until(holds, f"{count} in sync ({self.kind})", 0.05)

    @property
    def master(self) -> Member:
        """Waits for one: a busy machine may cost a master its lease at any moment."""
        found: list[Member] = []

        def leads() -> bool:
            address = self.controller.state()[0]
            found[:] = [each for each in self.members if address.endswith(f":{each.port}")]
            return bool(found)

        until(leads, f"a master ({self.kind})", 0.05)
        return found[0]

    def named_other_than(self, old: Member, at: float) -> float | None:
        """Seconds from `at` until the name server names another master; None: it does not."""
        while time.time() < at + LONGEST_S:
            with suppress(OSError), connect(self.names.namesrv_port) as wire:
                code, body = ask(wire, frame(ROUTE, {"topic": TOPIC}))
                brokers = mqjson.loads(body)["brokerDatas"] if code == 0 else ()
                found = {str(n): a for each in brokers for n, a in each["brokerAddrs"].items()}
                if not found.get("0", f":{old.port}").endswith(f":{old.port}"):
                    return time.time() - at
            time.sleep(0.005)
        return None

    def has_other_master(self, old: Member) -> bool:
        address = self.controller.state()[0]
        return bool(address) and not address.endswith(f":{old.port}")

    def stop(self) -> None:
        for each in (*self.members, self.names):
            each.stop()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def group_of(kind: str) -> Iterator[Group]:
    made = Group(kind, harness.SCRATCH / f"failover-{kind}-{os.getpid()}")
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Acks(ABC):
    """A client of a name server that sends one message after the other, and when they were
    acknowledged: seconds since 1970. poll_ms: how often it looks for routes, if that can be set."""

    def __init__(self, names: str, poll_ms: int) -> None:
        self.names, self.poll_ms = names, poll_ms
        self.times: list[float] = []
        self.ends = threading.Event()
        self._thread = threading.Thread(target=self.send)

    @abstractmethod
    def send(self) -> None:
        """In a thread of its own, until `ends`."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.until_more(50)
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        self._thread.join()

    def send_by(self, send: Callable[[], bool]) -> None:
        while not self.ends.wait(0.002):
            try:
                if send():
                    self.times.append(time.time())
            except Exception:  # nobody is the master at this moment
                time.sleep(0.005)

    def until_more(self, count: int) -> None:
        wanted = len(self.times) + count
        until(lambda: len(self.times) >= wanted, f"{count} acknowledged sends")

    def first_after(self, at: float, longest_s: float) -> float | None:
        """None: there was none in that time."""
        while not (found := [each for each in self.times[-200:] if each > at]):
            if time.time() > at + longest_s:
                return None
            time.sleep(0.005)
        return found[0]


class JavaAcks(Acks):
    """The official Java client."""

    def __init__(self, names: str, poll_ms: int) -> None:
        super().__init__(names, poll_ms)
        words = [str(REFERENCE), "acks", names, TOPIC, str(poll_ms)]
        env = os.environ | {"RMQ_VERSION": APACHE, "JAVA_OPTS": "-Xmx128m"}
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=null)

    def send(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.times.append(int(line) / 1e6)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        super().__exit__()


class PythonAcks(Acks):
    """Our client for Python."""

    def send(self) -> None:
        with Producer("acks", self.names, send_timeout_s=3) as producer:
            message = Message(TOPIC, b"x" * 128)
            self.send_by(lambda: producer.send(message).status is SendStatus.SEND_OK)


class ProxyAcks(Acks):
    """The official gRPC client for Python, through `pystore proxy`."""

    def send(self) -> None:
        import rocketmq

        words = [str(PYSTORE), "proxy", "-n", self.names, "--remoting-port", "0", "--grpc-port",
                 "0", "--json"]  # fmt: skip
        message = rocketmq.Message()
        message.topic, message.body = TOPIC, b"x" * 128
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["grpc"]
            known = rocketmq.ClientConfiguration(address, rocketmq.Credentials(), request_timeout=3)
            producer = rocketmq.Producer(known, (TOPIC,))
            producer.startup()
            self.send_by(lambda: producer.send(message) is not None)
            producer.shutdown()
            process.terminate()


CLIENTS: dict[str, type[Acks]] = {"java": JavaAcks, "python": PythonAcks, "proxy": ProxyAcks}


# ---- works ----


def in_turns(
    groups: list[Group], rounds: int, make: Callable[[str], Acks]
) -> Iterator[tuple[Group, Acks, int]]:
    """Some rounds of each group, again and again. Nobody sends to the others meanwhile."""
    for done in range(0, rounds, BLOCK):
        for group in groups:
            with make(group.names.namesrv) as acks:
                yield group, acks, min(BLOCK, rounds - done)


def kill_once(group: Group, acks: Acks, watch: ThreadPoolExecutor) -> tuple[float, float] | None:
    """Seconds until the name server has another master, and until a send is acknowledged. None:
    the old one was alone in sync, so that nobody else may be elected."""
    master = group.master
    assert master.broker is not None
    at = time.time()
    master.broker.kill()
    watched = watch.submit(group.named_other_than, master, at)
    master.broker.wait()
    found = acks.first_after(at + ON_ITS_WAY_S, LONGEST_S)
    known = watched.result()
    master.begin()
    if found is None or known is None:
        acks.until_more(50)
    group.until_in_sync()
    acks.until_more(50)
    return None if found is None or known is None else (known, found - at)


def killed(groups: list[Group], rounds: int, make: Callable[[str], Acks], how: str) -> list[Row]:
    took: dict[str, list[float]] = {each.kind: [] for each in groups}
    named: dict[str, list[float]] = {each.kind: [] for each in groups}
    with ThreadPoolExecutor(1) as watch:
        for group, acks, count in in_turns(groups, rounds, make):
            wanted = len(took[group.kind]) + count
            while len(took[group.kind]) < wanted:
                found = kill_once(group, acks, watch)
                print(f"{group.kind}: {found}", flush=True)
                if found is not None:
                    named[group.kind].append(found[0])
                    took[group.kind].append(found[1])
    what = f"to the next acknowledged send, {rounds} kills, {how}"
    return [
        Row("kill -9 of the master", label, kind, "s", found, smaller=True,
            extra={"max": max(found)})
        for label, table in ((what, took), ("until the name server has the next one", named))
        for kind, found in table.items()
    ]  # fmt: skip


def moved(groups: list[Group], rounds: int, make: Callable[[str], Acks]) -> list[Row]:
    took: dict[str, list[float]] = {each.kind: [] for each in groups}
    for group, acks, count in in_turns(groups, rounds, make):
        for _ in range(count):
            old = group.master
            heir = next(n for n, each in enumerate(group.members, 1) if each is not old)
            at, before = time.time(), len(acks.times)
            # One whose heartbeat is late is refused.
            until(partial(group.controller.move, heir), "a move", 0.2)
            until(partial(group.has_other_master, old), "the move")
            group.until_in_sync()
            acks.until_more(50)
            around = [each for each in acks.times[max(0, before - 5) :] if each > at - 1]
            took[group.kind].append(max(b - a for a, b in pairwise(around)))
    return [
        Row("planned move", f"the longest time without an acknowledged send, {rounds} moves", kind,
            "s", found, None if kind == APACHE else 1.0, smaller=True,
            extra={"max": max(found)})
        for kind, found in took.items()
    ]  # fmt: skip


def synchronous(groups: list[Group], rounds: int, seconds: float) -> list[Row]:
    rates: dict[str, list[float]] = {each.kind: [] for each in groups}
    for group in groups:
        if group.make == APACHE:
            uvloop.run(_send(group.names.namesrv, 0.0, JAVA_WARM_S))
    for _ in range(rounds):
        for group in groups:
            master = group.master
            both = [master, *(each for each in group.members if each is not master)]
            rates[group.kind].append(Turn(both, seconds, WARM_S).rate)
    return [
        Row("sync, 64 senders", "both in sync", kind, "messages/s", found)
        for kind, found in rates.items()
    ]


def bench(given: Given) -> Iterator[Row]:
    make = partial(CLIENTS[given.client], poll_ms=given.poll)
    how = f"routes every {given.poll} ms" if given.client == "java" else given.client
    with ExitStack() as stack:
        groups = [stack.enter_context(group_of(kind)) for kind in given.groups]
        works: dict[str, Callable[[], list[Row]]] = {
            "kill": lambda: killed(groups, given.rounds, make, how),
            "move": lambda: moved(groups, min(given.rounds, 10), make),
            "sync": lambda: synchronous(groups, min(given.rounds, 5), given.seconds),
        }
        for name in given.only:
            yield from works[name]()
            given.facts["load after"] = f"{os.getloadavg()[0]:.2f}"
