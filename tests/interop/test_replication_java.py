"""Masters of one make and slaves of the other: the same log byte for byte, and answers of
synchronous masters that wait for it."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from ports import free_port
from waiting import BOUND_S, until

import pystore
from broker import Broker, Message, Producer
from broker.services.replication.log_comparer import record_before

pytestmark = [pytest.mark.java, pytest.mark.long]

SEGMENT = 1 << 20
OURS: dict[str, Any] = {
    "listenPort": 0, "brokerName": "broker-a", "brokerClusterName": "DefaultCluster",
    "bindAddress": "127.0.0.1", "mappedFileSizeCommitLog": SEGMENT,
}  # fmt: skip
JAVA = {"mappedFileSizeCommitLog": SEGMENT, "slaveTimeout": 20_000}
COUNT = 6000  # several segments
VERSIONS = ("5.3.3", "4.9.7", "5.5.0")


@pytest.fixture
def names(tmp_path: Path) -> Iterator[str]:
    with launch.name_server("ours", tmp_path / "names") as address:
        yield address


def same_logs(ours: Path, theirs: Path, end: int) -> None:
    for base in range(0, end, SEGMENT):
        name, length = f"{base:020d}", min(SEGMENT, end - base)
        one = (ours / "commitlog" / name).read_bytes()[:length]
        assert one == (theirs / "commitlog" / name).read_bytes()[:length]


def send(names: str, count: int) -> None:
    with Producer("p", names, send_timeout_s=BOUND_S) as producer:
        for number in range(count):
            producer.send(Message("orders", b"%d" % number * 40, keys=f"k{number}"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_slave_follows_our_master(
    reference: Any, version: str, names: str, tmp_path: Path
) -> None:
    role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 20_000}
    with Broker(tmp_path / "ours", namesrvAddr=names, **role, **OURS) as master:
        master.create_topic("orders", 4)
        given = {**JAVA, "brokerRole": "SLAVE", "brokerId": 1}
        with launch.running("java", tmp_path / "java", given, version, names) as slave:
            replication = master.services.replication
            assert replication is not None
            until(lambda: replication.master.slaves != [], "the slave")  # some 15 s
            send(names, COUNT)
            end = master.store.info().log_max
            until(lambda: [each.acked for each in replication.master.slaves] == [end], "its report")
            same_logs(Path(master.store.path), slave.store, end)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_slave_follows_a_java_master(
    reference: Any, version: str, names: str, tmp_path: Path
) -> None:
    given = {**JAVA, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    with launch.running("java", tmp_path / "java", given, version, names) as master:
        for round_ in (1, 2):  # and again, after it was away
            with Broker(
                tmp_path / "ours", namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **OURS
            ) as slave:
                following = slave.services.replication.slave
                until(lambda following=following: not following.problem, "that it follows")
                send(names, COUNT // 2)
                until(lambda slave=slave: slave.services.topics.get("orders") is not None, "topic")
                queues = sum(
                    slave.store.range("orders", queue)[1] - slave.store.range("orders", queue)[0]
                    for queue in range(4)
                )
                end = slave.store.info().log_max
                same_logs(tmp_path / "ours", master.store, end)
            assert queues == round_ * COUNT // 2


def until_refused(master: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing of what the master has is sent."""
    until(lambda: "has a different log from this broker" in caplog.text, "that it is compared")
    replication = master.services.replication
    assert replication is not None and replication.master is not None
    assert all(not each.compared for each in replication.master.slaves)
    caplog.clear()


def test_a_java_slave_with_another_log_is_sent_nothing_whenever_the_master_began(
    reference: Any, names: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that has started again does not know whom it has refused: it compares."""
    given = {**JAVA, "brokerRole": "SLAVE", "brokerId": 1}
    ours = OURS | {"namesrvAddr": names, "brokerRole": "ASYNC_MASTER", "haListenPort": free_port()}
    with launch.running("java", tmp_path / "java", given, "5.3.3", names) as slave:
        with Broker(tmp_path / "ours", **ours) as master:
            master.create_topic("orders", 4)
            send(names, 500)
            end = master.store.info().log_max
            replication = master.services.replication
            assert replication is not None
            until(lambda: [each.acked for each in replication.master.slaves] == [end], "the slave")
            slave.broker_server.stop()
            with pystore.open(slave.store, mappedFileSizeCommitLog=SEGMENT) as store:
                store.put("orders", b"of another master", queue=0)
                foreign = store.info().log_max
            send(names, 500)
            slave.broker_server.start()
            until_refused(master, caplog)
        with Broker(tmp_path / "ours", **ours) as again:
            until_refused(again, caplog)
        slave.broker_server.stop()
        with pystore.open(slave.store, mappedFileSizeCommitLog=SEGMENT) as store:
            assert store.info().log_max == foreign


def end_of(slave: launch.Peer) -> int:
    return int(json.loads(launch.ask(slave.broker, 28)[2])["table"]["commitLogMaxOffset"])


def test_a_java_slave_whose_link_broke_within_a_record_goes_on(
    reference: Any, names: str, tmp_path: Path
) -> None:
    given = {**JAVA, "brokerRole": "SLAVE", "brokerId": 1}
    ours = OURS | {
        "namesrvAddr": names, "brokerRole": "ASYNC_MASTER", "haListenPort": free_port(),
        "haFlowControlEnable": True, "maxHaTransferByteInSecond": 4 << 20,
    }  # fmt: skip
    with Broker(tmp_path / "ours", **ours) as master, Producer("p", names) as producer:
        for number in range(60):
            producer.send(Message("orders", random.Random(number).randbytes(300_000)))
        end = master.store.info().log_max
    with launch.running("java", tmp_path / "java", given, "5.3.3", names) as slave:
        halves, parts, has = 0, 8, 0
        for part in range(1, parts + 1):
            with Broker(tmp_path / "ours", **ours) as master:
                halves += record_before(master.store, has)[1] < has
                until(lambda part=part: end_of(slave) >= end * part // parts, "some of the log")
            has = end_of(slave)
        assert halves >= 3, "its link broke between records alone"
        same_logs(tmp_path / "ours", slave.store, end)
