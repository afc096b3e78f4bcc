"""With flushDiskType=SYNC_FLUSH no request that stores a record is answered before a sync has
covered it: the disk is made to wait, and what is answered meanwhile is looked at
(docs/durability.md)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from held import Disk
from loops import Wire
from requests_that_store import ANSWERS, MADE, SETTINGS, STORING, Asked, Stage, commit

from broker import Broker
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore.meta.configfiles import SubscriptionGroup, TopicConfig
from pystore.metadata import Metadata

#: syncFlushTimeout, when the disk is not to be in time.
IN_TIME_MS = 300


@pytest.mark.parametrize("make", STORING, ids=lambda make: make.__name__)
async def test_no_record_is_acknowledged_before_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Stage], Awaitable[Asked]]
) -> None:
    """Another request is answered meanwhile: the loop is not held."""
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
            assert answer.code == ANSWERS.get(make.__name__, 0), answer.remark


async def test_a_repeated_decision_waits_as_the_first_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one stored may not be on the disk yet. Later it is, and nobody waits."""
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


@pytest.mark.parametrize("make", STORING, ids=lambda make: make.__name__)
async def test_what_is_not_on_the_disk_in_time_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Stage], Awaitable[Asked]]
) -> None:
    """By syncFlushTimeout, whether C or Python serves the request; the record is stored."""
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
            assert answer.code == ANSWERS.get(make.__name__, 10), answer.remark
            assert broker.store.info().log_max > end


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"made"}'),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""),
        (Code.UPDATE_AND_CREATE_TOPIC, MADE, b""),
    ],
    ids=["group", "no group", "topic"],
)
async def test_what_a_tool_makes_is_on_the_disk_when_it_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: Code,
    ext: dict[str, str],
    body: bytes,
) -> None:
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
