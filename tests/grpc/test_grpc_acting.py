"""Clients of gRPC when a master is gone: through a proxy, and through the broker's own service.
They receive and acknowledge at the slave that acts for it, send to other masters, and come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from caller import CODE, Caller, message
from test_grpc_cluster import Proxy, ack, proxy, receiving
from waiting import until

from broker import Broker, NameServer

pytestmark = pytest.mark.long

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 20, "bindAddress": "127.0.0.1", "listenPort": 0,
    "brokerName": "a", "grpc_port": 0, "drain_s": 0.2,
}  # fmt: skip
ACTS: dict[str, Any] = {
    "enableSlaveActingMaster": True, "enableRemoteEscape": True, "slaveReadEnable": True,
    "brokerNotActiveTimeoutMillis": 600_000,
}  # fmt: skip


def master_of(folder: Path, names: str) -> Broker:
    role = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    return Broker(folder / "m", namesrvAddr=names, **SMALL, **ACTS, **role)


@contextmanager
def around(folder: Path) -> Iterator[tuple[str, Broker, Broker, Proxy]]:
    """Addresses of name servers, a slave, the master of another name, a proxy before all."""
    with NameServer.in_thread(
        listenPort=0, supportActingMaster=True, notifyMinBrokerIdChanged=True, kvConfigPath=""
    ) as server:
        names = f"127.0.0.1:{server.port}"
        slave = Broker(
            folder / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=1, **SMALL, **ACTS
        )
        other = Broker(folder / "c", namesrvAddr=names, **SMALL | {"brokerName": "c"})
        with slave, other, proxy(names) as before:
            yield names, slave, other, before


def taken(caller: Caller, broker: str, count: int) -> dict[bytes, str]:
    """So many messages of a broker, with the handle of each. What fails is tried again, as clients
    do."""
    found: dict[bytes, str] = {}
    while len(found) < count:
        for reply in receiving(caller, "g", "T", broker, poll_s=1):
            if reply.WhichOneof("content") == "message":
                got = reply.message
                assert got.body not in found
                found[got.body] = got.system_properties.receipt_handle
    return found


def acknowledged(caller: Caller, handle: str) -> bool:
    return bool(ack(caller, "g", "T", handle).status.code == CODE.OK)


def send(caller: Caller, body: bytes) -> None:
    until(lambda: caller.send(message("T", body)).status.code == CODE.OK, "a broker takes it", 0.2)


@pytest.mark.parametrize("through", ["proxy", "front"])
def test_receives_acknowledgements_and_sends_go_on_without_the_master(
    tmp_path: Path, through: str
) -> None:
    with around(tmp_path) as (names, slave, other, before):
        with master_of(tmp_path, names) as master:
            master.create_topic("T", 1)
            until(lambda: slave.services.replication.slave.follows, "that it follows")
            until(lambda: slave.services.topics.get("T") is not None, "the topic at the slave")
            front = {"proxy": before.grpc_address, "front": f"127.0.0.1:{master.grpc_port}"}
            with Caller(front[through]) as caller:
                caller.telemetry().subscribe("g", "T")
                for number in range(3):
                    send(caller, b"first%d" % number)
                handles = taken(caller, "a", 3)
                for number in range(3):
                    send(caller, b"second%d" % number)
                assert acknowledged(caller, handles.pop(b"first0"))
            until(lambda: slave.services.groups.get("g") is not None, "the group at the slave")
            end = master.store.info().log_max
            until(lambda: slave.store.info().log_max == end, "the end of the master's log")
        until(lambda: slave.services.acting.pops.is_on, "the slave serves pops")
        other.create_topic("T", 1)
        front["front"] = f"127.0.0.1:{slave.grpc_port}"
        with Caller(front[through]) as caller:
            caller.telemetry().subscribe("g", "T")
            until(lambda: acknowledged(caller, handles[b"first1"]), "the slave takes it", 0.2)
            handles |= taken(caller, "a", 3)
            assert acknowledged(caller, handles[b"second0"])
            if through == "proxy":
                send(caller, b"elsewhere")
                handles |= taken(caller, "c", 1)
            else:
                assert caller.send(message("T", b"no")).status.code != CODE.OK
        with master_of(tmp_path, names) as master:
            front["front"] = f"127.0.0.1:{master.grpc_port}"
            still = sorted(o for ck in master.services.pop.points for o in ck.open_offsets())
            assert still == [2, 4, 5]
            with Caller(front[through]) as caller:
                caller.telemetry().subscribe("g", "T")
                until(lambda: acknowledged(caller, handles[b"first2"]), "the master has it", 0.2)
                assert acknowledged(caller, handles[b"second1"])
                assert acknowledged(caller, handles[b"second2"])
            until(lambda: not len(master.services.pop.points), "that nothing is open")
