"""What a slave takes over beside the log: users, their policies, and whether groups pop."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from pairs import master_of, slave_of
from waiting import until

from broker import Broker, NameServer
from broker.services.policy_access import PolicyAccess
from broker.services.pop.modes import POP, Mode

ACCESS: dict[str, Any] = {
    "authenticationEnabled": True, "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"admin","password":"admin-of-both"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"between-brokers"}',
}  # fmt: skip
POLICY = {
    "policies": [
        {
            "policyType": "Custom",
            "entries": [{"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}],
        }
    ]
}


@pytest.fixture
def names() -> Iterator[str]:
    with NameServer.in_thread(listenPort=0, bindAddress="127.0.0.1") as server:
        yield f"127.0.0.1:{server.port}"


def do(broker: Broker, work: Coroutine[Any, Any, None]) -> None:
    broker.run(work)


def policies(broker: Broker) -> PolicyAccess:
    return broker.services.access.policies


def test_a_slave_has_the_users_and_policies_of_its_master(names: str, tmp_path: Path) -> None:
    with (
        master_of(tmp_path / "m", names, **ACCESS) as master,
        slave_of(tmp_path / "s", names, **ACCESS) as slave,
    ):
        here, there = policies(master), policies(slave)
        admin = here.rules.users["admin"]
        do(master, here.create_user("alice", {"password": "of-alice"}, admin))
        do(master, here.create_user("bob", {"password": "of-bob"}, admin))
        do(master, here.merge_acl("User:alice", POLICY))
        until(lambda: there.rules.users == here.rules.users, "the users")
        until(lambda: there.rules.acls == here.rules.acls, "the policies")
        assert there.rules.users["alice"].password == "of-alice"
        do(master, here.delete_user("bob", admin))
        until(lambda: "bob" not in there.rules.users, "that bob is gone")
        assert there.rules.users == here.rules.users
    with slave_of(tmp_path / "s", names, **ACCESS) as slave:  # from its own disk
        assert set(policies(slave).rules.users) == {"admin", "inner", "alice"}
        assert set(policies(slave).rules.acls) == {"alice"}


def test_a_slave_whose_user_sees_no_passwords_keeps_its_own_users(
    names: str, tmp_path: Path
) -> None:
    with master_of(tmp_path / "m", names, **ACCESS) as master:
        here = policies(master)
        admin = here.rules.users["admin"]
        do(master, here.create_user("weak", {"password": "not-super"}, admin))
        every = {"resource": "Cluster:*", "actions": ["All"], "decision": "Allow"}
        body = {"policies": [{"policyType": "Custom", "entries": [every]}]}
        do(master, here.merge_acl("User:weak", body))
        inner = '{"accessKey":"weak","secretKey":"not-super"}'
        given = ACCESS | {"innerClientAuthenticationCredentials": inner}
        with slave_of(tmp_path / "s", names, **given) as slave:
            replication = slave.services.replication
            until(lambda: replication.slave.follows, "that it follows")
            problems: list[str] = []

            async def take() -> None:
                problems.extend(await replication.take_all())

            do(slave, take())
            assert any("Super" in each for each in problems)
            assert set(policies(slave).rules.users) == {"admin", "weak"}


def test_a_slave_knows_which_groups_pop(names: str, tmp_path: Path) -> None:
    with master_of(tmp_path / "m", names) as master:
        do(master, master.services.pop.modes.put("orders", "g", Mode(POP, 2)))
        with slave_of(tmp_path / "s", names) as slave:
            modes = slave.services.pop.modes
            until(lambda: modes.get("orders", "g") == Mode(POP, 2), "the mode")
    with slave_of(tmp_path / "s", names) as slave:
        assert slave.services.pop.modes.get("orders", "g") == Mode(POP, 2)
