"""Plain sends, which C reads: what it takes is stored as the usual way would store it, and what it
does not take goes the usual way."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from caller import CODE, Caller, message, serving

from broker import Broker
from broker.grpc._http2 import read_message, stored
from broker.grpc.checks import check_message, check_topics_equal
from broker.grpc.messages import Kind, outgoing
from broker.grpc.schema import pb
from broker.grpc.settings import ProxySettings
from broker.grpc.status import Code, Problem, ok
from pystore.properties import encode_properties

LIMITS = ProxySettings()
HOST = "192.0.2.7"
TEXTS = ["", "a", "some text", "  ", "grün", "tab\t", "a|b", "x" * 300, "x" * 5000, "\x7f", "~"]


def read(request: Any) -> Any:
    return read_message(request.SerializeToString(), LIMITS.body_max, LIMITS.properties_max, HOST)


def taken(request: Any) -> Any:
    """The same by the rules of the usual way; None: it refuses."""
    try:
        topic = check_topics_equal(request.messages)
        (only,) = request.messages
        check_message(only, LIMITS)
        made = outgoing(only, HOST, LIMITS.body_max)
    except (Problem, ValueError):
        return None
    assert made.topic == topic
    properties = encode_properties(made.properties)
    return made.topic, made.message_id, properties, made.body, made.born_ms, made.kind


def a_request(rng: random.Random) -> Any:
    """Mostly plain, with one or two things changed."""
    one = message("Normal", b"x" * rng.choice([1, 128, 4000]))
    system = one.system_properties
    system.born_timestamp.nanos = rng.randrange(10**9)

    def text() -> str:
        return rng.choice(TEXTS)

    def stamp(field: Any) -> None:
        field.seconds = rng.choice([-1, 0, 1, int(time.time()), 1 << 41])

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
        lambda: setattr(system.body_digest, "checksum", text()),
        lambda: setattr(one.topic, "resource_namespace", text()),
        lambda: stamp(system.born_timestamp),
        lambda: stamp(system.delivery_timestamp),
        lambda: stamp(system.orphaned_transaction_recovery_duration),
        lambda: one.user_properties.update({text(): text()}),
        lambda: setattr(one, "body", b""),
    ]
    for change in rng.sample(changes, rng.randrange(3)):
        change()
    return pb.SendMessageRequest(messages=[one] * rng.choice([1] * 19 + [2]))


def test_what_is_taken_is_what_the_usual_way_makes_of_it(rng: random.Random) -> None:
    count = 0
    for _ in range(5000):
        request = a_request(rng)
        found = read(request)
        if found is not None:
            count += 1
            assert (*found, Kind.NORMAL) == taken(request), request
    assert count > 500


def test_a_field_that_comes_twice_is_not_plain() -> None:
    """Protobuf takes the last one, or joins them."""
    once = message("Normal")
    twice = pb.SendMessageRequest(messages=[once]).SerializeToString()
    assert read_message(twice, 100, 100, HOST) is not None
    assert read_message(twice * 2, 100, 100, HOST) is None
    again = pb.Message(topic=pb.Resource(name="Other")).SerializeToString()
    joined = once.SerializeToString() + again
    data = b"\x0a" + bytes([len(joined) & 0x7F | 0x80, len(joined) >> 7]) + joined
    assert pb.SendMessageRequest.FromString(data).messages[0].topic.name == "Other"
    assert read_message(data, 100, 100, HOST) is None


def test_damaged_requests_are_not_plain(rng: random.Random) -> None:
    """Or mean the same: nothing is read beyond their end."""
    request = pb.SendMessageRequest(messages=[message("Normal", tag="t", keys=["a", "b"])])
    data = request.SerializeToString()
    for cut in range(len(data)):
        assert read_message(data[:cut], 100, 100, HOST) is None
    for _ in range(20_000):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        found = read_message(bytes(damaged), 100, 100, HOST)
        if found is not None and found[0] == "Normal":  # names are looked at later
            other = pb.SendMessageRequest.FromString(bytes(damaged))  # it can be read
            assert (*found, Kind.NORMAL) == taken(other), bytes(damaged).hex()


@pytest.mark.parametrize("offset", [0, 1, 300, 1 << 40])
def test_the_reply(offset: int) -> None:
    entry = pb.SendResultEntry(status=ok(), message_id="01AB", transaction_id="01AB", offset=offset)
    wanted = pb.SendMessageResponse(status=ok(), entries=[entry])
    assert stored("01AB", offset) == wanted.SerializeToString()


def test_a_plain_message_goes_the_quick_way(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another one the usual way."""
    caller.send(message("Normal"))  # the first of a client makes its connection
    usual = []
    check = check_message

    def seen(given: Any, limits: ProxySettings) -> None:
        usual.append(given.system_properties.message_id)
        check(given, limits)

    monkeypatch.setattr("broker.grpc.sending.check_message", seen)
    plain, other = message("Normal", tag="t"), message("Normal", user={"a": "b"})
    replies = [caller.send(plain), caller.send(other), caller.send(plain)]
    assert usual == [other.system_properties.message_id]
    assert [reply.status.code for reply in replies] == [CODE.OK] * 3
    for reply, sent in zip(replies, (plain, other, plain), strict=True):
        assert reply.entries[0].message_id == sent.system_properties.message_id


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


def test_a_plain_message_that_waits_for_the_disk(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "store", flushDiskType="SYNC_FLUSH") as broker,
        Caller(broker.grpc_address) as caller,
    ):
        offsets = [caller.send(message("Normal")).entries[0].offset for _ in range(8)]
    assert sorted(offsets) == [0, 0, 0, 0, 1, 1, 1, 1]


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
