"""kill -9 of a broker in the middle of transactions, again and again over one store.

Producers on raw sockets note what the broker answered. After each kill the store is read as it
lies: what was answered as committed is there once, what was answered as rolled back is not there,
what was not decided is open, be it looked up in the metadata or in the log alone. After the restart
some decisions come again, and some the other way round: neither changes anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

from loops import Wire
from transacting import COMMIT, ROLLBACK, Half, Producer

from pystore import Reader
from pystore.pending_log import find_pending

MAIN = "from pystore.cli import main; raise SystemExit(main())"
ROUNDS = int(os.environ.get("PS_CRASH_ROUNDS", "3"))


@dataclass
class Ledger:
    """By body. asked: the decision that was sent first, answered or not. told: those answered."""

    halves: dict[bytes, Half] = field(default_factory=dict)
    asked: dict[bytes, int] = field(default_factory=dict)
    told: dict[bytes, int] = field(default_factory=dict)
    refused: int = 0
    repeats: int = 0


class Broker:
    def __init__(self, folder, settings):
        sets = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "broker", "--store", str(folder), "--port", "0",
             "--json", *sets],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.port = json.loads(line)["port"]

    def kill(self):
        self.process.kill()
        self.process.communicate()


async def produce(port, rng, ledger, name):
    """Until the broker is gone."""
    wire = await Wire.to(port)
    p = Producer(wire)
    try:
        for number in range(1 << 30):
            if ledger.told and rng.random() < 0.1:
                await again(p, rng, ledger)
            body = b"%s-%d" % (name, number)
            half = await p.half(body=body, properties={"KEYS": body.decode()})
            ledger.halves[body] = half
            how = rng.choice((COMMIT, COMMIT, ROLLBACK, 0))
            if not how:
                continue
            ledger.asked[body] = how
            answer = await p.end(half, how)
            assert answer.code == 0, answer.remark
            ledger.told[body] = how
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        p.close()


async def again(p, rng, ledger):
    """The same decision once more, or the other one."""
    body = rng.choice(list(ledger.told))
    how = rng.choice((COMMIT, ROLLBACK))
    answer = await p.end(ledger.halves[body], how)
    if how == ledger.told[body]:
        # After a restart it may be known that it was decided, and not how.
        assert answer.code in (0, 604), answer.remark
        ledger.repeats += 1
    else:
        assert answer.code == 604, answer.remark
        ledger.refused += 1


async def life(folder, settings, rng, ledger, number, seconds):
    broker = await asyncio.to_thread(Broker, folder, settings)
    makers = [
        asyncio.create_task(produce(broker.port, rng, ledger, b"r%d-%d" % (number, i)))
        for i in range(4)
    ]
    await asyncio.sleep(rng.uniform(0.02, seconds))
    broker.kill()
    for maker in makers:
        await maker


def audit(folder, ledger):
    with Reader(folder) as reader:
        seen = Counter()
        for queue in reader.queues("orders"):
            at = queue.min_offset
            while at < queue.max_offset:
                batch = reader.read("orders", queue.queue, at, max_messages=1000)
                seen.update(bytes(m.body) for m in batch)
                at = batch.next_offset
        kept, found = find_pending(reader), find_pending(reader, anew=True)
        bodies = {o: bytes(reader.message(h.physical).body) for o, h in found.rows.items()}
    assert set(kept.rows) == set(found.rows)
    opened = set(bodies.values())
    assert [body for body, count in seen.items() if count > 1] == []
    for body, how in ledger.told.items():
        assert (seen[body] == 1) == (how == COMMIT), (body, how)
        assert body not in opened, (body, how)
    for body in ledger.halves:
        if body not in ledger.asked:
            assert body in opened, body
            assert not seen[body], body
        elif body not in ledger.told:  # it was killed over this one
            assert seen[body] == 0 or ledger.asked[body] == COMMIT, body
            assert (body in opened) + seen[body] <= 1, body
    return len(seen), len(opened)


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
