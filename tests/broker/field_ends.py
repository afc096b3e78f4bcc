"""Hot requests whose numbers are 0, -1 and the ends of their types, one number at a time, and what
a broker answers to them: code, fields and what they hold. Apache's answers stand in
field_ends.json, which `python field_ends.py HOST:PORT` writes; with `--compare` it prints where
the broker at that address answers otherwise."""

from __future__ import annotations

import argparse
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ANSWERS", "CASES", "answers"]

#: By name of the case: the answer, and that of what is asked after it.
ANSWERS = Path(__file__).with_name("field_ends.json")

INT = {"-1": -1, "0": 0, "min": -(1 << 31), "max": (1 << 31) - 1}
LONG = {"-1": -1, "0": 0, "min": -(1 << 63), "max": (1 << 63) - 1}

#: Named after the case, so that no case meets what another one has left.
_TOPIC, _GROUP = "T", "{case}"

_SEND = {
    "a": "p", "b": _TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000",
    "h": "0", "i": "", "j": "0", "k": "false", "l": "16", "m": "false",
}  # fmt: skip
_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
_SENDS = {"d": INT, "e": INT, "f": INT, "g": LONG, "h": INT, "j": INT, "l": INT}
_SEND_1 = {_NAMES[name]: value for name, value in _SEND.items()}
_SENDS_1 = {_NAMES[name]: ends for name, ends in _SENDS.items()}
_PLACE = {"consumerGroup": _GROUP, "topic": _TOPIC, "queueId": "0"}
_PULL = _PLACE | {
    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    "maxMsgBytes": "4096", "requestSource": "0",
}  # fmt: skip
_PULLS = {
    "queueId": INT, "queueOffset": LONG, "maxMsgNums": INT, "sysFlag": INT, "commitOffset": LONG,
    "suspendTimeoutMillis": LONG, "subVersion": LONG, "maxMsgBytes": INT, "requestSource": INT,
}  # fmt: skip
_POP = _PLACE | {
    "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "bornTime": "{now}",
    "initMode": "0", "exp": "*", "expType": "TAG", "order": "false",
}  # fmt: skip
_POPS = {
    "queueId": INT, "maxMsgNums": INT, "invisibleTime": LONG, "pollTime": LONG, "bornTime": LONG,
    "initMode": INT,
}  # fmt: skip
#: What a handle holds, in its order.
_HANDLE = ("start", "pop", "invisible", "revive", "retry", "broker", "queue", "offset")
_HANDLES = {"start": LONG, "pop": LONG, "invisible": LONG, "revive": INT, "queue": INT,
            "offset": LONG}  # fmt: skip
_ACK = _PLACE | {"offset": "0", "extraInfo": "{handle}"}
_WAIT = _PLACE | {"pollTime": "0", "bornTime": "{now}", "order": "false"}
_TIME = {"topic": _TOPIC, "queueId": "0"}
_BACK = {
    "offset": "0", "group": "g", "delayLevel": "3", "originMsgId": "x", "originTopic": _TOPIC,
    "unitMode": "false", "maxReconsumeTimes": "16",
}  # fmt: skip
_BEAT = json.dumps({
    "clientID": "c", "heartbeatFingerprint": 0, "isWithoutSub": False, "producerDataSet": [],
    "consumerDataSet": [{
        "groupName": "b", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [{"topic": _TOPIC, "subString": "*", "subVersion": 0,
            "expressionType": "TAG", "classFilterMode": False, "tagsSet": [], "codeSet": []}],
    }],
}).encode()  # fmt: skip
_LOCK = json.dumps({
    "consumerGroup": "g", "clientId": "c",
    "mqSet": [{"topic": _TOPIC, "brokerName": "broker-a", "queueId": 0}],
}).encode()  # fmt: skip
_END = {
    "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0",
    "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x",
    "topic": _TOPIC,
}  # fmt: skip


class Family(NamedTuple):
    """Of one request: its fields, and those of them that are numbers."""

    name: str
    code: int
    fields: dict[str, str]
    ends: dict[str, dict[str, int]]
    #: Numbers of the body, which is JSON.
    inside: dict[str, dict[str, int]] = {}  # noqa: RUF012 - nobody changes it
    #: Numbers of the handle of a message that is popped before.
    handle: dict[str, dict[str, int]] = {}  # noqa: RUF012 - nobody changes it
    body: bytes = b""
    #: Asked afterwards: what the case has moved.
    then: tuple[int, dict[str, str]] | None = None


_OFFSET = (14, _PLACE)
_SENT = {"b": "S-{case}", "c": "TBW102"}
_SENT_1 = {"topic": "S-{case}"}
_HELD = {"-1": -1, "0": 0, "min": -(1 << 63)}

