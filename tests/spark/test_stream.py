"""The streaming reader: exactly once over restarts, limits, new and lost queues, progress."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S, until

import pystore
from spark_ext import stream
from spark_ext.errors import DataLoss, SourceError
from tests.spark.conftest import alive, put, said

pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Callable[..., list[int]]:
    """run(path, **options): one AvailableNow run into a folder; row counts of its batches."""

    def make(path: object, out: str = "out", **options: object) -> list[int]:
        reader = spark.readStream.format("rocketmq")
        for name, value in options.items():
            reader = reader.option(name, value)
        paths = list(map(str, path)) if isinstance(path, list) else str(path)
        frame = (
            reader.load(paths) if isinstance(path, str | Path) else reader.load(json.dumps(paths))
        )
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / out))
            .option("checkpointLocation", str(tmp_path / f"{out}.checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(BOUND_S)
        return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]

    return make


@pytest.fixture
def written(spark: Any, tmp_path: Path) -> Callable[..., list[str]]:
    """Bodies in the folder that run() fills, sorted."""

    def read(out: str = "out") -> list[str]:
        frame = spark.read.parquet(str(tmp_path / out))
        return sorted(bytes(r.body).decode() for r in frame.select("body").collect())

    return read


def expected(topic: str, queue: int, start: int, end: int) -> list[str]:
    return sorted(f"{topic}-{queue}-{i}" for i in range(start, end))


def test_available_now_keeps_to_the_limit_of_offsets(run, written, make):
    path = make({"t": [1500, 500]})
    assert run(path, startingOffsets="earliest", maxOffsetsPerTrigger=600) == [600, 600, 600, 200]
    assert written() == sorted(expected("t", 0, 0, 1500) + expected("t", 1, 0, 500))


@pytest.mark.long
def test_available_now_keeps_to_the_limit_of_bytes(run, written, make):
    path = make({"t": [1000]})
    counts = run(path, startingOffsets="earliest", maxBytesPerTrigger="32k")
    assert len(counts) > 2
    assert max(counts) * 98 <= 32 << 10
    assert written() == expected("t", 0, 0, 1000)


def test_a_restart_goes_on_where_the_checkpoint_stands(run, written, store_path, make, small):
    path = make({"t": [10]})
    assert run(path, startingOffsets="earliest") == [10]
    with pystore.open(path, **small) as store:
        put(store, "t", 0, 5, first=10)
        put(store, "t", 3, 2)  # a queue and a topic that were not there
        put(store, "u", 0, 4)
    assert run(path, startingOffsets="earliest") == [11]
    assert run(path, startingOffsets="earliest") == []
    want = expected("t", 0, 0, 15) + expected("t", 3, 0, 2) + expected("u", 0, 0, 4)
    assert written() == sorted(want)


def _forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the query had died before it wrote down that the batch is done."""
    for path in (checkpoint / "commits").glob(f"*{batch}*"):
        path.unlink()


@pytest.mark.long
def test_batch_0_is_replayed_with_its_offsets(run, spark, tmp_path, make, small):
    path = make({"t": [10]})
    state = tmp_path / "state.json"
    assert run(path, startingOffsets="earliest", stateFile=state) == [10]
    _forget_commit(tmp_path / "out.checkpoint", 0)
    shutil.rmtree(tmp_path / "out")
    with pystore.open(path, **small) as store:
        put(store, "t", 0, 5, first=10)
    counts = run(path, startingOffsets="earliest", stateFile=state)
    assert counts == [10, 5]


def test_a_live_query_sees_messages_as_they_are_put(spark, store_path, small, tmp_path):
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 3)
        query = (
            spark.readStream.format("rocketmq")
            .option("startingOffsets", "earliest")
            .load(str(store_path))
            .writeStream.format("memory")
            .queryName("live")
            .start()
        )
        try:
            count = lambda: spark.table("live").count()  # noqa: E731
            until(lambda: alive(query) and count() == 3)
            put(store, "t", 0, 4, first=3)
            put(store, "new", 1, 2)
            until(lambda: alive(query) and count() == 9)

            def latest() -> int:
                """As the last batch says that has reported; rows are there a moment before."""
                said = json.loads(query.lastProgress["sources"][0]["latestOffset"])
                return said["o"]["t"]["broker-a"]["0"]

            until(lambda: latest() == 7)
        finally:
            query.stop()


