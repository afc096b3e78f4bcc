"""Writers: what reaches the store, and that it does so once or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S

import pystore

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from spark_ext import sink, tasks  # noqa: E402
from spark_ext.errors import SinkError, SourceError  # noqa: E402
from spark_ext.options import WriteOptions, parse_write  # noqa: E402
from spark_ext.source import RocketmqSource  # noqa: E402
from tests.spark.conftest import said  # noqa: E402

pytestmark = pytest.mark.spark

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}


@pytest.fixture
def save(store_path: Path) -> Callable[..., None]:
    """save(frame, **options): appends to the store of the test."""

    def make(frame: Any, path: Path = store_path, **options: object) -> None:
        writer = frame.write.format("rocketmq").mode("append")
        for name, value in ({"storeConf": json.dumps(SMALL)} | options).items():
            writer = writer.option(name, value)
        writer.save(str(path))

    return make


def messages(path: Path) -> list[pystore.Message]:
    with pystore.Reader(path) as reader:
        return list(reader.messages(check_crc=True))


def bodies(path: Path) -> list[str]:
    return sorted(bytes(m.body).decode() for m in messages(path))


def into(path: Path, **more: str) -> WriteOptions:
    """Options of a write into a store."""
    given = {"path": str(path), "topic": "t", "storeConf": json.dumps(SMALL)}
    return parse_write(given | more)


def leftovers(path: Path) -> list[Path]:
    spool = path.with_name(path.name + ".spool")
    return [p for p in spool.rglob("*") if p.is_file()]


def test_rows_become_messages(spark, save, store_path):
    frame = spark.sql(
        "SELECT * FROM VALUES"
        " ('a', binary('x'), 'paid', 'k1 k2', map('p', '1', 'TAGS', 'no'), 2, 7,"
        "  timestamp '2026-01-02 03:04:05.678'),"
        " (NULL, binary(''), NULL, NULL, NULL, NULL, NULL, NULL)"
        " AS t(topic, body, tags, keys, properties, queueId, flag, bornTimestamp)"
    )
    save(frame, topic="fallback")
    first, second = sorted(messages(store_path), key=lambda m: m.topic)
    assert (first.topic, first.queue, first.tags, first.keys) == ("a", 2, "paid", ["k1", "k2"])
    assert (bytes(first.body), first.flag, first.born_timestamp) == (b"x", 7, 1767323045678)
    stamps = ["SPARK_BATCH", "SPARK_JOB", "SPARK_PARTITION", "SPARK_ROW"]
    assert sorted(first.properties) == ["KEYS", *stamps, "TAGS", "p"]
    assert (second.topic, bytes(second.body), second.flag) == ("fallback", b"", 0)
    assert sorted(second.properties) == stamps
    assert not leftovers(store_path)


def test_every_message_has_a_stamp_of_its_own(spark, save, store_path):
    save(spark.range(0, 3000, 1, 3).selectExpr("cast(id AS string) AS body"), topic="t")
    found = messages(store_path)
    assert sorted(int(bytes(m.body)) for m in found) == list(range(3000))
    names = ("SPARK_JOB", "SPARK_BATCH", "SPARK_PARTITION", "SPARK_ROW")
    stamps = {tuple(m.properties[n] for n in names) for m in found}
    assert len(stamps) == 3000
    assert len({s[0] for s in stamps}) == 1


def test_a_copy_of_a_store_has_the_same_messages(spark, load, make, save, tmp_path):
    source = make({"t": [50, 40], "u": [30]}, tmp_path / "source")
    save(load(source), tmp_path / "copy")
    assert bodies(tmp_path / "copy") == bodies(source)
    with pystore.Reader(tmp_path / "copy") as reader:
        assert [(q.topic, q.queue, len(q)) for q in reader.queues()] == [
            ("t", 0, 50), ("t", 1, 40), ("u", 0, 30),
        ]  # fmt: skip


def test_an_insert_into_a_view_that_reads_a_store_is_refused(spark, make):
    path = make({"t": [3]})
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING rocketmq OPTIONS (path '{path}')")
    with pytest.raises(Exception, match="INSERT INTO a view that reads"):
        spark.sql("INSERT INTO seen SELECT * FROM seen")
    assert len(messages(path)) == 3


def test_sharding_keys_choose_the_queue_as_javas_client_does(spark, save, store_path):
    from pystore.format.javahash import java_hash

    save(
        spark.sql("SELECT 'x' AS body, concat('k', id % 5) AS shardingKey FROM range(50)"),
        topic="t",
    )
    with pystore.Reader(store_path) as reader:
        count = reader.metadata.topics.get("t").write_queue_nums
        for m in reader.messages():
            key = m.properties["__SHARDINGKEY"]
            assert m.queue == abs(java_hash(key)) % count


def test_delay_levels(spark, save, store_path):
    frame = spark.sql("SELECT * FROM VALUES ('level', 3), ('far', 99) AS t(body, delayLevel)")
    save(frame, topic="t")
    found = {bytes(m.body).decode(): m for m in messages(store_path)}
    level = found["level"]
    assert (level.topic, level.queue) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert (level.properties["REAL_TOPIC"], level.properties["DELAY"]) == ("t", "3")
    assert level.properties["REAL_QID"].isdigit()
    assert found["far"].queue == 17


def test_deliver_times_need_a_broker(spark, save, store_path):
    """Nothing would delay such a message."""
    frame = spark.sql("SELECT 'late' AS body, 1800000000000 AS deliverTime")
    with pytest.raises(Exception, match="column 'deliverTime' needs a broker"):
        save(frame, topic="t")
    assert not store_path.exists()


def test_a_failed_job_leaves_nothing(spark, save, store_path):
    save(spark.sql("SELECT 'before' AS body"), topic="t")
    bad = spark.range(0, 1000, 1, 4).selectExpr(
        "CASE WHEN id < 999 THEN cast(id AS string) END AS body"
    )
    with pytest.raises(Exception, match="row 249 of partition 3: body is null"):
        save(bad, topic="t")
    assert bodies(store_path) == ["before"]
    assert not leftovers(store_path)


@pytest.mark.parametrize(
    ("select", "why"),
    [
        ("SELECT 'x' AS bodi", "the sink has no column 'bodi'; did you mean 'body'?"),
        ("SELECT 1 AS body", "column 'body' must be binary or string, not int"),
        ("SELECT 't' AS topic", "the sink needs a column 'body'"),
        ("SELECT 'x' AS body", "name the topic"),
        (
            "SELECT 'x' AS body, 'a b' AS topic",
            "row 0 of partition 0: topic has a character other than",
        ),
        ("SELECT 'x' AS body, repeat('a', 128) AS topic", "topic is longer than 127 bytes"),
        ("SELECT 'x' AS body, 't' AS topic, 'a\\u0001' AS tags", "TAGS contains 0x01 or 0x02"),
        ("SELECT 'x' AS body, 't' AS topic, -1 AS delayLevel", "delayLevel is negative"),
        ("SELECT 'x' AS body, 't' AS topic, 65536 AS queueId", "queueId is over 65535"),
        ("SELECT 'x' AS body, 't' AS topic, repeat('a', 40000) AS tags", "longer than 32255 bytes"),
    ],
)
def test_bad_rows_and_columns_are_named(spark, save, store_path, select, why):
    with pytest.raises(Exception) as failure:
        save(spark.sql(select))
    assert why in said(failure)
    assert not store_path.exists() or bodies(store_path) == []


def test_only_append(spark, store_path):
    with pytest.raises(Exception, match="never overwritten"):
        spark.sql("SELECT 'x' AS body").write.format("rocketmq").mode("overwrite").option(
            "topic", "t"
        ).save(str(store_path))


# ---- a commit that dies ----


def test_a_commit_that_cannot_put_anything_leaves_nothing(spark, save, store_path, monkeypatch):
    """As with a package that cannot be imported when the messages are put."""
    options = into(store_path, jobId="job")

    def unable(*arguments: Any) -> int:
        raise ImportError("No module named 'numpy'")

    for batch in range(2):  # with nothing before it, and after a batch that was put
        spools = [spooled(options, "job", 0, ["a", "b"])]
        monkeypatch.setattr(sink, "_put_batch", unable)
        with pytest.raises(ImportError):
            sink._commit(options, "job", batch, spools)
        sink._clear(options, "job")  # Spark's abort comes afterwards
        assert (sink.pending(store_path), leftovers(store_path)) == ([], [])
        monkeypatch.undo()
        sink._commit(options, "job", batch, [spooled(options, "job", 0, ["a", "b"])])
        assert bodies(store_path) == sorted(["a", "b"] * (batch + 1))


def test_a_missing_package_is_named_before_anything_is_planned(monkeypatch):
    monkeypatch.setattr(tasks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"pyarrow and numpy: .* 'rocketmq-pystore\[spark\]'"):
        RocketmqSource({})


def test_a_commit_cut_off_is_finished_once(spark, save, store_path, monkeypatch):
    options = into(store_path)
    spools = [spooled(options, "job", p, [f"{p}-{i}" for i in range(500)]) for p in range(3)]
    real, calls = sink._put_batch, iter(range(100))

    def dying(*arguments: Any) -> int:
        if next(calls) == 2:
            raise KeyboardInterrupt  # nothing of _put's own runs
        return real(*arguments)

    monkeypatch.setattr(sink, "_put_batch", dying)
    with pytest.raises(KeyboardInterrupt):
        sink._commit(options, "job", 0, spools)
    monkeypatch.undo()
    sink._clear(options, "job")  # Spark's abort comes afterwards, and must not delete the spools
    assert len(bodies(store_path)) == 1000
    assert [(e.job, e.rows) for e in sink.pending(store_path)] == [("job", 1500)]
    # The job is run again, with spools of its own.
    again = [spooled(options, "job", p, [f"{p}-{i}" for i in range(500)]) for p in range(3)]
    sink._commit(options._replace(job="job"), "job", 0, again)
    assert bodies(store_path) == sorted(f"{p}-{i}" for p in range(3) for i in range(500))
    assert sink.pending(store_path) == []
    assert not leftovers(store_path)


def test_rows_without_a_queue_go_on_in_turn_over_batches(store_path):
    """One row a batch, as of a slow stream; delayed ones have their turn, too."""
    options = into(store_path)
    for batch in range(8):
        delayed = {"delayLevel": [3]} if batch == 2 else {}
        sink._commit(options, "job", batch, [spooled(options, "job", 0, [str(batch)], **delayed)])
    queues = {
        bytes(m.body).decode(): int(m.properties.get("REAL_QID", m.queue))
        for m in messages(store_path)
    }
    assert [queues[str(batch)] for batch in range(8)] == list(range(8))


def test_rows_of_one_key_stay_in_their_order_whatever_their_flags(store_path):
    options = into(store_path)
    bodies = [f"{i:02}" for i in range(12)]
    flags, levels = [i % 3 for i in range(12)], [99 if i < 4 or i % 2 else 18 for i in range(12)]
    more = {"flag": flags, "shardingKey": ["k"] * 12}
    sink._commit(options, "a", 0, [spooled(options, "a", 0, bodies, **more)])
    delayed = spooled(options, "b", 0, bodies, delayLevel=levels, **more)
    sink._commit(options, "b", 0, [delayed])
    for topic in ("t", "SCHEDULE_TOPIC_XXXX"):
        found = [m for m in messages(store_path) if m.topic == topic]
        assert [(bytes(m.body).decode(), m.flag) for m in found] == list(
            zip(bodies, flags, strict=True)
        )
        assert len({m.queue for m in found}) == 1


def test_a_spool_that_cannot_be_written_is_named(store_path, tmp_path):
    (tmp_path / "file").touch()
    options = into(store_path, spool=str(tmp_path / "file"))
    with pytest.raises(SinkError, match=r"cannot write the spool .*/file/job/0/"):
        sink._spool(iter([pa.record_batch({"body": ["a"]})]), options, "job", 0)


def test_an_attempt_of_a_task_that_was_killed_is_never_put(store_path):
    """Spark tries the task again, and commits the spool that it was told of."""
    options = into(store_path)
    dead = Path(spooled(options, "job", 0, [str(i) for i in range(50)]).path)
    dead.write_bytes(dead.read_bytes()[:-100])
    again = spooled(options, "job", 0, [str(i) for i in range(100)])
    assert len(leftovers(store_path)) == 2
    sink._commit(options, "job", 0, [again])
    assert sorted(map(int, bodies(store_path))) == list(range(100))
    assert not leftovers(store_path)


def test_a_commit_that_stopped_inside_a_batch_is_finished_by_hand(store_path, monkeypatch):
    options = into(store_path)
    spool = spooled(options, "job", 0, [str(i) for i in range(100)])
    real = pystore.Store.put_many

    def half(self: pystore.Store, topic: str, body: Any, **more: Any) -> Any:
        more = {k: v[:50] if hasattr(v, "__len__") else v for k, v in more.items()}
        real(self, topic, body[:50], **more)
        raise pystore.DiskFull("the disk is full")

    monkeypatch.setattr(pystore.Store, "put_many", half)
    with pytest.raises(SinkError, match=r"stopped with 0 of 100 .* stores the rest, once"):
        sink._commit(options, "job", 0, [spool])
    monkeypatch.undo()
    assert sink.finish(store_path) == 50
    assert sorted(map(int, bodies(store_path))) == list(range(100))
    assert sink.finish(store_path) == 0


def spooled(options: Any, job: str, partition: int, texts: list[str], **more: list[Any]) -> Any:
    """A task's spool, without Spark."""
    batch = pa.record_batch({"body": texts, **more})
    made = sink._spool(iter([batch]), options, job, 0)
    path = Path(made.path)
    renamed = path.with_name(f"{partition:06d}{path.name[6:]}")
    # The stamp has the partition too; without a task it is 0, so it is written again.
    stamper = sink.Stamper(options.topic, "", job, 0, partition)
    with path.open("wb") as out, pa.ipc.new_stream(out, stamper.convert(batch).schema) as writer:
        stamper.rows = 0
        writer.write_batch(stamper.convert(batch))
    path.rename(renamed)
    made.path, made.partition = str(renamed), partition
    return made


