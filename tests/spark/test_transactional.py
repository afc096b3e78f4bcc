"""The sink of half messages: all rows of a batch become visible, once, or none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S, until

import pystore
from broker import Broker
from broker.client import AsyncTransactionProducer, BrokerRefused, LocalState
from broker.testing import SETTINGS

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from spark_ext.errors import BadSchema, SinkError  # noqa: E402
from spark_ext.options import WriteOptions, parse_write  # noqa: E402
from spark_ext.transactional import (  # noqa: E402
    DECISIONS,
    HalvesCommit,
    fate_of,
    rolled_back,
    send_halves,
    settled,
    with_producer,
)

ROWS = [str(i) for i in range(100)]
#: Checks come quickly: a half that nobody has ended is asked about within a second.
QUICK = {"transactionCheckInterval": 500, "transactionTimeOut": 200}


@pytest.fixture
def broker(store_path: Path) -> Iterator[Broker]:
    given = SETTINGS | QUICK
    with Broker(store_path, listenPort=0, with_namesrv=True, drain_s=0.0, **given) as made:
        yield made


@pytest.fixture
def options(broker: Broker) -> WriteOptions:
    given = {"nameServer": broker.namesrv_address, "topic": "t", "transactional": "true"}
    return parse_write(given)


@pytest.fixture
def task(options: WriteOptions) -> Callable[..., HalvesCommit]:
    """task(): what a task does with ROWS, without a session; its halves are open afterwards."""

    def work(batch: int = 3, bodies: Any = ROWS) -> HalvesCommit:
        return send_halves([pa.record_batch({"body": bodies})], options, "job", batch)

    return work


def visible(path: Path) -> list[str]:
    with pystore.Reader(path) as reader:
        return sorted(
            (bytes(m.body).decode() for m in reader.messages(check_crc=True) if m.topic == "t"),
            key=int,
        )


def open_halves(broker: Broker) -> int:
    return broker.services.transactions.halves.state().open


def test_nothing_is_visible_before_the_commit(task, store_path):
    task()
    assert visible(store_path) == []


def test_everything_is_visible_once_after_it(task, options, store_path):
    tasks = [task(), task()]
    settled(options, tasks)
    assert visible(store_path) == sorted(ROWS * 2, key=int)


def test_a_batch_that_is_repeated_is_delivered_once(task, options, store_path):
    settled(options, [task()])
    settled(options, [task()])
    assert visible(store_path) == ROWS


def test_the_next_batch_is_another(task, options, store_path):
    settled(options, [task(3)])
    settled(options, [task(4)])
    assert visible(store_path) == sorted(ROWS * 2, key=int)


def test_a_batch_that_is_aborted_is_never_visible(task, options, store_path, broker):
    rolled_back(options, [task()])
    until(lambda: open_halves(broker) == 0)
    assert visible(store_path) == []


def test_a_task_that_fails_rolls_back_what_it_has_sent(options, store_path, broker):
    def rows() -> Iterator[Any]:
        yield pa.record_batch({"body": ROWS})
        yield pa.record_batch({"body": ["x", None]})

    with pytest.raises(SinkError, match="row 101 of partition 0: body is null"):
        send_halves(rows(), options, "job", 3)
    until(lambda: open_halves(broker) == 0)
    assert visible(store_path) == []


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """with dying(n): the commit ends n halves, then its process is as good as gone."""

    @contextlib.contextmanager
    def within(count: int) -> Iterator[None]:
        end, ended = AsyncTransactionProducer.end_confirmed, []

        async def some(producer: Any, tx: Any, state: Any) -> None:
            if len(ended) >= count:
                raise BrokerRefused("END_TRANSACTION", 1, "the process is gone", "here")
            ended.append(tx)
            await end(producer, tx, state)

        with monkeypatch.context() as scope:
            scope.setattr(AsyncTransactionProducer, "end_confirmed", some)
            with pytest.raises(SinkError, match="the process is gone"):
                yield

    return within


def test_a_commit_that_died_half_way_is_finished_by_the_repeated_batch(
    task, options, store_path, dying
):
    with dying(40):
        settled(options, [task()])
    settled(options, [task()])
    assert visible(store_path) == ROWS


def test_the_abort_after_such_a_commit_takes_nothing_back(task, options, store_path, dying):
    made = [task()]
    with dying(0):
        settled(options, made)
    rolled_back(options, made)
    settled(options, [task()])
    assert visible(store_path) == ROWS


def test_checks_are_answered_from_the_decision(task, options, store_path, broker, monkeypatch):
    lost, counts = task(), task()
    with monkeypatch.context() as scope:
        scope.setattr(AsyncTransactionProducer, "end_confirmed", _nothing)
        settled(options, [counts])
    assert lost.halves

    listen(options, lambda: open_halves(broker) == 0)
    assert visible(store_path) == ROWS


def listen(options: WriteOptions, ready: Callable[[], bool]) -> None:
    """Another job of the sink runs until then, and knows the topic of the halves."""

    async def work(producer: AsyncTransactionProducer) -> None:
        await producer.queues("t")
        async with asyncio.timeout(BOUND_S):
            while not ready():
                await asyncio.sleep(0.05)

    with_producer(options, "a test", work)


async def _nothing(producer: Any, tx: Any, state: Any) -> None:
    """A confirmation that never left."""


def test_halves_without_a_decision_stay_open(task, options, broker, monkeypatch):
    task()
    asked: list[LocalState] = []

    async def fate(*question: Any) -> LocalState:
        asked.append(await fate_of(*question))
        return asked[-1]

    monkeypatch.setattr("spark_ext.transactional.fate_of", fate)

    listen(options, lambda: len(asked) >= len(ROWS))
    assert set(asked) == {LocalState.UNKNOWN}
    assert open_halves(broker) == len(ROWS)


def test_decisions_are_messages_that_tools_find_by_key(task, options, store_path):
    settled(options, [task()])
    with pystore.Reader(store_path) as reader:
        assert [m.keys for m in reader.query(DECISIONS, "job:3")] == [["job:3"]] * 2


def test_a_broker_without_index_is_refused_before_anything_is_visible(store_path, monkeypatch):
    monkeypatch.setattr("spark_ext.transactional._INDEX_WAIT_S", 0.2)
    given = SETTINGS | {"messageIndexEnable": False}
    with Broker(store_path, listenPort=0, with_namesrv=True, drain_s=0.0, **given) as broker:
        there = {"nameServer": broker.namesrv_address, "topic": "t", "transactional": "true"}
        options = parse_write(there)
        made = send_halves([pa.record_batch({"body": ROWS})], options, "job", 3)
        with pytest.raises(SinkError, match="messageIndexEnable"):
            settled(options, [made])
    assert visible(store_path) == []


@pytest.mark.parametrize("column", ["queueId", "shardingKey", "delayLevel", "deliverTime"])
def test_columns_without_meaning_are_refused(options, column):
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

    from spark_ext.transactional import BatchHalves

    kinds = {"shardingKey": StringType(), "deliverTime": TimestampType()}
    kind = kinds.get(column, IntegerType())
    schema = StructType([StructField("body", StringType()), StructField(column, kind)])
    with pytest.raises(BadSchema, match=f"column '{column}' has no meaning"):
        BatchHalves(options, schema, False)


@pytest.mark.spark
def test_frames_and_streams(spark, options, broker, store_path, make, tmp_path):
    to = {"nameServer": broker.namesrv_address, "transactional": "true", "topic": "t"}
    frame = spark.range(0, 300, 1, 2).selectExpr("cast(id AS string) AS body")
    frame.write.format("rocketmq").mode("append").options(**to).save()
    source = make({"s": [50, 30]}, tmp_path / "source")
    query = (
        spark.readStream.format("rocketmq")
        .option("startingOffsets", "earliest")
        .load(str(source))
        .selectExpr("'7' AS body")
        .writeStream.format("rocketmq")
        .options(**to)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(BOUND_S)
    assert visible(store_path) == sorted([*map(str, range(300)), *["7"] * 80], key=int)