@pytest.mark.long
def test_lost_messages_end_the_query_or_are_stepped_over(run, written, make, small):
    from tests.spark.losses import drop_oldest

    path = make({"t": [6000]}, mappedFileSizeCommitLog=1 << 18)
    assert run(path, startingOffsets='{"t":{"0":10}}', maxOffsetsPerTrigger=10000) == [5990]
    with pystore.open(path) as store:
        put(store, "t", 0, 6000, first=6000)
    low = drop_oldest(path, 3)
    assert low > 6000
    with pytest.raises(Exception, match="no longer exist") as failure:
        run(path)
    assert f"offsets 6000 to {low - 1} of t/0" in said(failure)
    assert run(path, failOnDataLoss="false") == [12000 - low]


@pytest.mark.long
def test_a_store_made_anew_is_named_or_read_from_its_beginning(run, written, make):
    path = make({"t": [10]})
    run(path, startingOffsets="earliest")
    shutil.rmtree(path)
    make({"t": [0, 4]})
    with pytest.raises(Exception, match="is not the store that the query has read as broker-a"):
        run(path, startingOffsets="earliest")
    assert run(path, startingOffsets="earliest", failOnDataLoss="false") == [4]
    assert written() == sorted(expected("t", 0, 0, 10) + expected("t", 1, 0, 4))
    assert run(path, startingOffsets="earliest") == []


def test_progress_goes_to_a_consumer_group(run, make, small):
    path = make({"t": [1000]})
    run(path, startingOffsets="earliest", maxOffsetsPerTrigger=400, commitToGroup="spark-group")
    with pystore.Reader(path) as reader:
        # Spark tells a batch's end when it plans the next; the last one is never told.
        assert reader.metadata.offsets.get("spark-group", "t", 0) == 800
    config = json.loads((path / "config" / "consumerOffset.json").read_text())
    assert config["offsetTable"]["t@spark-group"] == {"0": 800}


@pytest.mark.long
def test_progress_beside_another_writer_is_kept_aside(run, make, small):
    path = make({"t": [1000]})
    with pystore.open(path, **small):
        run(path, startingOffsets="earliest", maxOffsetsPerTrigger=600, commitToGroup="g")
        aside = json.loads((path / "spark" / "groups" / "g.json").read_text())
        assert aside["offsetTable"] == {"t@g": {"0": 600}}


@pytest.mark.long
def test_several_stores_stream_as_one(run, written, make, tmp_path):
    a, b = make({"t": [3]}, tmp_path / "a"), make({"u": [4]}, tmp_path / "b")
    assert run([a, b], startingOffsets="earliest") == [7]
    assert written() == sorted(expected("t", 0, 0, 3) + expected("u", 0, 0, 4))


def test_a_processing_time_trigger_waits_for_enough_messages(spark, store_path, small):
    """And its progress tells how far it stays behind."""
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 3)
        query = (
            spark.readStream.format("rocketmq")
            .option("startingOffsets", "earliest")
            .option("minOffsetsPerTrigger", 6)
            .option("maxOffsetsPerTrigger", 8)
            .option("maxTriggerDelay", "1h")
            .load(str(store_path))
            .writeStream.format("memory")
            .queryName("timed")
            .trigger(processingTime="20 milliseconds")
            .start()
        )
        try:
            batches = lambda: [p for p in query.recentProgress if p["numInputRows"]]  # noqa: E731
            done = lambda: [p["numInputRows"] for p in batches()]  # noqa: E731
            until(lambda: alive(query) and done() == [3])  # the first batch waits for nothing
            put(store, "t", 0, 5, first=3)
            put(store, "t", 1, 12)
            until(lambda: alive(query) and done() == [3, 8, 8])
            put(store, "t", 0, 5, first=8)  # with the one that is left these are enough
            until(lambda: alive(query) and done() == [3, 8, 8, 6])
            behind = [_behind(p) for p in batches()]
            assert [b["rows"] for b in behind[1:]] == [9, 1, 0]
            assert behind[1]["bytes"] > behind[2]["bytes"] > behind[3]["bytes"] == 0
            assert behind[3]["ms"] == 0
        finally:
            query.stop()