FAMILIES = (
    Family("send", 310, _SEND | _SENT, _SENDS, body=b"x"),
    Family("send 1", 10, _SEND_1 | _SENT_1, _SENDS_1, body=b"x"),
    Family("batch", 320, _SEND | _SENT | {"m": "true"}, _SENDS,
           body=struct.pack(">iiiiicH", 23, 0, 0, 0, 1, b"x", 0)),
    Family("reply", 325, _SEND | _SENT,
           {"e": INT, "f": INT, "g": LONG, "h": INT, "j": INT}, body=b"x"),
    Family("back", 36, _BACK, {"offset": LONG, "delayLevel": INT, "maxReconsumeTimes": INT}),
    Family("pull", 11, _PULL, _PULLS, then=_OFFSET),
    Family("lite pull", 361, _PULL, _PULLS, then=_OFFSET),
    Family("held pull", 11, _PULL | {"queueId": "1", "sysFlag": "6"},
           {"suspendTimeoutMillis": _HELD}),
    Family("pop", 200050, _POP, _POPS),
    Family("pop at the end", 200050, _POP | {"queueId": "1"},
           {"pollTime": LONG, "bornTime": LONG}),
    Family("ordered pop", 200050, _POP | {"order": "true"}, _POPS),
    Family("ack", 200051, _ACK, {"queueId": INT, "offset": LONG}, handle=_HANDLES),
    Family("acks", 200151, {}, {}, handle=_HANDLES),
    Family("change", 200053, _ACK | {"invisibleTime": "60000"},
           {"queueId": INT, "offset": LONG, "invisibleTime": LONG}, handle=_HANDLES),
    Family("peek", 200052, _PLACE | {"maxMsgNums": "1"}, {"queueId": INT, "maxMsgNums": INT}),
    Family("notification", 200054, _WAIT, {"queueId": INT, "pollTime": LONG, "bornTime": LONG}),
    Family("notification at the end", 200054, _WAIT | {"queueId": "1"},
           {"pollTime": LONG, "bornTime": LONG}),
    Family("polling", 200055, _PLACE, {"queueId": INT}),
    Family("offset", 14, _PLACE, {"queueId": INT}),
    Family("commit", 15, _PLACE | {"commitOffset": "1"}, {"queueId": INT, "commitOffset": LONG},
           then=_OFFSET),
    Family("offset of time", 29, _TIME | {"timestamp": "0"}, {"queueId": INT, "timestamp": LONG}),
    Family("max", 30, _TIME, {"queueId": INT}),
    Family("min", 31, _TIME, {"queueId": INT}),
    Family("earliest", 32, _TIME, {"queueId": INT}),
    Family("query", 12, {"topic": _TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0",
           "endTimestamp": "9000000000000"},
           {"maxNum": INT, "beginTimestamp": LONG, "endTimestamp": LONG}),
    Family("by id", 33, {"offset": "0"}, {"offset": LONG}),
    Family("end", 37, _END, {"tranStateTableOffset": LONG, "commitLogOffset": LONG,
           "commitOrRollback": {end: value for end, value in INT.items() if value}}),
    Family("units", 321, _TIME | {"index": "0", "count": "1", "consumerGroup": _GROUP},
           {"queueId": INT, "index": LONG, "count": INT}),
    Family("heartbeat", 34, {}, {}, body=_BEAT, inside={"subVersion": LONG,
           "heartbeatFingerprint": INT}),
    Family("lock", 41, {}, {}, body=_LOCK, inside={"queueId": INT}),
    Family("unlock", 42, {}, {}, body=_LOCK, inside={"queueId": INT}),
    Family("mode", 401, {}, {}, body=json.dumps({"topic": _TOPIC, "consumerGroup": "g",
           "mode": "POP", "popShareQueueNum": 1}).encode(), inside={"popShareQueueNum": INT}),
)  # fmt: skip


