"""A store that has one segment left, and the tier below it: what is read of both is what was read
before anything was deleted."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pystore
from pystore import Store
from pystore.cold.blocks import BLOCK, BlockCache
from pystore.cold.disk import DiskBlocks
from pystore.cold.failures import TierDamaged
from pystore.cold.lending import PLACES, Lender
from pystore.cold.objects import open_objects
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import new_tier
from pystore.errors import NotFound
from pystore.format.units import UNIT
from pystore.store._messages import GetStatus

IN_TIER = (GetStatus.IN_TIER, GetStatus.TIER_BUSY)


class Twin:
    """A store that kept everything, one that did not, and who lends to that."""

    def __init__(self, whole: Path, folder: Path) -> None:
        self.whole = pystore.Reader(whole)
        shutil.copytree(whole, folder / "store")
        self.store: Store = pystore.open(folder / "store")
        tier = new_tier(folder / "cold", "c", "b")
        push(self.whole, tier, segment_bytes=16 << 10)
        self.lender = Lender(self.store, tier, BlockCache(tier.objects))
        self.store.clean(immediate=True)
        for span in tier.spans():
            self.lender.publish(span.topic, span.queue, span)

    def read(self, topic: str, queue: int, offset: int, **options: Any) -> Any:
        while True:
            batch = self.store.read(topic, queue, offset, **options)
            if batch.status not in IN_TIER:
                return batch
            want = self.lender.take()
            assert want is not None
            self.lender.fulfil(want)

    def close(self) -> None:
        self.whole.close()
        self.store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lending") / "store"
    rng = random.Random(3)
    sizes = {"mappedFileSizeCommitLog": 1 << 16, "maxHashSlotNum": 512, "maxIndexNum": 2048}
    with pystore.open(path, **sizes, enabledAppendPropCRC=True) as store:
        for number in range(1500):
            store.put(
                ("orders", "payments")[number % 2], rng.randbytes(rng.randrange(500)),
                queue=number % 2, tags=rng.choice(["paid", "sent", "AaAa", "BBBB", None]),
                keys=f"k{number}", properties={"amount": str(number % 10)},
            )  # fmt: skip
    return path


@pytest.fixture
def twin(whole: Path, tmp_path: Path) -> Iterator[Twin]:
    made = Twin(whole, tmp_path)
    yield made
    made.close()


def messages(batch: Any) -> list[Any]:
    """Returns what has to be the same wherever it lies."""
    return [
        (m.queue_offset, bytes(m.body), m.store_timestamp,
         {name: value for name, value in m.properties.items() if name != "__CRC32#"})
        for m in batch
    ]  # fmt: skip


def test_every_read_is_as_before(twin: Twin):
    rng = random.Random(7)
    low, high = twin.store.span("orders", 0)
    assert low == 0
    assert twin.store.range("orders", 0)[0] > 100
    for _ in range(300):
        offset = rng.randrange(-3, high + 3)
        options = rng.choice(
            [
                {},
                {"tags": "paid"},
                {"tags": "AaAa || sent"},
                {"sql": "amount > 7"},
                {"tags": "none"},
            ]
        )
        most = rng.choice([1, 32, 500])
        at = offset
        wanted = twin.whole.read("orders", 0, offset, max_messages=most, **options)
        got = twin.read("orders", 0, at, max_messages=most, **options)
        found = messages(got)
        while got.next_offset < wanted.next_offset:  # what is lent may end a read earlier
            got = twin.read(
                "orders", 0, got.next_offset, max_messages=most - len(found) or 1, **options
            )
            found += messages(got)
        assert found[:most] == messages(wanted), (offset, options, most)
        if not wanted:
            assert (got.status, got.next_offset) == (wanted.status, wanted.next_offset)


def test_places_lead_to_their_messages_and_never_into_the_log(twin: Twin):
    message = twin.lender.message("orders", 0, 40)
    assert message is not None
    assert message.physical_offset >= PLACES
    assert twin.store.message(message.physical_offset).keys == message.keys
    twin.lender.publish("orders", 0, None)  # nothing is lent any more
    twin.lender.publish("orders", 0, twin.lender.tier.span("orders", 0))
    with pytest.raises(NotFound):
        twin.store.message(message.physical_offset)
    twin.lender.bring(message.physical_offset)
    assert twin.store.message(message.physical_offset).keys == message.keys
    with pytest.raises(NotFound):
        twin.lender.bring(message.physical_offset + 1)


class Lying:
    """An object store that answers wrongly for a while."""

    def __init__(self, objects: Any, lie: Callable[[bytes], bytes], times: int) -> None:
        self._objects, self._lie, self.times = objects, lie, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def get(self, key: str, start: int, end: int) -> bytes:
        data = bytes(self._objects.get(key, start, end))
        if self.times > 0 and "COMMIT_LOG" in key:
            self.times -= 1
            return self._lie(data)
        return data


def lied_to(
    twin: Twin, lie: Callable[[bytes], bytes], times: int, passes_over: bool = False
) -> Lender:
    tier = twin.lender.tier
    objects: Any = Lying(tier.objects, lie, times)
    return Lender(twin.store, tier, BlockCache(objects), passes_over=passes_over)


def flip(data: bytes) -> bytes:
    return data[:120] + bytes([data[120] ^ 1]) + data[121:]


def test_a_wrong_answer_is_asked_for_again(twin: Twin):
    twin.lender = lied_to(twin, flip, 1)
    assert messages(twin.read("orders", 0, 0)) == messages(twin.whole.read("orders", 0, 0))
    assert twin.lender.damaged == 0


def test_a_wrong_unit_is_asked_for_again(twin: Twin):
    (extent, *_) = twin.lender.tier.extents("orders", 0, 0, 1 << 40)

    def lie(data: bytes) -> bytes:
        return data[: extent.at + 65] + bytes([data[extent.at + 65] ^ 1]) + data[extent.at + 66 :]

    twin.lender = lied_to(twin, lie, 1)
    assert messages(twin.read("orders", 0, 0)) == messages(twin.whole.read("orders", 0, 0))
    assert twin.lender.damaged == 0


@pytest.mark.parametrize("reads", ["a broker", "a reader"])
def test_a_wrong_hash_of_tags_hides_nothing(twin: Twin, reads: str):
    """No record is looked at whose unit says that it has other tags."""
    wanted = twin.whole.read("orders", 0, 0, tags="paid", max_messages=8)
    (extent, *_) = twin.lender.tier.extents("orders", 0, 0, 1 << 40)
    at = extent.at + wanted[0].queue_offset * UNIT.size + UNIT.size - 1

    def lie(data: bytes) -> bytes:
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    if reads == "a broker":
        twin.lender = lied_to(twin, lie, 1)
        found = twin.read("orders", 0, 0, tags="paid", max_messages=8)
        if not found:  # it ends where the tier is asked for records
            found = twin.read("orders", 0, found.next_offset, tags="paid", max_messages=8)
    else:
        objects: Any = Lying(twin.lender.tier.objects, lie, 1)
        reader = ColdReader.over(twin.lender.tier, BlockCache(objects))
        found = reader.read("orders", 0, 0, tags="paid", max_messages=8)
    assert found[0].queue_offset == wanted[0].queue_offset


def test_a_wrong_hash_beside_very_many_keys_hides_nothing(tmp_path: Path):
    """Units and keys have no size from which on they are believed."""
    words = " ".join(f"{number:03x}" for number in range(1 << 12))
    with pystore.open(tmp_path / "store") as store:
        for _ in range(150):
            store.put("orders", b"", queue=0, tags="paid", keys=words)
    tier = new_tier(tmp_path / "cold", "c", "b")
    with pystore.Reader(tmp_path / "store") as source:
        push(source, tier)
    (extent,) = tier.extents("orders", 0, 0, 1 << 40)
    assert extent.whole - extent.at > 4 << 20
    at, left, get = extent.at + 41 * UNIT.size - 1, 0, tier.objects.get

    def lies(key: str, start: int, end: int) -> bytes:
        nonlocal left
        data = bytearray(get(key, start, end))
        if left > 0 and start <= at < end:
            left -= 1
            data[at - start] ^= 1
        return bytes(data)

    objects: Any = SimpleNamespace(get=lies)
    blocks = BlockCache(objects)
    reader = ColdReader.over(tier, blocks)
    for _ in range(2):  # found by the sum of all, and then by that of a block
        left = 1
        blocks.forget(extent.key)
        found = reader.read("orders", 0, 40, tags="paid", max_messages=1)
        assert (found[0].queue_offset, left) == (40, 0)
    left = 99
    blocks.forget(extent.key)
    with pytest.raises(TierDamaged, match="CRC"):
        reader.read("orders", 0, 40, tags="paid", max_messages=1)


def bytes_of(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose records have sums of their bodies alone, as is upstream's default."""
    path = tmp_path_factory.mktemp("bare") / "store"
    sizes = {"mappedFileSizeCommitLog": 1 << 16, "maxHashSlotNum": 512, "maxIndexNum": 2048}
    with pystore.open(path, **sizes) as store:
        for number in range(400):
            store.put("orders", bytes(300), queue=0, tags="paid", properties={"n": str(number)})
    return path


