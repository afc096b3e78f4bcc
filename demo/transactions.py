"""Transactions: one committed, one rolled back, one that only a check resolves.

The broker's clock is set on by half a minute, so that nobody waits for the check.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Protocol

from broker import AsyncTransactionProducer, Broker, LocalState, Message, ReceivedMessage
from demo.brokers import command
from demo.terminal import console

WAIT_S = 0.5


class Judge(Protocol):
    def same(self, what: str, store: object, pandas: object) -> str: ...


def run(judge: Judge) -> None:
    """Starts a broker of its own over a new store."""
    with tempfile.TemporaryDirectory(prefix="transactions-demo-") as made:
        ahead = [0]
        with Broker(
            Path(made) / "live",
            listenPort=0,
            with_namesrv=True,
            now_ms=lambda: time.time_ns() // 1_000_000 + ahead[0],
        ) as broker:
            broker.run(talk(broker, ahead, judge))
            command(Path(made), "tx", "stats", "live", show=6)


async def talk(broker: Broker, ahead: list[int], judge: Judge) -> None:
    service = broker.services.transactions
    assert service is not None
    checked = []

    def check(message: ReceivedMessage) -> LocalState:
        checked.append(message.body)
        return LocalState.COMMIT

    async with AsyncTransactionProducer(
        "demo-makers", broker.namesrv_address, check=check
    ) as producer:
        async with producer.transaction(Message("payments", b"committed")):
            pass
        async with producer.transaction(Message("payments", b"rolled-back")) as tx:
            tx.rollback()
        async with producer.transaction(Message("payments", b"forgotten")) as tx:
            tx.leave_open()
        before = service.halves.state().open
        ahead[0] = 30_000
        service.configure()
        await service.check()
        await asyncio.sleep(WAIT_S)
    found = sorted(bytes(m.body) for q in range(4) for m in broker.store.read("payments", q, 0))
    wanted = ([b"committed", b"forgotten"], 1, [b"forgotten"], 0)
    got = (found, before, checked, service.halves.state().open)
    mark = judge.same("transactions", got, wanted)
    console.print(
        "  three transactions: one committed, one rolled back, one forgotten and committed by the"
        f" answer to a check; {len(found)} messages are there, {mark}."
    )
