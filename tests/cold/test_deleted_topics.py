"""What a deleted topic leaves in the tier: nothing, once all who write have looked. What is made
again under its name mixes with nothing of before, wherever a collector was killed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from duty_kit import FailingObjects, bodies_of, cold_of, opened, settle, tier_of

import pystore
from pystore.cold.failures import TierDamaged, TierTaken
from pystore.cold.places import Floor
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier
from pystore.cold.upkeep import collect, remove, verify

QUEUES = 3


class Killed(Exception):
    """The collector ends at a request."""


def killing(tier: Tier, left: int) -> Tier:
    """Has so many of a tier's requests succeed; the next one ends the process."""
    count = left

    def fails() -> str:
        nonlocal count
        count -= 1
        if count < 0:
            raise Killed
        return ""

    tier.objects = FailingObjects(tier.objects, fails)
    return tier


def fill(path: Path, body: bytes) -> dict[tuple[int, int], bytes]:
    with pystore.open(path) as store:
        for number in range(30):
            store.put("orders", body + b"%d" % number, queue=number % QUEUES)
        store.put("kept", b"kept", queue=0)
        return bodies_of(store, "orders")


def push_of(path: Path, root: Path, topic: str) -> None:
    with pystore.Reader(path) as store:
        push(store, tier_of(root), topics=[topic], segment_bytes=1 << 10)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tier out of which a topic of three queues was taken."""
    root = tmp_path / "cold"
    fill(tmp_path / "before", b"before ")
    for topic in "orders", "kept":
        push_of(tmp_path / "before", root, topic)
    remove(tier_of(root), "orders")
    return root


def names(root: Path) -> list[str]:
    return sorted(each.key for each in tier_of(root).objects.find(""))


def made_again(tmp_path: Path, root: Path) -> None:
    """Makes the topic again, and checks that it is what the tier has, behind all that was."""
    now = fill(tmp_path / "again", b"now ")
    push_of(tmp_path / "again", root, "orders")
    with ColdReader(root) as reader:
        assert bodies_of(reader, "orders") == now
        assert bodies_of(reader, "kept") == {(0, 0): b"kept"}
    assert verify(tier_of(root)).wrong == []


def test_nothing_stays_but_where_the_next_queue_begins(tmp_path: Path, root: Path):
    last = [tier_of(root).manifest("orders", queue) for queue in range(QUEUES)]
    before = [name for name in names(root) if "COMMIT_LOG" in name]
    for _ in range(3):
        collect(tier_of(root), grace_s=-1)
    left = [name for name in names(root) if "kept" not in name]
    floor = Floor(max(m.version for m in last), max(m.next_base for m in last))
    assert left == [floor.key]
    assert verify(tier_of(root)).orphans == 0
    made_again(tmp_path, root)
    for queue in range(QUEUES):
        made = tier_of(root).manifest("orders", queue)
        assert made.version > floor.version and made.rows[0].base >= floor.base
    assert not set(before) & {name for name in names(root) if "orders" in name}


def test_a_manifest_stays_until_the_floor_is_as_old_as_what_is_collected(root: Path):
    for _ in range(2):
        collect(tier_of(root), grace_s=-1)
    assert tier_of(root).floor.version == 2
    assert len([name for name in names(root) if "MANIFEST/orders/" in name]) == QUEUES
    collect(tier_of(root), grace_s=3600)
    assert len([name for name in names(root) if "MANIFEST/orders/" in name]) == QUEUES


def test_a_collector_that_is_killed_anywhere_leaves_what_the_next_one_ends(
    tmp_path: Path, root: Path
):
    ended = left = 0
    while not ended:
        with contextlib.suppress(Killed):
            for _ in range(3):
                collect(killing(tier_of(root), left), grace_s=-1)
            ended = 1
        assert verify(tier_of(root)).wrong == []
        left += 1
    assert left > 10
    made_again(tmp_path, root)


@pytest.mark.parametrize("kills", range(0, 40, 3))
def test_a_topic_that_is_made_again_after_a_kill_mixes_with_nothing(
    tmp_path: Path, root: Path, kills: int
):
    left = kills
    with contextlib.suppress(Killed):
        for _ in range(3):
            collect(killing(tier_of(root), left), grace_s=-1)
    made_again(tmp_path, root)
    for _ in range(3):
        collect(tier_of(root), grace_s=-1)
    with ColdReader(root) as reader:
        assert len(bodies_of(reader, "orders")) == 30
    assert verify(tier_of(root)).orphans == 0


def test_who_knew_the_queue_hears_of_no_loss(root: Path):
    """As a broker does, which reads each manifest that is new."""
    tier = tier_of(root)
    assert [m.is_empty for m in tier.load_all("orders")] == [True] * QUEUES
    for _ in range(3):
        collect(tier_of(root), grace_s=-1)
    tier.refresh()
    assert tier.spans("orders") == []
    assert tier.queues() == [("kept", 0)]


def test_a_manifest_that_somebody_else_deleted_is_missed(root: Path):
    tier = tier_of(root)
    list(tier.load_all("orders"))
    for name in names(root):
        if "MANIFEST/orders/" in name:
            tier.objects.delete([name])
    tier.refresh()
    with pytest.raises(TierDamaged, match="a manifest that was there is gone"):
        tier.spans("orders")


def test_a_writer_of_long_ago_does_not_bring_back_what_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "cold"
    fill(tmp_path / "before", b"before ")
    push_of(tmp_path / "before", root, "orders")
    stale = tier_of(root)
    known = stale.manifest("orders", 0)
    remove(tier_of(root), "orders")
    for _ in range(3):
        collect(tier_of(root), grace_s=-1)
    monkeypatch.setattr("pystore.cold.tier._LOOKED_S", 0.0)
    with pytest.raises(TierTaken):
        stale.publish(known.kept_from(0, 0, stale.writer))
    assert [name for name in names(root) if "orders" in name] == []


def test_a_broker_whose_topics_are_all_deleted_starts_and_goes_on(tmp_path: Path):
    root = tmp_path / "cold"
    with opened(tmp_path / "store") as store:
        store.put("orders", b"before", queue=0)
        settle(cold_of(store, root), store)
        store.delete_topic("orders")
        cold = cold_of(store, root)
        for _ in range(3):
            cold.round()
            collect(tier_of(root), grace_s=-1)
            cold.handle.looked_s = None
        assert [name for name in names(root) if "orders" in name] == []
        cold.round()
        assert cold.problem == ""
        started = cold_of(store, root)
        started.round()
        assert started.problem == ""
        store.put("orders", b"now", queue=0)
        settle(started, store)
        with ColdReader(root) as reader:
            assert bodies_of(reader, "orders") == {(0, 0): b"now"}


def test_a_log_that_reaches_far_keeps_its_manifest(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pystore.cold.upkeep._FLOOR_MAX", 0)
    for _ in range(3):
        collect(tier_of(root), grace_s=-1)
    assert len([name for name in names(root) if "MANIFEST/orders/" in name]) == QUEUES