def _behind(progress: Any) -> dict[str, int]:
    return json.loads(progress["sources"][0]["latestOffset"])["behind"]


# ---- without a session ----


def reader_of(path: Path, **options: object) -> Any:
    from spark_ext import schema
    from spark_ext.options import parse_read
    from spark_ext.stream import StreamReader

    given = {"path": str(path), **{k: str(v) for k, v in options.items()}}
    return StreamReader(
        parse_read(given, streaming=True), schema.ColumnLayout(("queueOffset",), (False,), "json")
    )


def polled(reader: Any, start: Any) -> Any:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def planned(reader: Any, start: Any, end: Any) -> list[Any]:
    return [r for part in reader.partitions(start, end) for r in part.ranges]


@pytest.fixture
def at_end(make: Callable[..., Path]) -> tuple[Path, dict[str, Any]]:
    """A store of ten messages, and the offset of a query that has read them."""
    path = make({"t": [10]})
    reader = reader_of(path, startingOffsets="earliest")
    return path, polled(reader, reader.initialOffset())


def anew(make: Callable[..., Path], path: Path, count: int) -> None:
    """Another store in the place of one."""
    shutil.rmtree(path)
    make({"t": [count], "other": [1]}, path)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_stores_whose_paths_change_places_are_named(make, tmp_path, loss):
    a, b = make({"t": [30]}, tmp_path / "a"), make({"t": [50]}, tmp_path / "b")
    both = lambda *paths: json.dumps(list(map(str, paths)))  # noqa: E731
    reader = reader_of(both(a, b), startingOffsets="earliest", failOnDataLoss=loss)
    start = polled(reader, reader.initialOffset())
    why = f"{b} is not the store that the query has read as broker-a: that one is {a}, which is"
    with pytest.raises(SourceError, match=why):
        polled(reader_of(both(b, a), failOnDataLoss=loss), start)
    named = reader_of(both(b, a), brokerName="broker-b,broker-a", failOnDataLoss=loss)
    assert polled(named, start) == start


@pytest.mark.parametrize("count", [4, 10, 25])
def test_a_store_made_anew_ends_the_query(make, at_end, count):
    path, start = at_end
    anew(make, path, count)
    with pytest.raises(DataLoss, match=f"{path} is not the store that the query has read"):
        polled(reader_of(path), start)


@pytest.mark.parametrize("count", [4, 10, 25])
def test_a_store_made_anew_is_read_from_its_beginning_without_fail_on_data_loss(
    make, at_end, count, capfd
):
    path, start = at_end
    anew(make, path, count)
    reader = reader_of(path, failOnDataLoss="false")
    end = polled(reader, start)
    assert end["o"] == {"other": {"broker-a": {"0": 1}}, "t": {"broker-a": {"0": count}}}
    assert planned(reader, start, end) == [("other", 0, 0, 1), ("t", 0, 0, count)]
    assert polled(reader, end) == end
    assert capfd.readouterr().err.count("it is read from its beginning") == 1


def test_a_batch_that_was_planned_in_a_store_that_is_gone_is_empty(make, at_end, small):
    path, start = at_end
    with pystore.open(path, **small) as store:
        put(store, "t", 0, 5, first=10)
    end = polled(reader_of(path), start)
    anew(make, path, 25)
    assert planned(reader_of(path, failOnDataLoss="false"), start, end) == []


def test_a_copy_is_the_same_store(make, at_end, small, tmp_path):
    path, start = at_end
    shutil.copytree(path, tmp_path / "copy")
    with pystore.open(tmp_path / "copy", **small) as store:
        put(store, "t", 0, 5, first=10)
    assert polled(reader_of(tmp_path / "copy"), start)["o"]["t"]["broker-a"]["0"] == 15


def test_an_offset_without_an_identity_goes_on(make, at_end):
    """As earlier versions wrote it, and as it is of a store without messages."""
    path, start = at_end
    old = {"v": 1, "o": start["o"]}
    assert polled(reader_of(path), old) == old


