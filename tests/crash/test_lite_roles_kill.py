"""``kill -9`` of the master of lite topics, after which another broker serves them: what was
acknowledged to producers and by consumers is so there, too, and the order within a lite topic is
kept; and it knows a topic and a group that were made just before. Three ways in which that comes
about (``PS_LITE_PAIR``, one of them):

slave: both of a pair are killed, and the slave's folder begins as the master, the other one follows
acting: a slave acts as master, may be killed itself, and the master returns
controller: etcd has one of two brokers be the master

``PS_LITE_KILLS`` changes of role (`make crash-lite PS_LITE_PAIR=...`: 20), ``PS_SEED`` repeats a
run. In half of them no client says what it subscribes to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import struct
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from controllers import Controller, member_of
from etcd_server import PROGRAM, etcd
from test_failover_kills import NAME, record_of
from test_lite_kill import CLIENTS, GROUPS, ROUNDS, Client, Ledger, drained, served

from broker import NameServer
from broker.services.replication.elected_role import ElectionRecord
from broker.wire import mqjson
from pystore.audit import verify

PAIRS = [
    each if "PS_LITE_PAIR" in os.environ or each == "controller"
    else pytest.param(each, marks=pytest.mark.long)
    for each in os.environ.get("PS_LITE_PAIR", "slave,acting,controller").split(",")
]  # fmt: skip
INFO, HA_STATUS, MAKE_TOPIC, MAKE_GROUP, LITE_INFO, ACK = 28, 907, 17, 200, 200074, 200051
TOPIC_CONFIG, GROUP_CONFIG = 351, 352
#: A master does not wait longer for its slaves (notices.py).
WAITED_S = 3.0
#: A broker that ends serving, whose slave is late, or that is another one's slave from now on;
#: then nobody knows.
REFUSALS = frozenset((10, 11, 12, 13, 14, 1500))
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "brokerName": NAME}


def make_topic(address: str, topic: str) -> int:
    made = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+message.type=LITE",
    }  # fmt: skip
    return launch.ask(address, MAKE_TOPIC, made)[0]


def make_group(address: str, name: str, topic: str, **attributes: str) -> int:
    said = {"+lite.bind.topic": topic, **attributes}
    body = json.dumps({"groupName": name, "attributes": said}).encode()
    return launch.ask(address, MAKE_GROUP, body=body)[0]


def make(address: str) -> None:
    """Makes the topic and the groups, or what of them a broker takes that is no longer a master."""
    make_topic(address, "chat")
    for name in GROUPS:
        make_group(address, name, "chat", **{"+lite.sub.model": name})


def made_late(address: str, name: str) -> bool:
    """Makes a topic of this name and a group of it. Returns whether a slave has both."""
    began = time.monotonic()
    try:
        codes = [make_topic(address, name), make_group(address, name, name)]
        if codes == [0, 0] and time.monotonic() < began + WAITED_S:
            return follows(address)
    except (OSError, struct.error):  # it is not a master any more
        pass
    return False


def knows(address: str, name: str) -> bool:
    """Whether a broker has the topic with its type, and the group with what it is bound to."""
    (one, _, topic), (other, _, group) = (
        launch.ask(address, TOPIC_CONFIG, {"topic": name}),
        launch.ask(address, GROUP_CONFIG, {"group": name}),
    )
    return (
        one == other == 0
        and json.loads(topic)["attributes"].get("message.type") == "LITE"
        and json.loads(group)["attributes"].get("lite.bind.topic") == name
    )


def follows(address: str) -> bool:
    said = mqjson.loads(launch.ask(address, HA_STATUS)[2])
    return any(row["inSync"] for row in said["haConnectionInfo"])


def known(address: str) -> tuple[list[str], int]:
    """The groups of lite topics that a broker knows, and how many subscriptions."""
    code, _, body = launch.ask(address, LITE_INFO)
    said = json.loads(body) if code == 0 else {"groupMeta": {}, "liteSubscriptionCount": -1}
    return sorted(said["groupMeta"].get("chat", ())), said["liteSubscriptionCount"]


class Pair:
    """Two brokers of one name. master: who serves. sends: whether it takes messages."""

    master: launch.Peer
    other: launch.Peer
    sends = True

    def begin(self) -> None:
        """Until both know the topic and the groups."""

        def is_made() -> bool:
            if known(self.master.broker)[0] != sorted(GROUPS):
                make(self.master.broker)  # again, if one that did not know them is the master now
            return self.is_settled()

        launch.wait("a slave that knows the groups", is_made)

    def settle(self) -> None:
        """Until the other one has all, and knows who subscribes."""
        launch.wait("a slave in sync that knows who subscribes", self.is_settled)

    def is_settled(self) -> bool:
        wanted = known(self.master.broker)
        return (
            wanted[0] == sorted(GROUPS)
            and follows(self.master.broker)
            and known(self.other.broker) == wanted
        )

    def serves(self) -> bool:
        """Whether the master is it still."""
        return True

    def look(self) -> object:
        """Finds who serves."""
        return None

    def until_served(self) -> None:
        """Until an acknowledgement is looked at: it is of a message that is not there."""
        ack = {
            "consumerGroup": GROUPS[0], "topic": "chat", "queueId": "0", "offset": str(1 << 40),
            "liteTopic": "s0", "extraInfo": "0 1 1 999 0 b 0 0",
        }  # fmt: skip

        def is_looked_at() -> bool:
            self.look()
            return launch.ask(self.master.broker, ACK, ack)[0] == 208

        launch.wait("a broker that hands out", is_looked_at)

    def kill(self) -> None:
        self.master.kill()

    def change(self, chance: random.Random) -> None:
        """Another one serves; what was killed runs again, at the latest when it does so."""
        raise NotImplementedError


class Swapped(Pair):
    def kill(self) -> None:
        self.master.kill()
        self.other.kill()

    def change(self, chance: random.Random) -> None:
        self.master, self.other = self.other, self.master
        for peer, role, number in ((self.master, "SYNC_MASTER", 0), (self.other, "SLAVE", 1)):
            file = peer.folder / "broker.conf"
            text = re.sub("brokerRole=.*", f"brokerRole={role}", file.read_text())
            file.write_text(re.sub("brokerId=.*", f"brokerId={number}", text))
            peer.restart()


class Acting(Pair):
    def settle(self) -> None:
        if self.sends:
            super().settle()

    def change(self, chance: random.Random) -> None:
        self.sends = not self.sends
        if self.sends:
            self.master, self.other = self.other, self.master
            self.master.restart()
            self.other.restart()
            return
        self.master, self.other = self.other, self.master
        if chance.random() < 0.5:
            self.master.kill()
            self.master.restart()


class Elected(Pair):
    """A master that a busy machine keeps from its lease loses it to the other one, at any time."""

    controller = ""
    looked_s = 0.0

    def look(self) -> ElectionRecord:
        record = record_of(self.controller)
        if record.address == self.other.broker:
            self.master, self.other = self.other, self.master
        return record

    def is_settled(self) -> bool:
        return len(self.look().in_sync) == 2 and super().is_settled()

    def serves(self) -> bool:
        if time.monotonic() < self.looked_s + 1:
            return True
        self.looked_s = time.monotonic()
        with contextlib.suppress(OSError):  # etcd is slow, and is asked again
            return record_of(self.controller).address in ("", self.master.broker)
        return True

    def change(self, chance: random.Random) -> None:
        killed = self.master

        def is_over() -> bool:
            """Whether there is another master, or nobody else who may be one."""
            in_sync = self.look().in_sync
            return self.master is not killed or len(in_sync) == 1

        launch.wait("another master", is_over)
        killed.restart()


@contextlib.contextmanager
def swapped(folder: Path):
    both = {**SMALL, "inSyncReplicas": 2, "slaveTimeout": 2000, "haTruncateDiverged": "true"}
    with (
        launch.name_server("ours", folder / "names") as names,
        launch.running(
            "ours", folder / "a", {**both, "brokerRole": "SYNC_MASTER", "brokerId": 0},
            namesrv=names,
        ) as master,
        launch.running(
            "ours", folder / "b", {**both, "brokerRole": "SLAVE", "brokerId": 1}, namesrv=names
        ) as slave,
    ):  # fmt: skip
        pair = Swapped()
        pair.master, pair.other = master, slave
        yield pair


@contextlib.contextmanager
def acting(folder: Path):
    both = {
        **SMALL, "enableSlaveActingMaster": "true", "brokerNotActiveTimeoutMillis": 600_000,
        "totalReplicas": 2,
    }  # fmt: skip
    of_master = {**both, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 2000}
    with (
        NameServer.in_thread(
            listenPort=0, bindAddress="127.0.0.1", supportActingMaster=True,
            notifyMinBrokerIdChanged=True, kvConfigPath="",
        ) as server,
        launch.running("ours", folder / "s", {**both, "brokerRole": "SLAVE", "brokerId": 1},
                       namesrv=f"127.0.0.1:{server.port}") as slave,
        launch.running("ours", folder / "m", of_master, namesrv=slave.namesrv) as master,
    ):  # fmt: skip
        pair = Acting()
        pair.master, pair.other = master, slave
        yield pair


@contextlib.contextmanager
def elected(folder: Path):
    with etcd(folder / "etcd") as controller, launch.name_server("ours", folder / "n") as names:
        under = Controller(names, controller.address, launch.Server([], folder))
        peers = []
        try:
            for number in range(2):
                peers.append(
                    member_of("ours", under, folder / f"m{number}", NAME, slaveTimeout=2000)
                )
                peers[-1].broker_server.start()
            pair = Elected()
            pair.controller = controller.address
            launch.wait("a master", lambda: record_of(pair.controller).address != "")
            first = record_of(pair.controller).address
            pair.master, pair.other = sorted(peers, key=lambda each: each.broker != first)
            yield pair
        finally:
            for peer in peers:
                peer.broker_server.stop()


KINDS = {"slave": swapped, "acting": acting, "controller": elected}


@pytest.mark.parametrize("kind", PAIRS)
def test_whoever_serves_next_loses_and_repeats_nothing(
    kind: str, tmp_path: Path, seed: int
) -> None:
    if kind == "controller" and PROGRAM is None:
        pytest.skip("etcd is not installed (etcd-server)")
    ledger, chance = Ledger(), random.Random(seed)
    clients = [Client(i, group, ledger, chance) for group in GROUPS for i in range(CLIENTS)]
    for client in clients:
        client.may_refuse = REFUSALS
    waits, late = [], []
    with KINDS[kind](tmp_path) as pair:
        launch.wait("the master", lambda: launch.ask(pair.master.broker, INFO)[0] == 0)
        pair.begin()
        try:
            for round_ in range(ROUNDS):
                says = round_ == 0 or chance.random() < 0.5
                pair.settle()

                def kill(name: str = f"late{round_}") -> None:
                    if pair.sends and made_late(pair.master.broker, name):
                        late.append(name)
                    pair.kill()

                work = served(
                    pair.master.broker, clients, ledger, chance, kill, sends=pair.sends,
                    says=says, serves=pair.serves,
                )  # fmt: skip
                asyncio.run(work)
                began = time.monotonic()
                pair.change(chance)
                pair.until_served()
                waits.append(time.monotonic() - began)
                lost = [name for name in late if not knows(pair.master.broker, name)]
                assert lost == [], (round_, lost)
                ledger.forget_what_is_out()  # it need not be known there
            while not asyncio.run(drained(pair.master.broker, clients, pair.serves)):
                pair.settle()
                ledger.forget_what_is_out()
        except AssertionError as wrong:
            said = [each.broker_server.said() for each in (pair.master, pair.other)]
            raise AssertionError("\n---- ".join((str(wrong), *said))) from None
        print(f"{kind}: {ledger.stored} stored, {ledger.acknowledged} acknowledged in {ROUNDS}"
              f" reigns; {len(late)} topics made at their ends; {max(waits):.1f} s at most until"
              " the next served")  # fmt: skip
        for peer in (pair.other, pair.master):
            peer.broker_server.stop()
            assert [each.kind for each in verify(peer.store).errors] == []
    assert (ledger.lost(), ledger.again, ledger.skipped, ledger.early) == ([], [], [], [])
