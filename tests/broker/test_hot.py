"""The hot path over real sockets: sends, pulls, pulls that wait, sends that wait for the disk."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import pytest
from loops import Wire, serving, until
from waiting import BOUND_S

import pystore
from broker.hot.core import Core
from broker.remoting.client import RemotingClient
from broker.services.offsets import ConsumerOffsets
from broker.wire.command import BINARY, JSON, ONEWAY, Command
from pystore.files import javajson
from pystore.native import lib

SEND, PULL, ECHO = 310, 11, 4711
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
}
SYNCS = 1 << 4 | 1 << 5 | 1 << 10  # fsync, fdatasync, msync of csrc/files/io.h


class SlowStore(pystore.Store):
    """A store whose syncs take as long as the test says, or fail."""

    def __init__(self, path, **settings):
        self.table = lib.ps_io_faulty_new()
        super().__init__(path, **SMALL | settings)

    def _io(self):
        return self.table

    def slow(self, ms):
        lib.ps_io_faulty_slow(self.table, SYNCS, int(ms))

    def fail(self, mask, error):
        lib.ps_io_faulty_set(self.table, mask, 1, error, True)


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


@pytest.mark.parametrize("serialize", [JSON, BINARY])
async def test_a_message_goes_in_and_comes_out(store_path, serialize):
    async with on_store(store_path) as hot:
        async with RemotingClient() as client:
            at = f"127.0.0.1:{hot.server.port}"
            answer = await client.request(at, send(b"first", 3, "TagA", serialize=serialize))
            assert answer.code == 0 and answer.serialize == serialize
            assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
            assert answer.ext["transactionId"] == "FD01" and answer.ext["MSG_REGION"]
            got = await client.request(at, pull(0, 3, serialize=serialize))
            assert got.code == 0 and got.ext["nextBeginOffset"] == "1"
            (message,) = hot.store.read("T", 3, 0)
            assert bytes(message.body) == b"first" and bytes(got.body).count(b"first") == 1
            assert message.properties["CLUSTER"] == "DefaultCluster"
            assert message.born_host.startswith("127.0.0.1:")
            assert message.offset_message_id == answer.ext["msgId"]
        assert not hot.cold


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


async def test_held_pulls_end_in_order_of_their_deadlines(store_path):
    async with on_store(store_path) as hot, await hot.wire() as wire:
        begun = time.monotonic()
        # They come in one read, so that their deadlines are counted from one moment.
        wire.write(*(pull(suspend_ms=ms, opaque=ms) for ms in (400, 50, 150, 600_000)))
        for ms in (50, 150, 400):
            answer = await wire.answer()
            assert (answer.opaque, answer.code) == (ms, 19)
            assert ms <= (time.monotonic() - begun) * 1000
        assert hot.core.totals().held == 1


async def test_news_that_do_not_match_are_passed_over(store_path):
    async with on_store(store_path) as hot:
        hot.subscribe("A", {"TagA"})
        async with await hot.wire() as wire, await hot.wire() as other:
            wire.write(pull(group="A", suspend_ms=600_000))
            await until(lambda: hot.core.totals().held == 1)
            for tags in ("TagB", "TagC", None):
                assert (await other.ask(send(tags=tags))).code == 0
            assert hot.core.totals().held == 1
            await other.ask(send(tags="TagA"))
            answer = await wire.answer()
            assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "4")


async def test_puts_of_the_embedding_program_wake_pulls(store_path):
    """The dispatcher's thread finds them, polling or asleep."""
    async with on_store(store_path) as hot, await hot.wire() as wire:
        for i in range(10):
            wire.write(pull(i, suspend_ms=600_000))
            await until(lambda: hot.core.totals().held == 1)
            await asyncio.sleep(0.12 if i % 3 == 0 else 0)
            hot.store.put("T", b"from inside", queue=0)
            assert (await wire.answer()).code == 0


async def test_notify_all_and_a_closed_connection(store_path):
    async with on_store(store_path) as hot, await hot.wire() as wire, await hot.wire() as gone:
        wire.write(*(pull(queue=q, suspend_ms=60_000, opaque=q) for q in range(4)))
        gone.write(pull(suspend_ms=60_000))
        await until(lambda: hot.core.totals().held == 5)
        gone.close()
        await until(lambda: hot.core.totals().held == 4)
        hot.core.notify_all()
        assert {(await wire.answer()).opaque for _ in range(4)} == {0, 1, 2, 3}
        assert hot.core.totals().held == 0