def test_a_damaged_record_is_not_another_store(at_end, small):
    path, start = at_end
    log = path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(60)
        file.write(b"?" * 40)
    with pytest.raises(DataLoss, match=r"nothing shows .* byte 0 of the log is gone or damaged"):
        polled(reader_of(path), start)
    assert polled(reader_of(path, failOnDataLoss="false"), start) == start


def test_what_a_store_is_known_by_outlives_retention(make, small):
    """Of a query whose own topic has no news, so that Spark keeps its offset."""
    from tests.spark.losses import drop_oldest

    segments = {"mappedFileSizeCommitLog": 1 << 16}
    path = make({"t": [10]}, **segments)
    reader = reader_of(path, startingOffsets="earliest", topic="t")
    start = polled(reader, reader.initialOffset())
    with pystore.open(path) as store:
        put(store, "busy", 0, 3000)
    renewed = polled(reader_of(path, topic="t"), start)
    assert (renewed["o"], renewed["id"] != start["id"]) == (start["o"], True)
    assert polled(reader_of(path, topic="t"), renewed) == renewed
    drop_oldest(path, 1)
    assert polled(reader_of(path, topic="t"), renewed) == renewed


@pytest.mark.parametrize("unread", [0, 5])
def test_a_query_that_stopped_while_retention_replaced_the_log_goes_on_if_it_lost_nothing(
    make, unread
):
    """Nothing that it read is there any more, and each queue begins where it stopped, or later."""
    from tests.spark.losses import drop_oldest

    path = make({"t": [10], "busy": [1]}, mappedFileSizeCommitLog=1 << 16)
    reader = reader_of(path, startingOffsets="earliest", topic="t")
    start = polled(reader, reader.initialOffset())
    with pystore.open(path) as store:
        put(store, "t", 0, unread, first=10)
        put(store, "busy", 0, 3000)
        put(store, "t", 0, 3, first=20)
    drop_oldest(path, 3)
    if unread:
        with pytest.raises(DataLoss, match="offsets 10 to 14 of t/0 no longer exist"):
            polled(reader_of(path, topic="t"), start)
        return
    end = polled(reader_of(path, topic="t"), start)
    assert planned(reader_of(path, topic="t"), start, end) == [("t", 0, 10, 13)]


def test_an_idle_query_measures_nothing_again(make, monkeypatch):
    reader = reader_of(make({"t": [10]}), startingOffsets="latest")
    polled(reader, reader.initialOffset())
    first = reader.reportLatestOffset()
    reader._look_again = time.monotonic() + 3600
    monkeypatch.setattr(type(reader), "_measured", None)
    assert reader.reportLatestOffset() == first
    assert first["behind"] == {"rows": 0, "bytes": 0, "ms": 0}


def test_an_idle_query_counts_nothing_again(make, monkeypatch):
    path = make({"t": [10]})
    reader = reader_of(path, startingOffsets="latest")
    at = reader.initialOffset()
    assert polled(reader, at) is at
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    monkeypatch.setattr(type(reader), "_counted", None)
    monkeypatch.setattr(stream, "find_queues", None)
    reader._look_again = 0.0
    assert polled(reader, at) is at
    assert naps == [0.01]
    monkeypatch.setattr(stream, "IDLE_S_PER_QUEUE", 1.0)
    assert polled(reader, at) is at
    assert naps[1:] == [0.25] * 4


@pytest.mark.parametrize("how", ["a message", "a queue", "a topic", "deleted", "retention", "anew"])
def test_what_changes_while_a_query_rests_is_seen(make, small, monkeypatch, how):
    path = make({"t": [2000], "u": [1]}, mappedFileSizeCommitLog=1 << 17)
    reader = reader_of(path, startingOffsets="latest", failOnDataLoss="false")
    at = reader.initialOffset()
    assert polled(reader, at) is at
    before = reader._seen

    def change(_: float) -> None:
        monkeypatch.undo()
        if how == "anew":
            anew(make, path, 4)
            return
        with pystore.open(path, **small | {"mappedFileSizeCommitLog": 1 << 17}) as store:
            if how == "deleted":
                store.delete_topic("u")
            elif how == "retention":
                assert store.clean(immediate=True).log_files
            else:
                put(store, "new" if how == "a topic" else "t", int(how == "a queue"), 1)

    monkeypatch.setattr(time, "sleep", change)
    monkeypatch.setattr(stream, "IDLE_S_PER_QUEUE", 1.0)
    reader._look_again = 0.0
    end = polled(reader, at)
    assert (end != at) == (how not in ("deleted", "retention"))
    with pystore.Reader(path) as fresh:
        now = {(q.topic, q.queue, q.min_offset, q.max_offset) for q in fresh.queues()}
    seen = {(s.topic, s.queue, s.low, s.high) for s in reader._seen.values() if s.high > s.low}
    assert reader._seen != before
    assert seen == {q for q in now if q[3] > q[2]}


