"""Our slave beside a Java master, and a Java slave beside our master, under our name server: when
the master is gone, what is due goes to another broker; the master that returns takes over what the
slave did."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "crash"))

import launch
from ports import free_port
from test_acting_kill import TOPIC, make_topic, open_in, put
from waiting import until

from broker import Broker, NameServer
from broker.services.duties import BrokerRole
from pystore.format.records import read_records

pytestmark = [pytest.mark.java, pytest.mark.long]

SEGMENT, COUNT = 1 << 20, 10
POP, ACK, INVISIBLE_MS = 200050, 200051, 120_000
ACTS = {"enableSlaveActingMaster": True, "enableRemoteEscape": True, "slaveReadEnable": True}
OURS: dict[str, Any] = {
    "listenPort": 0, "brokerName": "broker-a", "brokerClusterName": "DefaultCluster",
    "bindAddress": "127.0.0.1", "mappedFileSizeCommitLog": SEGMENT, "transactionTimeOut": 1000,
    "messageDelayLevel": "1s 20s",
}  # fmt: skip
JAVA = {
    "mappedFileSizeCommitLog": SEGMENT, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2,
    "slaveTimeout": 20_000, "totalReplicas": 2, "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true", "transactionTimeOut": 600_000, "messageDelayLevel": "1s 20s",
    # It looks for the slave's connection by the address that the slave is registered with.
    "transactionCheckInterval": 600_000, "brokerIP2": "127.0.0.1",
}  # fmt: skip


@contextlib.contextmanager
def name_server() -> Iterator[str]:
    with NameServer.in_thread(
        listenPort=0, bindAddress="127.0.0.1", supportActingMaster=True,
        notifyMinBrokerIdChanged=True, kvConfigPath="",
    ) as server:  # fmt: skip
        yield f"127.0.0.1:{server.port}"


@contextlib.contextmanager
def java_and_our_slave(folder: Path, names: str) -> Iterator[tuple[launch.Peer, Broker]]:
    with (
        launch.running("java", folder / "java", JAVA, namesrv=names) as master,
        Broker(folder / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=1,
               **OURS | ACTS | {"listenPort": free_port()}) as slave,
    ):  # fmt: skip
        make_topic(master)
        until(lambda: slave.services.replication.slave.follows, "that it follows")
        yield master, slave


def other_of(folder: Path, names: str) -> Broker:
    """Another master of the cluster; nobody sends to it before it has the topic."""
    return Broker(folder / "c", namesrvAddr=names, **OURS | {"brokerName": "broker-c"})


def put_what_waits(master: launch.Peer, after_ms: int) -> Counter[str]:
    """Timers, delays and halves. Returns what is to be delivered."""
    wanted = Counter[str]()
    for number in range(COUNT):
        now = time.time_ns() // 10**6
        put(master, f"timed-{number}", TIMER_DELIVER_MS=str(now + after_ms))
        put(master, f"level-{number}", DELAY="2")
        put(master, f"half-{number}", TRAN_MSG="true", PGROUP="p")
        wanted += Counter({f"timed-{number}": 1, f"level-{number}": 1})
    return wanted


def delivered(broker: Broker) -> Counter[str]:
    found: Counter[str] = Counter()
    for queue in broker.store.queues(TOPIC):
        batch = broker.store.read(TOPIC, queue.queue, 0, max_messages=1000, max_bytes=1 << 24)
        found.update(bytes(message.body).decode() for message in batch)
    return found


def test_our_slave_acts_for_a_java_master_and_gives_way_to_it(
    reference: Any, tmp_path: Path
) -> None:
    with (
        name_server() as names,
        other_of(tmp_path, names) as other,
        java_and_our_slave(tmp_path, names) as (master, slave),
    ):
        duties, following = slave.services.duties, slave.services.replication.slave
        wanted = put_what_waits(master, 20_000)
        end = slave.store.info
        until(lambda: slave.services.topics.get(TOPIC) is not None, "the topic")
        sent = end().log_max
        master.kill()
        until(lambda: duties.role is BrokerRole.ACTING, "the slave acts")
        assert end().log_max >= sent
        other.create_topic(TOPIC, 4)
        until(lambda: delivered(other) >= wanted, "what was due at the other broker")
        assert delivered(other) == wanted
        open_there = other.services.transactions.halves
        until(lambda: open_there.state().open == COUNT, "the halves at the other broker")
        master.restart()
        until(lambda: duties.role is BrokerRole.SLAVE, "the slave gives way")
        master.wait_ready()
        until(lambda: following.follows, "that it follows again")
        put(master, "after", DELAY="1")
        until(lambda: delivered(slave)["after"] == 1, "a delay of after the return")
        again = delivered(slave)
        assert [body for body in again if body.startswith("level")] == []
        assert delivered(other) == wanted
        assert open_there.state().halves == COUNT
    assert sum(open_in(tmp_path / "c").values()) == COUNT


def popped(address: str, most: int) -> dict[str, str]:
    """Messages of the group in queue 0 of the topic, or back from there, each with its handle."""
    ext = {
        "consumerGroup": "g", "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(most),
        "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "initMode": "0", "expType": "TAG",
        # Later than now: a request that is late is not served.
        "bornTime": str(time.time_ns() // 10**6 + 3_600_000), "exp": "*", "order": "false",
    }  # fmt: skip
    code, said, body = launch.ask(address, POP, ext)
    found = {}
    for row in read_records(body) if code == 0 else ():
        retry, _, start = said["startOffsetInfo"].partition(";")[0].split(" ")
        handle = (
            start, said["popTime"], said["invisibleTime"], said["reviveQid"], retry, "broker-a",
            str(row.queue), str(row.queue_offset),
        )  # fmt: skip
        found[body[row.body_start : row.body_end].decode()] = " ".join(handle)
    return found


def is_put(broker: launch.Peer, body: str) -> bool:
    """Java's master counts its slaves once a second, and refuses until then."""
    try:
        put(broker, body)
    except AssertionError:
        return False
    return True


