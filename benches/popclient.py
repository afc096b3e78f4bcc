"""A consumer of POP that costs little: raw frames over one connection each, a request at a time.

The broker is measured, and on two cores a client that takes longer than the broker would hide how
fast it is. So the product's connections are not used, but what signs and what reads records is."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

from benches.brokers import frame
from broker.access.signature import Credentials, sign
from broker.client.message import MessageQueue
from broker.client.progress import QueueProgress
from broker.client.records import received
from broker.wire.codes import RequestCode
from broker.wire.command import Command
from broker.wire.receipts import NORMAL, Deliveries, Handle, retry_topic

__all__ = ["Plan", "Popped", "pop"]

_HEAD = struct.Struct(">ii")


@dataclass(frozen=True)
class Plan:
    """What is popped, how, and of whom. `lost` is the share of first deliveries that are not
    acknowledged."""

    topic: str
    group: str
    broker: str
    count: int
    at_once: int = 8
    consumers: int = 8
    invisible_ms: int = 10_000
    filter_type: str = "TAG"
    expression: str = "*"
    ordered: bool = False
    lost: float = 0.0
    user: Credentials | None = None
    deadline_s: float = 180.0


@dataclass
class Popped:
    """How far all consumers together are. Times are those of the monotonic clock."""

    plan: Plan
    seed: int = 1
    delivered: int = 0
    acknowledged: int = 0
    began: float = field(default_factory=time.monotonic)
    first_pass_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def wants_ack(self, handle: Handle) -> bool:
        """Says whether a delivery is acknowledged: each that came back is."""
        if handle.retry != NORMAL:
            return True
        self.delivered += 1
        if self.delivered == self.plan.count:
            self.first_pass_s = time.monotonic() - self.began
        return self._random.random() >= self.plan.lost

    @property
    def over(self) -> bool:
        return self.acknowledged >= self.plan.count


class _Consumer(asyncio.Protocol):
    """Pops, acknowledges each message by a request of its own, and pops again."""

    def __init__(self, done: Popped, ended: asyncio.Future[None]) -> None:
        self._done, self._plan, self._ended = done, done.plan, ended
        self._buffer, self._acks = bytearray(), list[Handle]()
        self._then: Callable[[Mapping[str, str], bytes, int], None] = self._popped
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none by its type
        self._then = self._introduced
        self._ask(RequestCode.HEART_BEAT, {}, _beat(self._plan, id(self)))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(error or ConnectionError("the broker closed a connection"))

    def data_received(self, data: bytes) -> None:
        buffer, at = self._buffer, 0
        buffer += data
        while len(buffer) >= at + 8:
            size, head = _HEAD.unpack_from(buffer, at)
            if len(buffer) < at + 4 + size:
                break
            end = at + 8 + (head & 0xFFFFFF)
            said, body = json.loads(buffer[at + 8 : end]), bytes(buffer[end : at + 4 + size])
            at += 4 + size
            if said["flag"] & 1:  # others are requests, that the consumers of the group changed
                self._answered(said, body)
        del buffer[:at]

    def _answered(self, said: dict[str, Any], body: bytes) -> None:
        try:
            self._then(said.get("extFields") or {}, body, said["code"])
        except Exception as error:  # what a callback raises is only logged otherwise
            if not self._ended.done():
                self._ended.set_exception(error)

    def _ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        if self._plan.user is not None:
            sign(Command(code, ext, body=body), self._plan.user)
        self._transport.write(frame(code, ext, body))

    def _introduced(self, _ext: Mapping[str, str], _body: bytes, code: int) -> None:
        assert code == 0, f"the heartbeat was answered with {code}"
        self._pop()

    def _pop(self) -> None:
        if self._done.over:
            if not self._ended.done():
                self._ended.set_result(None)
            return
        plan, self._then = self._plan, self._popped
        self._ask(RequestCode.POP_MESSAGE, {
            "consumerGroup": plan.group, "topic": plan.topic, "queueId": "-1",
            "maxMsgNums": str(plan.at_once), "invisibleTime": str(plan.invisible_ms),
            "pollTime": "1000", "bornTime": str(time.time_ns() // 1_000_000), "initMode": "0",
            "expType": plan.filter_type, "exp": plan.expression,
            "order": "true" if plan.ordered else "false",
        })  # fmt: skip

    def _popped(self, ext: Mapping[str, str], body: bytes, code: int) -> None:
        if code == 0:
            deliveries = Deliveries(ext, self._plan.broker)
            place = QueueProgress(MessageQueue(self._plan.topic, self._plan.broker, -1), 0)
            handles = [
                deliveries.handle(each.head.queue, each.queue_offset, each.properties.get("POP_CK"))
                for each in received(body, place)
            ]
            self._acks = [each for each in handles if self._done.wants_ack(each)]
        self._next()

    def _next(self) -> None:
        if not self._acks:
            self._pop()
            return
        handle, plan, self._then = self._acks.pop(), self._plan, self._acknowledged
        retry = handle.retry
        topic = plan.topic if retry == NORMAL else retry_topic(plan.group, plan.topic, retry)
        self._ask(RequestCode.ACK_MESSAGE, {
            "consumerGroup": plan.group, "topic": topic, "queueId": str(handle.queue),
            "offset": str(handle.offset), "extraInfo": handle.text,
        })  # fmt: skip

    def _acknowledged(self, _ext: Mapping[str, str], _body: bytes, code: int) -> None:
        # On a machine that is too busy its time may be over: then it comes again.
        self._done.acknowledged += code == 0
        self._next()


def _beat(plan: Plan, number: int) -> bytes:
    """A heartbeat: only for a group whose consumers are connected does a broker know its filter."""
    subscription = {
        "topic": plan.topic, "subString": "*", "subVersion": 1, "expressionType": "TAG",
        "tagsSet": [], "codeSet": [], "classFilterMode": False,
    }  # fmt: skip
    group = {
        "groupName": plan.group, "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "unitMode": False, "subscriptionDataSet": [subscription],
    }  # fmt: skip
    said = {"clientID": f"bench-{number}", "producerDataSet": [], "consumerDataSet": [group]}
    return json.dumps(said).encode()


def pop(address: str, plan: Plan) -> Popped:
    """Pops and acknowledges until `plan.count` messages are acknowledged. Raises: TimeoutError,
    ConnectionError."""
    host, port = address.rsplit(":", 1)

    async def all_of_them() -> Popped:
        loop, done = asyncio.get_running_loop(), Popped(plan)
        ended = [loop.create_future() for _ in range(plan.consumers)]
        async with asyncio.timeout(plan.deadline_s):
            for each in ended:
                await loop.create_connection(
                    lambda each=each: _Consumer(done, each),  # type: ignore[misc]
                    host, int(port),
                )  # fmt: skip
            await asyncio.gather(*ended)
        return done

    return uvloop.run(all_of_them())
