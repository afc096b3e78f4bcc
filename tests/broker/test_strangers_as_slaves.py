"""A stranger who registers as a slave of a master that returns, with enableSlaveActingMaster: what
the master takes from him, and what it says of it. Without access control: with it he would have to
know the secret."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pairs import master_of, send
from strangers import stranger_at

from broker import Broker, NameServer
from broker.services.acting.taking_back import TakingBack
from broker.wire.codes import RequestCode as Code
from pystore.format.names import SCHEDULE_TOPIC

#: What is asked of a slave is asked by the tests.
ACTS: dict[str, Any] = {"enableSlaveActingMaster": True, "skipPreOnline": True}
ACCESS: dict[str, Any] = {
    "authenticationEnabled": True, "authorizationEnabled": True,
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"between-brokers"}',
}  # fmt: skip
OFFSETS = {"offsetTable": {"orders@g": {"0": 87, "1": 1_000_000}}}


@pytest.fixture
def names() -> Iterator[str]:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


def took(master: Broker, address: str) -> None:
    """Raises: what the master says of the stranger."""
    replication = master.services.replication
    assert replication is not None
    master.run(TakingBack(master.services, replication.request)._take(address))


def offset_of(master: Broker, queue: int = 0) -> int | None:
    return master.services.offsets.get("g", "orders", queue)


def test_what_rises_is_in_the_log_with_what_it_was(
    names: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = {int(Code.GET_ALL_CONSUMER_OFFSET): OFFSETS, int(Code.EXCHANGE_BROKER_HA_INFO): {}}
    with (
        caplog.at_level(logging.INFO, "broker.acting"),
        master_of(tmp_path / "m", names, **ACTS) as master,
        stranger_at(names, "b", 1, answers) as stranger,
    ):
        master.create_topic("orders", 2)
        send(master, 20)
        end = master.store.range("orders", 1)[1]
        took(master, stranger.address)
        assert offset_of(master) == master.store.range("orders", 0)[1]
        assert offset_of(master, 1) == end
        assert f"g at orders/1 from 0 to {end}" in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        {"escaped": [[SCHEDULE_TOPIC, "", 0, 1_000_000]]},
        {"escaped": [["%RETRY%g", "g", 3, 5], ["/../", "", 0, 1]]},
        {"escaped": [[SCHEDULE_TOPIC, "", 0]]},
        {"escaped": [["x" * 70_000, "", 0, 1]]},
        {"escaped": [[1, None, {}, []]]},
        {"escaped": [[SCHEDULE_TOPIC, "", 0, -1]]},
        {"escaped": [[SCHEDULE_TOPIC, "", 0, 10**30]]},
        {"escaped": {"a": 1}},
        {"escaped": "x"},
        {"pops": [["open"]]},
        {"pops": [["open", 7]]},
        {"pops": [["done", 1, 2, 3]]},
        {"pops": [["done", None, None]]},
        {"pops": [[[]]], "popsMore": "perhaps"},
        {"order": "?" * 100},
        {"order": 5},
        [],
        7,
    ],
)
def test_lies_move_nothing_and_end_nothing(
    names: str, shared: Broker, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with stranger_at(names, "b", 1, {int(Code.EXCHANGE_BROKER_HA_INFO): said}) as stranger:
        try:
            took(shared, stranger.address)
        except (OSError, ValueError) as named:
            assert str(named)
    assert shared.store.metadata.delay_offsets.get(1) in (None, 0)
    assert shared.services.pop is not None and not list(shared.services.pop.points)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("code", [Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET])
@pytest.mark.parametrize("table", [7, [], {"1": None}, {"1": []}, {"1": {}}, {"x@y": {"0": None}},
                                   {"x@y": {"0": True}}, {"x@y": {"0": "9" * 400}}, {"1": -1},
                                   {"99": 1}])  # fmt: skip
def test_tables_of_offsets_that_are_none_are_named(
    names: str, shared: Broker, code: int, table: Any
) -> None:
    answers = {int(code): {"offsetTable": table}, int(Code.EXCHANGE_BROKER_HA_INFO): {}}
    with stranger_at(names, "b", 1, answers) as stranger:
        try:
            took(shared, stranger.address)
        except (OSError, ValueError) as named:
            assert str(named)


def test_delays_are_taken_as_far_as_there_are_messages(names: str, shared: Broker) -> None:
    answers: Mapping[int, Any] = {
        int(Code.GET_ALL_DELAY_OFFSET): {"offsetTable": {"1": 1_000_000}},
        int(Code.EXCHANGE_BROKER_HA_INFO): {},
    }
    with stranger_at(names, "b", 1, answers) as stranger:
        took(shared, stranger.address)
    assert shared.store.metadata.delay_offsets.get(1) in (None, 0)


def test_a_host_that_may_not_follow_is_not_asked(names: str, tmp_path: Path) -> None:
    asks = {"enableSlaveActingMaster": True, "brokerNotActiveTimeoutMillis": 1000}
    with (
        master_of(tmp_path / "m", names, trustedSlaves="10.1.2.3", **asks) as master,
        stranger_at(names, "b", 1, {}) as stranger,
    ):
        replication = master.services.replication
        assert replication is not None
        master.run(TakingBack(master.services, replication.request).run())
        assert not stranger.seen


def test_with_access_control_a_slave_has_to_prove_who_it_is(names: str, tmp_path: Path) -> None:
    answers = {int(Code.GET_ALL_CONSUMER_OFFSET): OFFSETS}
    with (
        master_of(tmp_path / "m", names, **ACTS, **ACCESS) as master,
        stranger_at(names, "b", 1, answers) as stranger,
    ):
        with pytest.raises(ConnectionError, match="does not prove"):
            took(master, stranger.address)
        assert offset_of(master) is None


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("shared")
    with master_of(folder / "m", "127.0.0.1:1", **ACTS) as master:
        yield master
