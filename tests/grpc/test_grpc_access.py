"""The service of a broker that has users: what somebody without rights learns, and whose a client
id is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from caller import CODE, Caller, message, serving
from test_grpc_cluster_access import headers_of
from waiting import BOUND_S

from broker import Broker
from broker.access.policies import Acl, parse_acl
from broker.grpc.messages import Kind
from broker.grpc.schema import pb
from broker.wire.digests import digest_functions

RIGHTS = {
    "alice": ("Topic:Normal", "Topic:Tx", "Group:g"),
    "carol": ("Topic:Normal", "Topic:Tx", "Group:g"),
    "mallory": ("Group:m",),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    rules = {"authenticationEnabled": True, "authorizationEnabled": True}
    first = json.dumps({"username": "root", "password": "root-secret"})
    with serving(
        tmp_path_factory.mktemp("guarded") / "store", initAuthenticationUser=first, **rules
    ) as broker:
        policies = broker.services.access.policies
        for user, resources in RIGHTS.items():
            broker.run(policies.create_user(user, {"password": f"{user}-secret"}, None))
            entries = [
                {"resource": each, "actions": ["Pub", "Sub"], "decision": "Allow"}
                for each in resources
            ]
            body = {"policies": [{"entries": entries}]}
            assert isinstance(parse_acl(body), Acl)
            broker.run(policies.merge_acl(f"User:{user}", body))
        yield broker


def caller_of(broker: Broker, user: str, **headers: str) -> Caller:
    return Caller(f"127.0.0.1:{broker.grpc_port}", headers_of(user, f"{user}-secret") | headers)


def asked(method: str, topic: str, handle: str) -> dict[str, Any]:
    """The fields of a call about a topic."""
    resource, group = pb.Resource(name=topic), pb.Resource(name="m")
    return {
        "QueryRoute": {"topic": resource},
        "QueryAssignment": {"topic": resource, "group": group},
        "SendMessage": {"messages": [message(topic)]},
        "RecallMessage": {"topic": resource, "recall_handle": handle},
        "EndTransaction": {"topic": resource, "transaction_id": handle, "resolution": 1},
        "AckMessage": {
            "topic": resource, "group": group,
            "entries": [pb.AckMessageEntry(message_id="i", receipt_handle=handle)],
        },
        "ChangeInvisibleDuration": {
            "topic": resource, "group": group, "receipt_handle": handle, "message_id": "i",
        },
        "ForwardMessageToDeadLetterQueue": {
            "topic": resource, "group": group, "receipt_handle": handle, "message_id": "i",
        },
    }[method]  # fmt: skip


@pytest.mark.parametrize("method", [
    "QueryRoute", "QueryAssignment", "SendMessage", "RecallMessage", "EndTransaction", "AckMessage",
    "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue",
])  # fmt: skip
def test_a_refusal_does_not_tell_whether_a_topic_or_a_handle_exists(
    guarded: Broker, method: str
) -> None:
    """A topic that is there, one of another type, and one that is not; handles of any kind."""
    said = set()
    with caller_of(guarded, "mallory") as caller:
        for topic in ("Normal", "Delay", "Nowhere"):
            for handle in ("no handle", "0 1 60000 0 0 b 0 0", "0-1-1-6162"):
                answer = caller(method, **asked(method, topic, handle))
                assert answer.status.code == CODE.UNAUTHORIZED, (topic, handle, answer)
                said.add(answer.status.message.replace(topic, "T"))
    assert len(said) == 1


def test_settings_of_a_consumer_do_not_tell_whether_a_group_exists(guarded: Broker) -> None:
    with caller_of(guarded, "mallory") as caller:
        for group, topic in (("g", "Normal"), ("nobodys", "Nowhere")):
            assert caller.telemetry().subscribe(group, topic).status.code == CODE.UNAUTHORIZED


def test_a_client_id_is_the_users_that_came_first(guarded: Broker) -> None:
    """Settings, heartbeats and the end of another user's client are refused; it goes on."""
    with (
        caller_of(guarded, "alice", **{"x-mq-client-id": "shared"}) as alice,
        caller_of(guarded, "mallory", **{"x-mq-client-id": "shared"}) as mallory,
    ):
        assert alice.telemetry().publish("Normal").status.code == CODE.OK
        assert mallory.telemetry().subscribe("m", "Normal").status.code == CODE.UNAUTHORIZED
        for method in ("NotifyClientTermination", "Heartbeat"):
            status = mallory(method).status
            assert status.code == CODE.UNAUTHORIZED
            assert "is another user's" in status.message
        assert alice("Heartbeat").status.code == CODE.OK
        assert alice("NotifyClientTermination").status.code == CODE.OK


