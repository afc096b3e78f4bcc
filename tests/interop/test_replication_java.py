"""Masters of one make and slaves of the other: the same log byte for byte, and answers of
synchronous masters that wait for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
from waiting import until

from broker import Broker, Message, NameServer, Producer

pytestmark = [pytest.mark.java, pytest.mark.long]

SEGMENT = 1 << 20
OURS: dict[str, Any] = {
    "listenPort": 20911, "brokerName": "broker-a", "brokerClusterName": "DefaultCluster",
    "bindAddress": "127.0.0.1", "mappedFileSizeCommitLog": SEGMENT,
}  # fmt: skip
COUNT = 6000  # several segments


def java(*words: object) -> str:
    done = subprocess.run(
        [str(launch.SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    return done.stdout


def same_logs(ours: Path, theirs: Path, end: int) -> None:
    for base in range(0, end, SEGMENT):
        name, length = f"{base:020d}", min(SEGMENT, end - base)
        one = (ours / "commitlog" / name).read_bytes()[:length]
        assert one == (theirs / "commitlog" / name).read_bytes()[:length]


def send(names: str, count: int) -> None:
    with Producer("p", names, send_timeout_s=20) as producer:
        for number in range(count):
            producer.send(Message("orders", b"%d" % number * 40, keys=f"k{number}"))


def test_a_java_slave_follows_our_master(reference: Any, tmp_path: Path) -> None:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        names, folder = f"127.0.0.1:{server.port}", tmp_path / "java"
        with Broker(
            tmp_path / "ours", namesrvAddr=names, brokerRole="SYNC_MASTER", inSyncReplicas=2,
            slaveTimeout=20_000, **OURS,
        ) as master:  # fmt: skip
            master.create_topic("orders", 4)
            java("broker", folder, names, 21911, "brokerRole=SLAVE", "brokerId=1",
                 f"mappedFileSizeCommitLog={SEGMENT}")  # fmt: skip
            try:
                replication = master.services.replication
                assert replication is not None
                until(lambda: replication.master.slaves != [], "the slave")  # some 15 s
                send(names, COUNT)
                end = master.store.info().log_max
                until(lambda: [s.acked for s in replication.master.slaves] == [end], "its report")
                same_logs(Path(master.store.path), folder / "store", end)
            finally:
                java("stop", folder)


def test_our_slave_follows_a_java_master(reference: Any, tmp_path: Path) -> None:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        names, folder = f"127.0.0.1:{server.port}", tmp_path / "java"
        java("broker", folder, names, 21911, "brokerRole=SYNC_MASTER", "inSyncReplicas=2",
             "slaveTimeout=20000", f"mappedFileSizeCommitLog={SEGMENT}")  # fmt: skip
        try:
            java("mqadmin", "updateTopic", "-n", names, "-c", "DefaultCluster", "-t", "orders",
                 "-r", 4, "-w", 4)  # fmt: skip
            for _ in range(2):  # and again, after it was away
                with Broker(
                    tmp_path / "ours", namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **OURS
                ) as slave:
                    until(lambda: not slave.services.replication.slave.problem, "it follows")
                    send(names, COUNT // 2)
                    until(lambda: slave.services.topics.get("orders") is not None, "the topic")
                    queues = sum(slave.store.range("orders", queue)[1] for queue in range(4))
                    end = slave.store.info().log_max
                same_logs(tmp_path / "ours", folder / "store", end)
            assert queues >= COUNT
        finally:
            java("stop", folder)
