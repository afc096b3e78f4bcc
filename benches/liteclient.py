"""A client of lite topics that costs little: raw frames over one connection, a request at a time,
or many sends of which a window is under way."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

from benches.brokers import SEND_V2, frame
from broker.wire.codes import RequestCode, ResponseCode

__all__ = ["GROUP", "PARENT", "PLAIN", "Got", "LiteWire", "name_of"]

PARENT, PLAIN, GROUP, CLIENT = "bench_lite", "bench_plain", "bench_lite_group", "bench-client"
_BODY = b"x" * 64
_INVISIBLE_MS, _BROKER = 60_000, "broker-a"
_TOGETHER = 1000
#: Before what a busy broker has refused is sent again.
_BUSY_S = 0.02
_PLACE = re.compile(rb"INNER_MULTI_QUEUE_OFFSET\x01(\d+)")
_NAME = re.compile(rb"__LITE_TOPIC\x01([^\x02]+)")


def name_of(n: int) -> str:
    return f"session-{n}"


class Got(NamedTuple):
    """The answer of a pop: of each message its lite topic, and its offset there."""

    code: int
    pop_ms: int
    messages: list[tuple[str, int]]


class LiteWire:
    """One connection. Raises: OSError, AssertionError for an answer that is a refusal."""

    def __init__(self, port: int, client_id: str = CLIENT, under_way: int = 64) -> None:
        self._client_id, self._under_way, self._left = client_id, under_way, b""
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._sock.close()

    # ---- frames ----

    def put(self, code: int, ext: dict[str, object], body: bytes = b"", opaque: int = 1) -> None:
        self._sock.sendall(frame(code, ext, body, opaque))

    def get(self) -> tuple[dict[str, object], bytes]:
        """Returns header and body of the next answer; requests of the broker are passed over."""
        while True:
            size = struct.unpack(">i", self._exactly(4))[0]
            data = self._exactly(size)
            n = struct.unpack_from(">i", data)[0] & 0xFFFFFF
            head = json.loads(data[4 : 4 + n])
            if head["flag"] & 1:
                return head, data[4 + n :]

    def _exactly(self, size: int) -> bytes:
        while len(self._left) < size:
            got = self._sock.recv(1 << 18)
            if not got:
                raise ConnectionResetError("the broker has closed the connection")
            self._left += got
        found, self._left = self._left[:size], self._left[size:]
        return found

    def ask(self, code: int, body: bytes = b"", **ext: object) -> bytes:
        self.put(code, ext, body)
        head, answer = self.get()
        assert head["code"] == 0, head
        return answer

    # ---- what there is ----

    def make(self, expiration: int = -1) -> None:
        """Makes a topic for lite topics, a plain one, and a group."""
        for topic, attributes in (
            (PARENT, f"+message.type=LITE,+lite.topic.expiration={expiration}"), (PLAIN, ""),
        ):  # fmt: skip
            self.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102",
                readQueueNums=4, writeQueueNums=4, perm=6, topicFilterType="SINGLE_TAG",
                topicSysFlag=0, order="false", attributes=attributes,
            )  # fmt: skip
        group = {"groupName": GROUP, "attributes": {"+lite.bind.topic": PARENT}}
        self.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            json.dumps(group | {"consumeEnable": True}).encode(),
        )

    # ---- sends ----

    def put_send(self, name: str | None, n: int = 0) -> None:
        """Sends to a lite topic; None: a plain message."""
        said = f"UNIQ_KEY\x01{n:032d}\x02WAIT\x01true\x02"
        if name is not None:
            said += f"__LITE_TOPIC\x01{name}\x02"
        values = ("bench", PARENT if name is not None else PLAIN, "TBW102", 4, n % 4, 0,
                  int(time.time() * 1000), 0, said, 0, "false", 16)  # fmt: skip
        self.put(SEND_V2, dict(zip("abcdefghijkl", values, strict=True)), _BODY, n)

    def sent(self) -> None:
        head, _ = self.get()
        assert head["code"] == 0, head

    def send_all(self, names: Iterable[str | None]) -> None:
        """Sends; once more what is refused because the broker is busy."""
        under_way: dict[object, tuple[str | None, int]] = {}
        for n, name in enumerate(names):
            self.put_send(name, n)
            under_way[n] = name, n
            if len(under_way) == self._under_way:
                self._until_sent(under_way)
        self._until_sent(under_way)

    def _until_sent(self, under_way: dict[object, tuple[str | None, int]]) -> None:
        while under_way:
            head, _ = self.get()
            again = under_way.pop(head["opaque"])
            if head["code"] == ResponseCode.SYSTEM_BUSY:
                time.sleep(_BUSY_S)
                self.put_send(*again)
                under_way[again[1]] = again
            else:
                assert head["code"] == 0, head

    def until_dispatched(self, count: int, bound_s: float) -> None:
        """Until so many lite topics can be read: Apache's broker answers sends before that."""
        end = time.monotonic() + bound_s
        while json.loads(self.ask(RequestCode.GET_BROKER_LITE_INFO))["currentLmqNum"] < count:
            assert time.monotonic() < end, "messages are not dispatched"
            time.sleep(0.1)

    # ---- subscriptions and pops ----

    def subscribe(self, names: list[str], client_id: str = "", **option: object) -> None:
        """Subscribes to lite topics beside those of before, a thousand a request."""
        for at in range(0, len(names), _TOGETHER):
            row = {
                "action": "PARTIAL_ADD", "clientId": client_id or self._client_id, "group": GROUP,
                "topic": PARENT, "liteTopicSet": names[at : at + _TOGETHER], "version": 0,
                **({"offsetOption": option} if option else {}),
            }  # fmt: skip
            body = json.dumps({"subscriptionSet": [row]}).encode()
            self.ask(RequestCode.LITE_SUBSCRIPTION_CTL, body)

    def put_pop(self, poll_ms: int, most: int = 1) -> None:
        self.put(RequestCode.POP_LITE_MESSAGE, {
            "clientId": self._client_id, "consumerGroup": GROUP, "topic": PARENT,
            "maxMsgNum": most, "invisibleTime": _INVISIBLE_MS, "pollTime": poll_ms,
            "bornTime": int(time.time() * 1000),
        })  # fmt: skip

    def popped(self) -> Got:
        head, body = self.get()
        ext = head.get("extFields")
        assert isinstance(head["code"], int) and isinstance(ext, dict), head
        names = [each.decode() for each in _NAME.findall(body)]
        offsets = map(int, _PLACE.findall(body))
        return Got(head["code"], int(ext["popTime"]), list(zip(names, offsets, strict=True)))

    def take(self, most: int) -> Got:
        """Pops what is there."""
        self.put_pop(0, most)
        return self.popped()

    def is_served(self) -> bool:
        """Pops once, and returns whether a message came: a broker may refuse, which is not yet a
        master."""
        self.put_pop(0)
        head, body = self.get()
        return head["code"] == 0 and bool(body)

    def ack(self, got: Got) -> None:
        for name, offset in got.messages:
            handle = f"0 {got.pop_ms} {_INVISIBLE_MS} 999 0 {_BROKER} 0 {offset}"
            self.ask(
                RequestCode.ACK_MESSAGE, consumerGroup=GROUP, topic=PARENT, queueId=0,
                offset=offset, liteTopic=name, extraInfo=handle,
            )  # fmt: skip
