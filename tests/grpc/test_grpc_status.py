"""Every status that a client can bring about without a consumer, and the text that says why."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from caller import CODE, Caller, at, message, on_loop

from broker import Broker
from broker.grpc.schema import METHODS, pb
from broker.services.topics import READ
from pystore.meta.configfiles import TopicConfig

#: What a message is, and what it is answered with.
REFUSED: dict[str, tuple[Any, int, str]] = {
    "blank topic": (message(" "), CODE.ILLEGAL_TOPIC, "The specified topic is blank."),
    "bad topic": (message("a b"), CODE.ILLEGAL_TOPIC, "illegal characters"),
    "long topic": (message("t" * 128), CODE.ILLEGAL_TOPIC, "127"),
    "system topic": (message("TBW102"), CODE.ILLEGAL_TOPIC, "cannot access system topic"),
    "revive topic": (message("rmq_sys_REVIVE_LOG_x"), CODE.ILLEGAL_TOPIC, "system topic"),
    "empty body": (message("Normal", b""), CODE.MESSAGE_BODY_EMPTY, "empty"),
    "long body": (message("Normal", bytes((4 << 20) + 1)), CODE.MESSAGE_BODY_TOO_LARGE, "4194304"),
    "many properties": (
        message("Normal", user={f"p{n}": "" for n in range(129)}),
        CODE.MESSAGE_PROPERTIES_TOO_LARGE,
        "too many user properties, max is 128",
    ),
    "long properties": (
        message("Normal", user={"p": "ä" * 8200}),
        CODE.MESSAGE_PROPERTIES_TOO_LARGE,
        "the total size of user property is too large, max is 16384",
    ),
    "reserved property": (
        message("Normal", user={"KEYS": "x"}),
        CODE.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "property is used by system: KEYS",
    ),
    "reserved by the store": (
        message("Normal", user={"INNER_NUM": "3"}),
        CODE.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "INNER_NUM",
    ),
    "separator in a property": (
        message("Normal", user={"p": "a\x01b"}),
        CODE.ILLEGAL_MESSAGE_PROPERTY_KEY,
        "the value of property cannot contain control character",
    ),
    "blank tag": (message("Normal", tag="  "), CODE.ILLEGAL_MESSAGE_TAG, "whitespace"),
    "tag with a bar": (message("Normal", tag="a|b"), CODE.ILLEGAL_MESSAGE_TAG, "'|'"),
    "blank key": (message("Normal", keys=[" "]), CODE.ILLEGAL_MESSAGE_KEY, "whitespace"),
    "separator in a key": (message("Normal", keys=["\x02"]), CODE.ILLEGAL_MESSAGE_KEY, "control"),
    "no id": (message("Normal", id=" "), CODE.ILLEGAL_MESSAGE_ID, "empty"),
    "separator in an id": (message("Normal", id="a\x02b"), CODE.ILLEGAL_MESSAGE_ID, "control"),
    "long group": (
        message("Fifo", message_group="g" * 64),
        CODE.ILLEGAL_MESSAGE_GROUP,
        "message group exceed the max size 64",
    ),
    "blank group": (message("Fifo", message_group=" "), CODE.ILLEGAL_MESSAGE_GROUP, "whitespace"),
    "recovery too late": (
        message(
            "Tx", message_type=4,
            orphaned_transaction_recovery_duration=pb.Duration(seconds=3601),
        ),
        CODE.BAD_REQUEST,
        "3601 s",
    ),
    "delivery too late": (
        message("Delay", delivery_timestamp=at(2 * 86400)),
        CODE.ILLEGAL_DELIVERY_TIME,
        "the max delay time of message is too large, max is 86400000",
    ),
    "delivery before the epoch": (
        message("Delay", delivery_timestamp=pb.Timestamp(seconds=-5)),
        CODE.ILLEGAL_DELIVERY_TIME,
        "-5 s",
    ),
    "delivery beyond any clock": (
        message("Delay", delivery_timestamp=pb.Timestamp(seconds=1 << 60)),
        CODE.ILLEGAL_DELIVERY_TIME,
        "not a delivery time",
    ),
    "born before the epoch": (
        message("Normal", born_timestamp=pb.Timestamp(seconds=-(1 << 62))),
        CODE.BAD_REQUEST,
        "not a time of birth",
    ),
    "type of a fifo topic": (
        message("Fifo"),
        CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "the expected type is FIFO, but actual type is NORMAL",
    ),
    "transaction with a delivery time": (
        message("Mixed", message_type=4, delivery_timestamp=at(60)),
        CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "delivery time",
    ),
    "unknown topic": (
        message("Nowhere"),
        CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "the expected type is UNSPECIFIED, but actual type is NORMAL",
    ),
    "not gzip": (message("Normal", body_encoding=2), CODE.MESSAGE_CORRUPTED, "gzip"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_message_that_is_refused(caller: Caller, case: str) -> None:
    given, code, text = REFUSED[case]
    reply = caller.send(given)
    assert reply.status.code == code, reply.status
    assert text in reply.status.message
    assert not reply.entries


def test_no_messages_are_corrupted(caller: Caller) -> None:
    assert caller.send().status.code == CODE.MESSAGE_CORRUPTED


def test_messages_of_two_topics_are_corrupted(caller: Caller) -> None:
    reply = caller.send(message("Normal"), message("Mixed"))
    assert reply.status.code == CODE.MESSAGE_CORRUPTED


def test_the_route_of_an_unknown_topic_is_not_found(caller: Caller) -> None:
    reply = caller("QueryRoute", topic=pb.Resource(name="Nowhere"))
    assert reply.status.code == CODE.TOPIC_NOT_FOUND
    assert "No topic route info" in reply.status.message


def test_system_topics_have_no_route(caller: Caller) -> None:
    reply = caller("QueryRoute", topic=pb.Resource(name="rmq_sys_wheel_timer"))
    assert reply.status.code == CODE.ILLEGAL_TOPIC


@pytest.mark.parametrize("client_id", [None, "", " "])
def test_a_call_without_client_id(broker: Broker, client_id: str | None) -> None:
    with Caller(broker.grpc_address, {"x-mq-client-id": client_id}) as caller:
        for method in ("QueryRoute", "SendMessage", "EndTransaction", "Heartbeat"):
            assert caller(method).status.code == CODE.CLIENT_ID_REQUIRED


def test_heartbeat_before_settings(caller: Caller) -> None:
    reply = caller("Heartbeat", client_type=1)
    assert reply.status.code == CODE.UNRECOGNIZED_CLIENT_TYPE
    assert reply.status.message == "cannot find client settings for this client"


def test_termination_of_an_unknown_client(caller: Caller) -> None:
    assert caller("NotifyClientTermination").status.code == CODE.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize(
    "identity", ["", "x", "a-b-c", "01-fffffffffffffffff-0", "01-8" + "0" * 15 + "-0"]
)
def test_a_transaction_id_that_nobody_gave(caller: Caller, identity: str) -> None:
    reply = caller(
        "EndTransaction", topic=pb.Resource(name="Tx"), transaction_id=identity, resolution=1
    )
    assert reply.status.code == CODE.INVALID_TRANSACTION_ID


def test_a_transaction_that_is_not_there(caller: Caller) -> None:
    reply = caller(
        "EndTransaction", topic=pb.Resource(name="Tx"), transaction_id="01-7-0-6162", resolution=1
    )
    assert reply.status.code == CODE.INTERNAL_SERVER_ERROR


def test_a_transaction_of_another_topic_is_refused(caller: Caller) -> None:
    entry = caller.send(message("Tx", message_type=4)).entries[0]
    for topic in ("Mixed", "Normal"):
        reply = caller(
            "EndTransaction", topic=pb.Resource(name=topic), transaction_id=entry.transaction_id,
            resolution=1,
        )  # fmt: skip
        assert reply.status.code == CODE.INTERNAL_SERVER_ERROR
    done = caller(
        "EndTransaction", topic=pb.Resource(name="Tx"), transaction_id=entry.transaction_id,
        resolution=2,
    )  # fmt: skip
    assert done.status.code == CODE.OK


@pytest.mark.parametrize("handle", ["", "x", "djEgYSBiIGMgZA=="])
def test_a_recall_handle_that_cannot_be_read(caller: Caller, handle: str) -> None:
    reply = caller("RecallMessage", topic=pb.Resource(name="Delay"), recall_handle=handle)
    assert reply.status.code == CODE.BAD_REQUEST
    assert reply.status.message in ("recall handle is invalid", "recall failed, topic not match")


def test_a_recall_from_a_topic_without_delays(caller: Caller) -> None:
    reply = caller("RecallMessage", topic=pb.Resource(name="Normal"), recall_handle="x")
    assert reply.status.code == CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_a_topic_that_cannot_be_written_to(broker: Broker, caller: Caller) -> None:
    topic = TopicConfig("ReadOnly", 4, 4, perm=READ)
    on_loop(broker, lambda: broker.services.topics.update(topic))
    assert caller.send(message("ReadOnly")).status.code == CODE.FORBIDDEN


def test_a_broker_that_takes_no_transactions(broker: Broker, caller: Caller) -> None:
    """A refusal of the broker comes as the status that is meant, in the entry, too."""
    config = broker.services.settings
    on_loop(broker, lambda: config.update({"rejectTransactionMessage": "true"}))
    try:
        reply = caller.send(message("Tx", message_type=4))
    finally:
        on_loop(broker, lambda: config.update({"rejectTransactionMessage": "false"}))
    assert reply.status.code == CODE.FORBIDDEN
    assert [each.status.code for each in reply.entries] == [CODE.FORBIDDEN]


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 5000])
@pytest.mark.parametrize("method", ["SendMessage", "QueryRoute", "EndTransaction", "Heartbeat"])
def test_malformed_protobuf_gets_a_status(caller: Caller, method: str, data: bytes) -> None:
    reply = METHODS[method].reply.FromString(caller.raw(method, data))
    assert reply.status.code == CODE.BAD_REQUEST
    assert "malformed" in reply.status.message and "Traceback" not in reply.status.message


def test_an_unknown_method_is_unimplemented(caller: Caller) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        caller.raw("NoSuchMethod", b"")
    assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_unknown_fields_and_enum_values_are_passed_over(caller: Caller) -> None:
    request = METHODS["SendMessage"].request(messages=[message("Normal", message_type=77)])
    data = request.SerializeToString() + b"\xfa\x7f\x03new"
    reply = METHODS["SendMessage"].reply.FromString(caller.raw("SendMessage", data))
    assert reply.status.code == CODE.OK
