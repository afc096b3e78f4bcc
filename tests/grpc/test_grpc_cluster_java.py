"""A proxy of ours before Apache's broker and name server; access control of proxies of both makes
before brokers of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "interop"))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "broker"))

import launch
import proxies
from access_cases import play
from caller import CODE, TOPICS, Caller, message
from test_grpc_cluster import CONSUMER, ack, proxy, receive
from test_grpc_cluster_access import CONF, INNER, headers_of
from test_grpc_official import run
from waiting import until

from broker import Consumer
from broker.grpc.schema import pb

pytestmark = [pytest.mark.java, pytest.mark.slow]
#: UPDATE_AND_CREATE_TOPIC.
MAKE_TOPIC = 17


def make_topics(peer: Any) -> None:
    for name in TOPICS.keys() - {"Mixed"}:
        fields = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "attributes": f"+message.type={TOPICS[name]}",
        }  # fmt: skip
        code, _, body = launch.ask(peer.broker, MAKE_TOPIC, fields)
        assert code == 0, body
        until(
            lambda name=name: launch.ask(peer.namesrv, launch.ROUTE, {"topic": name})[0] == 0,
            f"the route of {name}",
        )


def taken(peer: Any, topic: str, count: int) -> list[Any]:
    with Consumer(f"readers-of-{topic}", topic, namesrv=peer.namesrv, start="first") as consumer:
        messages = iter(consumer)
        return [next(messages) for _ in range(count)]


def test_official_clients_before_apaches_broker(reference: object, tmp_path: Path) -> None:
    pytest.importorskip("rocketmq")
    with launch.running("java", tmp_path / "java") as peer, proxy(peer.namesrv) as made:
        make_topics(peer)
        said = {each["topic"]: each["id"] for each in run(made, tmp_path, "send")}
        assert sorted(said) == ["Delay", "Fifo", "Normal"]
        for topic, sent in said.items():
            assert [each.message_id for each in taken(peer, topic, 1)] == [sent]
        (found,) = run(made, tmp_path, "Normal", "1", program=CONSUMER)
        assert (found["id"], found["tag"]) == (said["Normal"], "fruit")
        ends = {each["end"]: each["id"] for each in run(made, tmp_path, "transact")}
        assert [each.message_id for each in taken(peer, "Tx", 1)] == [ends["commit"]]
        with Caller(made.grpc_address) as caller:
            refuse_and_bury(caller)


def refuse_and_bury(caller: Caller) -> None:
    """What Apache's broker says of types, invisible times and dead letters."""
    wrong = caller.send(message("Normal", message_group="row-7"))
    assert wrong.status.code == CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    caller.telemetry().subscribe("g", "Fifo")
    (found,) = receive(caller, "g", "Fifo")
    group, topic = pb.Resource(name="g"), pb.Resource(name="Fifo")
    changed = caller(
        "ChangeInvisibleDuration", group=group, topic=topic,
        receipt_handle=found.system_properties.receipt_handle, message_id="m",
        invisible_duration=pb.Duration(seconds=60),
    )  # fmt: skip
    assert changed.status.code == CODE.OK, changed
    assert changed.receipt_handle != found.system_properties.receipt_handle
    buried = caller(
        "ForwardMessageToDeadLetterQueue", group=group, topic=topic, message_id="m",
        receipt_handle=changed.receipt_handle,
    )  # fmt: skip
    assert buried.status.code == CODE.OK, buried
    assert ack(caller, "g", "Fifo", changed.receipt_handle).status.code == CODE.OK


_AUTH = "org.apache.rocketmq.auth"
#: Of a broker, ours or Apache's.
_GUARDED = {
    "authenticationEnabled": "true",
    "authenticationProvider": CONF["authenticationProvider"],
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationEnabled": "true",
    "authorizationProvider": CONF["authorizationProvider"],
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "initAuthenticationUser": '{"username":"inner","password":"inner-secret"}',
    "innerClientAuthenticationCredentials": INNER,
}


def ask_as_super(peer: launch.Peer, code: int, ext: dict[str, str], body: object = None) -> None:
    port = int(peer.broker.rpartition(":")[2])
    case = {"server": "5.3.3", "code": code, "ext": ext, "key": "inner", "secret": "inner-secret"}
    if body is not None:
        case["body"] = json.dumps(body)
    answered, remark, _ = play(port, case)
    assert answered == 0, (code, remark)


@pytest.fixture(scope="module", params=[pytest.param("java", marks=pytest.mark.long), "ours"])
def guarded(reference: object, request: Any, tmp_path_factory: Any) -> Iterator[launch.Peer]:
    """A broker with access control, a topic and users; starting Apache's takes long."""
    # Apache's proxy asks for passwords in clear: to whom ours answers so, a setting says.
    own = {"passwordsFor": "127.0.0.1"} if request.param == "ours" else {}
    with launch.running(request.param, tmp_path_factory.mktemp("peer"), _GUARDED | own) as peer:
        fields = {
            "topic": "Normal", "defaultTopic": "TBW102", "readQueueNums": "2", "perm": "6",
            "writeQueueNums": "2", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false", "attributes": "+message.type=NORMAL",
        }  # fmt: skip
        ask_as_super(peer, MAKE_TOPIC, fields)
        for user in ("shop", "guest"):
            body = {"password": f"{user}-secret", "userType": "Normal"}
            ask_as_super(peer, 3001, {"username": user}, body)
        entry = {"resource": "Topic:Normal", "actions": ["Pub"], "decision": "Allow"}
        policies = [{"policyType": "Custom", "entries": [entry]}]
        subject = "User:shop"
        ask_as_super(peer, 3006, {"subject": subject}, {"subject": subject, "policies": policies})
        until(
            lambda: launch.ask(peer.namesrv, launch.ROUTE, {"topic": "Normal"})[0] == 0, "its route"
        )
        yield peer


@pytest.mark.parametrize("make", [pytest.param("java", marks=pytest.mark.long), "ours"])
def test_access_control_of_a_proxy(guarded: launch.Peer, tmp_path: Path, make: str) -> None:
    """make: of the proxy. Rights, and refusals with their words, are the same."""
    # A broker of Apache's proves nothing: whom ours believes, a setting says.
    believed = {"trustedBrokers": "127.0.0.1"} if make == "ours" else {}
    with proxies.proxy(make, guarded.namesrv, tmp_path / "proxy", **CONF, **believed) as made:
        for user, password, says in (
            (None, "", "username cannot be null."),
            ("nobody", "x", "User:nobody is not found."),
            ("shop", "guessed", "check signature failed."),
            ("guest", "guest-secret", "User:guest has no permission to access Topic:Normal"),
            ("shop", "shop-secret", ""),
            ("inner", "inner-secret", ""),
        ):
            with Caller(made.grpc, headers_of(user, password) if user else None) as caller:
                status = caller.send(message("Normal")).status
                good = CODE.UNAUTHORIZED if says else CODE.OK
                assert (status.code, status.message.startswith(says)) == (good, True), status
