"""``kill -9`` of a master with delays, timers, open transactions and messages that are popped, and
then of the slave that acts in its place: each message comes once, at the pair or at the other
broker of the cluster, and what is acknowledged at either of the pair stays so.

``PS_ACTING_KILLS`` rounds (1; `make crash-acting`: 40), ``PS_SEED`` repeats a run. A message that
the master delivered when no slave had that end of its log may come twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import launch
from waiting import until

from broker import NameServer
from broker.wire import mqjson
from pystore import Reader
from pystore.format.properties import encode_properties
from pystore.format.records import read_records
from pystore.store.pending_log import find_pending

ROUNDS = int(os.environ.get("PS_ACTING_KILLS", "1"))
TOPIC, TASKS, QUEUES, COUNT = "orders", "tasks", 4, 60
POP, ACK, CHANGE = 200050, 200051, 200053
RUNTIME_INFO, SEND, MAKE_TOPIC, MAX_OFFSET, HA_STATUS, GROUPS = 28, 310, 17, 30, 907, 201
REFUSED = 14
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20, "transactionTimeOut": 500, "transactionCheckMax": 1000,
    "messageDelayLevel": "3s 6s",
}  # fmt: skip
ACTS = {
    "enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "brokerName": "broker-a",
    "brokerNotActiveTimeoutMillis": 600_000, "totalReplicas": 2,
}  # fmt: skip


def answer_of(at: launch.Peer, code: int, ext: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """That of one that refuses, of a broker that has not yet started."""
    try:
        return launch.ask(at.broker, code, ext)
    except ConnectionRefusedError:
        return REFUSED, {}, b""


class Popping:
    """A group that pops while masters and slaves go: for so long a time that nothing comes back.
    handles: of what it has got; acked: of that, what was answered with 0."""

    def __init__(self, master: launch.Peer, chance: random.Random, count: int = COUNT) -> None:
        self.chance, self.count = chance, count
        self.handles: dict[str, str] = {}
        self.acked: set[str] = set()
        make_topic(master, TASKS)
        for number in range(count):
            put(master, f"task{number}", topic=TASKS)

    def some(self, at: launch.Peer, most: int = 0) -> int:
        """Pops some and acknowledges some; what the broker does not do just now is left. Returns
        how many it got, -1 when it refuses."""
        ext = {
            "consumerGroup": "g", "topic": TASKS, "queueId": "-1", "invisibleTime": "7200000",
            "maxMsgNums": str(most or self.chance.randrange(1, 12)), "pollTime": "0",
            # Later than now: a request that is late is not served.
            "bornTime": str(time.time_ns() // 10**6 + 3_600_000), "initMode": "0",
            "expType": "TAG", "exp": "*", "order": "false",
        }  # fmt: skip
        code, said, body = answer_of(at, POP, ext)
        assert code in (0, REFUSED, 210), code
        got = read_records(body) if code == 0 else []
        for row in got:
            start = said["startOffsetInfo"].split(" ")[-1]
            handle = (start, said["popTime"], said["invisibleTime"], said["reviveQid"], "0", "b")
            text = body[row.body_start : row.body_end].decode()
            assert text not in self.handles, f"{text} was handed out twice"
            self.handles[text] = " ".join((*handle, "0", str(row.queue_offset)))
        for text in self.chance.sample(sorted(self.handles), len(self.handles) // 3):
            if self.settle(at, ACK, text) == 0:
                self.acked.add(text)
        return len(got) if code != REFUSED else -1

    def settle(self, at: launch.Peer, code: int, text: str) -> int:
        handle = self.handles[text]
        ext = {
            "consumerGroup": "g", "topic": TASKS, "queueId": "0", "extraInfo": handle,
            "offset": handle.rpartition(" ")[2], "invisibleTime": "7200000",
        }  # fmt: skip
        return answer_of(at, code, ext)[0]

    def change(self, at: launch.Peer, text: str) -> int:
        """A master that is not sure of itself refuses for a moment."""
        while (code := self.settle(at, CHANGE, text)) == REFUSED:
            time.sleep(0.1)
        return code

    def is_served(self, at: launch.Peer) -> bool:
        """Whether this broker takes acknowledgements."""
        text = min(self.handles)
        code = self.settle(at, ACK, text)
        if code == 0:
            self.acked.add(text)
        return code != REFUSED

    def check(self, master: launch.Peer) -> None:
        """Each has come once, and just those are open that nobody acknowledged."""
        while (count := self.some(master, most=32)) != 0:
            time.sleep(0.1 if count < 0 else 0)
        assert set(self.handles) == {f"task{number}" for number in range(self.count)}
        still = {text for text in self.handles if self.change(master, text) == 0}
        assert still == set(self.handles) - self.acked


@dataclass
class Cluster:
    master: launch.Peer
    slave: launch.Peer
    other: launch.Peer


def make_topic(broker: launch.Peer, topic: str = TOPIC) -> None:
    queues = str(QUEUES if topic == TOPIC else 1)
    made = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert launch.ask(broker.broker, MAKE_TOPIC, made)[0] == 0


def put(broker: launch.Peer, body: str, topic: str = TOPIC, **properties: str) -> None:
    said = encode_properties({"UNIQ_KEY": body, **properties}).decode()
    flag = "4" if "TRAN_MSG" in properties else "0"
    values = ("p", topic, "TBW102", 4, 0, flag, time.time_ns() // 10**6, 0, said, 0, "false")
    fields = dict(zip("abcdefghijk", map(str, values), strict=True))
    assert launch.ask(broker.broker, SEND, fields, body.encode())[0] == 0


def send(
    broker: launch.Peer, chance: random.Random, count: int = COUNT, late_ms: int = 7000
) -> tuple[set[str], set[str]]:
    """Returns what is to be delivered, and what stays open. late_ms: when the last timer is due."""
    delivered, stays = set(), set()
    for number in range(count):
        now = time.time_ns() // 10**6
        for level in ("1", "2"):
            put(broker, f"level{level}-{number}", DELAY=level)
        due_ms = now + chance.randrange(late_ms // 4, late_ms)
        put(broker, f"timed-{number}", TIMER_DELIVER_MS=str(due_ms))
        put(broker, f"half-{number}", TRAN_MSG="true", PGROUP="p")
        delivered |= {f"level1-{number}", f"level2-{number}", f"timed-{number}"}
        stays.add(f"half-{number}")
    return delivered, stays


def end_of(broker: launch.Peer) -> int:
    code, _, body = launch.ask(broker.broker, RUNTIME_INFO)
    assert code == 0
    return int(mqjson.loads(body)["table"]["commitLogMaxOffset"])


def count_at(broker: launch.Peer) -> int:
    found = 0
    for queue in range(QUEUES):
        code, said, _ = launch.ask(
            broker.broker, MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue)}
        )
        found += int(said["offset"]) if code == 0 else 0
    return found


def delivered_in(store: Path, start: int = 0) -> Counter[str]:
    with Reader(store) as reader:
        return Counter(
            bytes(message.body).decode()
            for message in reader.messages()
            if message.topic == TOPIC and message.physical_offset >= start
        )


def open_in(store: Path) -> Counter[str]:
    with Reader(store) as reader:
        rows = find_pending(reader, anew=True).rows
        found = (reader.read(HALF_TOPIC, 0, at, max_messages=1)[0] for at in rows)
        return Counter(bytes(message.body).decode() for message in found)


@contextlib.contextmanager
def cluster(folder: Path, **more: str) -> Iterator[Cluster]:
    of_master = {**SMALL, **more, **ACTS, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2,
                 "slaveTimeout": 120_000}  # fmt: skip
    of_slave = {**SMALL, **more, **ACTS, "brokerRole": "SLAVE", "brokerId": 1}
    with (
        NameServer.in_thread(
            listenPort=0, bindAddress="127.0.0.1", supportActingMaster=True,
            notifyMinBrokerIdChanged=True, kvConfigPath="",
        ) as server,
        launch.running("ours", folder / "c", {**SMALL, **more, "brokerName": "broker-c"},
                       namesrv=f"127.0.0.1:{server.port}") as other,
        launch.running("ours", folder / "s", of_slave, namesrv=other.namesrv) as slave,
        launch.running("ours", folder / "m", of_master, namesrv=other.namesrv) as master,
    ):  # fmt: skip
        for broker in (other, master):
            make_topic(broker)
        yield Cluster(master, slave, other)


def follows(broker: launch.Peer) -> bool:
    said = mqjson.loads(launch.ask(broker.broker, HA_STATUS)[2])
    return any(row["inSync"] for row in said["haConnectionInfo"])


def knows_tasks(slave: launch.Peer) -> bool:
    code, _, body = launch.ask(slave.broker, GROUPS)
    return code == 0 and "g" in mqjson.loads(body)["subscriptionGroupTable"]


@dataclass
class Pace:
    """How a round is done. count: messages of each kind. late_ms: when the last timer is due.
    kills: of the slave, at least and at most. pause_s: between two faults, at most. rest_s: at the
    end, in which a message may come that must not. acts: the master stays away until it does."""

    count: int = COUNT
    late_ms: int = 7000
    kills: tuple[int, int] = (0, 2)
    pause_s: float = 4.0
    rest_s: float = 2.0
    acts: bool = False


def one_round(pair: Cluster, chance: random.Random, pace: Pace) -> None:
    launch.wait("a slave in sync", lambda: follows(pair.master))
    delivered, stays = send(pair.master, chance, pace.count, pace.late_ms)
    popping = Popping(pair.master, chance, pace.count)
    popping.some(pair.master)
    launch.wait("the topic and the group at the slave", lambda: knows_tasks(pair.slave))
    until(lambda: end_of(pair.slave) >= end_of(pair.master), "the slave has what was sent")
    time.sleep(chance.uniform(0, pace.pause_s / 2))
    pair.master.kill()
    unknown = delivered_in(pair.master.store, end_of(pair.slave))
    for _ in range(chance.randint(*pace.kills)):
        time.sleep(chance.uniform(pace.pause_s / 8, pace.pause_s))
        popping.some(pair.slave)
        pair.slave.kill()
        pair.slave.restart()
    if pace.acts:
        launch.wait("the slave acts", lambda: popping.is_served(pair.slave))
    time.sleep(chance.uniform(0, pace.pause_s))
    popping.some(pair.slave)
    pair.master.restart()
    try:
        launch.wait(
            "what is due", lambda: count_at(pair.master) + count_at(pair.other) >= len(delivered)
        )
        launch.wait("a slave in sync", lambda: follows(pair.master))
        popping.check(pair.master)
        time.sleep(pace.rest_s)
        for broker in (pair.slave, pair.master, pair.other):
            broker.broker_server.stop()
        check(pair, delivered, stays, unknown)
    except AssertionError as wrong:
        said = [each.broker_server.said() for each in (pair.master, pair.slave)]
        raise AssertionError("\n---- ".join((str(wrong), *said))) from None


def check(pair: Cluster, delivered: set[str], stays: set[str], unknown: Counter[str]) -> None:
    """unknown: what the master had delivered, when it was killed, that the slave did not have."""
    here, there = delivered_in(pair.master.store), delivered_in(pair.other.store)
    assert set(here + there) == delivered
    twice = {body for body, count in (here + there).items() if count > 1}
    assert twice <= {body for body in unknown if here[body] == there[body] == 1}
    still = open_in(pair.master.store) + open_in(pair.other.store)
    assert still == Counter(stays)
    print(f"{sum(here.values())} here, {sum(there.values())} there, {len(twice)} twice;"
          f" {sum(open_in(pair.other.store).values())} halves there")  # fmt: skip


def test_each_comes_once_when_the_master_and_the_slave_that_acts_are_killed(
    tmp_path: Path, rng: random.Random
) -> None:
    pace = Pace(8, 1500, kills=(1, 1), pause_s=0.5, rest_s=0.2, acts=True)
    with cluster(tmp_path, messageDelayLevel="1s 1s") as pair:
        one_round(pair, rng, pace)


@pytest.mark.long
def test_each_comes_once_whoever_is_killed(tmp_path: Path, rng: random.Random) -> None:
    for number in range(ROUNDS):
        with cluster(tmp_path / f"round{number}") as pair:
            one_round(pair, rng, Pace())