@pytest.mark.parametrize("reads", ["a broker", "a reader"])
def test_no_byte_of_a_record_that_came_wrong_is_believed(bare: Path, tmp_path: Path, reads: str):
    """Times, hosts and properties have no sum in the record."""
    twin = Twin(bare, tmp_path)
    (wanted,) = twin.whole.read("orders", 0, 0, max_messages=1)
    tier = twin.lender.tier
    span = tier.span("orders", 0)
    names = ("raw_properties", "flag", "born_timestamp", "born_host", "store_timestamp", "raw_body")
    told = {name: bytes_of(getattr(wanted, name)) for name in names}
    for at in range(wanted.size):
        twin.lender = lied_to(
            twin, lambda data, at=at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 1
        )
        if reads == "a reader":
            reader = ColdReader.over(tier, twin.lender.blocks)
            (got,) = reader.read("orders", 0, 0, max_messages=1)
        else:
            twin.lender.publish("orders", 0, None)
            twin.lender.publish("orders", 0, span)
            (got,) = twin.read("orders", 0, 0, max_messages=1)
        assert twin.lender.blocks._objects.times == 0
        assert {name: bytes_of(getattr(got, name)) for name in names} == told, at
    twin.close()


def test_damaged_hashes_of_tags_are_named(twin: Twin, caplog: pytest.LogCaptureFixture):
    (extent, *_) = twin.lender.tier.extents("orders", 0, 0, 1 << 40)
    at = extent.at + UNIT.size - 1
    twin.lender = lied_to(twin, lambda data: data[:at] + b"\x7f" + data[at + 1 :], 1000, True)
    with caplog.at_level("WARNING", "pystore"):
        twin.read("orders", 0, 0)
    assert f"Filters may miss messages of the cold tier: {extent.key}" in caplog.text


