"""Cold tiers in Spark: rows, and what is fetched for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pystore

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pystore.cold.objects import FolderObjects  # noqa: E402
from pystore.cold.push import push  # noqa: E402
from pystore.cold.tier import new_tier  # noqa: E402
from spark_ext import schema, stores  # noqa: E402
from spark_ext.batch import read_part  # noqa: E402
from spark_ext.errors import BadOption, DataLoss, SourceError  # noqa: E402
from spark_ext.options import parse_read  # noqa: E402
from spark_ext.plan import plan  # noqa: E402

#: What a tier has of its own: places, and what covers them.
OTHERS = ("commitLogOffset", "msgId", "envelope")
SEGMENT = 4096


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    stores._cache.clear()
    yield
    stores._cache.clear()


@pytest.fixture
def both(store_path: Path, small: dict[str, Any], tmp_path: Path) -> tuple[Path, Path]:
    """A store, and its tier of many small segments."""
    with pystore.open(store_path, **small) as store:
        for number in range(400):
            if number % 20 == 0:  # the segments of a queue are of different times
                time.sleep(0.002)
            store.put(
                "ab"[number % 2], b"%d" % number * 20, queue=number % 4 // 2, keys=f"k{number}"
            )
        push(store, new_tier(tmp_path / "cold", "c", "broker-a"), segment_bytes=SEGMENT)
    return store_path, tmp_path / "cold"


def rows(path: Path, **given: str) -> Any:
    """A batch as driver and tasks make it, without a session."""
    options = parse_read({"path": str(path), **given}, streaming=False)
    names = [name for name in schema.COLUMNS if name not in OTHERS]
    layout = schema.ColumnLayout(
        tuple(names), tuple(schema.COLUMNS[name][1] for name in names), "json"
    )
    found = [batch for part in plan(options) for batch in read_part(part, layout, options)]
    order = [(name, "ascending") for name in ("topic", "queueId", "queueOffset")]
    return pa.Table.from_batches(found).sort_by(order)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"topic": "a", "maxRecordsPerPartition": "33"},
        {"startingOffsets": '{"a": {"0": 15}}', "endingOffsets": '{"a": {"0": 77}}', "topic": "a"},
        {"keys": "k17,k18", "topic": "a,b"},
    ],
)
def test_the_rows_of_a_tier_are_those_of_its_store(both: tuple[Path, Path], given: dict[str, str]):
    store, tier = both
    assert rows(tier, **given) == rows(store, **given)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """A list that will have what is fetched of segments."""
    noted: list[tuple[str, int, int]] = []
    get = FolderObjects.get

    def watched(self: FolderObjects, key: str, start: int, end: int) -> bytes:
        if "COMMIT_LOG" in key:
            noted.append((key, start, end))
        return get(self, key, start, end)

    monkeypatch.setattr(FolderObjects, "get", watched)
    return noted


def test_partitions_share_no_segment_where_limits_leave_room(
    both: tuple[Path, Path], asked: list[tuple[str, int, int]]
):
    store, tier = both
    given = {"maxRecordsPerPartition": "75"}  # of 100 messages a queue
    assert rows(tier, **given) == rows(store, **given)
    whole = [key for key, start, end in asked if end - start > SEGMENT // 2]
    assert len(whole) == len(set(whole)) > 8
    for most in "50", "75":
        options = parse_read({"path": str(tier), "maxRecordsPerPartition": most}, streaming=False)
        parts = plan(options)
        assert len(parts) == 8
        assert all(end - start <= int(most) for p in parts for _, _, start, end in p.ranges)


def test_a_time_range_fetches_its_segments_alone_and_once(
    both: tuple[Path, Path], asked: list[tuple[str, int, int]]
):
    store, tier = both
    with pystore.Reader(store) as reader:
        times = sorted({m.store_timestamp for m in reader.messages()})
    at = times[len(times) // 2]
    given = {"minStoreTimestamp": str(at), "maxStoreTimestamp": str(at)}
    found = rows(tier, **given)
    assert found == rows(store, **given)
    with pystore.Reader(tier) as cold:
        spans = [
            extent
            for span in cold.spans()
            for extent in cold.tier.extents(span.topic, span.queue, 0, 1 << 40)
        ]
    within = [(e.key, 0, e.whole) for e in spans if e.time_min <= at <= e.time_max]
    assert sorted(asked) == sorted(within)
    assert len(within) < len(spans)


def test_a_task_that_sees_another_tier_says_so(
    both: tuple[Path, Path], small: dict[str, Any], tmp_path: Path
):
    with pystore.open(tmp_path / "other", **small) as store:
        for number in range(400):
            store.put("ab"[number % 2], b"%d" % -number * 20, queue=number % 4 // 2)
        push(store, new_tier(tmp_path / "other-cold", "c", "broker-a"))
    options = parse_read({"path": str(both[1])}, streaming=False)
    layout = schema.ColumnLayout(("body",), (False,), "json")
    part = plan(options)[0]
    part.path = str(tmp_path / "other-cold")
    with pytest.raises(SourceError, match="is not the store that was planned"):
        next(read_part(part, layout, options))


def test_a_damaged_segment_ends_the_query(both: tuple[Path, Path]):
    segment = next(both[1].rglob("a/0/COMMIT_LOG/*"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(DataLoss, match="another CRC than its manifest says"):
        rows(both[1])


def test_what_needs_a_log_is_refused(both: tuple[Path, Path]):
    with pytest.raises(BadOption, match="a cold tier has no log"):
        rows(both[1], scan="log")


# ---- jobs ----


@pytest.mark.spark
def test_reconcile_compares_a_store_with_its_tier(run_job: Any, both: tuple[Path, Path]):
    report = run_job("reconcile", both[0], both[1])
    assert report["reconcile"] == {"same_places": True, "same_contents": True}
    assert sum(row["same"] for row in report["by place"]) == 400


@pytest.mark.spark
def test_verify_checks_the_segments_of_a_tier(run_job: Any, both: tuple[Path, Path]):
    segment = next(both[1].rglob("a/0/COMMIT_LOG/*"))
    assert run_job("verify", both[1])["tier"]["sound"]
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    report = run_job("verify", both[1], code=5)
    assert [segment.name in row["what"] for row in report["wrong"]] == [True]
