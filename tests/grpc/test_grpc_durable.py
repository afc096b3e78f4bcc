"""With flushDiskType=SYNC_FLUSH no call that stores a record is answered before a sync has covered
it: the disk is made to wait, and what is answered meanwhile is looked at (docs/durability.md)."""

from __future__ import annotations

import asyncio

import pytest
from calls_that_store import CALLS, SETTINGS, acknowledges, prepare, receives, sends
from consuming import calls_of_python, serving
from held import Disk

from broker.grpc.schema import pb
from broker.processors.durable import DISK_IS_LATE

CODE = pb.Code


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
async def test_no_record_is_told_before_the_disk_has_it(store_path, monkeypatch, make):
    """Another call is answered meanwhile: the loop is not held."""
    disk = Disk(monkeypatch)
    async with serving(store_path, **SETTINGS) as raw:
        prepare(raw)
        call = await make(raw)
        with disk.held(raw.broker) as core:
            pending = asyncio.ensure_future(call)
            while not core.waiting and not pending.done():
                await asyncio.sleep(0.001)
            asked = pb.QueryRouteRequest(topic=pb.Resource(name="T"))
            assert (await raw.call("QueryRoute", asked)).status.code == CODE.OK
            assert not pending.done(), await pending
            disk.let_go()
            answer = await pending
        assert make is receives or answer.status.code == CODE.OK


@pytest.mark.parametrize("make", [sends, receives, acknowledges], ids=lambda make: make.__name__)
@pytest.mark.parametrize("late", [False, True], ids=["in_time", "late"])
async def test_the_network_thread_waits_for_the_disk_without_python(
    store_path, monkeypatch, make, late
):
    """And says so when the disk is late."""
    disk, patience = Disk(monkeypatch), {"syncFlushTimeout": 700} if late else {}
    async with serving(store_path, **SETTINGS, **patience) as raw:
        prepare(raw)
        seen = calls_of_python(monkeypatch)
        seen.append("until Python has let the client in, and the network thread knows")
        while seen:
            seen.clear()
            await (await make(raw))
        call = await make(raw)
        with disk.held(raw.broker) as core:
            pending = asyncio.ensure_future(call)
            while not core.waiting and not pending.done():
                await asyncio.sleep(0.001)
            assert late or not pending.done(), await pending
            if not late:
                disk.let_go()
            elif make is receives:
                with pytest.raises(AssertionError):
                    await pending
            else:
                status = (await pending).status
                assert status.code == CODE.MASTER_PERSISTENCE_TIMEOUT
                assert status.message == DISK_IS_LATE
        assert late or make is receives or (await pending).status.code == CODE.OK
        await asyncio.wait([pending])
        assert not seen


async def test_what_a_call_that_is_gone_has_waited_for_the_disk_with_comes_back(
    store_path, monkeypatch
):
    disk = Disk(monkeypatch)
    async with serving(store_path, **SETTINGS) as raw:
        prepare(raw)
        await (await receives(raw))
        call = await receives(raw)
        with disk.held(raw.broker) as core:
            pending = asyncio.ensure_future(call)
            while not core.waiting:
                await asyncio.sleep(0.001)
            pending.cancel()
            await asyncio.wait([pending])
        back = []
        while not back:
            raw.shift(1_100)
            back = (await raw.receive())[1]
