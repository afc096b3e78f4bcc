"""A producer and a consumer in some lines each, over the requests of the remoting protocol."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from broker.remoting.client import RemotingClient
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Command

#: It is done; nothing came; nothing came that was wanted.
FINE = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)
#: A pull's sysFlag: it may wait, and it brings its own subscription.
WAIT, OWN = 2, 4
#: A record as it lies on disk and comes in a pull (csrc/format/record.h), hosts IPv4: size, queue
#: offset, place, store time, tries so far, length of the body.
RECORD = struct.Struct(">i 16x q q 4x 16x q 8x i 8x i")


@dataclass(frozen=True, slots=True)
class Received:
    """A message that a pull brought. at: its place in the log. stored_ms, got_ms: since 1970."""

    body: bytes
    queue_offset: int
    at: int
    stored_ms: int
    tries: int
    got_ms: int


def records(data: bytes | bytearray | memoryview) -> Iterator[Received]:
    now, at = time.time_ns() // 1_000_000, 0
    while at < len(data):
        size, queue_offset, place, stored_ms, tries, length = RECORD.unpack_from(data, at)
        start = at + RECORD.size
        body = bytes(data[start : start + length])
        yield Received(body, queue_offset, place, stored_ms, tries, now)
        at += size


class Client:
    """Of one broker, on the running loop."""

    def __init__(self, address: str, group: str) -> None:
        self.address = address
        self.group = group
        self.remoting = RemotingClient()

    async def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> Command:
        """The answer; a refusal ends the demo."""
        ext = {name: str(value) for name, value in fields.items()}
        answer = await self.remoting.request(self.address, Command(code, ext, body), 20)
        if answer.code not in FINE:
            raise SystemExit(f"request {code} was answered with {answer.code}: {answer.remark}")
        return answer

    async def send(self, topic: str, body: bytes, queue: int = 0, **properties: object) -> None:
        """properties: upstream's names, as TAGS, KEYS, DELAY."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = {
            "a": self.group, "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0,
            "g": time.time_ns() // 1_000_000, "h": 0, "i": text, "j": 0, "m": "false",
        }  # fmt: skip
        await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body)

    async def pull(
        self, topic: str, queue: int, offset: int, tags: str = "*", wait_ms: int = 15_000
    ) -> tuple[list[Received], int]:
        """What there is from an offset on, or what comes while it waits; and the next offset."""
        fields = {
            "consumerGroup": self.group, "topic": topic, "queueId": queue, "queueOffset": offset,
            "maxMsgNums": 1024, "sysFlag": WAIT | OWN, "commitOffset": 0, "subVersion": 0,
            "suspendTimeoutMillis": wait_ms, "subscription": tags, "expressionType": "TAG",
        }  # fmt: skip
        answer = await self.ask(RequestCode.PULL_MESSAGE, fields)
        return list(records(answer.body)), int(answer.ext["nextBeginOffset"])

    async def send_back(self, message: Received, level: int, most: int) -> None:
        """To come again at a delay level; after `most` tries among the dead letters."""
        fields = {
            "group": self.group, "offset": message.at, "delayLevel": level,
            "maxReconsumeTimes": most,
        }  # fmt: skip
        await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    async def close(self) -> None:
        await self.remoting.close()
