"""Bodies read by tables: a value has one meaning, however a client spells it.

What fastjson 1.2.83 makes of each spelling was asked of a running 5.3.3 broker; it is written down
in the head of broker/wire/jsonbody.py.
"""

from __future__ import annotations

import json
import re

import pytest

from broker.processors.bodies import GROUP, HEARTBEAT, QUEUES_OF_CLIENT
from broker.wire.jsonbody import (
    BOOLEAN,
    INT,
    LONG,
    OBJECT,
    TEXT,
    JsonMember,
    Shape,
    each,
    enum,
    listed,
    mapping,
    required,
)  # fmt: skip
from broker.wire.mqjson import MessageQueue

MODEL = enum("BROADCASTING", "CLUSTERING")


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (TEXT, "a", "a"), (TEXT, 17, "17"), (TEXT, True, "true"), (TEXT, 1.5, "1.5"),
        (TEXT, ["a"], '["a"]'), (TEXT, {"a": 1}, '{"a":1}'), (TEXT, None, None),
        (LONG, 12, 12), (LONG, "12", 12), (LONG, "-12", -12), (LONG, 1.7, 1), (LONG, True, 1),
        (LONG, "", None), (LONG, "null", None), (LONG, None, None), (LONG, -(1 << 63), -(1 << 63)),
        (INT, (1 << 31) - 1, (1 << 31) - 1),
        (BOOLEAN, "true", True), (BOOLEAN, "FALSE", False), (BOOLEAN, 1, True), (BOOLEAN, 0, False),
        (BOOLEAN, "1", True), (BOOLEAN, None, None),
        (MODEL, 1, "CLUSTERING"), (MODEL, "broadcasting", "BROADCASTING"), (MODEL, "NOBODY", None),
        (MODEL, "1", None), (MODEL, "", None), (MODEL, None, None),
        (each(INT), ["3", 4], [3, 4]), (each(Shape(a=INT)), {"a": "1"}, [{"a": 1}]),
        (mapping(INT), {"x": "1"}, {"x": 1}), (each(TEXT, nulls=True), ["a", None], ["a", None]),
    ],
)  # fmt: skip
def test_what_a_value_means(kind, given, meant):
    found = kind(given)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (LONG, "x"), (LONG, []), (LONG, {}), (LONG, 1 << 63), (LONG, float("nan")), (LONG, "1_0"),
        (LONG, "1" * 5000), (INT, 1 << 31), (INT, "2147483648"), (BOOLEAN, "x"), (BOOLEAN, []),
        (MODEL, 2), (MODEL, -1), (MODEL, True), (MODEL, []), (each(INT), 5), (each(INT), {}),
        (each(Shape()), ["t"]), (each(Shape()), [None]), (each(INT, 2), [1, 2, 3]),
        (each(TEXT), ["a", None]), (each(LONG), [""]), (listed(OBJECT).kind, [{}, None]),
        (mapping(INT), []), (mapping(INT), {"x": "y"}), (Shape(), []), (Shape(), "text"),
        (Shape(a=required(TEXT)), {}), (Shape(a=required(TEXT)), {"a": ""}),
        (Shape(a=required(TEXT)), {"a": None}),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(kind, given):
    with pytest.raises(ValueError):
        kind(given)


def test_a_member_in_another_case_is_that_member_unless_it_is_there():
    shape = Shape(groupName=TEXT, codeSet=listed(INT))
    assert shape({"group_name": "g", "CODESET": [1]}) == {"groupName": "g", "codeSet": [1]}
    assert shape({"GroupName": "a", "groupName": "b", "x": 1}) == {"groupName": "b", "codeSet": ()}


def test_the_error_says_where():
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{},5]}]}'
    where = re.escape("consumerDataSet[0]: subscriptionDataSet[0]: topic is missing")
    with pytest.raises(ValueError, match=where):
        HEARTBEAT.loads(body)


def test_defaults_cannot_be_changed():
    """All bodies share them."""
    shape = Shape(table=JsonMember(mapping(INT), {}))
    with pytest.raises(TypeError):
        shape({})["table"]["a"] = 1


# ---- a value is the same in every spelling ----


