"""Routes in local mode: every broker that the name server knows for the topic, at its own host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from caller import CODE, Caller, serving
from waiting import until

from broker import NameServer
from broker.grpc.schema import pb


@pytest.fixture
def names() -> Iterator[NameServer]:
    with NameServer.in_thread(listenPort=0, kvConfigPath="") as made:
        yield made


def shown(caller: Caller, port: int, topic: str) -> list[tuple[str, str, int]]:
    """Broker, its host and how many queues, as a route names them; all at this port."""
    reply = caller("QueryRoute", topic=pb.Resource(name=topic))
    assert reply.status.code in (CODE.OK, CODE.TOPIC_NOT_FOUND)
    found: dict[tuple[str, str], int] = {}
    for queue in reply.message_queues:
        (address,) = queue.broker.endpoints.addresses
        assert address.port == port
        place = queue.broker.name, address.host
        found[place] = found.get(place, 0) + 1
    return [(name, host, count) for (name, host), count in sorted(found.items())]


def test_a_route_names_all_brokers(names: NameServer, tmp_path: Path) -> None:
    one = {"brokerName": "one", "brokerIP1": "127.0.0.1", "namesrvAddr": names.address}
    two = {"brokerName": "two", "brokerIP1": "127.0.0.2", "namesrvAddr": names.address}
    with (
        serving(tmp_path / "one", **one) as broker,
        serving(tmp_path / "two", **two) as other,
        Caller(broker.grpc_address) as caller,
    ):
        port = broker.grpc_port
        broker.create_topic("Both", queues=2)
        other.create_topic("Both", queues=3)
        other.create_topic("Theirs", queues=1)
        both = [("one", "127.0.0.1", 2), ("two", "127.0.0.2", 3)]
        until(lambda: shown(caller, port, "Both") == both, "the route of both")
        until(
            lambda: shown(caller, port, "Theirs") == [("two", "127.0.0.2", 1)], "the other's topic"
        )
        assert shown(caller, port, "Nobodys") == []


def test_without_its_name_server_a_broker_names_itself(tmp_path: Path) -> None:
    with ExitStack() as undo:
        names = undo.enter_context(NameServer.in_thread(listenPort=0, kvConfigPath=""))
        with (
            serving(tmp_path / "one", brokerName="one", namesrvAddr=names.address) as broker,
            Caller(broker.grpc_address) as caller,
        ):
            broker.create_topic("Own", queues=2)
            undo.close()
            assert shown(caller, broker.grpc_port, "Own") == [("one", "127.0.0.1", 2)]