def test_a_budget_is_split_by_lag_and_never_exceeded():
    from spark_ext.stream import shares

    key = lambda i: ("t", "b", i)  # noqa: E731
    lags = {key(0): 1000, key(1): 100, key(2): 1, key(3): 0}
    assert shares(lags, 5000) == {key(0): 1000, key(1): 100, key(2): 1}
    given = shares(lags, 110)
    assert sum(given.values()) == 110
    assert given[key(2)] == 1 and given[key(0)] > 5 * given[key(1)]
    assert shares(lags, 2) == {key(0): 1, key(1): 1}


def test_what_waits_is_told_in_rows_bytes_and_time(make, monkeypatch):
    path = make({"t": [10], "u": [4]})
    reader = reader_of(path, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    assert "behind" not in reader.reportLatestOffset()
    with pystore.Reader(path) as store:
        oldest = store.read("t", 0, 0)[0].store_timestamp
        size = sum(m.size for m in store.messages())
    monkeypatch.setattr(time, "time", lambda: oldest / 1000 + 60)
    end = reader.latestOffset(start, limit)
    behind = reader.reportLatestOffset()["behind"]
    assert behind["rows"] == 8
    assert 0 < behind["bytes"] < size
    assert 59_000 <= behind["ms"] <= 60_000
    while (after := reader.latestOffset(end, limit)) != end:
        end = after
    assert reader.reportLatestOffset()["behind"] == {"rows": 0, "bytes": 0, "ms": 0}


def test_asking_for_the_latest_offset_is_cheap(make):
    path = make({f"t{i}": [1] * 8 for i in range(10)})
    reader = reader_of(path, startingOffsets="latest")
    limit = reader.getDefaultReadLimit()
    at = reader.initialOffset()

    def seconds_of_one() -> float:
        begun = time.process_time()
        reader._look_again = 0.0
        reader.latestOffset(at, limit)
        return time.process_time() - begun

    # Processor time, and the best of many rounds: who else is at work on the machine is left out.
    assert min(seconds_of_one() for _ in range(100)) < 0.003


def test_without_a_state_file_a_start_behind_batch_0_is_told(make):
    offset = lambda n: {"v": 1, "o": {"t": {"broker-a": {"0": n}}}}  # noqa: E731
    path = make({"t": [10]})
    with pytest.raises(DataLoss, match="to end at 5 of t/0, but its start is now 10: give option"):
        reader_of(path).partitions(offset(10), offset(5))
    assert reader_of(path, failOnDataLoss="false").partitions(offset(10), offset(5)) == []


def test_a_foreign_checkpoint_is_refused():
    from spark_ext.stream import decode

    bad_queue = {"t": {"b": {"x": 1}}}
    for foreign in ({"topic": {"0": 1}}, {"v": 1, "o": 5}, {"v": 1, "o": bad_queue}, []):
        with pytest.raises(SourceError, match="another source or version"):
            decode(foreign)


def test_a_state_file_that_is_none_is_named(make, tmp_path):
    import os

    path, state = make({"t": [3]}), tmp_path / "state"
    state.write_text("[]")
    with pytest.raises(SourceError, match=f"stateFile: {state} holds offsets of another source"):
        reader_of(path, stateFile=state).initialOffset()
    state.write_text("{")
    with pytest.raises(SourceError, match=f"stateFile: {state} cannot be read"):
        reader_of(path, stateFile=state).initialOffset()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="pipe cannot be read: not a regular file"):
        reader_of(path, stateFile=tmp_path / "pipe").initialOffset()
    with pytest.raises(SourceError, match="below cannot be"):
        reader_of(path, stateFile=state / "below").initialOffset()
