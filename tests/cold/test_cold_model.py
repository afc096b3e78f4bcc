"""A broker's tier in an object store that fails, with kills, changes of master, deleted topics and
retention between any two steps: what was put is there once, in the store or in the tier.

``PS_COLD_LIVES`` lives a seed (`make crash-cold`: more).
"""

from __future__ import annotations

import contextlib
import os
import random
import uuid
from pathlib import Path

import pytest
from duty_kit import SEGMENT, FailingObjects, bodies_of, cold_of, opened, settle, tier_of

import pystore
from broker.services.cold.cold import Cold
from broker.services.cold.pace import WriterStopped
from pystore.cold.failures import TierUnreachable
from pystore.cold.reader import ColdReader
from pystore.cold.upkeep import collect, verify

LIVES = int(os.environ.get("PS_COLD_LIVES", "6"))
TOPICS = ("orders", "payments", "odd")


class Killed(Exception):
    """The broker ends at a request to the object store."""


class World:
    """A store, its tier, and what was put since each topic was last made."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        #: In the memory of this process: what fails is said by the test alone.
        self.cold, self.rng = f"memory:///{root.name}-{uuid.uuid4().hex}", rng
        self.sent: dict[str, dict[tuple[int, int], bytes]] = {topic: {} for topic in TOPICS}
        self.number = 0
        self.left: int | None = None

    def put(self, store: pystore.Store) -> None:
        for _ in range(self.rng.randrange(60)):
            topic, self.number = self.rng.choice(TOPICS), self.number + 1
            body = f"{topic} {self.number} ".encode() * self.rng.randrange(1, 200)
            queue = self.rng.randrange(3)
            done = store.put(topic, body, queue=queue)
            self.sent[topic][queue, done.queue_offset] = body

    def fails(self) -> str:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        return self.rng.choice(("before", "after")) if self.rng.random() < 0.05 else ""

    def begin(self, store: pystore.Store, epoch: int) -> Cold:
        cold = cold_of(store, self.cold, epoch)
        cold.uploads._segment_bytes = self.rng.choice((1 << 10, 8 << 10, 1 << 20))
        return cold

    def round(self, cold: Cold) -> None:
        try:
            if cold.handle.tier is None:
                cold.handle.tier = tier_of(self.cold)
                cold.handle.tier.objects = FailingObjects(cold.handle.tier.objects, self.fails)
            cold.round()
        except (TierUnreachable, WriterStopped):
            cold.handle.looked_s = None

    def life(self, store: pystore.Store, epoch: int) -> None:
        self.left = self.rng.randrange(40)
        cold, former = self.begin(store, epoch), None
        for _ in range(self.rng.randrange(4, 12)):
            step = self.rng.random()
            self.put(store)
            store.flush()
            if step < 0.15:
                store.clean(immediate=True)
            elif step < 0.25:
                topic = self.rng.choice(TOPICS)
                if self.sent[topic]:
                    store.delete_topic(topic)
                    self.sent[topic] = {}
            elif step < 0.35:  # two masters for a moment
                former, epoch = cold, epoch + 1
                cold = self.begin(store, epoch)
            elif step < 0.45:
                self.collect()
            for each in filter(None, (former, cold)):
                self.round(each)
            store.clean(immediate=True)

    def collect(self) -> None:
        """Deletes what is not needed, of any age: all who write look before each manifest."""
        tier = tier_of(self.cold)
        tier.objects = FailingObjects(tier.objects, self.fails)
        with contextlib.suppress(TierUnreachable):
            collect(tier, grace_s=-1)

    def check(self, store: pystore.Store) -> None:
        """Checks that everything is there, before what was interrupted goes on."""
        audit = verify(tier_of(self.cold))
        assert audit.wrong == []
        for topic in TOPICS:
            local = bodies_of(store, topic) if store.queues(topic) else {}
            assert local.items() <= self.sent[topic].items()
            missing = self.sent[topic].items() - local.items()
            if missing:
                with ColdReader(self.cold) as reader:
                    assert missing <= bodies_of(reader, topic).items(), topic


@pytest.mark.parametrize("seed", range(2))
def test_what_was_put_is_there_once_whatever_fails(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pystore.cold.tier._LOOKED_S", 0.0)
    world = World(tmp_path, random.Random(seed))
    epoch = 1
    with opened(tmp_path / "store") as store:
        for _ in range(LIVES):
            with contextlib.suppress(Killed):
                world.life(store, epoch)
            world.left = None
            world.check(store)
            epoch += 4 * world.rng.randrange(2) + 10
        settle(cold_of(store, world.cold, epoch), store)
        while store.clean(immediate=True).log_files:
            pass
        assert store.info().log_min == store.info().log_max // SEGMENT * SEGMENT
        with ColdReader(world.cold) as reader:
            for topic in TOPICS:
                assert bodies_of(reader, topic) == world.sent[topic], topic
    collect(tier_of(world.cold), grace_s=-1)
    audit = verify(tier_of(world.cold))
    assert (audit.wrong, audit.orphans) == ([], 0)
