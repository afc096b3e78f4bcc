"""A stranger at the name server, with access control on at all brokers: what he learns, and what
they believe (docs/trust.md)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pairs import master_of, send, slave_of, until_alike
from strangers import Stranger, ask_at, stranger_at
from waiting import until

from broker import Broker, Credentials, NameServer
from broker.access.signature import BINDING, SIGNATURE, binding_of, sign
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command

ACCESS: dict[str, Any] = {
    "authenticationEnabled": True, "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"admin","password":"admin-of-both"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"between-brokers"}',
}  # fmt: skip
INNER = Credentials("inner", "between-brokers")
SECRETS = (b"admin-of-both", b"between-brokers")


@pytest.fixture
def names() -> Iterator[str]:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


def users_of(broker: Broker) -> set[str]:
    return set(broker.services.access.policies.rules.users)


#: A Super of the stranger's own, and offsets that pass over everything.
LIES = {
    int(Code.AUTH_LIST_USERS): [
        {"username": "evil", "userType": "Super", "userStatus": "enable", "password": "evil-1"}
    ],
    int(Code.AUTH_GET_USER): {
        "username": "evil", "userType": "Super", "userStatus": "enable", "password": "evil-1",
    },
    int(Code.AUTH_LIST_ACL): [],
    int(Code.GET_ALL_TOPIC_CONFIG): {"topicConfigTable": {}},
    int(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG): {"subscriptionGroupTable": {}},
    int(Code.GET_ALL_CONSUMER_OFFSET): {"offsetTable": {"orders@g": {"0": 1_000_000}}},
    int(Code.GET_ALL_DELAY_OFFSET): {"offsetTable": {"1": 1_000_000}},
    int(Code.GET_ALL_MESSAGE_REQUEST_MODE): {"messageRequestModeMap": {}},
}  # fmt: skip


def follows(slave: Broker) -> bool:
    return bool(slave.services.replication.slave.follows)


def test_a_stranger_as_master_makes_no_user_and_gets_no_password(
    names: str, tmp_path: Path
) -> None:
    with (
        master_of(tmp_path / "m", names, **ACCESS) as master,
        slave_of(tmp_path / "s", names, **ACCESS) as slave,
    ):
        until(lambda: follows(slave), "that it follows")
        with stranger_at(names, "b", 0, LIES, relay=master.address) as stranger:
            replication = slave.services.replication
            replication.use_master(stranger.address, stranger.address)

            async def take() -> list[str]:
                replication.slave.followed = stranger.address  # as if his log had been taken
                return list(await replication.take_all())

            problems = slave.run(take())
            assert problems and all("does not prove" in each for each in problems), problems
            assert users_of(slave) == {"admin", "inner"}
            assert stranger.seen
            for asked, told in stranger.seen:
                assert not any(secret in bytes(told.body) for secret in SECRETS)
                assert "evil" not in str(asked)


def test_a_slave_asks_nobody_anything_who_has_not_proven_himself(
    names: str, tmp_path: Path
) -> None:
    with (
        slave_of(tmp_path / "s", names, **ACCESS) as slave,
        stranger_at(names, "b", 0, LIES) as stranger,
    ):
        replication = slave.services.replication
        replication.use_master(stranger.address, stranger.address)

        async def take() -> list[str]:
            replication.slave.followed = stranger.address  # as if his log had been taken
            return list(await replication.take_all())

        slave.run(take())
        assert {asked.code for asked, _ in stranger.seen} == {
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        }
        assert users_of(slave) == {"admin", "inner"}


def test_a_slave_takes_no_log_where_a_stranger_says_that_the_master_gives_it(
    names: str, tmp_path: Path
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        master_of(tmp_path / "m", names, **ACCESS) as master,
        Stranger({}) as stranger,
    ):
        elsewhere.setblocking(False)
        lie = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        stranger.register(names, "b", 0, lie, brokerAddr=master.address)
        with slave_of(tmp_path / "s", names, **ACCESS) as slave:
            until(lambda: follows(slave), "that it follows")
            replication = slave.services.replication
            assert replication.slave.connected == master.services.ha_address
            replication.use_master(master.address, lie)  # an operator's word, who may have a tunnel
            assert slave.run(replication._ha_address()) == lie
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_what_was_signed_for_one_broker_is_refused_by_another(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names, **ACCESS) as master:
        command = Command(Code.AUTH_GET_USER, {"username": "admin"})
        sign(command, INNER, "10.0.0.9:10911")
        answer = ask_at(master.address, command)
        assert answer.code == 16 and "signed for the broker at 10.0.0.9:10911" in answer.remark
        mine = Command(Code.AUTH_GET_USER, {"username": "admin"})
        sign(mine, INNER, master.address)
        assert ask_at(master.address, mine).code == 0


def _renamed(command: Command) -> None:
    command.ext["a0"] = command.ext.pop(BINDING)


def _renamed_in_front(command: Command) -> None:
    command.ext["!a"] = command.ext.pop(BINDING)


def _split(command: Command) -> None:
    text = command.ext.pop(BINDING)
    command.ext["!a"], command.ext["!b"] = text[:5], text[5:]


def _dropped(command: Command) -> None:
    del command.ext[BINDING]


@pytest.mark.parametrize("strip", [_renamed, _renamed_in_front, _split, _dropped])
@pytest.mark.parametrize("code", [Code.AUTH_GET_USER, Code.SEND_MESSAGE_V2])
def test_a_binding_cannot_be_stripped(guarded: Broker, strip: Any, code: int) -> None:
    """Neither where Python decides nor where the core has a grant of the same request."""
    ext = {"username": "admin"}
    if code == Code.SEND_MESSAGE_V2:
        ext = {
            "a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
            "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
    for recipients in ((), (guarded.address,)):  # what is let in is granted to the core
        for _ in range(2):
            good = Command(code, {k: v for k, v in ext.items() if v}, b"x")
            sign(good, INNER, *recipients)
            assert ask_at(guarded.address, good).code == 0
    for_another = Command(code, {k: v for k, v in ext.items() if v}, b"x")
    sign(for_another, INNER, "10.0.0.9:10911")
    strip(for_another)
    answer = ask_at(guarded.address, for_another)
    assert answer.code == 16, (answer.code, answer.remark)


def test_a_request_is_bound_to_its_code(guarded: Broker) -> None:
    """The protocol does not sign it: a send whose body is a user would make one."""
    made = {"password": "evil-1", "userType": "Super"}
    command = Command(Code.SEND_MESSAGE_V2, {"b": "evil"}, json.dumps(made).encode())
    sign(command, INNER, guarded.address)
    command.code = Code.AUTH_CREATE_USER
    command.ext["username"] = command.ext.pop("b")
    assert ask_at(guarded.address, command).code == 16
    assert "evil" not in users_of(guarded)


def test_a_password_is_answered_in_clear_to_nobody(guarded: Broker) -> None:
    for recipients in ((), (guarded.address,)):
        command = Command(Code.AUTH_GET_USER, {"username": "admin"})
        sign(command, INNER, *recipients)
        answer = ask_at(guarded.address, command)
        assert answer.code == 0 and not any(each in bytes(answer.body) for each in SECRETS)


def test_a_password_goes_to_addresses_of_the_setting_for_apaches_proxies(
    names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names, passwordsFor="127.0.0.1", **ACCESS) as master:
        command = Command(Code.AUTH_GET_USER, {"username": "admin"})
        sign(command, INNER)
        row = json.loads(bytes(ask_at(master.address, command).body))
        assert row["password"] == "admin-of-both"


def test_a_port_mapping_is_named_by_a_setting(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names, ownAddresses="10.0.0.9:10911", **ACCESS) as master:
        command = Command(Code.AUTH_GET_USER, {"username": "admin"})
        sign(command, INNER, "10.0.0.9:10911")
        assert ask_at(master.address, command).code == 0


def test_a_name_server_gets_nothing_signed_that_a_broker_takes(names: str, tmp_path: Path) -> None:
    with (
        Stranger({}) as server,
        master_of(tmp_path / "m", f"{names};{server.address}", **ACCESS) as master,
    ):
        until(lambda: server.asked(Code.REGISTER_BROKER), "a registration")
        for asked in server.asked(Code.REGISTER_BROKER):
            assert asked.ext[SIGNATURE]
            found = binding_of(asked)
            assert found is not None and found.recipients == (server.address,)
            assert ask_at(master.address, asked).code in (3, 16)


def test_messages_do_not_escape_to_a_stranger(names: str, tmp_path: Path) -> None:
    with (
        slave_of(tmp_path / "s", names, **ACCESS) as slave,
        stranger_at(names, "c", 0, {}) as stranger,
    ):
        replication = slave.services.replication
        command = Command(Code.SEND_MESSAGE_V2, {"b": "orders"}, b"a secret of orders")

        async def escape() -> Command:
            return await replication.request(stranger.address, command)

        with pytest.raises(ConnectionError, match="does not prove"):
            slave.run(escape())
        assert not stranger.asked(Code.SEND_MESSAGE_V2)


def test_a_stranger_is_not_asked_for_a_part_of_a_logical_queue(names: str, tmp_path: Path) -> None:
    with (
        master_of(tmp_path / "m", names, **ACCESS) as master,
        # A name server refuses an unknown broker with only one topic.
        stranger_at(names, "c", 0, {}, topics=["orders", "TBW102"]) as stranger,
    ):

        async def pull() -> Command:
            static = master.services.static
            assert static is not None
            return await static.ask("c", Code.PULL_MESSAGE, {"topic": "orders", "queueId": 0})

        with pytest.raises(ConnectionError, match="does not prove"):
            master.run(pull())
        assert not stranger.asked(Code.PULL_MESSAGE)


def test_without_access_control_a_setting_says_which_brokers_are_believed(
    names: str, tmp_path: Path
) -> None:
    with (
        master_of(tmp_path / "m", names) as master,
        slave_of(tmp_path / "s", names, trustedBrokers="10.1.2.3") as slave,
    ):
        send(master, 3)
        until(lambda: "trustedBrokers" in slave.services.replication.slave.problem, "the reason")
        assert slave.store.info().log_max == 0
    with (
        master_of(tmp_path / "m", names) as master,
        slave_of(tmp_path / "s", names, trustedBrokers="127.0.0.1") as slave,
    ):
        until_alike(master, slave)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("guarded")
    with Broker(folder / "store", listenPort=0, bindAddress="127.0.0.1", **ACCESS) as broker:
        yield broker
