"""Masters of one make and slaves of the other: the same log byte for byte, and answers of
synchronous masters that wait for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from waiting import BOUND_S, until

from broker import Broker, Message, Producer

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
