"""Who reads on has what comes next on its way, in memory that is used again and stays bounded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import pystore
from pystore.cold import reader as cold_reader
from pystore.cold.blocks import BLOCK, BlockCache
from pystore.cold.buffers import BufferPool
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import new_tier

SEGMENT = 512 << 10


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
        get = reader.tier.objects.get

        def note(key: str, start: int, end: int) -> Any:
            asked.append(key)
            return get(key, start, end)

        reader.spans()
        monkeypatch.setattr(reader.tier.objects, "get", note)
        pieces = reader.pieces()
        for number in range(1, 5):
            piece = next(pieces)
            assert len(asked) <= number + 3
            assert piece.end > piece.first
        pieces.close()
