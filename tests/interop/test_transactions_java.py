"""Open transactions taken over by Apache's broker.

Of Apache's broker one round is waited for. Its client with our broker: test_one_of_everything.py
and test_orders_java.py.
"""

from __future__ import annotations

import asyncio
import time

import launch
import pytest
from loops import Wire
from storeview import everything
from transacting import COMMIT, ROLLBACK, Producer, transacting
from waiting import until_async

from pystore import Reader

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

SIZES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}


def test_java_broker_goes_on_where_ours_stopped(reference, tmp_path):
    """It asks about the half that is open, and about no other; its answer is carried out."""
    folder = tmp_path / "peer"
    store = folder / "store"

    async def ours():
        async with transacting(store, SIZES) as t:
            p = await t.producer()
            for i in range(40):
                # Java goes by the client's clock, and gives up what it takes for old.
                born = int(time.time() * 1000)
                half = await p.half(body=b"%d" % i, e=i % 4, g=born)
                if i not in (7, 23):
                    await p.end(half, COMMIT if i % 2 else ROLLBACK)

    asyncio.run(ours())

    async def answer(port):
        p = Producer(await Wire.to(port))
        await p.beat()  # Java's broker asks producers that it knows
        asked = []
        while len(asked) < 2:
            await asyncio.sleep(1)
            for half in await p.checks():
                asked.append(half)
                p.end_oneway(half, COMMIT, fromTransactionCheck=True)
        await until_async(lambda: len(orders()) >= 20, "both are there")
        more = await p.checks()
        p.close()
        return asked + more

    def orders():
        with Reader(store) as reader:
            return sorted(int(bytes(m.body)) for m in everything(reader, "orders"))

    with launch.name_server("ours", tmp_path / "names") as names:
        peer = launch.MAKES["java"](folder, launch.SETTINGS | SIZES, "5.3.3", names)
        peer.broker_server.start()
        try:
            peer.wait_ready()
            asked = asyncio.run(answer(int(peer.broker.rpartition(":")[2])))
        finally:
            peer.stop()
    assert sorted(half.body for half in asked) == [b"23", b"7"]
    assert orders() == [i for i in range(40) if i % 2]
