"""A producer of transactions on a raw socket, and a broker whose clock a test sets."""

from __future__ import annotations

import inspect
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fakes import send_command
from loops import Wire
from storeview import everything
from waiting import settled_async

from broker.broker import Broker
from broker.wire.command import ONEWAY, Command, texts
from pystore.format.properties import parse_properties

__all__ = ["COMMIT", "ROLLBACK", "Clock", "Half", "Producer", "asked_of", "scenario", "transacting"]

COMMIT, ROLLBACK = 8, 12
HALF, OP, DISCARDED = (
    "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
)  # fmt: skip


class Clock:
    """Milliseconds; goes on by hand."""

    def __init__(self):
        self.ms = time.time_ns() // 1_000_000

    def __call__(self):
        return self.ms

    def pass_(self, seconds):
        self.ms += int(seconds * 1000)


@dataclass
class Half:
    """What the broker answered to a half, or asked about it."""

    offset: int
    place: int
    queue: int = 0
    properties: dict = field(default_factory=dict)
    body: bytes = b""
    record: bytes = b""


class Producer:
    def __init__(self, wire, group="makers"):
        self.wire = wire
        self.group = group
        self.client = "p1"
        self._opaque = 1
        self._count = 0
        self._asked = []

    @classmethod
    async def to(cls, broker, group="makers"):
        return cls(await Wire.to(broker.port), group)

    async def ask(self, command):
        self._opaque += 1
        command.opaque = self._opaque
        self.wire.write(command)
        while True:
            answer = await self.wire.answer()
            if answer.is_response and answer.opaque == self._opaque:
                return answer
            if answer.code == 39:
                self._asked.append(asked_of(answer))

    async def beat(self, client="p1"):
        self.client = client
        body = {
            "clientID": client,
            "consumerDataSet": [],
            "producerDataSet": [{"groupName": self.group}],
        }
        assert (await self.ask(Command(34, {}, json.dumps(body).encode()))).code == 0

    async def send(self, topic="orders", body=b"hello", *, key=None, properties=None, **fields):
        self._count += 1
        given = {
            "UNIQ_KEY": key or f"K{id(self):x}{self._count}", "WAIT": "true", "TRAN_MSG": "true",
            "PGROUP": self.group,
        }  # fmt: skip
        command = send_command(topic, body, properties=given | (properties or {}), f=4, **fields)
        return await self.ask(command)

    async def half(self, *args, **options):
        answer = await self.send(*args, **options)
        assert answer.code == 0, answer.remark
        place = int(answer.ext["msgId"][-16:], 16)
        return Half(int(answer.ext["queueOffset"]), place, int(answer.ext["queueId"]))

    def end_command(self, half, how, **fields):
        ext = {
            "producerGroup": self.group, "tranStateTableOffset": half.offset,
            "commitLogOffset": half.place, "commitOrRollback": how, "fromTransactionCheck": False,
            "msgId": "x",
        }  # fmt: skip
        return Command(37, texts(ext | fields))

    async def end(self, half, how, **fields):
        return await self.ask(self.end_command(half, how, **fields))

    def end_oneway(self, half, how, **fields):
        command = self.end_command(half, how, **fields)
        command.flag |= ONEWAY
        self.wire.write(command)

    async def checks(self):
        """The checks that the broker sent by now: whatever Python sent first also comes first. A
        heartbeat that changes nothing would be answered without Python, and could overtake them."""
        await self.ask(Command(26))
        found, self._asked = self._asked, []
        return found

    def close(self):
        self.wire.close()


def asked_of(command):
    """What a check asks about."""
    body = bytes(command.body)
    # V1: head of 48 bytes up to the born host, see csrc/format/layout.h.
    at = 48 + 8 + 8 + 8 + 4 + 8
    size = int.from_bytes(body[at : at + 4], "big")
    message, at = body[at + 4 : at + 4 + size], at + 4 + size
    topic, at = body[at + 1 : at + 1 + body[at]], at + 1 + body[at]
    properties = parse_properties(body[at + 2 : at + 2 + int.from_bytes(body[at : at + 2], "big")])
    half = Half(
        int(command.ext["tranStateTableOffset"]), int(command.ext["commitLogOffset"]),
        int.from_bytes(body[12:16], "big"), properties | {"topic": topic.decode()}, message, body,
    )  # fmt: skip
    half.properties["ext"] = command.ext
    return half


class Transacting:
    """A started broker with its clock, and producers on it."""

    def __init__(self, broker, clock):
        self.broker = broker
        self.clock = clock
        self.producers = []

    @property
    def service(self):
        return self.broker.services.transactions

    @property
    def store(self):
        return self.broker.store

    async def producer(self, group="makers", *, beats=True, client="p1"):
        made = await Producer.to(self.broker, group)
        self.producers.append(made)
        if beats:
            await made.beat(client)
        return made

    async def round(self, seconds=30.0):
        """Time goes on, then a round of checks."""
        self.clock.pass_(seconds)
        self.service.configure()
        return await self.service.check()

    async def settled(self):
        """What producers sent one-way has been read and done."""
        for producer in self.producers:
            await producer.beat(producer.client)
        await settled_async(lambda: self.store.info().log_max, 20)

    def bodies(self, topic):
        self.store.refresh()
        return list(everything(self.store, topic))

    def texts(self, topic):
        return sorted(bytes(m.body) for m in self.bodies(topic))


@asynccontextmanager
async def transacting(path, settings, *, clock=None, **more):
    clock = clock or Clock()
    given = {"listenPort": 0} | settings | more
    async with Broker(path, now_ms=clock, **given) as broker:
        # Rounds are asked for by the test alone.
        broker.services.transactions._next_round = float("inf")
        made = Transacting(broker, clock)
        try:
            yield made
        finally:
            for producer in made.producers:
                producer.close()


def scenario(**settings):
    """Runs a test, a coroutine function that takes `t` and perhaps fixtures, with a broker of these
    settings."""

    def wrap(work):
        wanted = [*inspect.signature(work).parameters][1:]

        async def test(tmp_path, small, **others):
            given = others | {"tmp_path": tmp_path, "small": small}
            async with transacting(tmp_path / "s", small, **settings) as t:
                await work(t, **{name: given[name] for name in wanted})

        names = dict.fromkeys(["tmp_path", "small", *wanted])
        kind = inspect.Parameter.KEYWORD_ONLY
        test.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        test.__name__, test.__doc__ = work.__name__, work.__doc__
        return test

    return wrap
