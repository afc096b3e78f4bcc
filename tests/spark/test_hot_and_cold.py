"""A store and its cold tier as one frame: every offset once, from whichever of them has it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S

import pystore

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pystore.cold.push import push  # noqa: E402
from pystore.cold.tier import new_tier, open_tier  # noqa: E402
from pystore.cold.upkeep import remove  # noqa: E402
from spark_ext import batch, schema, stores  # noqa: E402
from spark_ext.errors import BadOption, DataLoss, SourceError  # noqa: E402
from spark_ext.options import parse_read  # noqa: E402
from spark_ext.plan import plan  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000}
#: Where a record lies, and what covers it: in the tier another place.
OF_PLACES = ("commitLogOffset", "msgId", "envelope")


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    yield
    for kept in stores._cache.values():
        kept.reader.close()
    stores._cache.clear()
    stores._tiers.clear()


def fill(path: Path, first: int = 0, count: int = 2000) -> None:
    with pystore.open(path, **SETTINGS) as store:
        for number in range(first, first + count):
            if number % 100 == 0:
                time.sleep(0.002)  # segments are of different times
            store.put("ab"[number % 2], b"%06d" % number * 20, queue=number % 4 // 2,
                      keys=f"k{number}")  # fmt: skip


def write_out(path: Path, tier: Path) -> None:
    with pystore.Reader(path) as reader:
        push(reader, new_tier(tier, "c", "broker-a"), segment_bytes=8192)


def let_go(path: Path, segments: int) -> None:
    """Deletes the oldest segments of the log, and the files of queues that lead nowhere then, as
    retention does."""
    for segment in sorted((path / "commitlog").iterdir())[:segments]:
        segment.unlink()
    with pystore.Reader(path) as reader:
        lows = [(q.topic, q.queue, q.min_offset) for q in reader.queues()]
    for topic, queue, low in lows:
        for file in sorted((path / "consumequeue" / topic / str(queue)).iterdir()):
            if int(file.name) + SETTINGS["mappedFileSizeConsumeQueue"] <= low * 20:
                file.unlink()


@pytest.fixture
def hot(store_path: Path) -> Path:
    fill(store_path)
    return store_path


@pytest.fixture
def cold(hot: Path, tmp_path: Path) -> Path:
    write_out(hot, tmp_path / "cold")
    return tmp_path / "cold"


def rows(path: Path, **given: str) -> Any:
    """A batch as driver and tasks make it, without a session."""
    options = parse_read({"path": str(path), **given}, streaming=False)
    names = [name for name in schema.COLUMNS if name not in OF_PLACES]
    nullable = tuple(schema.COLUMNS[name][1] for name in names)
    layout = schema.ColumnLayout(tuple(names), nullable, "json")
    found = [each for part in plan(options) for each in batch.read_part(part, layout, options)]
    order = [(name, "ascending") for name in ("topic", "queueId", "queueOffset")]
    return pa.Table.from_batches(found).sort_by(order)


def keys_of(table: Any) -> list[tuple[Any, ...]]:
    columns = (table.column(name).to_pylist() for name in ("topic", "queueId", "queueOffset"))
    return list(zip(*columns, strict=True))


SPAN = {
    "topic": "a", "startingOffsets": '{"a": {"0": 15}}', "endingOffsets": '{"a": {"0": 477}}',
}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [{}, SPAN, {"keys": "k17,k1981", "topic": "a,b"}, {"maxRecordsPerPartition": "77"}],
    ids=["all", "offsets", "keys", "small partitions"],
)
def test_every_message_comes_once(hot: Path, cold: Path, given: dict[str, str]):
    wanted = rows(hot, **given)
    let_go(hot, 3)
    assert rows(hot, tier=str(cold), **given) == wanted


@pytest.mark.parametrize("name", ["minStoreTimestamp", "startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_times_are_looked_for_in_both(hot: Path, cold: Path, name: str, share: float):
    with pystore.Reader(hot) as reader:
        times = sorted(m.store_timestamp for m in reader.messages())
    given = {name: str(times[int(share * len(times))])}
    wanted = rows(hot, **given)
    let_go(hot, 3)
    assert rows(hot, tier=str(cold), **given) == wanted


def test_what_the_store_has_is_not_fetched(hot: Path, cold: Path):
    wanted = rows(hot)
    for segment in cold.rglob("COMMIT_LOG/*"):
        segment.write_bytes(b"")
    assert rows(hot, tier=str(cold)) == wanted


def test_what_retention_takes_while_a_task_reads_comes_from_the_tier(hot: Path, cold: Path):
    wanted = rows(hot, topic="a", queues="0").select(["queueOffset", "body"])
    options = parse_read(
        {"path": str(hot), "tier": str(cold), "topic": "a", "queues": "0", "batchRows": "40"},
        streaming=False,
    )
    layout = schema.ColumnLayout(("body",), (False,), "json")
    (part,) = plan(options)
    reading = batch.read_part(part, layout, options)
    found = [next(reading)]
    let_go(hot, 4)
    found += reading
    assert pa.Table.from_batches(found).column("body") == wanted.column("body")


def test_a_gap_between_both_is_lost(hot: Path, cold: Path):
    fill(hot, 2000, 2000)
    let_go(hot, 9)
    with pystore.Reader(hot) as reader:
        low = reader.range("a", 0)[0]
    with pytest.raises(DataLoss, match=rf"a/0 of {cold} no longer holds offsets 0 to {low - 1}"):
        rows(hot, tier=str(cold), topic="a", queues="0")
    rest = rows(hot, tier=str(cold), topic="a", queues="0", failOnDataLoss="false")
    assert rest.column("queueOffset").to_pylist() == [*range(500), *range(low, 1000)]


def test_a_hole_within_the_tier_is_lost(hot: Path, cold: Path):
    fill(hot, 2000, 2000)
    let_go(hot, 9)
    with pystore.Reader(hot) as reader:
        low = reader.range("a", 0)[0]
    write_out(hot, cold)
    with pytest.raises(DataLoss, match=f"lacks {low - 500} of the offsets 0 to 999, which were"):
        rows(cold, topic="a", queues="0")
    rest = rows(cold, topic="a", queues="0", failOnDataLoss="false")
    assert rest.column("queueOffset").to_pylist() == [*range(500), *range(low, 1000)]


def test_a_tier_of_another_queue_of_that_name_is_refused(tmp_path: Path, hot: Path, cold: Path):
    other = tmp_path / "other"
    fill(other, 1, 3000)
    with pytest.raises(SourceError, match=r"a/0 of .* is not the queue that .* has up to offset"):
        rows(other, tier=str(cold))


def test_topics_that_only_the_tier_has_are_read(hot: Path, cold: Path, tmp_path: Path):
    wanted = rows(hot, topic="a")
    other = tmp_path / "other"
    with pystore.open(other, **SETTINGS) as store:
        store.put("c", b"", queue=0)
    assert rows(other, tier=str(cold), topic="a") == wanted


def test_rocketmqs_own_tier_goes_before_its_store(tmp_path: Path):
    """The folder of a RocketMQ 5.5.0 whose tier alone has 259 records."""
    subprocess.run(["tar", "-C", tmp_path, "-xJf", GOLDEN / "tiered-posix.tar.xz"], check=True)
    (tier,) = (path.parent for path in tmp_path.rglob("rmq_sys_INDEX"))
    (store,) = (path.parent for path in tmp_path.rglob("commitlog"))
    both = rows(store, tier=str(tier), includeTransactions="all")
    places = {(m.topic, m.queue, m.queue_offset) for m in pystore.Reader(tier).messages()}
    mine = set(keys_of(rows(store, includeTransactions="all")))
    assert len(places - mine) == 259
    assert keys_of(both) == sorted(places | mine)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"scan": "log"}, "option tier does not go with scan=log"),
        ({"timers": "pending"}, "option tier does not go with timers=pending"),
        ({"tier": '["x", "y"]'}, "option tier names 2 tiers for 1 stores"),
    ],
)
def test_what_does_not_go_with_a_tier_is_refused(hot: Path, given: dict[str, str], match: str):
    with pytest.raises(BadOption, match=match):
        rows(hot, **{"tier": "x", **given})


# ---- streams ----


@pytest.fixture
def run(spark: Any, hot: Path, cold: Path, tmp_path: Path) -> Callable[[], list[tuple[Any, ...]]]:
    """run(): one AvailableNow run of the same query; what all runs have written."""

    def once() -> list[tuple[Any, ...]]:
        reader = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
        frame = reader.option("tier", str(cold)).option("maxOffsetsPerTrigger", 1100).load(str(hot))
        query = (
            frame.select("topic", "queueId", "queueOffset").writeStream.format("parquet")
            .option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(BOUND_S)
        return sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect()))

    return once


@pytest.mark.spark
def test_a_stream_begins_cold_and_goes_on_hot_over_restarts(
    run: Callable[[], list[tuple[Any, ...]]], hot: Path, cold: Path
):
    let_go(hot, 3)
    every = [(topic, queue, at) for topic in "ab" for queue in (0, 1) for at in range(500)]
    assert run() == every
    fill(hot, 2000, 2000)
    write_out(hot, cold)
    let_go(hot, 8)  # the query stood before what is left
    every = [(topic, queue, at) for topic in "ab" for queue in (0, 1) for at in range(1000)]
    assert run() == every


def test_a_live_stream_finds_in_the_tier_what_retention_took_before_it(hot: Path, cold: Path):
    from spark_ext.stream import ReadAllAvailable, StreamReader

    options = parse_read(
        {"path": str(hot), "tier": str(cold), "startingOffsets": "earliest"}, streaming=True
    )
    layout = schema.ColumnLayout(("queueOffset",), (False,), "json")
    reader = StreamReader(options, layout)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    fill(hot, 2000, 2000)
    write_out(hot, cold)
    let_go(hot, 9)
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    found = [each for part in reader.partitions(start, end) for each in reader.read(part)]
    assert sum(each.num_rows for each in found) == 2000


def test_what_the_tier_let_go_too_is_lost(hot: Path, cold: Path):
    let_go(hot, 3)
    tier = open_tier(cold)
    with contextlib.closing(pystore.Reader(cold)) as reader:
        first = next(reader.tier.extents("a", 0, 0, 1)).end
        at = next(reader.tier.extents("a", 0, 0, 1)).time_max
    remove(tier, "a", 0, before=at + 1)
    with pytest.raises(DataLoss, match=f"offsets 0 to {first - 1} of a/0 no longer exist"):
        rows(hot, tier=str(cold), topic="a", startingOffsets='{"a": {"0": 0}}')
