"""Frames sent to a broker, and ranges of queues pulled from one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S, until

import pystore
from broker import Broker, Message
from broker.testing import SETTINGS
from pystore.format.names import TIMER_TOPIC

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from spark_ext.errors import BadOption, DataLoss, SinkError, SourceError  # noqa: E402
from spark_ext.options import parse_read, parse_write  # noqa: E402
from spark_ext.pull import PullRange, records  # noqa: E402
from spark_ext.sender import send  # noqa: E402
from tests.spark.pulls import both_ways  # noqa: E402


@contextlib.contextmanager
def running(path: Path, **settings: Any) -> Iterator[Broker]:
    given = SETTINGS | {"brokerName": "broker-a"} | settings
    with Broker(path, listenPort=0, with_namesrv=True, drain_s=0.0, **given) as broker:
        yield broker


@pytest.fixture
def broker(store_path: Path) -> Iterator[Broker]:
    with running(store_path) as made:
        yield made


@pytest.fixture
def sent(broker: Broker) -> Callable[..., int]:
    """sent({column: values}, **options): what a task does, without a session."""

    def work(columns: dict[str, Any], **options: str) -> int:
        given = parse_write({"nameServer": broker.namesrv_address, **options})
        return send([pa.record_batch(columns)], given, "job", 3).rows

    return work


def stored(path: Path, topic: str) -> list[pystore.Message]:
    with pystore.Reader(path) as reader:
        return [m for m in reader.messages(check_crc=True) if m.topic == topic]


@pytest.mark.spark
def test_a_frame_reaches_the_broker(spark, broker, store_path):
    frame = spark.range(0, 3000, 1, 2).selectExpr("cast(id AS string) AS body", "'x' AS tags")
    writer = frame.write.format("rocketmq").mode("append").option("topic", "t")
    writer.option("nameServer", broker.namesrv_address).save()
    found = stored(store_path, "t")
    assert sorted(int(bytes(m.body)) for m in found) == list(range(3000))
    assert {m.tags for m in found} == {"x"}
    names = ("SPARK_JOB", "SPARK_BATCH", "SPARK_PARTITION", "SPARK_ROW")
    assert len({tuple(m.properties[n] for n in names) for m in found}) == 3000


def test_a_broker_that_stalls_for_seconds_costs_no_attempt(sent, broker, store_path):
    """An application gives up after three; a task that fails costs Spark more than waiting."""
    sent({"body": ["first"]}, topic="t")
    broker.loop.call_soon_threadsafe(time.sleep, 3.5)
    assert sent({"body": ["second"]}, topic="t") == 1
    assert [bytes(m.body) for m in stored(store_path, "t")] == [b"first", b"second"]


@pytest.mark.long
@pytest.mark.spark
def test_a_stream_reaches_the_broker(spark, broker, store_path, make, tmp_path):
    source = make({"s": [50, 30]}, tmp_path / "source")
    query = (
        spark.readStream.format("rocketmq")
        .option("startingOffsets", "earliest")
        .load(str(source))
        .selectExpr("body", "'t' AS topic")
        .writeStream.format("rocketmq")
        .option("nameServer", broker.namesrv_address)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(BOUND_S)
    found = stored(store_path, "t")
    assert len({bytes(m.body) for m in found}) == len(found) == 80
    assert {m.properties["SPARK_BATCH"] for m in found} == {"0"}


def test_all_columns_arrive(sent, broker, store_path):
    broker.create_topic("t", queues=4)
    rows = {
        "body": [b"a", b"b", b"c"],
        "tags": ["paid", None, ""],
        "keys": pa.array([["k1", "k2"], None, []], pa.list_(pa.string())),
        "properties": pa.array(
            [[("p", "1"), ("UNIQ_KEY", "old"), ("MSG_REGION", "far")], None, []],
            pa.map_(pa.string(), pa.string()),
        ),
        "queueId": pa.array([2, None, 0], pa.int32()),
        "flag": pa.array([7, None, -1], pa.int32()),
    }
    assert sent(rows, topic="t", tags="unused") == 3
    found = {bytes(m.body): m for m in stored(store_path, "t")}
    first = found[b"a"]
    assert (first.tags, first.keys, first.queue, first.flag) == ("paid", ["k1", "k2"], 2, 7)
    assert (first.properties["p"], first.properties["SPARK_ROW"]) == ("1", "0")
    assert first.properties["UNIQ_KEY"] != "old"
    assert first.properties["MSG_REGION"] != "far"
    assert (found[b"b"].tags, found[b"b"].flag) == (None, 0)
    assert (found[b"c"].queue, found[b"c"].flag) == (0, -1)


def test_rows_without_topic_and_tags_take_those_of_the_options(sent, store_path):
    sent({"body": ["x"]}, topic="t", tags="some", jobId="named")
    (message,) = stored(store_path, "t")
    assert message.tags == "some"


def test_sharding_keys_keep_the_order(sent, store_path):
    keys = [f"k{i % 5}" for i in range(100)]
    sent({"body": [str(i) for i in range(100)], "shardingKey": keys}, topic="t")
    by_key: dict[str, list[Any]] = {}
    for m in sorted(stored(store_path, "t"), key=lambda m: m.queue_offset):
        by_key.setdefault(m.properties["__SHARDINGKEY"], []).append(m)
    assert len(by_key) == 5
    for messages in by_key.values():
        assert len({m.queue for m in messages}) == 1
        numbers = [int(bytes(m.body)) for m in messages]
        assert numbers == sorted(numbers)


def test_delayed_rows_wait_at_the_broker(sent, store_path):
    sent({"body": ["x"], "delayLevel": pa.array([18], pa.int32())}, topic="t")
    (message,) = stored(store_path, "SCHEDULE_TOPIC_XXXX")
    assert message.properties["REAL_TOPIC"] == "t"


def test_rows_with_a_time_wait_until_then(sent, broker, store_path):
    now = time.time_ns() // 1_000_000
    times = [now + 3_600_000, None, now - 5, now + 700]
    columns = {"body": ["far", "plain", "past", "near"], "deliverTime": pa.array(times, pa.int64())}
    assert sent(columns, topic="t") == 4
    until(lambda: len(stored(store_path, "t")) == 3, "the near one is delivered")
    found = {bytes(m.body): m for m in stored(store_path, "t")}
    assert set(found) == {b"plain", b"past", b"near"}
    assert found[b"near"].store_timestamp >= now + 700
    (far,) = [m for m in stored(store_path, TIMER_TOPIC) if bytes(m.body) == b"far"]
    assert far.properties["TIMER_DELIVER_MS"] == str(times[0])


def test_a_time_and_a_level_are_refused_together(sent):
    columns = {"body": ["a"], "deliverTime": [1 << 41], "delayLevel": pa.array([3], pa.int32())}
    with pytest.raises(SinkError, match="deliverTime and delayLevel are both given"):
        sent(columns, topic="t")


def test_what_a_broker_refuses_is_named_with_its_row(sent, broker):
    with pytest.raises(SinkError, match="row 1 of partition 0: body is empty, which brokers"):
        sent({"body": ["x", ""]}, topic="t")
    broker.create_topic("few", queues=2)
    with pytest.raises(SinkError, match="queueId 9: the topic few has the queues broker-a/0, bro"):
        sent({"body": ["x"], "queueId": pa.array([9], pa.int32())}, topic="few")


def test_both_columns_that_choose_a_queue_are_refused():
    from pyspark.sql.types import StructType

    from spark_ext.errors import BadSchema
    from spark_ext.sender import BatchSender

    schema = StructType().add("body", "string").add("queueId", "integer")
    schema = schema.add("shardingKey", "string")
    options = parse_write({"nameServer": "localhost:1", "topic": "t"})
    with pytest.raises(BadSchema, match="one of the columns shardingKey and queueId"):
        BatchSender(options, schema, False)
    with pytest.raises(SinkError, match="never overwritten"):
        BatchSender(options, schema.add("flag", "integer"), True)


def test_a_task_whose_broker_stops_fails_and_says_what_is_stored(store_path):
    rows = pa.record_batch({"body": ["a", "b"]})
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running(store_path))
        options = parse_write({"nameServer": broker.namesrv_address, "topic": "t"})

        def batches() -> Iterator[Any]:
            yield rows
            stack.close()
            yield rows

        with pytest.raises(SinkError, match="at least 2 rows of this task are stored, and come"):
            send(batches(), options, "job", 0)
    assert len(stored(store_path, "t")) == 2


def test_a_message_that_is_stored_unsafely_fails_the_task(sent, monkeypatch):
    """A task has succeeded only when brokers have kept what their settings promise."""
    from broker.client import AsyncProducer, SendStatus

    real = AsyncProducer.send_batch

    async def unsafe(self: AsyncProducer, *given: Any, **more: Any) -> Any:
        found = await real(self, *given, **more)
        return [r._replace(status=SendStatus.FLUSH_DISK_TIMEOUT) for r in found]

    monkeypatch.setattr(AsyncProducer, "send_batch", unsafe)
    with pytest.raises(SinkError, match="the broker broker-a answers FLUSH_DISK_TIMEOUT"):
        sent({"body": ["x"]}, topic="t")


# ---- access control ----

PAIR = {"accessKey": "writers", "secretKey": "hidden1"}
#: Options, and what the broker says of them.
REFUSED = {
    "another secret": (PAIR | {"secretKey": "hidden2"}, "Check signature failed for accessKey=wri"),
    "another key": (PAIR | {"accessKey": "readers"}, "No acl config for readers"),
    "none": ({}, "No accessKey is configured"),
}


@pytest.fixture
def guarded(store_path: Path) -> Iterator[Broker]:
    rules = store_path.parent / "plain_acl.yml"
    rules.write_text(
        "accounts:\n- accessKey: writers\n  secretKey: hidden1\n  topicPerms:\n  - t=PUB|SUB\n"
        "  groupPerms:\n  - rocketmq-spark=SUB\n"
    )
    rules.chmod(0o600)
    with running(store_path, aclEnable=True) as made:
        yield made


def sent_by(broker: Broker, pair: dict[str, str]) -> int:
    given = parse_write({"nameServer": broker.namesrv_address, "topic": "t"} | pair)
    return send([pa.record_batch({"body": ["x"]})], given, "job", 0).rows


@pytest.mark.parametrize("what", REFUSED)
def test_another_pair_or_none_is_refused_in_one_sentence(guarded, what, tmp_path):
    """Of a write and of a read; neither says a secret."""
    pair, said = REFUSED[what]
    sent_by(guarded, PAIR)
    guarded.store.flush()
    with pytest.raises(SinkError) as write:
        sent_by(guarded, pair)
    with pytest.raises(SourceError) as read:
        both_ways(
            guarded.store.path, guarded.namesrv_address, tmp_path / "elsewhere", topic="t", **pair
        )
    for text in (str(write.value), str(read.value)):
        assert text.count(said) == 1
        assert ". " not in text
        assert guarded.address in text
        assert "hidden" not in text
    assert "the message to t was refused by" in str(write.value)
    assert "check the credentials" in str(write.value)
    assert len(stored(guarded.store.path, "t")) == 1


def test_half_a_pair_is_refused_before_anything_is_asked():
    for half in PAIR:
        with pytest.raises(BadOption, match="options accessKey and secretKey go together"):
            parse_write({"nameServer": "h:1", "topic": "t", half: "x"})
        with pytest.raises(BadOption, match="options accessKey and secretKey go together"):
            parse_read(
                {"path": "/s", "fallback": "pull", "nameServer": "h:1", half: "x"}, streaming=False
            )


def test_credentials_of_the_environment(guarded, monkeypatch):
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "writers")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "hidden1")
    assert sent_by(guarded, {}) == 1


@pytest.mark.spark
def test_a_frame_is_written_with_credentials_of_its_options(spark, guarded, store_path):
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id AS string) AS body")
    writer = frame.write.format("rocketmq").mode("append").option("topic", "t")
    writer = writer.option("nameServer", guarded.namesrv_address)
    with pytest.raises(Exception, match="No accessKey is configured"):
        writer.save()
    writer.options(**PAIR).save()
    assert len(stored(store_path, "t")) == 100


# ---- TLS ----


def test_a_task_that_is_repeated_sends_the_same_stamps_again(broker, store_path):
    """At least once; consumers tell by the stamps."""
    options = parse_write({"nameServer": broker.namesrv_address, "topic": "t"})
    for _ in range(2):
        send([pa.record_batch({"body": ["a", "b"]})], options, "job", 3)
    names = ("SPARK_JOB", "SPARK_BATCH", "SPARK_PARTITION", "SPARK_ROW")
    stamps = sorted(tuple(m.properties[n] for n in names) for m in stored(store_path, "t"))
    assert stamps == [("job", "3", "0", "0")] * 2 + [("job", "3", "0", "1")] * 2


# ---- fallback=pull ----


def mixed(broker: Broker) -> None:
    """Plain, tagged, keyed, compressed and batched messages in four queues."""
    broker.create_topic("t", queues=4)
    with broker.producer(compress_over=200) as producer:
        for i in range(40):
            producer.send(Message("t", b"plain%d" % i))
            producer.send(Message("t", b"tagged%d" % i, tags="ab"[i % 2], properties={"n": str(i)}))
            producer.send(Message("t", b"keyed%d" % i, keys=["k", f"k{i}"], flag=i))
            producer.send(Message("t", b"z" * 1000 + b"%d" % i))
        producer.send_batch([Message("t", b"batch%d" % i, tags="a") for i in range(100)])


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 260),
        ({"includeProperties": "map", "decompress": "false", "checkCrc": "true"}, 260),
        ({"tags": "a"}, 120),
        ({"sql92": "n >= 10 AND n < 20"}, 10),
        ({"batchRows": "7", "batchBytes": "900", "minPartitions": "3"}, 260),
    ],
)
def test_pulled_rows_are_those_of_the_files(broker, tmp_path, options, rows):
    mixed(broker)
    broker.store.flush()
    elsewhere = tmp_path / "elsewhere"
    files, pulled = both_ways(
        broker.store.path, broker.namesrv_address, elsewhere, topic="t", **options
    )
    assert files.num_rows == rows
    assert pulled.equals(files)


@pytest.mark.spark
def test_a_query_on_a_host_without_the_store(spark, broker, store_path, tmp_path):
    """The store is away when the tasks run, as on a host that does not have it."""
    mixed(broker)
    broker.store.flush()
    away = tmp_path / "away"
    away.symlink_to(store_path)
    reader = spark.read.format("rocketmq").option("topic", "t").option("fallback", "pull")
    frame = reader.option("nameServer", broker.namesrv_address).load(str(away))
    assert frame.rdd.getNumPartitions() == 1  # the plan is made here
    away.unlink()
    assert frame.count() == 260


def test_a_range_that_the_broker_has_not_is_named(broker, store_path):
    mixed(broker)
    network = parse_read(
        {"path": "/s", "fallback": "pull", "nameServer": broker.namesrv_address}, streaming=False
    ).network
    assert network is not None

    def pulled(end: int, *, name: str = "broker-a", probe: Any = None, lost: Any = None) -> Any:
        return list(records(network, PullRange(name, "t", 0, 0, end, probe, lost), 1 << 20))

    with pytest.raises(SourceError, match="the topic t is on broker-a, not on other: set option"):
        pulled(5, name="other")
    with pytest.raises(DataLoss, match=r"offsets \d+ to 99999 of t/0 no longer exist"):
        pulled(100_000)
    with pytest.raises(SourceError, match="does not have the store that was planned"):
        pulled(5, probe=(12345, 100))
    missing: list[int] = []
    held = len(pulled(100_000, lost=missing.append)[0])
    assert held > 0
    assert 99_000 < sum(missing) < 100_000
    assert broker.store.metadata.offsets.get("rocketmq-spark", "t", 0) in (None, -1)