@pytest.mark.parametrize("part", ["a record", "a unit"])
def test_nobody_goes_on_after_what_stays_wrong(twin: Twin, part: str):
    (extent, *_) = twin.lender.tier.extents("orders", 0, 0, 1 << 40)
    at = 120 if part == "a record" else extent.at + UNIT.size - 1
    lie = lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]  # noqa: E731
    twin.lender = lied_to(twin, lie, 1000)
    reader = ColdReader.over(twin.lender.tier, twin.lender.blocks)
    with pytest.raises(TierDamaged, match=r"damaged twice|CRC"):
        twin.read("orders", 0, 0, tags="paid || sent || AaAa || BBBB")
    with pytest.raises(TierDamaged, match=r"damaged twice|CRC"):
        reader.read("orders", 0, 0, tags="paid || sent || AaAa || BBBB")
    got = twin.store.read("orders", 0, 0)
    assert (got.status, got.next_offset) == (GetStatus.IN_TIER, 0)


def test_what_is_wrong_twice_costs_that_message_where_an_operator_says_so(
    twin: Twin, caplog: pytest.LogCaptureFixture
):
    twin.lender = lied_to(twin, flip, 1000, True)
    with caplog.at_level("WARNING", "pystore"):
        got = twin.read("orders", 0, 0)
    assert [m.queue_offset for m in got][:3] == [1, 2, 3]
    assert (got.damaged, got.first_damaged) == (1, 0)
    assert twin.lender.damaged == 1
    assert "Skipped in the cold tier: 1 of the records of orders/0" in caplog.text


