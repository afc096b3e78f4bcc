"""Searches that halve a row: one damaged item must not send them to the wrong half, where every
message of the other half is hidden."""

from __future__ import annotations

import shutil
import struct
import time
from pathlib import Path

import pytest

import pystore
from tests.museum import damage

COUNT = 400
UNIT = 20
#: Of a unit: what damage makes of it.
DAMAGES = {
    "zero": bytes(UNIT),
    "negative place": b"\xff" * 8,
    "no size": bytes(12),
    "early place": struct.pack(">q", 100),
}


@pytest.fixture
def tiny(small):
    return small | {"mappedFileSizeConsumeQueue": 800, "mappedFileSizeCommitLog": 32 << 10}


def unit_file(root: Path, settings: dict[str, int], offset: int) -> tuple[Path, int]:
    size = settings["mappedFileSizeConsumeQueue"]
    return damage.queue_files(root, "t")[offset * UNIT // size], offset * UNIT % size


@pytest.fixture
def shortened(store_path, tiny):
    """A closed store whose first segments were deleted, as retention does."""
    with pystore.open(store_path, **tiny) as store:
        for i in range(COUNT):
            store.put("t", b"%d" % i + bytes(500), queue=0)
    for segment in damage.segments(store_path)[:2]:
        segment.unlink()
    return store_path


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_unit_hides_no_half_of_a_queue(shortened, tiny, what, tmp_path):
    with pystore.Reader(shortened) as reader:
        low, high = reader.range("t", 0)
    assert 0 < low < COUNT // 2 < high == COUNT
    for at in (COUNT // 2, COUNT // 2 + 1, low + 1):  # where the search looks, and beside it
        root = Path(shutil.copytree(shortened, tmp_path / f"copy{at}"))
        file, place = unit_file(root, tiny, at)
        damage.write(file, place, DAMAGES[what])
        with pystore.Reader(root) as reader:
            assert reader.range("t", 0) == (low, high)
        with pystore.open(root) as store:
            assert store.range("t", 0) == (low, high)


@pytest.fixture
def spaced(store_path, small):
    """A closed store of messages with a store time each."""
    with pystore.open(store_path, **small) as store:
        for i in range(32):
            store.put("t", b"%d" % i, queue=0)
            time.sleep(0.002)
    return store_path


def times(root: Path) -> list[int]:
    with pystore.Reader(root) as reader:
        return [m.store_timestamp for m in reader.read("t", 0, 0)]


@pytest.mark.parametrize("at", [8, 16, 17, 24])
@pytest.mark.parametrize("what", ["magic", "an early store time"])
def test_a_damaged_record_hides_no_half_from_a_search_by_time(spaced, at, what):
    stored = times(spaced)
    record = list(damage.records(spaced))[at]
    if what == "magic":
        damage.flip(record.file, record.at + 6, 3)
    else:
        damage.write(record.file, record.at + 56, bytes(6))
    with pystore.Reader(spaced) as reader:
        for offset in range(len(stored)):
            found = reader.offset_at("t", 0, stored[offset])
            assert abs(found - offset) <= (1 if offset in (at, at + 1) else 0), (offset, found)


def test_a_zero_unit_is_not_the_end_of_its_queue(golden):
    """Of a Java broker's store, closed, which says nothing of where its queues end. A put would
    take the offset of a message that is there."""
    topic = "golden1_plain"
    root = golden("normal-exit")
    for at in (18, 28):
        copy = Path(shutil.copytree(root, root.with_name(f"copy{at}")))
        damage.write(damage.queue_files(copy, topic)[0], at * UNIT, bytes(UNIT))
        with pystore.Reader(copy) as reader:
            assert reader.range(topic, 0) == (0, 30)
            batch = reader.read(topic, 0, 0)
            assert [m.queue_offset for m in batch] == list(range(30))
        with pystore.open(copy) as store:
            assert store.put(topic, b"next", queue=0).queue_offset == 30


def test_damage_ends_no_search_by_key_without_an_index(store_path, tiny):
    """A Reader looks through the log for keys that no index file has."""
    with pystore.open(store_path, **tiny) as store:
        for i in range(100):
            store.put("t", b"%d" % i, queue=0, keys=f"k{i}")
    for file in (store_path / "index").iterdir():
        file.unlink()
    record = list(damage.records(store_path))[40]
    damage.flip(record.file, record.at + 6, 3)
    with pystore.Reader(store_path) as reader:
        found = [len(reader.query("t", f"k{i}")) for i in range(100)]
    assert found == [int(i != 40) for i in range(100)]