class Case(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes
    then: tuple[int, dict[str, str]] | None
    #: What is put over the handle of what is popped before; None: nothing is popped.
    handle: dict[str, int] | None


def _cases() -> Iterator[tuple[str, Case]]:
    for name, code, fields, ends, inside, handle, body, then in FAMILIES:
        plain = Case(code, fields, body, then, {} if handle else None)
        yield f"{name}: good", plain
        for field, values in ends.items():
            for end, value in values.items():
                changed = fields | {field: str(value)}
                yield f"{name}: {field} {end}", plain._replace(fields=changed)
        for field, values in inside.items():
            for end, value in values.items():
                changed_body = re.sub(f'(?<="{field}": )[0-9]+', str(value), body.decode())
                yield f"{name}: {field} {end}", plain._replace(body=changed_body.encode())
        for field, values in handle.items():
            for end, value in values.items():
                yield f"{name}: {field} {end} of the handle", plain._replace(handle={field: value})


CASES = dict(_cases())

# ---- asking ----

#: Fields whose values differ from run to run.
_VOLATILE = {"msgId", "popTime", "transactionId", "startOffsetInfo", "msgOffsetInfo", "timestamp",
             "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset", "reviveQid"}  # fmt: skip
#: So long an answer may take that nobody waits for.
BOUND_S = 20.0


class Wire:
    """A connection that asks one request after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._wire = socket.create_connection((host, int(port)), timeout=BOUND_S)
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = self._wire.makefile("rb")
        self._asked = 0

    def close(self) -> None:
        self._frames.close()
        self._wire.close()

    def ask(
        self, code: int, fields: dict[str, str], body: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        self._asked += 1
        head = {"code": code, "language": "JAVA", "version": 479, "opaque": self._asked, "flag": 0}
        header = json.dumps({**head, "extFields": fields}).encode()
        size = 4 + len(header) + len(body)
        self._wire.sendall(struct.pack(">ii", size, len(header)) + header + body)
        while True:  # a broker may ask its client something meanwhile
            total, size = struct.unpack(">ii", self._frames.read(8))
            said = json.loads(self._frames.read(size & 0xFFFFFF))
            content = self._frames.read(total - 4 - (size & 0xFFFFFF))
            if said["flag"] & 1 and said["opaque"] == self._asked:
                return said, content


def _group_of(name: str) -> str:
    """The group of a case."""
    return re.sub("[^a-z0-9A-Z]", "_", name)


def _pop(wire: Wire, group: str) -> dict[str, str]:
    """What stands in the handle of a message that is popped now."""
    ext = {name: _filled(value, group, "") for name, value in _POP.items()}
    said = wire.ask(200050, ext)[0]
    assert said["code"] == 0, said
    found = said["extFields"]
    first = found["startOffsetInfo"].split(" ")[2]
    values = (first, found["popTime"], found["invisibleTime"], found["reviveQid"], "0", "broker-a",
              "0", "0")  # fmt: skip
    return dict(zip(_HANDLE, values, strict=True))


def _filled(text: str, name: str, handle: str) -> str:
    now = str(int(time.time() * 1000))
    return text.replace("{case}", name).replace("{now}", now).replace("{handle}", handle)


def _acks(group: str, handle: dict[str, str]) -> bytes:
    """The body of BATCH_ACK_MESSAGE."""
    one = {"c": group, "t": _TOPIC, "r": handle["retry"], "b": "AQ=="}
    names = {"so": "start", "q": "queue", "rq": "revive", "pt": "pop", "it": "invisible"}
    one |= {short: int(handle[name]) for short, name in names.items()}
    return json.dumps({"brokerName": handle["broker"], "acks": [one]}).encode()


def _answer(wire: Wire, name: str, case: Case) -> list[Any]:
    group = _group_of(name)
    handle, body = "", case.body
    if case.handle is not None:
        popped = _pop(wire, group) | {key: str(value) for key, value in case.handle.items()}
        handle = " ".join(popped[each] for each in _HANDLE)
        body = body if case.fields else _acks(group, popped)
    found: list[Any] = []
    for code, fields, about in ((case.code, case.fields, body), (*(case.then or (0, {})), b"")):
        if code == 0:
            break
        ext = {each: _filled(value, group, handle) for each, value in fields.items()}
        said, content = wire.ask(code, ext, about)
        given = {
            each: "" if each in _VOLATILE else value
            for each, value in sorted((said.get("extFields") or {}).items())
        }
        found += [said["code"], given, bool(content)]
    return found


def prepare(address: str) -> None:
    """A topic of two queues with three messages, in the first of them, of a new broker."""
    wire = Wire(address)
    topic = {
        "topic": _TOPIC, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert wire.ask(17, topic)[0]["code"] == 0
    for name in ("g", *(_group_of(each) for each in CASES if each.startswith("commit"))):
        group = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1}
        assert wire.ask(200, {}, json.dumps(group).encode())[0]["code"] == 0
    for _ in range(3):
        assert wire.ask(310, _SEND | {"i": "KEYS\x01k"}, b"x")[0]["code"] == 0
    while wire.ask(30, _TIME)[0]["extFields"]["offset"] != "3":
        time.sleep(0.01)  # Apache's queues follow its log after a while
    wire.close()


def answers(address: str, cases: dict[str, Case] = CASES) -> dict[str, list[Any]]:
    """Of every case, at a broker that prepare() has filled."""
    found: dict[str, list[Any]] = {}
    wire = Wire(address)
    for name, case in cases.items():
        try:
            found[name] = _answer(wire, name, case)
        except (OSError, struct.error) as error:
            found[name] = [type(error).__name__]
            wire.close()
            wire = Wire(address)
    wire.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    prepare(given.address)
    said = answers(given.address)
    if not given.compare:
        rows = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in said.items()]
        ANSWERS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        return
    apaches = json.loads(ANSWERS.read_text())
    for name, row in said.items():
        if row != apaches.get(name):
            print(f"{name}\n  Apache {apaches.get(name)}\n  here   {row}")


if __name__ == "__main__":
    main()
