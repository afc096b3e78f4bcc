"""A synchronous pair of Java's brokers becomes a pair of ours, and Java's again, a broker at a time
and under load, in the steps of docs/replication.md#from-java-and-back: what was acknowledged is
delivered, and lies in the log of the last master."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from test_replication_tools_java import pystore
from waiting import until

from broker import Consumer, Message, Producer
from broker.client import ClientError, SendStatus
from pystore import Reader, audit

pytestmark = [pytest.mark.java, pytest.mark.long]

TOPIC, GROUP = "orders", "readers"
MAKE_TOPIC, MAKE_GROUP, UPDATE_CONFIG = 17, 200, 25
BOTH = {"mappedFileSizeCommitLog": 1 << 20, "brokerName": "broker-a", "inSyncReplicas": 2,
        "slaveTimeout": 1000}  # fmt: skip


@dataclass
class Node:
    """A folder, and the broker that has it at the moment."""

    folder: Path
    names: str
    peer: launch.Peer | None = None

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self, make: str, role: str) -> None:
        given = {**BOTH, "brokerRole": role, "brokerId": int(role == "SLAVE")}
        self.peer = launch.MAKES[make](self.folder, launch.SETTINGS | given, "5.3.3", self.names)
        self.peer.broker_server.start()
        self.peer.wait_ready() if role != "SLAVE" else None

    @property
    def address(self) -> str:
        assert self.peer is not None
        return self.peer.broker

    def stop(self) -> None:
        if self.peer is not None:
            self.peer.stop()
            self.peer = None


@dataclass
class Load:
    """A producer that goes on through whatever happens, and a consumer."""

    names: str
    acknowledged: set[bytes] = field(default_factory=set)
    got: set[bytes] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def produce(self) -> None:
        number = 0
        with Producer("p", self.names, send_timeout_s=3, retries=0) as producer:
            while not self._over.is_set():
                number += 1
                with contextlib.suppress(ClientError):
                    sent = producer.send(Message(TOPIC, b"%d" % number))
                    if sent.status == SendStatus.SEND_OK:
                        self.acknowledged.add(b"%d" % number)
                time.sleep(0.002)

    def take(self, message: Any) -> None:
        self.got.add(bytes(message.body))

    def go_on(self) -> None:
        """Until more is acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 100, "acknowledged messages")


@contextlib.contextmanager
def load_on(names: str) -> Iterator[Load]:
    load = Load(names)
    thread = threading.Thread(target=load.produce)
    thread.start()
    try:
        with Consumer(GROUP, TOPIC, namesrv=names, start="first", handler=load.take):
            yield load
            load._over.set()
            thread.join()
            until(lambda: load.acknowledged <= load.got, "what was acknowledged, delivered")
    finally:
        load._over.set()
        thread.join()


def in_sync(master: Node) -> bool:
    rows = pystore("ha", "status", master.address)["slaves"]
    return len(rows) == 1 and rows[0]["in_sync"] and rows[0]["behind"] == 0


def replace_slave(master: Node, slave: Node, make: str, load: Load) -> None:
    slave.stop()
    slave.start(make, "SLAVE")
    until(lambda: len(pystore("ha", "status", master.address)["slaves"]) == 1, "the slave", 0.5)
    load.go_on()


def change_roles(master: Node, slave: Node, make: str) -> None:
    """The slave, which `make` runs, becomes the master, and the master's folder the slave's."""
    assert launch.ask(master.address, UPDATE_CONFIG, {}, b"brokerPermission=4\n")[0] == 0
    until(lambda: in_sync(master), "that the slave has all", 0.5)
    master.stop()
    slave.stop()
    conf = slave.folder / "promoted.conf"
    conf.write_text("brokerRole=SLAVE\nbrokerId=1\nbrokerName=broker-a\n")
    words = ("--conf", conf, "--compare", master.store, "--role", "SYNC_MASTER")
    assert pystore("ha", "promote", slave.store, *words)["compared"][0]["more"] == 0
    assert "brokerRole=SYNC_MASTER" in conf.read_text()
    slave.start(make, "SYNC_MASTER")
    master.start(make, "SLAVE")


def test_a_pair_goes_from_java_to_ours_and_back_under_load(reference: Any, tmp_path: Path) -> None:
    with launch.name_server("ours", tmp_path / "names") as names:
        one, other = Node(tmp_path / "one", names), Node(tmp_path / "other", names)
        try:
            one.start("java", "SYNC_MASTER")
            made = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4",
                    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0", "order": "false"}  # fmt: skip
            assert launch.ask(one.address, MAKE_TOPIC, made)[0] == 0
            group = json.dumps({"groupName": GROUP}).encode()
            assert launch.ask(one.address, MAKE_GROUP, {}, group)[0] == 0
            with load_on(names) as load:
                replace_slave(one, other, "java", load)
                replace_slave(one, other, "ours", load)
                change_roles(one, other, "ours")  # other is the master
                load.go_on()
                replace_slave(other, one, "java", load)
                change_roles(other, one, "java")  # one is the master
                load.go_on()
            until(lambda: in_sync(one), "that the slave has all", 0.5)
        finally:
            one.stop()
            other.stop()
        for node in (one, other):
            with Reader(node.store) as reader:
                stored = {bytes(m.body) for m in reader.messages() if m.topic == TOPIC}
            assert load.acknowledged <= stored
            assert [f for f in audit.verify(node.store).findings if f.severity > 1] == []
        print(f"{len(load.acknowledged)} messages acknowledged")