def beat(rng):
    names = ["".join(rng.choices("abc_-%é\"'\\", k=rng.randrange(1, 9))) for _ in range(4)]
    return {
        "clientID": names[0],
        "heartbeatFingerprint": rng.randrange(-5, 5),
        "withoutSub": rng.random() < 0.5,
        "producerDataSet": [{"groupName": names[1]} for _ in range(rng.randrange(3))],
        "consumerDataSet": [
            {
                "groupName": names[2],
                "consumeType": rng.choice(["CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"]),
                "messageModel": rng.choice(["BROADCASTING", "CLUSTERING"]),
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "unitMode": rng.random() < 0.5,
                "subscriptionDataSet": [
                    {
                        "topic": names[3], "subString": "a || b", "expressionType": "TAG",
                        "tagsSet": ["a", "b"], "subVersion": rng.randrange(1 << 62),
                        "codeSet": [rng.randrange(-(1 << 31), 1 << 31) for _ in range(2)],
                        "classFilterMode": False,
                    }
                ],
            }
            for _ in range(rng.randrange(1, 3))
        ],
    }  # fmt: skip


ORDINALS = {
    "CONSUME_ACTIVELY": 0, "CONSUME_PASSIVELY": 1, "CONSUME_POP": 2,
    "BROADCASTING": 0, "CLUSTERING": 1, "CONSUME_FROM_FIRST_OFFSET": 4,
}  # fmt: skip


def respelled(value, rng):
    """The same in another client's way."""
    if isinstance(value, dict):
        made = {}
        for name, one in value.items():
            if rng.random() < 0.2:
                name = rng.choice([name.upper(), name.lower(), f"_{name}"])
            made[name] = respelled(one, rng)
            if rng.random() < 0.2:
                made[f"unknown{len(made)}"] = rng.choice([None, [], {"groupName": 1}, "x"])
        return made
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], dict) and rng.random() < 0.3:
            return respelled(value[0], rng)
        return [respelled(one, rng) for one in value]
    if isinstance(value, bool):
        return rng.choice([value, str(value).lower(), str(value).upper(), int(value)])
    if isinstance(value, int):
        return rng.choice([value, str(value)])
    if value in ORDINALS:
        return rng.choice([value, ORDINALS[value], value.lower()])
    return value


def spelled(value, rng):
    """As JSON text, or as what fastjson takes for it."""
    if isinstance(value, dict):
        members = []
        for name, one in value.items():
            quoted = json.dumps(name)
            key = rng.choice([quoted, name, f"'{name}'"]) if name.isalpha() else quoted
            members.append(f"{key}{rng.choice(['', ' '])}:{spelled(one, rng)}")
        more = rng.choice(["", ","]) if members else ""
        return "{" + rng.choice([",", ", ", ",/*,*/"]).join(members) + more + "}"
    if isinstance(value, list):
        return "[" + ",".join(spelled(one, rng) for one in value) + "]"
    if isinstance(value, str) and "\\" not in value and rng.random() < 0.3:
        return "'" + value.replace("'", "\\'") + "'"
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def test_a_heartbeat_means_the_same_in_every_spelling(rng):
    for _ in range(500):
        plain = beat(rng)
        other = spelled(respelled(plain, rng), rng)
        assert HEARTBEAT.loads(other.encode()) == HEARTBEAT(plain), other


def test_damaged_bodies_are_read_or_refused(rng):
    """By ValueError alone, whatever bytes are changed, cut out or put in."""
    for _ in range(2000):
        body = bytearray(spelled(respelled(beat(rng), rng), rng).encode())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(body))
            body[at : at + rng.randrange(3)] = rng.choice([b"", b"{", b"]", b"null", b"9", b"\xff"])
        try:
            HEARTBEAT.loads(body)
        except ValueError as bad:
            assert str(bad)


def test_other_bodies_of_other_clients():
    queues = QUEUES_OF_CLIENT.loads(
        b'{"consumerGroup":5,"clientId":"c","mqSet":[{"topic":"t","brokerName":"b","queueId":"1"},'
        b'{"topic":"t","queueId":2}]}'
    )
    assert queues["mqSet"] == [MessageQueue("t", "b", 1), MessageQueue("t", "", 2)]
    assert queues["consumerGroup"] == "5"
    group = GROUP.loads(b'{"groupName":"g","retryMaxTimes":"7","consumeEnable":"false","x":1}')
    assert (group["retryMaxTimes"], group["consumeEnable"], group["brokerId"]) == (7, False, None)