def test_what_is_fetched_while_a_topic_is_made_again_is_not_lent(twin: Twin):
    """Its name, and its offsets, are those of another queue by then."""
    lender, span = twin.lender, twin.lender.tier.span("orders", 0)
    twin.read("orders", 0, 0)
    twin.store.read("orders", 0, 600)
    want = lender.take()
    assert want is not None
    fetch = lender.blocks.get

    def get(*args: Any, **more: Any) -> bytes:
        lender.publish("orders", 0, None)
        lender.publish("orders", 0, span)
        return fetch(*args, **more)

    lender.blocks.get = get  # type: ignore[method-assign]
    lender.fulfil(want)
    assert twin.store.read("orders", 0, 600).status == GetStatus.IN_TIER


def test_a_block_that_is_on_its_way_while_its_object_is_forgotten_is_not_kept(tmp_path: Path):
    """Who found that the object came wrong would get it again, from the disk."""
    objects, disk = open_objects(tmp_path / "objects"), DiskBlocks(tmp_path / "disk", BLOCK, BLOCK)
    cache = BlockCache(objects, 2 * BLOCK, disk)

    def get(key: str, start: int, end: int) -> bytes:
        cache.forget(key)
        return b"wrong"

    objects.get = get  # type: ignore[method-assign]
    assert cache.get("a", 0, 5, 5) == b"wrong"
    assert disk.size == 0
    cache.close()
    disk.close()


def test_an_object_that_is_gone_is_no_reason_to_go_on(twin: Twin, tmp_path: Path):
    for each in (tmp_path / "cold").rglob("orders/0/COMMIT_LOG/*"):
        each.unlink()
    twin.store.read("orders", 0, 5)
    want = twin.lender.take()
    assert want is not None
    with pytest.raises(TierDamaged, match="missing"):
        twin.lender.fulfil(want)
    again = twin.store.read("orders", 0, 5)
    assert (again.status, again.next_offset) == (GetStatus.IN_TIER, 5)


def test_blocks_are_counted_where_they_are_found(tmp_path: Path):
    objects, whole = open_objects(tmp_path / "objects"), 5 * BLOCK
    objects.put_new("a", bytes(whole))
    disk = DiskBlocks(tmp_path / "disk", 4 * BLOCK, BLOCK)
    cache = BlockCache(objects, 2 * BLOCK, disk)
    for number in (0, 0, 1, 2, 0):
        cache.get("a", number * BLOCK, number * BLOCK + 1, whole)
    assert (cache.hits, cache.misses, cache.fetched) == (1, 3, 3 * BLOCK)
    assert (cache.evictions, cache.size) == (2, 2 * BLOCK)
    assert (disk.hits, disk.evictions, disk.size) == (1, 0, 3 * BLOCK)
    cache.close()
    disk.close()


def test_blocks_on_the_disk_are_bounded_and_checked(tmp_path: Path):
    disk = DiskBlocks(tmp_path, 10 * BLOCK, BLOCK)
    assert list(tmp_path.iterdir()) == []  # nothing is left of it, whatever ends the process
    for number in range(20):
        disk.put(("object", number), bytes([number]) * 1000)
        disk.get(("object", 0))
    assert (disk.hits, disk.evictions, disk.size) == (20, 10, 10_000)
    assert disk.get(("object", 0)) == bytes(1000)  # asked for again and again
    assert disk.get(("object", 1)) is None
    assert disk.get(("object", 19)) == b"\x13" * 1000
    os.pwrite(disk._file.fileno(), b"x" * 10 * BLOCK, 0)
    assert disk.get(("object", 19)) is None
    assert disk.failures == 1
    disk.forget("object")
    assert disk.get(("object", 0)) is None
    disk.close()
