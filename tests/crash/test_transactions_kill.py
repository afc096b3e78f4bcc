"""kill -9 of a broker in the middle of transactions, again and again over one store.

Producers on raw sockets note what the broker answered. After each kill the store is read as it
lies: what was answered as committed is there once, what was answered as rolled back is not there,
what was not decided is open, be it looked up in the metadata or in the log alone. After the restart
some decisions come again, and some the other way round: neither changes anything.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest
import uvloop
from waiting import until_async

sys.path.insert(0, str(Path(__file__).parent))

from transactions import Broker, Ledger, audit, produce

ROUNDS = int(os.environ.get("PS_CRASH_ROUNDS", "3"))


async def life(folder, settings, rng, ledger, number, seconds):
    broker = await asyncio.to_thread(Broker, folder, settings)
    makers = [
        asyncio.create_task(produce(broker.port, rng, ledger, b"r%d-%d" % (number, i)))
        for i in range(4)
    ]
    await until_async(lambda: ledger.told, "a decision that is answered")
    await asyncio.sleep(rng.uniform(0.02, seconds))
    broker.kill()
    for maker in makers:
        await maker


@pytest.mark.parametrize("metadata", [True, False])
def test_kill_amid_transactions(tmp_path, small, seed, metadata):
    """metadata: False loses it before each start, so that the log alone is what is left."""
    rng, ledger = random.Random(seed), Ledger()
    folder = tmp_path / "store"
    settings = small | {"transactionOpBatchInterval": 2000}
    rounds = max(1, ROUNDS // 2) if not metadata else ROUNDS
    for number in range(rounds):
        uvloop.run(life(folder, settings, rng, ledger, number, 0.6 if rounds < 20 else 0.1))
        # What is wrong stays wrong, so a long campaign need not look each time.
        if rounds < 20 or number % 10 == 9 or number == rounds - 1:
            audit(folder, ledger)
        if not metadata:
            for path in (folder / "meta").glob("*"):
                path.unlink()
    assert ledger.told
    print(
        f"{rounds} kills: {len(ledger.halves)} halves, {len(ledger.told)} decisions answered,"
        f" {ledger.repeats} repeats, {ledger.refused} contradictions refused"
    )
