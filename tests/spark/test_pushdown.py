"""Why ``pushFilters`` stays off: Spark 4.1 to 4.3 plan once for all scans of one ``load()``.

A small source that does push filters shows the wrong answers; the same questions put to ours, with
filters and with options, are answered right. When the first test fails on a newer Spark, pushing
down can be thought of again (SPARK-58551 moves the plan to the scan).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
)

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
