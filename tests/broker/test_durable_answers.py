"""With flushDiskType=SYNC_FLUSH no request that stores a record is answered before a sync has
covered it: the disk is made to wait, and what is answered meanwhile is looked at
(docs/durability.md)."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from held import Disk
from loops import Wire

from broker import Broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.command import Command
from pystore.configfiles import SubscriptionGroup, TopicConfig
from pystore.metadata import Metadata

MADE = {
    "topic": "made", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
    "perm": "6",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "listenPort": 0, "bindAddress": "127.0.0.1", "flushDiskType": "SYNC_FLUSH",
    "recallMessageEnable": True, "mappedFileSizeCommitLog": 1 << 20,
}  # fmt: skip
#: syncFlushTimeout, when the disk is not to be in time.
IN_TIME_MS = 300


class Stage:
    """A broker and a client of it."""

    def __init__(self, broker: Broker, wire: Wire) -> None:
        self.broker, self.wire = broker, wire
        self._opaque = 100

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        self._opaque += 1
        self.wire.write(Command(code, ext, body, opaque=self._opaque))
        return await self.answer(self._opaque)

    async def answer(self, opaque: int) -> Command:
        while True:
            found = await self.wire.answer()
            if found.opaque == opaque:
                return found

    async def stored(self) -> Command:
        """A send whose message can be read."""
        answer = await self.send()
        while True:
            ext = {"topic": "T", "queueId": "0"}
            found = await self.ask(Code.GET_MAX_OFFSET, ext)
            if int(found.ext["offset"]) > int(answer.ext["queueOffset"]):
                return answer

    async def send(self, properties: str = "", topic: str = "T", sys_flag: int = 0) -> Command:
        return await self.ask(Code.SEND_MESSAGE_V2, sent(properties, topic, sys_flag), b"body")


def sent(properties: str = "", topic: str = "T", sys_flag: int = 0) -> dict[str, str]:
    return {
        "a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(sys_flag),
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": properties, "j": "0", "k": "false",
        "m": "false",
    }  # fmt: skip


Asked = tuple[int, dict[str, str], bytes]


async def plain(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent(), b"body"


async def batch(s: Stage) -> Asked:
    body, properties = b"body", b""
    item = struct.pack(">iiiii", 0, 0, 0, 0, len(body)) + body
    item += struct.pack(">h", len(properties))
    item = struct.pack(">i", len(item)) + item[4:]
    return Code.SEND_BATCH_MESSAGE, {**sent(), "m": "true"}, item


async def delayed(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent("DELAY\x013\x02"), b"body"


async def half(s: Stage) -> Asked:
    return Code.SEND_MESSAGE_V2, sent("TRAN_MSG\x01true\x02PGROUP\x01P\x02", sys_flag=4), b"body"


async def decision(s: Stage, kind: str) -> Asked:
    answer = await s.send("TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01K\x02", sys_flag=4)
    place = int(answer.ext["msgId"][16:], 16)
    return Code.END_TRANSACTION, {
        "producerGroup": "P", "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(place), "commitOrRollback": kind, "fromTransactionCheck": "false",
        "msgId": "K", "transactionId": answer.ext.get("transactionId", "K"),
    }, b""  # fmt: skip


async def commit(s: Stage) -> Asked:
    return await decision(s, "8")


async def back(s: Stage, level: str) -> Asked:
    answer = await s.send()
    place = int(answer.ext["msgId"][16:], 16)
    return Code.CONSUMER_SEND_MSG_BACK, {
        "group": "g", "offset": str(place), "delayLevel": level, "originTopic": "T",
        "originMsgId": answer.ext["msgId"], "unitMode": "false", "maxReconsumeTimes": "3",
    }, b""  # fmt: skip


async def retried(s: Stage) -> Asked:
    return await back(s, "0")


async def buried(s: Stage) -> Asked:
    return await back(s, "-1")


async def reply(s: Stage) -> Asked:
    return (
        Code.SEND_REPLY_MESSAGE_V2,
        sent("CLUSTER\x01x\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01me\x02"),
        b"body",
    )


async def recalled(s: Stage) -> Asked:
    due = time.time_ns() // 1_000_000 + 3_600_000
    answer = await s.send(f"TIMER_DELIVER_MS\x01{due}\x02UNIQ_KEY\x01{'A' * 32}\x02")
    schedule = s.broker.services.schedule
    assert schedule is not None
    assert schedule.timers is not None
    while not schedule.timers.timers.count():
        await asyncio.sleep(0.001)
    return Code.RECALL_MESSAGE, {"topic": "T", "recallHandle": answer.ext["recallHandle"]}, b""


def popping() -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "maxMsgNums": "1",
        "invisibleTime": "60000", "pollTime": "0", "bornTime": str(time.time_ns() // 1_000_000),
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip


async def popped(s: Stage) -> Asked:
    await s.stored()
    return Code.POP_MESSAGE, popping(), b""


async def delivery(s: Stage) -> dict[str, str]:
    await s.stored()
    answer = await s.ask(Code.POP_MESSAGE, popping())
    ext = answer.ext
    offset = int(ext["msgOffsetInfo"].split(";")[0].split(" ")[-1].split(",")[0])
    start = int(ext["startOffsetInfo"].split(";")[0].split(" ")[-1])
    info = (
        f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0"
        f" {s.broker.services.broker_name} 0 {offset}"
    )
    return {"consumerGroup": "g", "topic": "T", "queueId": "0", "extraInfo": info,
            "offset": str(offset)}  # fmt: skip


async def acknowledged(s: Stage) -> Asked:
    return Code.ACK_MESSAGE, await delivery(s), b""


async def changed(s: Stage) -> Asked:
    ext = {**await delivery(s), "invisibleTime": "30000"}
    return Code.CHANGE_MESSAGE_INVISIBLETIME, ext, b""


STORING: tuple[Callable[[Stage], Awaitable[Asked]], ...] = (
    plain, batch, delayed, half, commit, retried, buried, reply, recalled, popped,
    acknowledged, changed,
)  # fmt: skip


@pytest.mark.parametrize("make", STORING, ids=lambda make: make.__name__)
def test_no_record_is_acknowledged_before_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Stage], Awaitable[Asked]]
) -> None:
    """Another request is answered meanwhile: the loop is not held."""

    async def scenario() -> None:
        disk = Disk(monkeypatch)
        async with Broker(tmp_path, **SETTINGS) as broker:
            broker.services.topics.update(TopicConfig("T", 1, 1))
            broker.services.groups.update(SubscriptionGroup("g"))
            async with await Wire.to(broker.port) as wire, await Wire.to(broker.port) as other:
                stage = Stage(broker, wire)
                code, ext, body = await make(stage)
                with disk.held(broker) as core:
                    wire.write(Command(code, ext, body, opaque=7))
                    pending = asyncio.ensure_future(stage.answer(7))
                    while not core.waiting and not pending.done():
                        await asyncio.sleep(0.001)
                    await other.ask(Command(Code.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}))
                    assert not pending.done(), (await pending).remark
                    disk.let_go()
                    answer = await pending
                expected = 1 if make is reply else 0  # it is stored, but nobody waits for it
                assert answer.code == expected, answer.remark

    asyncio.run(scenario())


def test_a_repeated_decision_waits_as_the_first_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one stored may not be on the disk yet. Later it is, and nobody waits."""

    async def scenario() -> None:
        disk = Disk(monkeypatch)
        async with Broker(tmp_path, **SETTINGS) as broker:
            broker.services.topics.update(TopicConfig("T", 1, 1))
            async with await Wire.to(broker.port) as wire, await Wire.to(broker.port) as other:
                asked = await commit(Stage(broker, wire))
                with disk.held(broker) as core:
                    both = []
                    for count, each in enumerate((wire, other), 1):
                        both.append(asyncio.ensure_future(each.ask(Command(*asked))))
                        while core.waiting < count and not both[-1].done():
                            await asyncio.sleep(0.001)
                    assert core.waiting == 2
                    disk.let_go()
                    assert [(await each).code for each in both] == [0, 0]
                assert (await other.ask(Command(*asked))).code == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("make", STORING, ids=lambda make: make.__name__)
