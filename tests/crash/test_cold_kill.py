"""``kill -9`` of a broker that writes its messages out and deletes them locally: the tier is sound
after each, what was acknowledged is in the store or in the tier, and nothing is there twice.

``PS_COLD_KILLS`` lives of the broker (`make crash-cold`: 200), each on the store and the tier that
the last one left. Now and then a topic is deleted and made again.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from waiting import BOUND_S

import pystore
from broker.remoting.client import RemotingClient
from broker.wire.codes import RequestCode as Code
from broker.wire.command import Command
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import collect, verify
from pystore.format.properties import encode_properties
from tests.cold.duty_kit import bodies_of

CHILD = Path(__file__).with_name("cold_child.py")
KILLS = int(os.environ.get("PS_COLD_KILLS", "2"))
TOPICS = ("orders", "payments", "odd")
QUEUES = 2

#: By topic: queue and offset of what was acknowledged, and the number in its body.
Ledger = dict[str, dict[tuple[int, int], int]]


async def send(link: RemotingClient, address: str, topic: str, number: int, size: int) -> Command:
    ext = {
        "a": "p", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "j": "0", "k": "false", "m": "false",
        "i": encode_properties({"UNIQ_KEY": f"{number:08}"}).decode(),
    }  # fmt: skip
    body = f"{number}:".encode().ljust(size, b".")
    return await link.request(
        address, Command(Code.SEND_MESSAGE_V2, ext, body=body), timeout=BOUND_S
    )


async def produce(address: str, ledger: Ledger, numbers: range, chance: random.Random) -> None:
    """Sends until the broker is gone; a topic may be deleted between two messages of it."""
    async with RemotingClient() as link:
        for number in numbers:
            topic = chance.choice(TOPICS)
            answer = await send(link, address, topic, number, chance.randrange(20, 4000))
            if answer.code == 0:
                place = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
                ledger[topic][place] = number
            if topic == "odd" and chance.random() < 0.01:
                ledger[topic] = {}
                await link.request(
                    address, Command(Code.DELETE_TOPIC_IN_BROKER, {"topic": topic}),
                    timeout=BOUND_S,
                )  # fmt: skip


def manifests(tier: Path) -> int:
    return sum(1 for _ in tier.glob("*/*/rmq_sys_MANIFEST/*/*/*"))


async def one_life(child: subprocess.Popen[str], tier: Path, ledger: Ledger, numbers: range,
                   chance: random.Random) -> None:  # fmt: skip
    assert child.stdout is not None
    address = f"127.0.0.1:{int(await asyncio.to_thread(child.stdout.readline))}"
    work = asyncio.ensure_future(produce(address, ledger, numbers, chance))
    before = manifests(tier)
    while manifests(tier) < before + chance.randrange(1, 8) and not work.done():
        await asyncio.sleep(0.01)
    await asyncio.sleep(chance.random() * chance.choice((0.1, 0.3, 2)))
    await asyncio.to_thread(child.kill)
    done = await asyncio.gather(work, return_exceptions=True)
    assert isinstance(done[0], ConnectionError | OSError | TimeoutError | None), done


def found_in(reader: pystore.Reader, topic: str) -> dict[tuple[int, int], int]:
    bodies = bodies_of(reader, topic)
    return {place: int(body.partition(b":")[0]) for place, body in bodies.items()}


def check(store: Path, tier: Tier, cold: Path, ledger: Ledger) -> None:
    audit = verify(tier)
    assert audit.wrong == []
    with pystore.Reader(store) as hot, pystore.Reader(cold) as out:
        for topic, acknowledged in ledger.items():
            local, remote = found_in(hot, topic), found_in(out, topic)
            lost = acknowledged.items() - local.items() - remote.items()
            assert not lost, (topic, sorted(lost)[:5])
            if topic != "odd":  # one that is deleted may be there until the next round
                both = local.keys() & remote.keys()
                assert all(local[place] == remote[place] for place in both)
                for numbers in (local, remote):
                    assert len(set(numbers.values())) == len(numbers)


def test_a_broker_killed_while_it_writes_out_loses_and_repeats_nothing(
    store_path: Path, tmp_path: Path, seed: int
):
    ledger: Ledger = {topic: {} for topic in TOPICS}
    chance, cold, sent = random.Random(seed), tmp_path / "cold", 0
    gone = 0
    for _ in range(KILLS):
        words = [sys.executable, str(CHILD), str(store_path), str(cold)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            try:
                numbers = range(sent, sent + 100_000)
                sent += 100_000
                asyncio.run(one_life(child, cold, ledger, numbers, chance))
            finally:
                child.kill()
        tier = new_tier(cold, "DefaultCluster", "broker-a")
        check(store_path, tier, cold, ledger)
        with pystore.Reader(store_path) as reader:
            gone = max(gone, reader.info().log_min)
    total = sum(map(len, ledger.values()))
    print(f"{total} acknowledged in {KILLS} lives, {gone} bytes of the log deleted")
    assert total > 0
    assert gone > 0 or KILLS < 10
    collect(tier, grace_s=-1)
    assert verify(tier).orphans == 0
