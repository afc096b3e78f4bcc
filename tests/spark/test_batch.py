"""Batch reads: which messages come, and what is in them."""

from __future__ import annotations

import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

import pystore
from tests.spark.conftest import put

pytestmark = pytest.mark.spark


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(r.body).decode() for r in frame.select("body").collect())


def expected(topic: str, queue: int, start: int, end: int) -> list[str]:
    return sorted(f"{topic}-{queue}-{i}" for i in range(start, end))


def test_every_message_comes_once_with_all_its_columns(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        store.put(
            "orders", "hällo", tags="paid", keys=["a", "b"], properties={"x": "1"}, queue=2, flag=7,
            born_timestamp=1_700_000_000_123, born_host="10.0.0.1:40000", reconsume_times=3,
        )  # fmt: skip
        placed = store.put("orders", b"", queue=2)
    with pystore.Reader(store_path) as reader:
        m = reader.read("orders", 2, 0)[0]
        rows = load(
            store_path,
            "topic string, brokerName string, queueId int, queueOffset long, body binary,"
            " tags string, keys string, properties map<string,string>,"
            " flag int, bornTimestamp timestamp,"
            " storeTimestamp timestamp, sysFlag int, bornHost string, storeHost string,"
            " reconsumeTimes int, bodyCRC int, storeSize int, commitLogOffset long, msgId string,"
            " preparedTransactionOffset long",
        ).orderBy("queueOffset")
        first, second = rows.selectExpr("*", "unix_millis(bornTimestamp) AS born").collect()
        assert (first.topic, first.brokerName, first.queueId, first.queueOffset) == (
            "orders", "broker-a", 2, 0,
        )  # fmt: skip
        assert bytes(first.body).decode() == "hällo"
        assert (first.tags, first.keys, first.properties) == ("paid", "a b", m.properties)
        assert (first.flag, first.born, first.reconsumeTimes) == (7, 1_700_000_000_123, 3)
        assert (first.bornHost, first.storeHost) == (m.born_host, m.store_host)
        assert first.bodyCRC == zlib.crc32("hällo".encode()) & 0x7FFFFFFF
        assert (first.storeSize, first.commitLogOffset) == (m.size, 0)
        assert (first.msgId, first.preparedTransactionOffset) == (m.message_id, 0)
    assert (second.tags, second.keys, bytes(second.body)) == (None, None, b"")
    assert second.commitLogOffset == placed.physical_offset


def test_tags_are_compared_as_text_not_by_hash_alone(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        for tag in ("AaAa", "BBBB", "AaBB", "other"):  # the first three share a hash
            store.put("t", tag, tags=tag, queue=0)
    assert bodies(load(store_path, tags="BBBB")) == ["BBBB"]
    assert bodies(load(store_path, tags="BBBB || other")) == ["BBBB", "other"]
    assert bodies(load(store_path, tags="*")) == ["AaAa", "AaBB", "BBBB", "other"]


def test_several_stores_in_one_read(load, make, tmp_path):
    a, b = make({"t": [3]}, tmp_path / "a"), make({"t": [5], "u": [1]}, tmp_path / "b")
    counted = load([a, b]).groupBy("brokerName").count().collect()
    assert {r.brokerName: r["count"] for r in counted} == {"broker-a": 3, "broker-b": 6}
    named = load([a, b], brokerName="x,y", startingOffsets='{"t": {"y": {"0": 4}}}')
    assert {(r.brokerName, r.topic, r.queueOffset) for r in named.collect()} == {
        ("x", "t", 0), ("x", "t", 1), ("x", "t", 2), ("y", "t", 4), ("y", "u", 0),
    }  # fmt: skip


def test_properties_as_map_json_or_not_at_all(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        store.put("t", "x", properties={"é": '"'}, queue=0)
    assert json.loads(load(store_path).first().properties) == {"é": '"'}
    assert load(store_path, includeProperties="map").first().properties == {"é": '"'}
    assert "properties" not in load(store_path, includeProperties="none").columns


def test_envelope_and_body_make_the_whole_record(load, golden):
    """Of the Java broker's records, compressed ones too."""
    path = golden("normal-exit")
    schema = "commitLogOffset long, envelope binary, body binary, storeSize int"
    rows = load(path, schema, scan="log", includeTransactions="all", decompress="false").collect()
    got = {}
    for r in rows:
        head = r.storeSize - len(r.body)
        assert len(r.envelope) == head
        got[r.commitLogOffset] = (bytes(r.envelope), bytes(r.body))
    with pystore.Reader(path) as reader:
        for m in reader.messages():
            at = bytes(m.record).index(bytes(m.raw_body), 84) if len(m.raw_body) else 88
            record = bytes(m.record)
            envelope, body = got.pop(m.physical_offset)
            assert (envelope, body) == (
                record[:at] + record[at + len(body) :],
                record[at : at + len(body)],
            )
    assert got == {}


def test_no_message_no_row(load, make):
    path = make({"t": [3]})
    assert load(path, startingOffsets='{"t":{"0":3}}').count() == 0
    assert load(path, subscribePattern="none").collect() == []


def test_limit_ends_early(load, make):
    path = make({"t": [20000]}, mappedFileSizeCommitLog=8 << 20)
    assert len(load(path, batchRows=100).limit(5).collect()) == 5
    assert len(load(path, batchRows=100).take(150)) == 150
    assert load(path).count() == 20000  # after workers went with a broken pipe


def test_one_load_under_two_filters(load, make):
    frame = load(make({"t": [10, 20, 30]}))
    q0, q1 = frame.filter("queueId = 0"), frame.filter("queueId = 1")
    assert (q0.count(), q1.count(), frame.count()) == (10, 20, 60)
    assert q0.union(q1).count() == 30
    assert q0.union(frame).count() == 70


def test_a_temporary_view_keeps_its_options(spark, make):
    path = make({"t": [4], "u": [2]})
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING rocketmq OPTIONS (path '{path}', topic 't')"
    )
    assert spark.sql("SELECT count(*) AS n FROM v WHERE queueOffset > 0").first().n == 3


def test_a_plan_is_a_snapshot(load, store_path, small):
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 5)
        store.flush()
        frame = load(store_path)
        assert frame.count() == 5
        put(store, "t", 0, 5, first=5)
        store.flush()
        assert frame.count() == 5
        assert load(store_path).count() == 10


def test_many_short_queues_are_few_partitions_and_batches(make):
    """A partition costs Spark some 15 ms, and a batch as much as a thousand rows."""
    from spark_ext import schema
    from spark_ext.batch import read_part
    from spark_ext.options import parse_read
    from spark_ext.plan import plan

    path = make({f"a-topic-with-quite-a-long-name-{i}": [2] * 8 for i in range(30)})
    layout = schema.ColumnLayout(("topic", "queueOffset", "body"), (False,) * 3, "json")
    for rows, count in ((8192, 1), (100, 5)):
        options = parse_read({"path": str(path), "batchRows": str(rows)}, streaming=False)
        (part,) = plan(options)
        assert len(pickle.dumps(part)) < 240 * 24
        batches = list(read_part(part, layout, options))
        assert len(batches) == count
        found = [row for batch in batches for row in batch.to_pylist()]
        assert len({(row["topic"], row["body"]) for row in found}) == len(found) == 480


def test_the_path_may_be_a_file_address(load, make):
    path = Path(make({"t": [1]}))
    assert load(f"file:{path}").count() == 1