# ---- streams ----


@pytest.fixture
def stream(spark: Any, tmp_path: Path, store_path: Path) -> Iterator[Callable[..., Any]]:
    """stream(source): an AvailableNow copy of one store into the store of the test."""

    def run(source: Path, **options: object) -> None:
        frame = (
            spark.readStream.format("rocketmq")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 400)
            .load(str(source))
        )
        query = (
            frame.select("topic", "body", "queueId")
            .writeStream.format("rocketmq")
            .option("path", str(store_path))
            .option("storeConf", json.dumps(SMALL))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(BOUND_S)

    yield run


def test_a_stream_writes_each_batch_once(stream, make, tmp_path, store_path):
    source = make({"t": [700, 300]}, tmp_path / "source")
    stream(source)
    assert bodies(store_path) == bodies(source)
    # Batches done but not written down by Spark come again after a restart.
    commits = tmp_path / "checkpoint" / "commits"
    newest = max(int(p.name) for p in commits.iterdir() if p.name.isdigit())
    assert newest == 2
    for path in [*commits.glob(f"{newest}"), *commits.glob(f".{newest}.crc")]:
        path.unlink()
    stream(source)
    assert bodies(store_path) == bodies(source)
    batches = {m.properties["SPARK_BATCH"] for m in messages(store_path)}
    assert batches == {"0", "1", "2"}
