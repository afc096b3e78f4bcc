"""Messages that are sent: C reads whatever is right, and what is wrong goes the usual way, which
says so."""

from __future__ import annotations

import gzip
import random
import time
from typing import Any

import pytest
from caller import CODE, Caller, message

from broker import Broker
from broker.grpc.checks import check_message, check_topics_equal
from broker.grpc.messages import RESERVED, Kind, plain_sends
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem
from pystore.format.properties import parse_properties

LIMITS = ProxySettings()
HOST = "192.0.2.7"
NAMES = ["color", "TIMER_X", *sorted(RESERVED)[:4]]
TEXTS = ["", "a", "some text", "  ", "grün", "tab\t", "a|b", "x" * 300, "x" * 5000, "\x7f", "~"]
TEXTS += ["订单", "\xa0", "\u3000", "\u2003x", "\x85", "é\x80", "😀"]


PLAIN = plain_sends(LIMITS)


def read(request: Any) -> Any:
    return PLAIN.read(request.SerializeToString(), HOST)


def is_right(request: Any) -> bool:
    """By the rules that name what is wrong. A half has no delivery time, which the service says
    where it looks at types."""
    try:
        check_topics_equal(request.messages)
        (only,) = request.messages
        check_message(only, LIMITS)
    except (Problem, ValueError):
        return False
    system = only.system_properties
    return system.message_type != Kind.TRANSACTION or not system.HasField("delivery_timestamp")


def a_request(rng: random.Random) -> Any:
    """Mostly plain, with one or two things changed."""
    one = message("Normal", b"x" * rng.choice([1, 128, 4000]))
    system = one.system_properties
    system.born_timestamp.nanos = rng.randrange(10**9)

    def text() -> str:
        return rng.choice(TEXTS)

    def stamp(field: Any) -> None:
        field.seconds = rng.choice([-1, 0, 1, int(time.time()), 1 << 41])

    def half() -> None:
        system.message_type = Kind.TRANSACTION
        stamp(system.orphaned_transaction_recovery_duration)

    changes = [
        lambda: setattr(system, "tag", text()),
        lambda: system.keys.extend([text(), text()]),
        lambda: setattr(system, "message_id", text()),
        lambda: setattr(system, "born_host", text()),
        lambda: setattr(system, "trace_context", text()),
        lambda: setattr(system, "message_group", text()),
        lambda: setattr(system, "message_type", rng.randrange(6)),
        lambda: setattr(system, "body_encoding", rng.randrange(4)),
        lambda: setattr(system, "delivery_attempt", rng.choice([0, 1, 17, -1])),
        lambda: setattr(system, "queue_id", rng.choice([0, 3, -1])),
        lambda: setattr(system, "priority", rng.choice([0, 7, 2**31 - 1, -1])),
        lambda: setattr(system.body_digest, "checksum", text()),
        lambda: setattr(one.topic, "resource_namespace", text()),
        lambda: stamp(system.born_timestamp),
        lambda: stamp(system.delivery_timestamp),
        lambda: stamp(system.orphaned_transaction_recovery_duration),
        lambda: one.user_properties.update({text(): text()}),
        lambda: one.user_properties.update({rng.choice(NAMES): text(), "other": "value"}),
        lambda: one.user_properties.update({f"n{i}": "v" for i in range(rng.randrange(140))}),
        lambda: setattr(system, "message_group", "x" * rng.choice([1, 63, 64])),
        lambda: setattr(system, "message_type", Kind.TRANSACTION),
        half,
        lambda: setattr(one, "body", b""),
    ]
    for change in rng.sample(changes, rng.randrange(3)):
        change()
    return pb.SendMessageRequest(messages=[one] * rng.choice([1] * 19 + [2]))


def test_whatever_is_right_is_read_and_nothing_else(rng: random.Random) -> None:
    count = 0
    for _ in range(5000):
        request = a_request(rng)
        found = read(request)
        assert (found is not None) == is_right(request), request
        if found is not None:
            count += 1
            only = request.messages[0]
            said = parse_properties(found[2])
            assert found[:2] == (only.topic.name, only.system_properties.message_id)
            assert found[3] == only.body
            user = {n: v for n, v in only.user_properties.items() if v}
            assert user.items() <= said.items()
            assert said.get("TAGS", "") == only.system_properties.tag
            assert said.get("KEYS", "") == " ".join(only.system_properties.keys)
    assert count > 500


