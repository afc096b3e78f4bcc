"""A raw client that pops, for tests of POP."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

from waiting import BOUND_S

from broker.broker import Broker
from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from broker.wire.receipts import Handle
from pystore.format.properties import encode_properties, parse_properties

__all__ = ["SMALL", "Popper", "popping", "records"]

SMALL = {"mappedFileSizeCommitLog": 1 << 20}


def records(body):
    """(queue offset, body, properties, topic, reconsume times) of each record of an answer."""
    found, at, body = [], 0, bytes(body)
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        one = body[at : at + size]
        at += size
        flag = int.from_bytes(one[36:40], "big")
        place = 84 + 12 * bool(flag & 0x10) + 12 * bool(flag & 0x20)
        length = int.from_bytes(one[place : place + 4], "big")
        times = int.from_bytes(one[place - 12 : place - 8], "big")
        end = place + 4 + length
        name = one[end + 1 : end + 1 + one[end]]
        said = one[end + 3 + one[end] :]
        found.append(
            (
                int.from_bytes(one[20:28], "big"), one[place + 4 : end], parse_properties(said),
                name.decode(), times,
            )
        )  # fmt: skip
    return found


def _later_ms():
    """A request that is half a second old is refused, and a busy machine may need as long."""
    return time.time_ns() // 1_000_000 + 60_000


class Popper:
    """A broker, and a raw client of it."""

    def __init__(self, broker, client):
        self.broker, self.client = broker, client
        self.pop_service = broker.services.pop
        self._shift_ms = 0

    def make_topic(self, name="T", queues=1):
        from pystore.meta.configfiles import TopicConfig

        self.broker.services.topics.update(TopicConfig(name, queues, queues))

    def put(self, *bodies, topic="T", queue=0, **more):
        for n, body in enumerate(bodies):
            given = {"UNIQ_KEY": f"{body}-{n}"}
            self.broker.store.put(topic, body, properties=given, queue=queue, **more)

    def shift(self, ms):
        """So far ahead of the machine's clock everything goes on now."""
        self._shift_ms += ms
        self.broker.services.schedule.shift_clock(self._shift_ms)
        self.pop_service.look()

    async def ask(self, code, body=b"", timeout=BOUND_S, **ext):
        named = {name: str(value) for name, value in ext.items()}
        return await self.client.request(
            self.broker.address, Command(code, named, body=body), timeout=timeout
        )

    async def pop(
        self, *, topic="T", group="g", queue=-1, most=32, invisible=60_000, poll=0, **more
    ):
        given = {
            "consumerGroup": group, "topic": topic, "queueId": queue, "maxMsgNums": most,
            "invisibleTime": invisible, "pollTime": poll, "bornTime": _later_ms(),
            "initMode": 0, "exp": "*", "expType": "TAG", "order": "false",
        } | more  # fmt: skip
        return await self.ask(Code.POP_MESSAGE, **given)

    async def handles(self, **more):
        """(handle, topic to name, body) of each message of one pop."""
        answer = await self.pop(**more)
        return self.handles_of(answer, more.get("topic", "T"), more.get("group", "g"))

    @staticmethod
    def handles_of(answer, topic="T", group="g"):
        if answer.code:
            return []
        said, found = answer.ext, []
        starts = {}
        for part in said["startOffsetInfo"].split(";"):
            kind, queue, start = part.split(" ")
            starts[kind, queue] = int(start)
        order = []
        for part in said["msgOffsetInfo"].split(";"):
            kind, queue, offsets = part.split(" ")
            order += [(kind, queue, int(each)) for each in offsets.split(",")]
        for (kind, queue, offset), record in zip(order, records(answer.body), strict=True):
            assert record[0] == offset
            handle = Handle(
                starts[kind, queue], int(said["popTime"]), int(said["invisibleTime"]),
                int(said["reviveQid"]), kind, "DEFAULT_BROKER", int(queue), offset,
            )  # fmt: skip
            sign = {"0": "", "1": "_", "2": "+"}[kind]
            name = topic if kind == "0" else f"%RETRY%{group}{sign}{topic}"
            found.append((handle, name, record[1]))
        return found

    async def ack(self, handle, topic="T", group="g", **more):
        return await self.ask(
            Code.ACK_MESSAGE, consumerGroup=group, topic=topic, queueId=handle.queue,
            offset=handle.offset, extraInfo=handle.text, **more,
        )  # fmt: skip

    async def change(self, handle, invisible, topic="T", group="g"):
        return await self.ask(
            Code.CHANGE_MESSAGE_INVISIBLETIME, consumerGroup=group, topic=topic,
            queueId=handle.queue, offset=handle.offset, extraInfo=handle.text,
            invisibleTime=invisible,
        )  # fmt: skip

    async def send(self, body, topic="T", **properties):
        given = {"UNIQ_KEY": f"K{time.time_ns()}"} | properties
        ext = {
            "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": encode_properties(given).decode(),
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return await self.ask(Code.SEND_MESSAGE_V2, body, **ext)


@asynccontextmanager
async def popping(path, **settings):
    opened = Broker(path, listenPort=0, **(SMALL | {"brokerName": "DEFAULT_BROKER"} | settings))
    async with opened as broker, RemotingClient() as client:
        yield Popper(broker, client)
