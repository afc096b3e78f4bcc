"""What users with some rights try with what is not theirs; and somebody without any."""

from __future__ import annotations

import json
import logging

import pytest
from access_cases import play

from broker import Broker
from broker.access.needs import Action, Kind, Need
from broker.access.policies import Acl, Entry, parse_acl, parse_resource
from broker.services.policy_access import PolicyAccess

ROOT = {"server": "5.3.3", "key": "root", "secret": "root-secret"}
ALICE = {"server": "5.3.3", "key": "alice", "secret": "alice-secret"}
MALLORY = {"server": "5.3.3", "key": "mallory", "secret": "mallory-secret"}


def request(who, code, body=None, **ext):
    text = {} if body is None else {"body": json.dumps(body)}
    return who | {"code": code, "ext": {name: str(value) for name, value in ext.items()}} | text


def rights(user, *resources, actions=("Pub", "Sub")):
    entries = [
        {"resource": each, "actions": list(actions), "decision": "Allow"} for each in resources
    ]
    body = {"subject": f"User:{user}", "policies": [{"entries": entries}]}
    return request(ROOT, 3006, body, subject=f"User:{user}")


def send(who, topic, body="x", **changes):
    ext = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
           "g": "1700000000000", "h": "0", "i": "KEYS\1k", "j": "0", "k": "false"}  # fmt: skip
    return who | {"code": 310, "ext": ext | changes, "body": body}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Alice has payroll and its group, Mallory memos and a group of her own."""
    first = {"username": "root", "password": "root-secret"}
    with Broker(
        tmp_path_factory.mktemp("guarded") / "store", authenticationEnabled=True,
        authorizationEnabled=True, initAuthenticationUser=json.dumps(first), listenPort=0,
        bindAddress="127.0.0.1",
    ) as broker:  # fmt: skip
        for topic in ("payroll", "memos"):
            broker.create_topic(topic, 1)
        for user, own in (("alice", "payroll"), ("mallory", "memos")):
            body = {"username": user, "password": f"{user}-secret"}
            assert play(broker.port, request(ROOT, 3001, body, username=user))[0] == 0
            assert play(broker.port, rights(user, f"Topic:{own}", f"Group:{user}"))[0] == 0
        yield broker


# ---- stars ----


@pytest.mark.parametrize("name", ["*-public", "mid*x", "a**", "*a*"])
@pytest.mark.parametrize("kind", ["Topic", "Group"])
def test_a_rule_with_a_star_elsewhere_than_at_its_end_is_refused(guarded, kind, name):
    code, remark, _ = play(guarded.port, rights("alice", f"{kind}:{name}"))
    assert code == 16
    assert f"{kind}:{name} has a star that is not its last letter" in remark


@pytest.mark.parametrize(("name", "other"), [("*-public", "payroll"), ("mid*x", "middle")])
def test_a_star_elsewhere_than_at_the_end_stands_for_nothing(name, other):
    """As in RocketMQ 5.3.3, for rules that a store has."""
    entry = {"resource": f"Topic:{name}", "actions": ["Pub"], "decision": "Allow"}
    acl = parse_acl({"policies": [{"entries": [entry]}]})
    assert acl.deciding(Need(Kind.TOPIC, other, (Action.PUB,)), "10.0.0.1") is None


def test_a_rule_with_such_a_star_in_a_store_is_warned_of(tmp_path, caplog):
    access = PolicyAccess(tmp_path / "access", lambda: None)
    access.open(access.rules)
    entry = Entry(parse_resource("Topic:mid*x"), (Action.PUB,), True)
    access._write({}, {"bob": Acl((entry,)).as_json("bob")})
    access.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "broker.access"):
        access.open(access.rules)
    access.close()
    assert "A rule of User:bob is on Topic:mid*x" in caplog.text