def receive(caller: Caller, topic: str = "Normal", group: str = "g") -> list[Any]:
    queue = pb.MessageQueue(topic=pb.Resource(name=topic))
    every = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
    wanted = {
        "group": pb.Resource(name=group), "message_queue": queue, "filter_expression": every,
        "batch_size": 32, "invisible_duration": {"seconds": 60},
    }  # fmt: skip
    return caller.stream("ReceiveMessage", timeout=BOUND_S, **wanted)


def acknowledge(caller: Caller, found: Any) -> int:
    entry = pb.AckMessageEntry(
        message_id="m", receipt_handle=found.message.system_properties.receipt_handle
    )
    reply = caller(
        "AckMessage", group=pb.Resource(name="g"), topic=pb.Resource(name="Normal"), entries=[entry]
    )
    return int(reply.status.code)


def end(caller: Caller, topic: str, transaction: str) -> int:
    reply = caller(
        "EndTransaction", topic=pb.Resource(name=topic), transaction_id=transaction, resolution=1
    )
    return int(reply.status.code)


def let_in(broker: Broker) -> int:
    """How many requests the core has served by a grant."""
    found: int = broker.services.core.let_in
    return found


def test_whoever_has_the_right_is_served_without_requests_between(
    guarded: Broker, requests: list[int]
) -> None:
    """Sends, receives, acknowledgements, ends of transactions; until the rights are taken away."""
    policies = guarded.services.access.policies
    with caller_of(guarded, "carol") as carol, caller_of(guarded, "root") as root:
        assert carol.telemetry().subscribe("g", "Normal").status.code == CODE.OK
        for _ in range(2):  # the first of a kind has the rules asked
            before = let_in(guarded)
            requests.clear()
            assert carol.send(message("Normal")).status.code == CODE.OK
            found = receive(carol)
            assert found[0].status.code == CODE.OK
            assert acknowledge(carol, found[1]) == CODE.OK
            (entry,) = carol.send(message("Tx", message_type=Kind.TRANSACTION)).entries
            assert end(carol, "Tx", entry.transaction_id) == CODE.OK
        assert not requests
        assert let_in(guarded) == before + 5 or digest_functions() is None
        (entry,) = root.send(message("Tx", message_type=Kind.TRANSACTION)).entries
        assert end(carol, "Normal", entry.transaction_id) != CODE.OK
        assert root.send(message("Normal")).status.code == CODE.OK
        (_, kept, _) = receive(carol)
        guarded.run(policies.delete_acl("User:carol", "", ""))
        assert acknowledge(carol, kept) == CODE.UNAUTHORIZED
        assert [each.status.code for each in receive(carol)[:1]] == [CODE.UNAUTHORIZED]
        assert end(carol, "Tx", entry.transaction_id) == CODE.UNAUTHORIZED
        assert end(root, "Tx", entry.transaction_id) == CODE.OK


def test_a_wrong_signature_is_refused_after_a_right_one(guarded: Broker) -> None:
    """Over one connection, by one client id."""
    with caller_of(guarded, "root") as root:
        for _ in range(2):  # the core serves the second one
            assert root.send(message("Normal")).status.code == CODE.OK
        good = dict(root.headers)
        root.headers |= headers_of("root", "no-secret")
        assert root.send(message("Normal")).status.code == CODE.UNAUTHORIZED
        root.headers |= good
        assert root.send(message("Normal")).status.code == CODE.OK
