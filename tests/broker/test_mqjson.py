"""JSON with objects as keys: written as upstream demands it, read in all its forms."""

from __future__ import annotations

import json

import pytest

from broker.wire.mqjson import JsonText, MessageQueue, _value, _with_queues, dumps, loads

Q = MessageQueue("orders", "b", 3)
KEY = '{"brokerName":"b","queueId":3,"topic":"orders"}'


def test_maps_by_queue_have_the_object_as_key_and_no_blank():
    assert dumps({"offsetTable": {Q: 5}}).decode() == '{"offsetTable":{' + KEY + ":5}}"
    assert dumps({"mqSet": [Q]}).decode() == '{"mqSet":[' + KEY + "]}"


def test_nothing_is_left_out_but_none():
    assert (
        dumps({1: True, "a": None, "b": [None, 1.5, "é\n"]})
        == '{"1":true,"b":[null,1.5,"é\\n"]}'.encode()
    )


@pytest.mark.parametrize(
    "value",
    [{"é\n\u2028": 1.5, "a": [True, "\ud800"], "1": {}}, {"a": {"b": None, "c": 1}},
     {"null": 1}, {}],
    ids=str,
)  # fmt: skip
def test_a_plain_value_is_written_as_any(value):
    assert JsonText.of_plain(value) == JsonText.of(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"t":{' + KEY + ":5," + KEY.replace("3", "4") + ":{}}}",
         {"t": {Q: 5, Q._replace(queue=4): {}}}),
        ('{0:"a", -1 : {2:[]}}', {"0": "a", "-1": {"2": []}}),
        (' { "a" : [ 1 , { "x":{ } } , true , null , "\\u00e9{" ] } ',
         {"a": [1, {"x": {}}, True, None, "é{"]}),
        ('{{"x":1}:2}', {'{"x":1}': 2}),
        ("{1:1e3,2:-2.5}", {"1": 1000.0, "2": -2.5}),
        ("{{1:2}:3,}", {'{"1":2}': 3}),
        ("[1,]", [1]),
        ("{'a':'it\\'s \"x\"', b_1 : 2 /* c */, // d\n $c:[]}",
         {"a": 'it\'s "x"', "b_1": 2, "$c": []}),
    ],
)  # fmt: skip
def test_all_forms_are_read(text, value):
    assert loads(text.encode()) == value


def test_what_is_written_is_read():
    value = {"offsetTable": {Q: {"maxOffset": 1}}, "list": [1, "x", {"y": [True]}]}
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"{{}", b'{"a" 1}', b'{"a":}', b"[1", b'{"a":1}}', b"\xff", b"nul",
     b'{"a":"x}', b"{1:" * 5000, b"[" * 5000, b"-"],
)  # fmt: skip
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        loads(text)


def test_random_cuts_do_no_harm(rng):
    text = dumps({"offsetTable": {Q: {"a": [1, 2, {"b": "c"}]}}, "x": {1: 2}}).replace(b'"1"', b"1")
    for _ in range(2000):
        data = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            loads(bytes(data[: rng.randrange(len(data) + 1)]))
        except ValueError:
            continue


def test_the_quick_reader_of_queues_reads_what_the_slow_one_reads(rng):
    text = dumps({"t": {Q: {"a": "}:"}, Q._replace(topic="{'x'"): [Q]}, "{": {"\\": Q}}).decode()
    agreed = 0
    for _ in range(2000):
        at = rng.randrange(len(text))
        changed = text[:at] + rng.choice(["", "{", '"', "}", ":", "\\", "\0", "7"]) + text[at + 1 :]
        if (quick := _with_queues(changed)) is None:
            continue
        slow, end = _value(changed, 0, 0)
        assert (quick, len(changed)) == (slow, end), changed
        agreed += 1
    assert agreed > 100


def test_strict_json_is_read_as_it_is():
    value = {"a": [1, 2, {"b": None}]}
    assert loads(json.dumps(value).encode()) == value
