"""Transactions: one committed, one rolled back, one that only a check resolves.

The broker's clock is set on by half a minute, so that nobody waits for the check.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Protocol

from broker import Broker
from broker.remoting.client import RemotingClient
from broker.remoting.command import ONEWAY, Command, texts
from broker.remoting.handlers import Peer
from demo.brokers import command
from demo.terminal import console

COMMIT, ROLLBACK = 8, 12
GROUP = "demo-makers"
WAIT_S = 0.5


class Judge(Protocol):
    def same(self, what: str, store: object, pandas: object) -> str: ...


class Producer:
    """Sends halves and decides them; answers every check with a commit."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.checked = 0
        self._client = RemotingClient({39: self._check})

    async def ask(self, code: int, body: bytes = b"", **ext: object) -> Command:
        answer = await self._client.request(self.address, Command(code, texts(ext), body))
        if answer.code:
            raise RuntimeError(f"request {code}: {answer.code} {answer.remark}")
        return answer

    async def beat(self) -> None:
        body = {"clientID": "demo", "consumerDataSet": [],
                "producerDataSet": [{"groupName": GROUP}]}  # fmt: skip
        await self.ask(34, json.dumps(body).encode())

    async def half(self, body: str) -> Command:
        given = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"demo-{body}", "KEYS": body}
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in given.items())
        return await self.ask(
            310, body.encode(), a=GROUP, b="payments", c="TBW102", d=1, e=0, f=4,
            g=time.time_ns() // 1_000_000, h=0, i=encoded, j=0, k=False, m=False,
        )  # fmt: skip

    async def end(self, half: Command, how: int) -> None:
        place = int(half.ext["msgId"][-16:], 16)
        await self.ask(
            37, producerGroup=GROUP, tranStateTableOffset=half.ext["queueOffset"],
            commitLogOffset=place, commitOrRollback=how, msgId="", fromTransactionCheck=False,
        )  # fmt: skip

    def _check(self, peer: Peer, asked: Command) -> None:
        self.checked += 1
        ext = asked.ext | {"producerGroup": GROUP, "commitOrRollback": str(COMMIT),
                           "fromTransactionCheck": "true"}  # fmt: skip
        peer.send(Command(37, ext, flag=ONEWAY))

    async def close(self) -> None:
        await self._client.close()


def run(judge: Judge) -> None:
    """Starts a broker of its own over a new store."""
    with tempfile.TemporaryDirectory(prefix="transactions-demo-") as made:
        ahead = [0]
        with Broker(
            Path(made) / "live", listenPort=0, now_ms=lambda: time.time_ns() // 1_000_000 + ahead[0]
        ) as broker:
            broker.run(talk(broker, ahead, judge))
            command(Path(made), "tx", "stats", "live", show=6)


async def talk(broker: Broker, ahead: list[int], judge: Judge) -> None:
    producer = Producer(broker.address)
    service = broker.services.transactions
    assert service is not None
    try:
        await producer.beat()
        await producer.end(await producer.half("committed"), COMMIT)
        await producer.end(await producer.half("rolled-back"), ROLLBACK)
        await producer.half("forgotten")
        before = service.halves.state().open
        ahead[0] = 30_000
        service.configure()
        await service.check()
        await asyncio.sleep(WAIT_S)
        found = sorted(bytes(m.body) for m in broker.store.read("payments", 0, 0))
    finally:
        await producer.close()
    wanted = ([b"committed", b"forgotten"], 1, 1, 0)
    got = (found, before, producer.checked, service.halves.state().open)
    mark = judge.same("transactions", got, wanted)
    console.print(
        "  three transactions: one committed, one rolled back, one forgotten and committed by the"
        f" answer to a check; {len(found)} messages are there, {mark}."
    )
