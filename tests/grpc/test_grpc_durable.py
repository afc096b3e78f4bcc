"""With flushDiskType=SYNC_FLUSH no call that stores a record is answered before a sync has covered
it: the disk is made to wait, and what is answered meanwhile is looked at (docs/durability.md)."""

from __future__ import annotations

import asyncio

import pytest
from calls_that_store import CALLS, SETTINGS, prepare, receives
from consuming import run, serving
from held import Disk

from broker.grpc.schema import pb

CODE = pb.Code


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_no_record_is_told_before_the_disk_has_it(store_path, monkeypatch, make):
    """Another call is answered meanwhile: the loop is not held."""

    async def work():
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

    run(work())
