"""The hot path over real sockets: sends, pulls, pulls that wait, sends that wait for the disk."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from faulty import faulty
from loops import Wire, serving, until
from waiting import BOUND_S

import pystore
from broker.hot.core import Core
from broker.services.offsets import ConsumerOffsets
from broker.wire.command import Command
from pystore.files import javajson

SEND, PULL, ECHO = 310, 11, 4711
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
}
SYNCS = 1 << 4 | 1 << 5 | 1 << 10  # fsync, fdatasync, msync of csrc/tests/faulty_io.h


class SlowStore(pystore.Store):
    """A store whose syncs take as long as the test says, or fail."""

    def __init__(self, path, **settings):
        self.table = faulty.ps_io_faulty_new()
        super().__init__(path, **SMALL | settings)

    def _io(self):
        return self.table

    def slow(self, ms):
        faulty.ps_io_faulty_slow(self.table, SYNCS, int(ms))

    def fail(self, mask, error):
        faulty.ps_io_faulty_set(self.table, mask, 1, error, True)


class Hot:
    """A server with a core over a store, its topic T of four queues, its group G."""

    def __init__(self, store, **options):
        self.store = store
        self.core = Core(store, cluster="DefaultCluster", **options)
        self.core.attach(asyncio.get_running_loop())
        self.core.publish_topic("T", 4, 4, 6, hot=True)
        self.subscribe("G")
        self.cold = []
        handlers = dict.fromkeys((SEND, PULL, ECHO), self.came_up)
        self.server = serving(handlers, core=self.core)

    def subscribe(self, group, tags=None):
        self.core.publish_subscription(group, "T", tags=tags, sub_version=0, own=True)

    def came_up(self, peer, command):
        """What the core gives to Python."""
        self.cold.append(command)
        return command.reply(99, ext={"served": "cold"})

    async def __aenter__(self):
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.server.__aexit__(*error)
        self.core.close()

    def wire(self):
        return Wire.to(self.server.port)


def send(body=b"body", queue=0, tags=None, *, topic="T", opaque=1, **options):
    properties = "UNIQ_KEY\1FD01\2" + (f"TAGS\1{tags}\2" if tags else "")
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0"}
    ext |= {"g": "1700000000000", "h": "0", "i": properties, "j": "0", "m": "false"}
    return Command(SEND, ext, body, opaque=opaque, **options)


def pull(offset=0, queue=0, *, group="G", suspend_ms=0, opaque=1, **options):
    ext = {"consumerGroup": group, "topic": "T", "queueId": str(queue)}
    ext |= {"queueOffset": str(offset), "maxMsgNums": "32", "commitOffset": "0"}
    ext |= {"sysFlag": "2" if suspend_ms else "0", "suspendTimeoutMillis": str(suspend_ms)}
    return Command(PULL, ext | {"subVersion": "0"}, opaque=opaque, **options)


@contextlib.asynccontextmanager
async def on_store(path, store=None, **options):
    """A broker's hot path over a new store."""
    with store or pystore.open(path, **SMALL) as opened:
        async with Hot(opened, **options) as hot:
            yield hot


async def test_one_read_may_wake_a_pull_and_bring_a_frame_for_python(store_path):
    """The step is used again for the pull that wakes: the frame must have been taken before."""
    async with on_store(store_path) as hot:
        async with await hot.wire() as holder, await hot.wire() as wire:
            for i in range(20):
                holder.write(pull(i, suspend_ms=600_000, opaque=7))
                await until(lambda: hot.core.totals().held == 1)
                wire.write(send(opaque=1), Command(ECHO, opaque=2), send(queue=1, opaque=3))
                opaques = {(await wire.answer()).opaque for _ in range(3)}
                assert opaques == {1, 2, 3}
                assert (await holder.answer()).code == 0
        assert len(hot.cold) == 20


async def test_pulls_of_one_connection_wake_by_its_own_sends(store_path):
    async with on_store(store_path) as hot, await hot.wire() as wire:
        wire.write(pull(suspend_ms=600_000, opaque=7), send(opaque=8))
        assert {(await wire.answer()).opaque for _ in range(2)} == {7, 8}


# ---- sends that wait for the disk ----


async def test_a_failed_sync_is_no_success_and_later_sends_come_up(store_path):
    store = SlowStore(store_path, flushDiskType="SYNC_FLUSH")

    async def work(hot):
        async with await hot.wire() as wire:
            assert (await wire.ask(send())).code == 0
            store.fail(SYNCS, 5)
            assert (await wire.ask(send())).code == 14
            assert (await wire.ask(send())).code == 99
        assert len(hot.cold) == 1

    with contextlib.suppress(pystore.StoreError), store:
        async with Hot(store) as hot:
            await work(hot)


async def test_a_connection_may_go_while_its_answers_wait(store_path):
    store = SlowStore(store_path, flushDiskType="SYNC_FLUSH")
    async with on_store(store_path, store) as hot:
        store.slow(150)
        async with await hot.wire() as wire:
            wire.write(send())
            await until(lambda: hot.core.sums().puts == 1)
        await until(lambda: hot.store.info().log_flushed == hot.store.info().log_max)
        wire = await hot.wire()
        wire.write(send())
        await until(lambda: hot.core.sums().puts == 2)
    wire.close()  # the broker went first


async def test_a_full_disk_is_for_python_to_answer(store_path):
    store = SlowStore(store_path)
    async with on_store(store_path, store) as hot, await hot.wire() as wire:
        assert (await wire.ask(send())).code == 0
        assert (await wire.ask(pull())).code == 0
        store.fail(1 << 7, 28)  # fallocate: ENOSPC
        codes = [(await wire.ask(send(b"x" * 60_000))).code for _ in range(40)]
        assert codes[-1] == 99 and set(codes) == {0, 99}
        assert hot.core.totals().put_failures == codes.count(99)
        assert (await wire.ask(pull())).code == 0
        faulty.ps_io_faulty_set(store.table, 0, 0, 0, 0)
        async with asyncio.timeout(BOUND_S):
            while (await wire.ask(send())).code != 0:  # it goes on by itself
                await asyncio.sleep(0.05)


async def test_the_core_frees_what_it_holds(store_path):
    """A core that is closed with pulls held and connections open leaves nothing behind."""
    async with on_store(store_path) as hot:
        wire = await hot.wire()
        wire.write(pull(suspend_ms=60_000), send(queue=1), b"\0\0\0")
        await wire.answer()
    assert hot.core.handle is None
    hot.core.close()
    wire.close()


async def test_offsets_are_not_saved_one_by_one(store_path):
    """A broker stops with a million of them."""
    async with on_store(store_path) as hot:
        count = 20_000
        for i in range(count):
            hot.core.commit_offset(f"group{i % 10}", "T", i // 10, i)
        calls = 0

        def count_calls(frame, event, arg):
            nonlocal calls
            calls += event == "call"

        offsets = ConsumerOffsets(hot.store, hot.core)
        sys.setprofile(count_calls)
        try:
            offsets.persist_now()
            hot.store.metadata.export_json()
        finally:
            sys.setprofile(None)
        text = (store_path / "config" / "consumerOffset.json").read_bytes()
        assert javajson.loads(text)["offsetTable"]["T@group3"]["1999"] == 19_993
        assert 0 < calls < count / 3
