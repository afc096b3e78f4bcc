"""Listings that are old or cut, and an object store that was set back: nothing is passed over or
deleted by what they say, and what is gone is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from duty_kit import bodies_of, cold_of, opened, settle, tier_of

import pystore
from pystore.cold.failures import NotATier, TierDamaged, TierTaken, TierUnreachable
from pystore.cold.objects import StoredObject
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier
from pystore.cold.upkeep import collect, set_epoch, verify

Shows = Callable[[str, str], bool]
LATEST = (1 << 62) - 1


class OldListing:
    """An object store whose listings lack something; what is asked for by name is as it is. shows:
    whether a listing of a prefix has a key."""

    def __init__(self, objects: Any, shows: Shows) -> None:
        self._objects, self._shows = objects, shows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def find(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        found = self._objects.find(prefix, after)
        return (each for each in found if self._shows(prefix, each.key))


def lacks_the_last(prefix: str, key: str) -> bool:
    return not key.endswith("/0/" + "2".zfill(20))


def lacks_manifests(prefix: str, key: str) -> bool:
    return prefix != "rmq_sys_MANIFEST/"


def old(tier: Tier, shows: Shows) -> Tier:
    objects: Any = OldListing(tier.objects, shows)
    return Tier(objects, tier.cluster, tier.broker)


def fill(store: pystore.Store) -> None:
    for _ in range(300):
        store.put("orders", bytes(400), queue=0)
    store.flush()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[pystore.Store]:
    """One whose messages were written out in two versions of a manifest."""
    with opened(tmp_path / "store") as made:
        for _ in range(2):
            fill(made)
            push(made, tier_of(tmp_path / "cold"), segment_bytes=16 << 10)
        yield made


def check(root: Path, count: int = 600) -> None:
    assert verify(tier_of(root)).wrong == []
    assert len(bodies_of(ColdReader(root), "orders")) == count


@pytest.mark.parametrize("shows", [lacks_the_last, lacks_manifests])
def test_a_collector_deletes_nothing_for_what_a_listing_lacks(
    tmp_path: Path, store: pystore.Store, shows: Shows
):
    root = tmp_path / "cold"
    collect(old(tier_of(root), shows), grace_s=-1)
    check(root)


def test_what_was_known_once_stays_known(tmp_path: Path, store: pystore.Store):
    tier = tier_of(tmp_path / "cold")
    tier.objects = OldListing(tier.objects, lacks_the_last)  # type: ignore[assignment]
    tier.refresh()
    assert tier.manifest("orders", 0).end == 600


def test_a_writer_with_an_old_listing_goes_on_where_the_other_ended(
    tmp_path: Path, store: pystore.Store
):
    root = tmp_path / "cold"
    tier = old(tier_of(root), lacks_the_last)
    fill(store)
    with pytest.raises(TierTaken):
        push(store, tier)
    push(store, tier)
    check(root, 900)


def test_a_broker_that_starts_with_an_old_listing_hides_nothing(
    tmp_path: Path, store: pystore.Store, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "cold"
    settle(cold_of(store, root), store)
    while store.clean(immediate=True).log_files:
        pass
    cold = cold_of(store, root)
    monkeypatch.setattr(cold.handle, "_opened", lambda: old(tier_of(root), lacks_the_last))
    cold.round()
    span = cold.handle.span("orders", 0)
    assert span is not None and span.end == 600
    assert cold.problem == ""


def test_an_object_store_that_was_set_back_is_named_and_takes_nothing_else(
    tmp_path: Path, store: pystore.Store
):
    root, before = tmp_path / "cold", tmp_path / "before"
    cold = cold_of(store, root)
    settle(cold, store)
    shutil.copytree(root, before)
    fill(store)
    settle(cold, store)
    shutil.rmtree(root)
    before.rename(root)
    cold.handle.looked_s = None
    for _ in range(3):
        cold.round()
    with pytest.raises(TierDamaged, match="a manifest that was there is gone"):
        cold.handle.tier.manifest("orders", 0)  # type: ignore[union-attr]
    fill(store)
    while store.clean(immediate=True).log_files:
        pass
    cold.round()
    assert "a manifest that was there is gone" in cold.problem
    here = store.queues("orders")[0]
    assert here.min_offset < 600, "what the older state lacks is here"
    # A broker that starts anew writes it out again.
    settle(cold_of(store, root), store)
    check(root, 1200)


def test_what_an_older_state_and_the_store_both_lack_is_named(tmp_path: Path, store: pystore.Store):
    root, before = tmp_path / "cold", tmp_path / "before"
    shutil.copytree(root, before)
    fill(store)
    settle(cold_of(store, root), store)
    while store.clean(immediate=True).log_files:
        pass
    begin = store.queues("orders")[0].min_offset
    assert begin > 600
    shutil.rmtree(root)
    before.rename(root)
    cold = cold_of(store, root)
    cold.handle.look()
    gap = f"offsets 600 to {begin - 1} of orders/0"
    assert cold.problem == f"{gap} are neither here nor in the tier"


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
def test_a_folder_whose_mount_is_away_is_not_an_empty_tier(
    tmp_path: Path, store: pystore.Store, left: str
):
    root, away = tmp_path / "cold", tmp_path / "away"
    running = cold_of(store, root)
    settle(running, store)
    root.rename(away)
    if left == "an empty folder":
        root.mkdir()
    started = cold_of(store, root)
    store.put("new", b"x", queue=0)
    fill(store)
    for cold, named in ((running, TierUnreachable), (started, NotATier)):
        for _ in range(3):
            with pytest.raises(named):
                cold.round()
                cold.handle.looked_s = None
        assert store.clean(immediate=True).log_files == 0 or cold is running
    assert list(root.rglob("*")) == []
    shutil.rmtree(root, ignore_errors=True)
    away.rename(root)
    for cold in (running, started):
        settle(cold, store)
    check(root, 900)


def test_a_later_epoch_of_nobody_s_fences_until_it_is_taken_away(
    tmp_path: Path, store: pystore.Store
):
    root = tmp_path / "cold"
    tier = tier_of(root)
    last = tier.manifest("orders", 0)
    tier.publish(last._replace(version=last.version + 1, epoch=LATEST))
    fill(store)
    cold = cold_of(store, root, epoch=3)
    for _ in range(3):
        cold.round()
    assert f"in epoch {LATEST}, and this master is of epoch 3" in cold.problem
    assert "pystore cold epoch TIER 3" in cold.problem
    assert set_epoch(tier_of(root), 3) == 1
    cold.handle.looked_s = None  # its next look
    settle(cold, store)
    assert cold.problem == ""
    check(root, 900)