def test_what_is_not_on_the_disk_in_time_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Stage], Awaitable[Asked]]
) -> None:
    """By syncFlushTimeout, whether C or Python serves the request; the record is stored."""

    async def scenario() -> None:
        disk = Disk(monkeypatch)
        async with Broker(tmp_path, **SETTINGS, syncFlushTimeout=IN_TIME_MS) as broker:
            broker.services.topics.update(TopicConfig("T", 1, 1))
            broker.services.groups.update(SubscriptionGroup("g"))
            async with await Wire.to(broker.port) as wire:
                stage = Stage(broker, wire)
                code, ext, body = await make(stage)
                end = broker.store.info().log_max
                with disk.held(broker):
                    answer = await stage.ask(code, ext, body)
                expected = 1 if make is reply else 10
                assert answer.code == expected, answer.remark
                assert broker.store.info().log_max > end

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"made"}'),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""),
        (Code.UPDATE_AND_CREATE_TOPIC, MADE, b""),
    ],
    ids=["group", "no group", "topic"],
)
def test_what_a_tool_makes_is_on_the_disk_when_it_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: Code,
    ext: dict[str, str],
    body: bytes,
) -> None:
    async def scenario() -> None:
        free, written = threading.Event(), []
        free.set()
        commit = Metadata._write

        @contextlib.contextmanager
        def write(self: Metadata) -> Iterator[Any]:
            free.wait()
            with commit(self) as txn:
                yield txn
            written.append(1)

        monkeypatch.setattr(Metadata, "_write", write)
        async with Broker(tmp_path, **SETTINGS) as broker:
            broker.services.groups.update(SubscriptionGroup("g"))
            await broker.services.groups.settled()
            async with await Wire.to(broker.port) as wire, await Wire.to(broker.port) as other:
                free.clear()
                wire.write(Command(code, ext, body))
                await other.ask(Command(Code.GET_BROKER_RUNTIME_INFO, {}))
                written.clear()
                free.set()
                assert (await wire.answer()).code == 0
                assert written

    asyncio.run(scenario())
