"""Requests of every family, good ones and such as a broker refuses, and how to ask them: which
fields an answer has, whatever its code is, is compared with Apache's broker (field_answers.json,
which `python field_cases.py HOST:PORT` writes)."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from waiting import BOUND_S

__all__ = ["ANSWERS", "CASES", "answers", "ask"]

#: By name of the case: code, and the names of its fields.
ANSWERS = Path(__file__).with_name("field_answers.json")

_SEND = {
    "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
    "h": "0", "i": "UNIQ_KEY\x01AB\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
_SEND_1 = {
    "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
    "properties": "", "reconsumeTimes": "0", "unitMode": "false",
}  # fmt: skip
_PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
_PLACE = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
_POP = _PLACE | {
    "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0",
    "initMode": "0", "exp": "*", "expType": "TAG", "order": "false",
}  # fmt: skip
_ACK = _PLACE | {"offset": "0", "extraInfo": "0 1 60000 0 0 broker-a 0 0"}
_WAIT = _PLACE | {"pollTime": "0", "bornTime": "0", "order": "false"}
_BACK = {
    "offset": "0", "group": "g", "delayLevel": "3", "originMsgId": "x", "originTopic": "T",
    "unitMode": "false", "maxReconsumeTimes": "16",
}  # fmt: skip
_TIME = {"topic": "T", "queueId": "0"}

#: Name, code, fields, and what is put over them, one change for each case: None leaves one out.
_FAMILIES: tuple[tuple[str, int, dict[str, str], dict[str, dict[str, str | None]]], ...] = (
    ("send", 310, _SEND, {
        "good": {}, "no topic": {"b": "none", "c": ""}, "bad queue": {"e": "99"},
        "bad name": {"b": "a b"}, "bad field": {"e": "x"},
    }),
    ("send 1", 10, _SEND_1, {"good": {}, "bad queue": {"queueId": "99"}}),
    ("batch", 320, _SEND | {"m": "true"}, {"bad queue": {"e": "99"}}),
    ("pull", 11, _PULL, {
        "good": {}, "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
        "far": {"queueOffset": "999"}, "end": {"queueOffset": "3"},
        "no group": {"consumerGroup": None},
        "bad sql": {"expressionType": "SQL92", "subscription": "a b c"},
        "not subscribed": {"sysFlag": "0"},
    }),
    ("lite pull", 361, _PULL, {"good": {}, "no topic": {"topic": "none"}}),
    ("query", 12, {
        "topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0",
        "endTimestamp": "2000000000000",
    }, {"nothing": {}}),
    ("offset", 14, _PLACE, {"none": {"consumerGroup": "never"}}),
    ("commit", 15, _PLACE | {"commitOffset": "0"}, {"good": {}}),
    ("offset of time", 29, _TIME | {"timestamp": "0"}, {"good": {}, "no topic": {"topic": "none"}}),
    ("max", 30, _TIME, {"good": {}, "bad queue": {"queueId": "99"}}),
    ("min", 31, _TIME, {"good": {}, "no topic": {"topic": "none"}}),
    ("earliest", 32, _TIME, {"good": {}, "no topic": {"topic": "none"}}),
    ("by id", 33, {"offset": "0"}, {"bad": {"offset": "123456789"}}),
    ("back", 36, _BACK, {"bad offset": {"offset": "123456789"}, "no group": {"group": "never"}}),
    ("members", 38, {"consumerGroup": "g"}, {"none": {"consumerGroup": "never"}}),
    ("stats of a topic", 202, {"topic": "T"}, {"good": {}, "none": {"topic": "none"}}),
    ("consumers", 203, {"consumerGroup": "never"}, {"none": {}}),
    ("producers", 204, {"producerGroup": "never"}, {"none": {}}),
    ("consumption", 208, {"consumerGroup": "g"}, {"good": {}, "none": {"consumerGroup": "never"}}),
    ("groups", 300, {"topic": "T"}, {"good": {}, "none": {"topic": "none"}}),
    ("span", 303, {"topic": "T", "group": "g"}, {"good": {}, "none": {"topic": "none"}}),
    ("running", 307, {"consumerGroup": "never", "clientId": "x"}, {"none": {}}),
    ("units", 321, {
        "topic": "T", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "g",
    }, {"good": {}, "none": {"topic": "none"}}),
    ("topics", 343, {"group": "never"}, {"none": {}}),
    ("subscription", 345, {"group": "never", "topic": "T"}, {"none": {}}),
    ("a topic", 351, {"topic": "T"}, {"good": {}, "none": {"topic": "none"}}),
    ("statistics", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "none"}, {"none": {}}),
    ("recall", 370, {"topic": "T", "recallHandle": "x", "producerGroup": "p"}, {"bad": {}}),
    ("pop", 200050, _POP, {
        "good": {}, "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
        "many": {"maxMsgNums": "33"}, "no group": {"consumerGroup": "never"},
    }),
    ("peek", 200052, _PLACE | {"maxMsgNums": "1"}, {
        "good": {}, "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
    }),
    ("ack", 200051, _ACK, {
        "good": {}, "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
        "bad offset": {"offset": "999"},
    }),
    ("acks", 200151, {}, {"nothing": {}}),
    ("change", 200053, _ACK | {"invisibleTime": "60000"}, {
        "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
        "bad offset": {"offset": "999"},
    }),
    ("notification", 200054, _WAIT, {
        "good": {}, "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
        "no group": {"consumerGroup": "never"},
    }),
    ("polling", 200055, _PLACE, {
        "good": {}, "no topic": {"topic": "none"}, "bad queue": {"queueId": "99"},
    }),
)  # fmt: skip

CASES: dict[str, tuple[int, dict[str, str]]] = {
    f"{family}: {name}": (
        code,
        {key: value for key, value in (given | change).items() if value is not None},
    )
    for family, code, given, changes in _FAMILIES
    for name, change in changes.items()
}


def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[int, list[str]]:
    """The code of the answer, and the names of its fields."""
    ext = {name: str(int(time.time() * 1000)) if name == "bornTime" else value
           for name, value in ext.items()}  # fmt: skip
    head: dict[str, Any] = {"code": code, "language": "JAVA", "version": 479, "opaque": 1}
    header = json.dumps({**head, "flag": 0, "extFields": ext}).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as wire:
        wire.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        frame = wire.makefile("rb")
        _, size = struct.unpack(">ii", frame.read(8))
        said = json.loads(frame.read(size & 0xFFFFFF))
    return said["code"], sorted(said.get("extFields") or {})


def answers(address: str) -> dict[str, tuple[int, list[str]]]:
    """Of every case, at a new broker: a topic with two queues, a group, three messages."""
    topic = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(address, 17, topic)[0] == 0
    group = {"groupName": "g", "consumeEnable": True, "retryQueueNums": 1}
    assert ask(address, 200, {}, json.dumps(group).encode())[0] == 0
    for _ in range(3):
        assert ask(address, 310, _SEND, b"x")[0] == 0
    found = {}
    for name, (code, ext) in CASES.items():
        found[name] = ask(address, code, ext, b"x" if code in (10, 310, 320) else b"")
    return found


if __name__ == "__main__":
    said = answers(sys.argv[1])
    rows = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in said.items()]
    ANSWERS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
