"""Manifests and objects that somebody else has written or damaged: named, and bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cold.failures import NotATier, TierDamaged
from pystore.cold.manifest import MANIFEST_MAX
from pystore.cold.objects import open_objects
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier, new_tier, open_tier
from pystore.cold.upkeep import collect, remove, verify

HUGE = (1 << 63) - 1
ROW = {"base": 0, "size": 1, "records": 2, "first": 3, "count": 4, "keys": 5, "crc": 8}


@pytest.fixture
def tier(filled: Path, tmp_path: Path) -> Tier:
    tier = new_tier(tmp_path / "cold", "c1", "broker-a")
    with pystore.Reader(filled) as store:
        push(store, tier, topics=["orders"], segment_bytes=8 << 10)
    return tier


def manifest_file(tier: Tier) -> Path:
    return Path(tier.objects.address, "rmq_sys_MANIFEST/orders/0", f"{1:020d}")


def edit(tier: Tier, change: Callable[[Any], Any]) -> None:
    path = manifest_file(tier)
    value = json.loads(path.read_bytes())
    path.write_bytes(json.dumps(change(value) or value).encode())


def set_row(number: int, name: str, value: Any) -> Callable[[Any], Any]:
    return lambda manifest: manifest["rows"][number].__setitem__(ROW[name], value)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "count": (set_row(0, "count", HUGE), "do not add up"),
    "keys": (set_row(0, "keys", 1 << 40), "do not add up"),
    "size": (set_row(1, "size", 1 << 50), "do not add up"),
    "negative": (set_row(0, "base", -1), "-1 is not a number"),
    "fraction": (set_row(0, "first", 1.5), "1.5 is not a number"),
    "truth": (set_row(0, "first", True), "True is not a number"),
    "text": (set_row(0, "first", "../../etc"), "is not a number"),
    "overlap": (set_row(1, "first", 0), "lies within another"),
    "short row": (lambda m: m["rows"].append([1]), "a manifest is wrong"),
    "rows": (lambda m: m.update(rows=7), "a manifest is wrong"),
    "end": (lambda m: m.update(end=HUGE), "its segments end at offset"),
    "low": (lambda m: m.update(low=HUGE), "it begins at offset"),
    "next": (lambda m: m.update(next_base=0), "would begin within the last"),
    "format": (lambda m: m.update(format=2), "it has format 2"),
    "topic": (lambda m: m.update(topic="../x"), "of another queue"),
    "list": (lambda m: [m], "a manifest is wrong"),
    "pages": (lambda m: m.update(pages=[[1] * 9] * 20_000), "it has 20000 pages"),
    "page": (lambda m: m.update(pages=[[1, HUGE, 1, 1, 0, 1, 0, 1, 1]]), "cannot be"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_cannot_be_is_named(tier: Tier, change: str):
    edit(tier, CHANGES[change][0])
    reader = ColdReader(tier.objects.address)
    with pytest.raises(TierDamaged, match=CHANGES[change][1]):
        reader.read("orders", 0, 0)
    assert len(reader.read("orders", 1, 0)) > 0  # others' queues are there
    assert any(CHANGES[change][1] in text for text in verify(open_own(tier)).wrong)
    # What cannot be read keeps its objects.
    assert collect(open_own(tier), grace_s=-1) == (0, 0)


def open_own(tier: Tier) -> Tier:
    found = open_tier(tier.objects.address)
    assert isinstance(found, Tier)
    return found


@pytest.mark.parametrize("data", [b"", b"{", b"\xff" * 50, b"[" * 100_000, b"null"])
def test_what_is_not_a_manifest_is_named(tier: Tier, data: bytes):
    manifest_file(tier).write_bytes(data)
    with pytest.raises(TierDamaged, match="a manifest is wrong"):
        ColdReader(tier.objects.address).read("orders", 0, 0)


def test_a_huge_manifest_takes_no_memory(tier: Tier):
    with manifest_file(tier).open("r+b") as file:
        file.truncate(100 * MANIFEST_MAX)
    tracemalloc.start()
    with pytest.raises(TierDamaged, match="a manifest has 419430400 bytes"):
        ColdReader(tier.objects.address).read("orders", 0, 0)
    assert tracemalloc.get_traced_memory()[1] < MANIFEST_MAX
    tracemalloc.stop()


def test_a_name_that_leads_out_of_the_tier_is_refused(tmp_path: Path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "cold").mkdir()
    for address in (str(tmp_path / "cold"), "memory:///outside"):
        objects = open_objects(address)
        for key in ("../secret", "a/../../secret", "/etc/passwd", "a//b", ""):
            with pytest.raises(TierDamaged, match="leads out of the tier"):
                objects.get(key, 0, 6)
            with pytest.raises(TierDamaged, match="leads out of the tier"):
                objects.put_new(key, b"x")
    (tmp_path / "cold" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(pystore.StoreError):
        open_objects(tmp_path / "cold").get("link", 0, 6)


def damaged(tier: Tier, change: Callable[[bytearray], Any]) -> str:
    """Damages the first segment of orders/0; returns its name."""
    path = Path(tier.objects.address, tier.key_of("orders", 0, 0))
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data) or data)
    return path.name


def test_a_flipped_bit_costs_one_message_and_is_found(tier: Tier):
    name = damaged(tier, lambda data: data.__setitem__(100, data[100] ^ 1))
    with ColdReader(tier.objects.address) as reader:
        batch = reader.read("orders", 0, 0)
        assert (batch.damaged, batch.first_damaged, batch.offsets()[0]) == (1, 0, 1)
        with pytest.raises(TierDamaged, match="another CRC than its manifest says"):
            list(reader.messages())
    assert [name in text for text in verify(tier).wrong] == [True]


def test_an_object_that_is_cut_is_named_and_not_read_as_less(tier: Tier):
    name = damaged(tier, lambda data: data[: len(data) // 2])
    with ColdReader(tier.objects.address) as reader, pytest.raises(TierDamaged, match="bytes from"):
        reader.read("orders", 0, 0)
    assert [name in text for text in verify(tier, quick=True).wrong] == [True]


def test_an_object_that_is_gone_is_named(tier: Tier):
    Path(tier.objects.address, tier.key_of("orders", 0, 0)).unlink()
    with ColdReader(tier.objects.address) as reader, pytest.raises(TierDamaged, match="not there"):
        reader.read("orders", 0, 0)
    audit = verify(tier)
    assert len(audit.wrong) == 1
    assert "are lost" in audit.wrong[0]
    remove(tier, "orders", 0)
    assert verify(open_own(tier)).wrong == []


def test_strangers_objects_stay(tier: Tier):
    """Of what does not have one of our names nothing is deleted, nor read."""
    name = Path(tier.key_of("orders", 0, 0)).name
    strangers = [f"orders/\N{SUPERSCRIPT TWO}/COMMIT_LOG/{name}",
                 "rmq_sys_MANIFEST/orders/\N{SUPERSCRIPT TWO}/page-1",
                 "notes.txt", "orders/0/COMMIT_LOG/zzz", "orders/0/INDEX/x", "a/b/c/d",
                 "rmq_sys_MANIFEST/orders/0/readme"]  # fmt: skip
    for key in strangers:
        tier.objects.put_new(key, b"somebody else's")
    assert collect(tier, grace_s=-1)[0] == 0
    assert len(ColdReader(tier.objects.address).read("orders", 0, 0)) > 0


def test_where_nothing_is_there_is_said(tmp_path: Path):
    for address in ("memory:///nothing/at/all", "memory:///nothing"):
        with pytest.raises(NotATier, match="no cold tier there"):
            pystore.Reader(address)
    (tmp_path / "empty").mkdir()
    with pytest.raises(pystore.NotAStore):
        pystore.Reader(tmp_path / "empty")