def acknowledge(address: str, handle: str) -> None:
    *_, queue, offset = handle.split(" ")
    ext = {
        "consumerGroup": "g", "topic": TOPIC, "queueId": queue, "offset": offset,
        "extraInfo": handle,
    }  # fmt: skip
    assert launch.ask(address, ACK, ext)[0] == 0


def test_what_is_popped_at_our_slave_is_the_java_masters_when_it_returns(
    reference: Any, tmp_path: Path
) -> None:
    """Its records are in its revive topic: what is acknowledged by handles of either stays away, if
    that was in time, and the rest comes back, once."""
    with name_server() as names, java_and_our_slave(tmp_path, names) as (master, slave):
        pops = slave.services.acting.pops
        for number in range(6):
            until(lambda body=f"m{number}": is_put(master, body), "a slave in sync", 0.5)
        began = time.monotonic()
        handles = popped(master.broker, 2)
        assert sorted(handles) == ["m0", "m1"]
        until(lambda: slave.services.topics.get(TOPIC) is not None, "the topic")
        until(lambda: slave.services.groups.get("g") is not None, "the group")
        until(lambda: slave.store.range(TOPIC, 0)[1] == 6, "what was sent")
        time.sleep(2)  # Java's check points are in its log some time after the answer
        master.kill()
        until(lambda: pops.is_on, "the slave serves pops")
        acknowledge(slave.address, handles["m0"])
        handles |= popped(slave.address, 32)
        assert sorted(handles) == [f"m{number}" for number in range(6)]
        acknowledge(slave.address, handles["m2"])
        master.restart()
        until(lambda: not pops.is_on, "the slave gives way")
        master.wait_ready()
        until(lambda: not pops, "that the master has the records")
        acknowledge(master.broker, handles["m3"])
        in_time = (time.monotonic() - began) * 1000 < INVISIBLE_MS - 5000
        back = Counter[str]()

        def all_back() -> bool:
            back.update(popped(master.broker, 32).keys())
            return set(back) >= {"m1", "m4", "m5"}

        until(all_back, "what nobody acknowledged", 0.5)
        assert set(back.values()) == {1}
        assert not in_time or set(back) == {"m1", "m4", "m5"}


JAVA_SLAVE = {
    "mappedFileSizeCommitLog": SEGMENT, "brokerRole": "SLAVE", "brokerId": 1, "totalReplicas": 2,
    "enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "slaveReadEnable": "true",
    "brokerIP2": "127.0.0.1", "messageDelayLevel": "1s 20s", "brokerName": "broker-a",
    "transactionTimeOut": 1000, "transactionCheckInterval": 5000,
}  # fmt: skip


def our_master(folder: Path, names: str, ports: dict[str, int]) -> Broker:
    return Broker(folder / "m", namesrvAddr=names, brokerRole="ASYNC_MASTER", totalReplicas=2,
                  **OURS | ACTS | ports)  # fmt: skip


def topics_of(broker: launch.Peer) -> bytes:
    return launch.ask(broker.broker, 21)[2]


def test_our_master_does_not_repeat_what_a_java_slave_sent_in_its_place(
    reference: Any, tmp_path: Path
) -> None:
    """Java's does not tell it what that was: the other broker of the cluster does."""
    ports = {"listenPort": free_port(), "haListenPort": free_port()}
    with name_server() as names, other_of(tmp_path, names) as other:
        slave = launch.MAKES["java"](tmp_path / "java", JAVA_SLAVE, "5.3.3", names)
        with contextlib.ExitStack() as stack:
            with our_master(tmp_path, names, ports) as master:
                stack.callback(slave.stop)
                slave.broker_server.start()
                at = replace(slave, broker=master.address)
                make_topic(at)
                seen = master.services.replication.master
                until(lambda: seen.slaves, "the slave")
                launch.wait("the topic at the slave", lambda: TOPIC.encode() in topics_of(slave))
                wanted = put_what_waits(at, 20_000)
                end = master.store.info().log_max
                until(lambda: min(s.acked for s in seen.slaves) >= end, "what was sent is there")
            other.create_topic(TOPIC, 4)
            until(lambda: delivered(other) >= wanted, "what was due at the other broker", 0.5)
            open_there = other.services.transactions.halves
            until(lambda: open_there.state().open == COUNT, "the halves at the other broker", 0.5)
            with our_master(tmp_path, names, ports) as master:
                assert master.services.transactions.halves.state().open == 0
                put(at, "after", DELAY="1")
                until(lambda: delivered(master)["after"] == 1, "a delay of after the return")
                assert delivered(master) + delivered(other) == wanted + Counter({"after": 1})
                assert open_there.state().halves == COUNT