BORN = {"born_timestamp": pb.Timestamp(seconds=1_700_000_000, nanos=123_999_999), "born_host": "h"}
STORED = {
    "UNIQ_KEY": "01AB", "PGROUP": "Normal", "RECONSUME_TIME": "0", "__BORNHOST": "h",
    "BORN_TIMESTAMP": "1700000000123",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "system", "stored_too"),
    [
        (Kind.NORMAL, {"user": {"color": "red", "状态": "grün"}}, {"color": "red", "状态": "grün"}),
        (Kind.NORMAL, {"message_type": 0, "delivery_attempt": -1}, {"RECONSUME_TIME": "-1"}),
        (Kind.NORMAL, {"born_host": ""}, {"__BORNHOST": HOST}),
        (
            Kind.NORMAL,
            {"tag": "标签", "keys": ["订单 1", "k"], "trace_context": " "},
            {"TAGS": "标签", "KEYS": "订单 1 k", "TRACE_CONTEXT": " "},
        ),
        (
            Kind.FIFO,
            {"message_group": "g", "message_type": Kind.FIFO},
            {"__SHARDINGKEY": "g"},
        ),
        (Kind.TRANSACTION, {"message_type": Kind.TRANSACTION}, {"TRAN_MSG": "true"}),
        (
            Kind.TRANSACTION,
            {
                "message_type": Kind.TRANSACTION,
                "orphaned_transaction_recovery_duration": pb.Duration(seconds=60),
            },
            {"TRAN_MSG": "true", "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"},
        ),
        (
            Kind.DELAY,
            {"message_type": Kind.DELAY, "delivery_timestamp": pb.Timestamp(seconds=9)},
            {"TIMER_DELIVER_MS": "9000"},
        ),
        (
            Kind.PRIORITY,
            {"message_type": Kind.PRIORITY, "priority": 0},
            {"_SYS_MSG_PRIORITY_": "0"},
        ),
    ],
)
def test_what_a_message_becomes(
    kind: int, system: dict[str, Any], stored_too: dict[str, str]
) -> None:
    sent = message("Normal", **{"id": "01AB", **BORN, **system})
    found = read(pb.SendMessageRequest(messages=[sent]))
    assert parse_properties(found[2]) == STORED | stored_too
    assert found[4:] == (1_700_000_000_123, kind, system.get("message_group", ""), False)


def test_a_field_that_comes_twice_is_not_plain() -> None:
    """Protobuf takes the last one, or joins them."""
    once = message("Normal")
    twice = pb.SendMessageRequest(messages=[once]).SerializeToString()
    assert PLAIN.read(twice, HOST) is not None
    assert PLAIN.read(twice * 2, HOST) is None
    again = pb.Message(topic=pb.Resource(name="Other")).SerializeToString()
    joined = once.SerializeToString() + again
    data = b"\x0a" + bytes([len(joined) & 0x7F | 0x80, len(joined) >> 7]) + joined
    assert pb.SendMessageRequest.FromString(data).messages[0].topic.name == "Other"
    assert PLAIN.read(data, HOST) is None


def test_a_property_that_comes_twice_is_not_plain() -> None:
    one = message("Normal", user={"a": "b"}).SerializeToString()
    again = pb.Message(user_properties={"a": "c"}).SerializeToString()
    for data, taken in ((one, True), (one + again, False)):
        request = b"\x0a" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data
        assert (PLAIN.read(request, HOST) is not None) == taken


