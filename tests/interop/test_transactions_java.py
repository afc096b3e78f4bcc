"""Transactions with Apache's client and Apache's broker.

The rounds of checks of our broker are driven by a clock that the test sets, so that the durations
are upstream's and nobody waits for them. Of Apache's broker one round is waited for.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import launch
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

from loops import Wire
from transacting import COMMIT, DISCARDED, ROLLBACK, Clock, Producer, transacting

from broker.broker import Broker
from pystore import Reader

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long]

SIZES = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 6000}


def bodies(reader, topic):
    found = []
    for queue in reader.queues(topic):
        at = queue.min_offset
        while at < queue.max_offset:
            batch = reader.read(topic, queue.queue, at, max_messages=1000)
            found += list(batch)
            at = batch.next_offset
    return found


class Rounds(threading.Thread):
    """A simulated half minute, and a round of checks, again and again until told to stop."""

    def __init__(self, broker, clock):
        super().__init__()
        self.broker, self.clock = broker, clock
        self.over = threading.Event()
        self.reports = []

    def run(self):
        async def one():
            service = self.broker.services.transactions
            service._next_round = float("inf")
            self.clock.pass_(30)
            service.configure()
            return await service.check()

        while not self.over.wait(0.3):
            self.reports.append(self.broker.run(one()))


def test_java_producer_has_its_transactions_settled(reference, tmp_path):
    """Of the golden scenario: what it commits comes once, by itself or by a check; what it rolls
    back never; what it never decides is given up after fifteen checks."""
    seed, clock = random.SystemRandom().randrange(100, 1000), Clock()
    print(f"golden seed {seed}")
    store = tmp_path / "store"
    with Broker(store, now_ms=clock, listenPort=0, with_namesrv=True, **SIZES) as broker:
        rounds = Rounds(broker, clock)

        def begin():
            """Once the transactions are all there; a late END would be refused."""
            time.sleep(0.1)
            rounds.start()

        said = []
        job = threading.Thread(
            target=lambda: said.append(
                reference.run(
                    *("golden", broker.namesrv_address, seed, 60, 600),
                    JAVA_OPTS="-Xmx256m -Dlinger=15",
                )
            )
        )
        job.start()
        launch.wait("all halves", 100, lambda: open_halves(broker) and settled(broker))
        begin()
        job.join()
        rounds.over.set()
        rounds.join()
    ledger = [json.loads(line) for line in said[0].stdout.splitlines()]
    sent = [line for line in ledger if line["kind"] == "tx"]
    assert len(sent) == 30
    with Reader(store) as reader:
        seen = Counter(m.keys[0] for m in bodies(reader, f"golden{seed}_tx"))
        given_up = Counter(m.keys[0] for m in bodies(reader, DISCARDED))
    keys = [line["keys"] for line in sent]
    assert seen == Counter(k for k in keys if k.startswith(("COMMIT", "late-commit")))
    assert given_up == Counter(k for k in keys if k.startswith("orphan"))
    checked = Counter(line["keys"] for line in ledger if line["kind"] == "check")
    assert all(checked[k] == (15 if k.startswith("orphan") else 1) for k in checked)


def open_halves(broker):
    return broker.services.transactions.halves.state().halves >= 30


def settled(broker):
    """No decision has come for a while."""

    def decided():
        state = broker.services.transactions.halves.state()
        return state.commits + state.rollbacks

    before = decided()
    time.sleep(0.5)
    return decided() == before


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

    async def answer(port, ask_s=75):
        p = Producer(await Wire.to(port))
        asked = []
        end = time.monotonic() + ask_s
        while time.monotonic() < end and len(asked) < 2:
            await p.beat()
            for half in await p.checks(1.0):
                asked.append(half)
                p.end_oneway(half, COMMIT, fromTransactionCheck=True)
        more = await p.checks(1.0)
        p.close()
        return asked + more

    with launch.name_server("ours", tmp_path / "names") as names:
        peer = launch.MAKES["java"](folder, launch.SETTINGS | SIZES, "5.3.3", names)
        peer.broker_server.start()
        try:
            peer.wait_ready()
            asked = asyncio.run(answer(int(peer.broker.rpartition(":")[2])))
            time.sleep(1)
        finally:
            peer.stop()
    assert sorted(half.body for half in asked) == [b"23", b"7"]
    with Reader(store) as reader:
        seen = sorted(int(bytes(m.body)) for m in bodies(reader, "orders"))
    assert seen == sorted([i for i in range(40) if i % 2])
