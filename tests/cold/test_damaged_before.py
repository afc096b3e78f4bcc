"""A message that was damaged in its store before it was written out is read from the tier as from
the store: nobody who reads a log waits for it, or is without it, since it has moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystore
from pystore.cold.blocks import BlockCache
from pystore.cold.failures import TierDamaged
from pystore.cold.lending import Lender
from pystore.cold.push import push
from pystore.cold.reader import ColdReader
from pystore.cold.tier import Tier, new_tier
from pystore.cold.upkeep import verify

COUNT, DAMAGED = 60, 5


def body(number: int) -> bytes:
    return b"body-%02d-" % number * 400


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with pystore.open(path, mappedFileSizeCommitLog=1 << 16) as made:
        for number in range(COUNT):
            made.put("orders", body(number), queue=0)
    log = min((path / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(body(DAMAGED)) + 100] ^= 1
    log.write_bytes(data)
    return path


@pytest.fixture
def tier(store: Path, tmp_path: Path) -> Tier:
    made = new_tier(tmp_path / "cold", "c", "b")
    with pystore.Reader(store) as reader:
        push(reader, made)
    return made


def read(reader: Any, at_once: int, **more: Any) -> Iterator[bytes]:
    at, (_, end) = 0, reader.range("orders", 0)
    while at < end:
        batch = reader.read("orders", 0, at, max_messages=at_once, **more)
        yield from map(bytes, batch.bodies())
        at = batch.next_offset


@pytest.mark.parametrize("at_once", [COUNT, 1])
def test_reads_of_a_tier_give_what_reads_of_the_store_give(
    store: Path, tier: Tier, tmp_path: Path, at_once: int
):
    with pystore.Reader(store) as hot, pystore.Reader(tmp_path / "cold") as cold:
        wanted = list(read(hot, at_once))
        assert len(wanted) == COUNT
        assert list(read(cold, at_once)) == wanted
        assert [bytes(m.raw_body) for m in cold.messages()] == wanted
        rows = pa.RecordBatchReader.from_stream(cold.arrow("orders", columns=["body"]))
        assert rows.read_all().column("body").to_pylist() == wanted


def test_who_checks_sums_passes_over_it_in_both(store: Path, tier: Tier, tmp_path: Path):
    wanted = [body(number) for number in range(COUNT) if number != DAMAGED]
    for path in store, tmp_path / "cold":
        with pystore.Reader(path, checkCRCOnRead=True) as reader:
            assert list(read(reader, 3)) == wanted


def test_a_broker_is_lent_it(store: Path, tier: Tier):
    with pystore.open(store) as thin:
        lender = Lender(thin, tier, BlockCache(tier.objects))
        thin.clean(immediate=True)
        lender.publish("orders", 0, tier.span("orders", 0))
        found = thin.read("orders", 0, DAMAGED)
        while found.status == pystore.GetStatus.IN_TIER:
            want = lender.take()
            assert want is not None
            lender.fulfil(want)
            found = thin.read("orders", 0, DAMAGED)
        assert (found[0].queue_offset, found.damaged, lender.damaged) == (DAMAGED, 0, 0)


def test_it_is_named_where_sums_are_asked_for(tier: Tier, tmp_path: Path):
    assert any("1 records are damaged" in wrong for wrong in verify(tier).wrong)
    with ColdReader(tmp_path / "cold") as reader, pytest.raises(TierDamaged, match="offset 5"):
        list(reader.messages(check_crc=True))
