"""Who reads on has what comes next on its way, in memory that is used again and stays bounded."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystore
from pystore.cold import reader as cold_reader
from pystore.cold import reading_on
from pystore.cold.blocks import BLOCK, BlockCache
from pystore.cold.buffers import BufferPool
from pystore.cold.failures import TierDamaged
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import new_tier
from pystore.native import lib

SEGMENT = 512 << 10
AT_BORN_TIMESTAMP = int(lib.PS_AT_BORN_TIMESTAMP)


class Counting:
    """An object store of zeros that notes which blocks are asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def get(self, key: str, start: int, end: int) -> bytes:
        self.asked.append((start // BLOCK, -(-end // BLOCK)))
        return bytes(end - start)


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    rng = random.Random(4)
    return [rng.randbytes(40_000) for _ in range(100)]


@pytest.fixture
def tier(tmp_path: Path, bodies: list[bytes]) -> Path:
    with pystore.open(tmp_path / "store") as store:
        for body in bodies:
            store.put("orders", body, queue=0)
    with pystore.Reader(tmp_path / "store") as source:
        push(source, new_tier(tmp_path / "cold", "c1", "broker-a"), segment_bytes=SEGMENT)
    return tmp_path / "cold"


def test_what_was_read_stays_while_the_rest_is_read(tier: Path, bodies: list[bytes]):
    with ColdReader(tier) as reader:
        batches = list(reader.batches())
        views = [m.raw_body for batch in batches for m in batch]
        assert len(batches) > 5
        del batches
    assert [bytes(view) for view in views] == bodies


def test_memory_that_nobody_looks_at_is_used_again():
    pool = BufferPool()
    first = pool.take(1 << 20)
    first[:] = b"x" * len(first)
    part = first[5:10]
    del first
    assert bytes(pool.take(1 << 20)[5:10]) == bytes(5)  # the other one is still looked at
    del part
    taken = [bytes(pool.take(1 << 20)[:1]) for _ in range(2)]
    assert b"x" in taken


def test_who_reads_on_has_the_next_runs_asked_for_by_a_request_each():
    objects: Any = Counting()
    blocks = BlockCache(objects, ahead=2)
    blocks.get("object", 100, 200, 30 * BLOCK)
    assert objects.asked == [(0, 1)]
    blocks.get("object", 200, 300, 30 * BLOCK, on=True)
    blocks.close(wait=True)
    assert sorted(objects.asked) == [(0, 1), (1, 4), (4, 8), (8, 12)]


def test_who_reads_all_has_no_more_than_so_much_fetched_ahead(
    tier: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cold_reader, "_AHEAD", 3 * SEGMENT)
    asked = []
    with ColdReader(tier) as reader:
        mapped = reader.tier.objects.mapped

        def note(key: str, size: int, base: int) -> Any:
            asked.append(key)
            return mapped(key, size, base)

        reader.spans()
        monkeypatch.setattr(reader.tier.objects, "mapped", note)
        pieces = reader.pieces()
        for number in range(1, 5):
            piece = next(pieces)
            assert number <= len(asked) <= number + 3
            assert piece.end > piece.first
        pieces.close()


# ---- files that are cut off while they are mapped ----


def cut_off(tier: Path) -> None:
    for segment in tier.rglob("COMMIT_LOG/*"):
        os.truncate(segment, 4096)


def test_a_batch_of_a_segment_that_is_cut_off_gives_no_body(tier: Path, bodies: list[bytes]):
    with ColdReader(tier) as reader:
        batches = reader.batches()
        batch = next(batches)
        first, last = batch[0], batch[len(batch) - 1]
        assert bytes(last.raw_body) == bodies[len(batch) - 1]
        cut_off(tier)
        for message in first, last:
            with pytest.raises(pystore.FileSizeMismatch, match="COMMIT_LOG"):
                bytes(message.raw_body)
        with pytest.raises((TierDamaged, pystore.FileSizeMismatch), match="COMMIT_LOG"):
            list(batches)


def test_arrow_of_a_segment_that_is_cut_off_ends_by_its_name(tier: Path, bodies: list[bytes]):
    with ColdReader(tier) as reader:
        stream = pa.RecordBatchReader.from_stream(reader.arrow(columns=["body"], batch_rows=3))
        assert stream.read_next_batch().column("body").to_pylist() == bodies[:3]
        cut_off(tier)
        with pytest.raises(OSError, match="COMMIT_LOG"):
            stream.read_next_batch()


def test_who_reads_on_in_a_segment_that_is_cut_off_hears_of_it(two: Path, bodies: list[bytes]):
    with ColdReader(two) as reader:
        for at in range(5):
            assert bytes(reader.read("orders", 0, at, max_messages=1)[0].raw_body) == bodies[at]
        cut_off(two)
        with pytest.raises(TierDamaged, match="COMMIT_LOG"):
            for at in range(5, len(bodies)):  # blocks that are in memory are right still
                assert bytes(reader.read("orders", 0, at, max_messages=1)[0].raw_body) == bodies[at]


# ---- a few messages at a time ----


@pytest.fixture
def two(tmp_path: Path, bodies: list[bytes]) -> Path:
    """A tier of two queues whose messages lie at the same places."""
    with pystore.open(tmp_path / "two") as store:
        for queue in 0, 1:
            for number, body in enumerate(bodies):
                store.put("orders", body, queue=queue, tags="ab"[number % 2])
    with pystore.Reader(tmp_path / "two") as source:
        push(source, new_tier(tmp_path / "twocold", "c1", "broker-a"), segment_bytes=SEGMENT)
    return tmp_path / "twocold"


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that will have the segments that are fetched whole."""
    noted: list[str] = []
    check = cold_reader.check_segment

    def note(data: Any, row: Any, where: str, **how: Any) -> memoryview:
        noted.append(where)
        return check(data, row, where, **how)

    monkeypatch.setattr(cold_reader, "check_segment", note)
    return noted


def read_on(reader: pystore.Reader, queue: int, **more: Any) -> list[bytes]:
    low, high = reader.range("orders", queue)
    found: list[bytes] = []
    while low < high:
        batch = reader.read("orders", queue, low, max_messages=3, **more)
        assert (batch.min_offset, batch.max_offset) == (0, high)
        found += map(bytes, batch.bodies())
        low = batch.next_offset
    return found


@pytest.mark.parametrize("tags", [None, "a"])
def test_who_reads_on_has_each_segment_fetched_once(
    two: Path, bodies: list[bytes], whole: list[str], tags: str | None
):
    with ColdReader(two) as reader:
        segments = sum(span.segments for span in reader.spans())
        wanted = bodies if tags is None else bodies[::2]
        assert read_on(reader, 0, tags=tags) == read_on(reader, 1, tags=tags) == wanted
        assert len(whole) == len(set(whole)) == segments


def test_what_was_read_of_a_segment_stays_when_the_next_one_comes(two: Path, bodies: list[bytes]):
    with ColdReader(two) as reader:
        held, at = [], 0
        while at < len(bodies):
            held.append(reader.read("orders", 0, at, max_messages=2))
            at = held[-1].next_offset
    assert [bytes(body) for batch in held for body in batch.bodies()] == bodies


def test_queues_that_are_read_in_turn_do_not_drive_out_each_other(
    two: Path, bodies: list[bytes], whole: list[str]
):
    with ColdReader(two) as reader:
        segments = next(iter(reader.spans())).segments
        for at, body in enumerate(bodies):
            for queue in 0, 1:
                assert bytes(reader.read("orders", queue, at, max_messages=1)[0].body) == body
        assert len(whole) <= segments + 1  # the other one, whose turn comes at the end


def test_a_queue_that_is_read_on_no_more_gives_way(
    two: Path, bodies: list[bytes], whole: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading_on, "_OTHERS", 5)
    with ColdReader(two) as reader:
        for at in range(5):
            reader.read("orders", 0, at, max_messages=1)
        assert read_on(reader, 1) == bodies
        assert {where.split("/")[-3] for where in whole} == {"0", "1"}


def test_a_wrong_byte_of_a_segment_costs_the_one_message_it_is_in(
    two: Path, bodies: list[bytes], whole: list[str]
):
    segment = sorted(two.rglob("orders/0/COMMIT_LOG/*"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 4] ^= 1
    segment.write_bytes(data)
    with ColdReader(two) as reader:
        found = read_on(reader, 0)
        assert whole.count(str(segment)) == 1
    assert len(found) == len(bodies) - 1
    assert [body for body in bodies if body in found] == found


def test_a_wrong_byte_that_no_sum_of_a_message_covers_is_named(
    two: Path, bodies: list[bytes], caplog: pytest.LogCaptureFixture
):
    segment = sorted(two.rglob("orders/0/COMMIT_LOG/*"))[1]
    data = bytearray(segment.read_bytes())
    data[AT_BORN_TIMESTAMP] ^= 1
    segment.write_bytes(data)
    with ColdReader(two) as reader:
        assert read_on(reader, 0) == bodies
    assert f"{segment.parent.name}/{segment.name}" in caplog.text
    assert "failed checks twice" in caplog.text


def test_many_threads_that_read_on_get_the_same(
    two: Path, bodies: list[bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading_on, "_OTHERS", 3)  # queues take each other's place all the time
    with ColdReader(two) as reader, ThreadPoolExecutor(4) as pool:

        def read(queue: int) -> list[tuple[int, int]]:
            at, found = 0, []
            while at < len(bodies):
                batch = reader.read("orders", queue, at, max_messages=3)
                assert [bytes(body) for body in batch.bodies()] == bodies[at : batch.next_offset]
                found += [(m.queue, m.queue_offset) for m in batch]
                at = batch.next_offset
            return found

        wanted = [[(queue, at) for at in range(len(bodies))] for queue in (0, 1)]
        assert list(pool.map(read, [0, 1, 0, 1])) == wanted * 2
