"""A broker that has a segment and its tier answers as one that keeps everything, whatever happens
meanwhile: uploads, local deletion, restarts, topics made again.

``PS_COLD_TWINS`` requests (`make twin-cold`: 100,000); the short run is the same each time.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest
from waiting import until_async

from broker.services.cold import cold
from pystore.cold import objects
from pystore.cold.tier import new_tier
from pystore.cold.upkeep import verify
from tests.cold.faulty_s3 import FaultyS3, faulty_s3
from tests.cold.twins import TOPICS, Asking, Twins

REQUESTS = int(os.environ.get("PS_COLD_TWINS", "0"))
#: Requests between two changes, about.
A_CHANGE = 60
#: Requests of one pair of brokers: each has thousands of groups by then, which are written out over
#: and over.
A_PAIR = 5_000


async def ask_both(root: Path, tier: str, rng: random.Random, requests: int) -> None:
    twins = Twins(root, tier, rng)
    await twins.start()
    try:
        await twins.burst(300)
        await twins.thin.thin_out()
        asking = Asking(twins)
        while asking.asked < requests:
            if rng.random() < 1 / A_CHANGE:
                await twins.change()
            await asking.one()
        print(f"{asking.asked} requests are answered equally")
    finally:
        await twins.stop()


def test_who_asks_does_not_notice_that_messages_are_in_the_tier(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cold, "_ROUND_S", 0.01)
    rng = random.Random(seed if REQUESTS else 49)
    for left in range(REQUESTS or 300, 0, -A_PAIR):
        root = tmp_path / str(left)
        root.mkdir()
        asyncio.run(ask_both(root, str(root / "cold"), rng, min(left, A_PAIR)))
        shutil.rmtree(root)


async def ask_beside_faults(
    root: Path, tier: str, server: FaultyS3, rng: random.Random, requests: int
) -> None:
    twins = Twins(root, tier, rng)
    await twins.start()
    try:
        await twins.burst(200)
        server.fails = True
        await twins.thin.thin_out()
        asking = Asking(twins)
        while asking.asked < requests:
            if rng.random() < 1 / A_CHANGE:
                await twins.change()
            await asking.one()
        print(f"{asking.asked} requests are answered equally over an S3 that fails", flush=True)
        server.away = True
        await twins.burst(50)
        await until_async(lambda: server.faults["away"] > 0, "somebody asks")
        await twins.thin.stop()
        server.away = False
        await twins.thin.start()
        await twins.thin.thin_out()
        while asking.asked < requests + 20:
            await asking.one()
    finally:
        server.away = server.fails = False
        await twins.stop()


def test_who_asks_does_not_notice_that_the_object_store_fails(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, s3: str
):
    """One request in five is refused, lost, cut, late or wrong; and it is away for a while. A tenth
    of the requests goes here."""
    monkeypatch.setattr(cold, "_ROUND_S", 0.01)
    # The campaign is run beside others, where a sound answer may take a second.
    answer_s = 5 if REQUESTS else 1
    rng = random.Random(seed if REQUESTS else 7)
    for left in range(REQUESTS // 10 or 50, 0, -A_PAIR):
        root, tier = tmp_path / str(left), f"{s3}/faults-{left}"
        root.mkdir()
        with faulty_s3(os.environ["AWS_ENDPOINT_URL"], random.Random(rng.random())) as server:
            server.late_s = answer_s + 1
            with monkeypatch.context() as impatient:
                impatient.setattr(objects, "_ANSWER_S", answer_s)
                asyncio.run(ask_beside_faults(root, tier, server, rng, min(left, A_PAIR)))
        print(dict(server.faults))
        assert set(server.faults) >= {"away", "closed", "lost", "cut"}
        assert verify(new_tier(tier, "DefaultCluster", "DEFAULT_BROKER")).wrong == []
        shutil.rmtree(root)


async def lose_the_disk(root: Path, rng: random.Random) -> None:
    twins = Twins(root, str(root / "cold"), rng)
    await twins.start()
    try:
        await twins.burst(200)
        await twins.thin.thin_out()
        await twins.thin.stop()
        shutil.rmtree(twins.thin.path)
        await twins.thin.start()
        twins.make(twins.thin, *TOPICS)  # how many queues a topic has was on the disk
        await twins.burst(100)
        asking = Asking(twins)
        asking.kinds = tuple(each for each in asking.kinds if each[0] != asking.offsets)
        while asking.asked < 60:
            await asking.one()
        await twins.thin.restart()
        await twins.burst(100)
        await twins.thin.thin_out()
        while asking.asked < 120:
            await asking.one()
    finally:
        await twins.stop()
    assert verify(new_tier(root / "cold", "DefaultCluster", "DEFAULT_BROKER")).wrong == []


def test_a_broker_whose_disk_is_lost_goes_on_where_its_tier_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cold, "_ROUND_S", 0.01)
    asyncio.run(lose_the_disk(tmp_path, random.Random(7)))
