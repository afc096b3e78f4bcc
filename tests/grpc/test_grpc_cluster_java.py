"""A proxy of ours before Apache's broker and name server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "interop"))

import launch
from caller import CODE, TOPICS, Caller, message
from test_grpc_cluster import CONSUMER, ack, proxy, receive
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
