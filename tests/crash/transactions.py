"""Transactions on raw sockets with a broker that may end at any time, and what must hold then."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from storeview import everything

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "broker"))

from loops import Wire
from transacting import COMMIT, ROLLBACK, Half, Producer

from pystore import Reader
from pystore.store.pending_log import find_pending

MAIN = "from pystore.cli import main; raise SystemExit(main())"


@dataclass
class Ledger:
    """By body. asked: the decision that was sent first, answered or not. told: those answered."""

    halves: dict[bytes, Half] = field(default_factory=dict)
    asked: dict[bytes, int] = field(default_factory=dict)
    told: dict[bytes, int] = field(default_factory=dict)
    refused: int = 0
    repeats: int = 0


def plain(*command):
    """Starts a program whose output is read."""
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


class Broker:
    def __init__(self, folder, settings, start=plain, *options):
        sets = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
        self.process = start(
            sys.executable, "-c", MAIN, "broker", "--store", folder, "--port", "0", "--json",
            *options, *sets,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.told = json.loads(line)
        self.port = self.told["port"]

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


def audit(folder, ledger, forgets=False):
    """forgets: a rolled back half may be open again, as a power failure leaves it."""
    with Reader(folder) as reader:
        seen = Counter(bytes(m.body) for m in everything(reader, "orders"))
        kept, found = find_pending(reader), find_pending(reader, anew=True)
        bodies = {o: bytes(reader.message(h.physical).body) for o, h in found.rows.items()}
    assert set(kept.rows) == set(found.rows)
    opened = set(bodies.values())
    assert [body for body, count in seen.items() if count > 1] == []
    for body, how in ledger.told.items():
        assert (seen[body] == 1) == (how == COMMIT), (body, how)
        assert body not in opened or (forgets and how == ROLLBACK), (body, how)
    for body in ledger.halves:
        if body not in ledger.asked:
            assert body in opened, body
            assert not seen[body], body
        elif body not in ledger.told:  # it was killed over this one
            assert seen[body] == 0 or ledger.asked[body] == COMMIT, body
            assert (body in opened) + seen[body] <= 1, body
    return len(seen), len(opened)