def test_damaged_requests_are_not_plain(rng: random.Random) -> None:
    """Or mean the same: nothing is read beyond their end."""
    one = message("Normal", tag="t", keys=["a", "b"], message_group="g", user={"u": "v"})
    request = pb.SendMessageRequest(messages=[one])
    data = request.SerializeToString()
    for cut in range(len(data)):
        assert PLAIN.read(data[:cut], HOST) is None
    for _ in range(20_000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        found = PLAIN.read(bytes(damaged), HOST)
        if found is not None and found[0] == "Normal":  # names are looked at later
            other = pb.SendMessageRequest.FromString(bytes(damaged))  # it can be read
            assert is_right(other), bytes(damaged).hex()
            (only,) = other.messages
            assert (found[1], found[3]) == (only.system_properties.message_id, only.body)


def test_a_long_id(caller: Caller) -> None:
    """Longer than those that C answers."""
    sent = message("Normal", id="x" * 1025)
    (entry,) = caller.send(sent).entries
    assert (entry.status.code, entry.message_id) == (CODE.OK, "x" * 1025)
    assert caller.send(message("Normal", id="x" * 32767)).status.code != CODE.OK


def test_a_plain_message_goes_the_quick_way(
    broker: Broker, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another one the usual way, as the first of a client and of a topic."""
    usual = []
    check = check_message

    def seen(given: Any, limits: ProxySettings) -> None:
        usual.append(given.system_properties.message_id)
        check(given, limits)

    in_an_hour = pb.Timestamp(seconds=int(time.time()) + 3600)
    all_of = [
        message("Normal", tag="t", user={"a": "b"}),
        message("Normal", user={"a": "\t"}),
        message("Fifo", message_group="g", message_type=Kind.FIFO),
        message("Tx", message_type=Kind.TRANSACTION),
        message("Normal", tag="标签", keys=["订单"], user={"状态": "grün"}),
        message("Normal", gzip.compress(b"x" * 999), body_encoding=pb.Encoding.GZIP),
        message("Delay", message_type=Kind.DELAY, delivery_timestamp=in_an_hour),
    ]
    for each in all_of:
        caller.send(each)
    monkeypatch.setattr("broker.grpc.sending.check_message", seen)
    replies = [caller.send(each) for each in all_of]
    assert usual == [all_of.pop(1).system_properties.message_id]
    assert replies.pop(1).status.code == CODE.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert [reply.status.code for reply in replies] == [CODE.OK] * len(all_of)
    for reply, sent in zip(replies, all_of, strict=True):
        assert reply.entries[0].message_id == sent.system_properties.message_id
    assert [bool(each.entries[0].recall_handle) for each in replies] == [False] * 5 + [True]
    queues = broker.store.queues("Normal")
    kept = [m.body for queue in queues for m in broker.store.read("Normal", queue.queue, 0)]
    assert b"x" * 999 in kept


def end(caller: Caller, transaction: str, resolution: int) -> int:
    reply = caller(
        "EndTransaction", topic=pb.Resource(name="Tx"), transaction_id=transaction,
        resolution=resolution,
    )  # fmt: skip
    return int(reply.status.code)


@pytest.mark.parametrize("resolution", [1, 2])
def test_a_decision_goes_the_quick_way(
    broker: Broker, caller: Caller, requests: list[int], resolution: int
) -> None:
    """A repeat and another decision go the usual one, which has the answers."""
    (entry,) = caller.send(message("Tx", message_type=Kind.TRANSACTION)).entries
    before = sum(queue.max_offset for queue in broker.store.queues("Tx"))
    assert end(caller, entry.transaction_id, 0) == CODE.OK
    requests.clear()
    assert end(caller, entry.transaction_id, resolution) == CODE.OK
    assert not requests
    assert sum(queue.max_offset for queue in broker.store.queues("Tx")) - before == 2 - resolution
    assert end(caller, entry.transaction_id, resolution) == CODE.OK
    assert end(caller, entry.transaction_id, 3 - resolution) == CODE.BAD_REQUEST
    assert requests == [37, 37]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("Fifo", CODE.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("nobody made it", CODE.ILLEGAL_TOPIC),
        ("TBW102", CODE.ILLEGAL_TOPIC),
        ("SCHEDULE_TOPIC_XXXX", CODE.ILLEGAL_TOPIC),
    ],
)
def test_a_plain_message_that_is_refused(caller: Caller, topic: str, code: int) -> None:
    assert read(pb.SendMessageRequest(messages=[message(topic)])) is not None
    assert caller.send(message(topic)).status.code == code


def test_a_topic_that_may_not_be_written(broker: Broker, caller: Caller) -> None:
    broker.create_topic("Closed", queues=1)
    assert caller.send(message("Closed")).status.code == CODE.OK
    found = broker.services.topics.get("Closed")
    assert found is not None

    async def close() -> None:
        from dataclasses import replace

        broker.services.topics.update(replace(found, perm=4), "")

    broker.run(close())
    assert caller.send(message("Closed")).status.code == Code.FORBIDDEN
