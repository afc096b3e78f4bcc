"""Why ``pushFilters`` stays off: Spark 4.1 to 4.3 plan once for all scans of one ``load()``.

A small source that does push filters shows the wrong answers; the same questions put to ours, with
filters and with options, are answered right. When the first test fails on a newer Spark, pushing
down can be thought of again (SPARK-58551 moves the plan to the scan): option pushdown=auto is on
there, and ``test_one_load_gives_wrong_answers_when_told_to_push`` must fail there too.

What pushdown=unsafe gives to a query with one scan of its ``load()`` is tested below that.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

import pystore
from spark_ext.options import PushedFilters, ReadOptions, parse_read
from spark_ext.pushdown import PushingReader, narrowed, wanted
from spark_ext.schema import ColumnLayout
from tests.spark.conftest import put, said

pytestmark = pytest.mark.spark


def trap_source() -> type[DataSource]:
    """Made in a function, so that workers get it by value: they cannot import this file."""

    class TrapReader(DataSourceReader):
        def __init__(self) -> None:
            self.queues = [0, 1, 2, 3]

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for f in filters:
                if isinstance(f, EqualTo) and f.attribute == ("q",):
                    self.queues = [f.value]
                yield f  # Spark shall check again, which ought to make it safe

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(q) for q in self.queues]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(partition.value,)] * 1000)

    class TrapSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "trap"

        def schema(self) -> str:
            return "q int"

        def reader(self, schema: Any) -> TrapReader:
            return TrapReader()

    return TrapSource


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


def questions(frame: Any) -> list[int]:
    """The first four of the table in docs/spark.md."""
    q0 = frame.filter("q = 0")
    return [
        q0.count(),
        frame.count(),
        q0.union(frame.filter("q = 1")).count(),
        q0.union(frame).count(),
    ]


RIGHT = [1000, 4000, 2000, 5000]


@pytest.mark.long
def test_spark_answers_wrongly_when_a_source_pushes_filters(spark, pushing):
    spark.dataSource.register(trap_source())
    frame = spark.read.format("trap").load()
    assert questions(frame) != RIGHT
    assert frame.filter("q = 0").count() == 1000
    assert frame.count() == 1000  # of 4000


def test_ours_answers_right_even_with_pushing_switched_on(load, make, pushing):
    path = make({"t": [1000] * 4})
    assert questions(load(path, "queueId int").withColumnRenamed("queueId", "q")) == RIGHT


def test_options_answer_the_same_questions_without_reading_the_rest(load, make):
    path = make({"t": [1000] * 4})
    read: Callable[..., Any] = lambda **o: load(path, "queueId int", **o)  # noqa: E731
    q0, q1, everything = read(queues="0"), read(queues="1"), read()
    assert q0.rdd.getNumPartitions() == 1
    assert [
        q0.count(),
        everything.count(),
        q0.union(q1).count(),
        q0.union(everything).count(),
    ] == RIGHT


# ---- pushdown=unsafe ----


@pytest.mark.long
def test_one_load_gives_wrong_answers_when_told_to_push(load, make, pushing):
    path = make({"t": [1000] * 4})
    frame = load(path, "queueId int", pushdown="unsafe").withColumnRenamed("queueId", "q")
    assert questions(frame) != RIGHT


def test_one_scan_a_load_is_answered_right_and_reads_less(load, make, pushing):
    path = make({"t": [1000] * 4, "u": [10]})

    def read() -> Any:
        return load(path, pushdown="unsafe", maxRecordsPerPartition=500)

    assert read().rdd.getNumPartitions() == 9
    q1 = read().filter("topic = 't' AND queueId = 1 AND queueOffset >= 400 AND queueOffset < 450")
    assert sorted(r.queueOffset for r in q1.collect()) == list(range(400, 450))
    assert q1.rdd.getNumPartitions() == 1
    assert read().filter("queueId IN (2, 3) OR topic = 'u'").count() == 2010
    assert read().filter("queueId = 1 AND queueId = 2").count() == 0
    assert read().filter("topic LIKE 'u%'").count() == 10


def test_tags_and_times_are_pushed(load, store_path, small, pushing):
    with pystore.open(store_path, **small) as store:
        stamps = []
        for i in range(6):
            tag = ("AaAa", "BBBB", None)[i % 3]  # two that share a hash
            stamps.append(store.put("t", str(i), tags=tag, queue=0).store_timestamp)
            while store.put("clock", b"").store_timestamp == stamps[-1]:
                pass

    def found(condition: str) -> list[int]:
        frame = load(store_path, pushdown="unsafe", topic="t").filter(condition)
        return sorted(int(bytes(r.body)) for r in frame.collect())

    assert found("tags = 'BBBB'") == [1, 4]
    assert found("tags IN ('AaAa', 'none')") == [0, 3]
    assert found("tags IS NULL") == [2, 5]
    assert found("tags <=> 'BBBB' AND queueOffset > 2") == [4]
    assert found(f"storeTimestamp > timestamp_millis({stamps[2]})") == [3, 4, 5]
    assert found(f"storeTimestamp <= timestamp_millis({stamps[2]})") == [0, 1, 2]
    assert found(f"storeTimestamp = timestamp_millis({stamps[2]})") == [2]


def test_pushing_without_sparks_switch_is_refused_by_name(load, make):
    path = make({"t": [1]})
    with pytest.raises(Exception, match="PushingReader implements pushFilters") as failure:
        load(path, pushdown="unsafe").count()
    assert "'spark.sql.python.filterPushdown.enabled' is false. Set it to true" in said(failure)


def test_auto_waits_for_spark_5(load, make, pushing):
    assert [wanted("auto", v) for v in ("4.3.0", "5.0.0", "5.1.0.dev0", "10.0")] == [
        False, True, True, True,
    ]  # fmt: skip
    assert [wanted(p, "5.0.0") for p in ("off", "unsafe")] == [False, True]
    path = make({"t": [1000] * 4})
    frame = load(path, "queueId int", pushdown="auto").withColumnRenamed("queueId", "q")
    assert questions(frame) == RIGHT


# ---- without a session ----


def asked(path: Path = Path("/s"), **more: str) -> ReadOptions:
    return parse_read({"path": str(path), **more}, streaming=False)


def moment(ms: float) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    ("filters", "pushed"),
    [
        ([EqualTo(("topic",), "t")], PushedFilters(topics=frozenset("t"))),
        (
            [In(("topic",), ("t", "u")), EqualTo(("topic",), "u")],
            PushedFilters(topics=frozenset("u")),
        ),
        ([EqualTo(("brokerName",), "b")], PushedFilters(brokers=frozenset("b"))),
        ([EqualNullSafe(("queueId",), 3)], PushedFilters(queues=frozenset([3]))),
        ([In(("queueOffset",), (7, 3, 5))], PushedFilters(first=3, last=7)),
        (
            [GreaterThan(("queueOffset",), 3), LessThan(("queueOffset",), 9)],
            PushedFilters(first=4, last=8),
        ),
        ([LessThanOrEqual(("queueOffset",), 9)], PushedFilters(last=9)),
        ([EqualTo(("tags",), "a")], PushedFilters(tags=frozenset("a"))),
        ([IsNotNull(("topic",)), Not(EqualTo(("topic",), "t"))], None),
        ([StringStartsWith(("topic",), "t"), EqualTo(("flag",), 1)], None),
        ([EqualTo(("properties", "key"), "x"), In(("queueId",), (1, None))], None),
        ([EqualTo(("tags",), t) for t in ("", " a", "a||b", "*", "\ufffd", "x" * 2000)], None),
    ],
)
def test_what_a_filter_leaves(filters, pushed):
    assert narrowed(asked(), filters).pushed == pushed


def test_times_are_cut_to_whole_milliseconds():
    at = ("storeTimestamp",)
    between = lambda *f: narrowed(asked(), f)[slice(*bounds)]  # noqa: E731
    first = ReadOptions._fields.index("time_min")
    bounds = first, first + 2
    assert between(GreaterThan(at, moment(5)), LessThan(at, moment(9))) == (6, 8)
    assert between(GreaterThanOrEqual(at, moment(5)), LessThanOrEqual(at, moment(9))) == (5, 9)
    assert between(GreaterThan(at, moment(5.5)), LessThan(at, moment(8.5))) == (6, 8)
    assert between(EqualTo(at, moment(5.5))) == (6, 5)
    assert between(GreaterThan(at, moment(-5)), LessThan(at, dt.datetime(2026, 1, 1))) == (0, None)


def test_filters_and_options_hold_together(make):
    path = make({"t": [10, 10]})
    reader = PushingReader(asked(path, tags="a || b"), ColumnLayout(("queueId",), (False,), "json"))
    filters = [In(("tags",), ("b", "c")), EqualTo(("queueId",), 1)]
    assert list(reader.pushFilters(filters)) == filters  # Spark shall check all of them again
    assert reader.options.tags == "b"
    assert [part.ranges for part in reader.partitions()] == [(("t", 1, 0, 10),)]
    list(reader.pushFilters([EqualTo(("tags",), "c")]))
    assert reader.partitions() == []


def test_keys_keep_to_pushed_offsets(store_path, small):
    with pystore.open(store_path, **small) as store:
        put(store, "t", 0, 10, keys=["k"] * 10)
    options = narrowed(asked(store_path, keys="k"), [GreaterThan(("queueOffset",), 6)])
    reader = PushingReader(options, ColumnLayout(("queueId",), (False,), "json"))
    assert [part.ranges for part in reader.partitions()] == [(("t", 0, 7, 10),)]
