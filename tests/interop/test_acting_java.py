"""Our slave beside a Java master, under our name server: when the master is gone, what is due goes
to another broker; the master that returns takes commits and progress from the slave."""

from __future__ import annotations

import sys
import time
from collections import Counter
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

pytestmark = [pytest.mark.java, pytest.mark.long]

SEGMENT, COUNT = 1 << 20, 10
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
        NameServer.in_thread(
            listenPort=0, bindAddress="127.0.0.1", supportActingMaster=True,
            notifyMinBrokerIdChanged=True, kvConfigPath="",
        ) as server,
        Broker(tmp_path / "c", namesrvAddr=f"127.0.0.1:{server.port}",
               **OURS | {"brokerName": "broker-c"}) as other,
    ):  # fmt: skip
        names = f"127.0.0.1:{server.port}"
        with (
            launch.running("java", tmp_path / "java", JAVA, namesrv=names) as master,
            Broker(tmp_path / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=1,
                   **OURS | ACTS | {"listenPort": free_port()}) as slave,
        ):  # fmt: skip
            make_topic(master)
            duties, following = slave.services.duties, slave.services.replication.slave
            until(lambda: following.follows, "that it follows")
            wanted = Counter[str]()
            for number in range(COUNT):
                now = time.time_ns() // 10**6
                put(master, f"timed-{number}", TIMER_DELIVER_MS=str(now + 20_000))
                put(master, f"level-{number}", DELAY="2")
                put(master, f"half-{number}", TRAN_MSG="true", PGROUP="p")
                wanted += Counter({f"timed-{number}": 1, f"level-{number}": 1})
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