async def test_no_more_pulls_are_held_than_allowed(store_path):
    async with on_store(store_path, parked_max=2) as hot, await hot.wire() as wire:
        wire.write(*(pull(suspend_ms=60_000, opaque=i) for i in range(3)))
        answer = await wire.answer()
        assert (answer.opaque, answer.code) == (2, 19)
        assert hot.core.totals().held == 2


async def test_much_to_write_waits_for_a_peer_that_does_not_read(store_path):
    """A read full of small pulls asks for 64 MiB: no more than some of it is made ahead."""
    async with on_store(store_path) as hot:
        for _ in range(4):
            hot.store.put("T", b"x" * 60_000, queue=0)
        async with await hot.wire() as wire:
            wire.write(*(pull(opaque=i) for i in range(256)))
            await until(lambda: hot.core.sums().gets >= 16)
            await asyncio.sleep(0.1)
            made = hot.core.sums().get_bytes
            assert made < 32 << 20
            for i in range(256):
                answer = await wire.answer()
                assert (answer.opaque, answer.code) == (i, 0) and len(answer.body) > 240_000
            assert hot.core.sums().get_bytes > 61_000_000


# ---- sends that wait for the disk ----


async def test_a_send_is_answered_when_it_is_on_the_disk(store_path):
    store = SlowStore(store_path, flushDiskType="SYNC_FLUSH")
    async with (
        on_store(store_path, store) as hot,
        await hot.wire() as wire,
        await hot.wire() as other,
    ):
        store.slow(200)
        begun = time.monotonic()
        wire.write(*(send(opaque=i) for i in range(50)))
        other.write(send(opaque=50), send(opaque=51, flag=ONEWAY))
        assert [(await wire.answer()).opaque for _ in range(50)] == list(range(50))
        assert (await other.answer()).opaque == 50
        assert time.monotonic() - begun >= 0.19
        store.slow(0)
        assert hot.store.info().log_flushed == hot.store.info().log_max


async def test_a_sync_that_takes_too_long_is_told(store_path):
    store = SlowStore(store_path, flushDiskType="SYNC_FLUSH", syncFlushTimeout=100)
    async with on_store(store_path, store) as hot, await hot.wire() as wire:
        assert (await wire.ask(send())).code == 0  # its files are made
        store.slow(BOUND_S * 1000)  # the sync does not end before the answer is there
        answer = await wire.ask(send())
        store.slow(0)
        assert (answer.code, answer.ext["queueOffset"]) == (10, "1")


async def test_a_negative_offset_is_moved_to_the_first(store_path):
    async with on_store(store_path) as hot, await hot.wire() as wire:
        for next_offset in ("0", "0"):
            moved = await wire.ask(pull(-1, suspend_ms=1000))
            assert (moved.code, moved.ext["nextBeginOffset"]) == (21, next_offset)
            assert (await wire.ask(send())).code == 0


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
        lib.ps_io_faulty_set(store.table, 0, 0, 0, 0)
        async with asyncio.timeout(BOUND_S):
            while (await wire.ask(send())).code != 0:  # it goes on by itself
                await asyncio.sleep(0.05)


async def test_a_frame_given_back_is_served(store_path):
    async with on_store(store_path) as hot:

        def make(peer, command):
            hot.core.publish_topic(command.ext["b"], 1, 1, 6, hot=True)
            assert peer.serve_raw(command)

        hot.server._shared.handlers[SEND] = make
        async with await hot.wire() as wire:
            answer = await wire.ask(send(topic="new"))
            assert (answer.code, answer.ext["queueOffset"]) == (0, "0")


async def test_offsets_and_names_that_clients_make_up(store_path):
    async with on_store(store_path) as hot:
        core = hot.core
        for i in range(10_000):
            assert core.commit_offset(f"group{i % 7}", "T", 65535 - i, i)
        taken = core.take_changed_offsets(begin=True)
        while rows := core.take_changed_offsets(begin=False):
            taken += rows
        assert {group for group, _, _ in taken} == {f"group{i}" for i in range(7)}
        moved = [row for _, topic, queues in taken for row in queues.items() if topic == "T"]
        assert sorted(moved) == [(65535 - i, i) for i in range(9_999, -1, -1)]
        assert core.take_changed_offsets(begin=True) == []
        assert core.offset("group0", "T", 65535) == 0 and core.offset("none", "T", 0) is None
        assert len([*core.offsets("group1")]) == len([*core.offsets("group1", "T")]) > 1000
        core.delete_offsets(topic="T")
        assert [*core.offsets()] == []
        for queue, offset in ((-1, 0), (65536, 0), (0, -1)):
            with pytest.raises(pystore.BadArgument):
                core.commit_offset("G", "T", queue, offset)
        with pytest.raises(pystore.BadArgument):
            core.commit_offset("g" * 256, "T", 0, 0)


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
