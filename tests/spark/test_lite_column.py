"""The column liteTopic, option liteTopics, and what a filter of the column leaves to be read."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, In

import pystore
from spark_ext.errors import BadOption
from spark_ext.options import ReadOptions, parse_read
from spark_ext.plan import Part, plan
from spark_ext.pushdown import narrowed

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[1] / "golden" / "lite-killed.tar.xz"
COUNT, NAMES = 400, 40


def put(store: pystore.Store, name: str, body: bytes) -> None:
    named = {"INNER_MULTI_DISPATCH": f"%LMQ%$chats${name}", "__LITE_TOPIC": name}
    store.put("chats", body, queue=len(name) % 2, properties=named)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten messages of each of forty lite topics in two queues, among others that are of none."""
    small = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000}
    with pystore.open(tmp_path / "store", **small) as store:
        store.lights.begin()
        for n in range(COUNT):
            put(store, f"s{n % NAMES}", b"%d" % n)
            store.put("chats", b"plain", queue=n % 2)
    return tmp_path / "store"


def asked(path: Path, **given: str) -> ReadOptions:
    return parse_read({"path": str(path), "topic": "chats"} | given, streaming=False)


def offsets(parts: list[Part]) -> int:
    """Messages that the tasks of a plan read."""
    return sum(end - start for part in parts for _, _, start, end in part.ranges)


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_the_column_is_null_where_there_is_no_lite_topic(path, load):
    frame = load(path, topic="chats", columns="liteTopic")
    assert frame.filter("liteTopic IS NULL").count() == COUNT
    assert frame.filter("liteTopic = 's3'").count() == COUNT // NAMES


def test_a_filter_leaves_the_light_queue_and_what_was_before_it(path):
    """An earlier life of a lite topic may lie there; s39 begins after 39 others and their like."""
    whole = offsets(plan(asked(path)))
    assert whole == 2 * COUNT
    few = narrowed(asked(path), [EqualTo(("liteTopic",), "s0")])
    assert offsets(plan(few)) == COUNT // NAMES
    last = narrowed(asked(path), [In(("liteTopic",), ("s0", "s39"))])
    assert 2 * COUNT // NAMES < offsets(plan(last)) <= 2 * COUNT // NAMES + 2 * NAMES
    assert offsets(plan(narrowed(asked(path), [EqualTo(("liteTopic",), "none")]))) == whole


def test_a_lite_topic_that_came_again_is_found_whole(path, load, spark):
    with pystore.open(path) as store:
        store.lights.begin()
        store.lights.delete("%LMQ%$chats$s7")
        put(store, "s7", b"again")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(path, topic="chats", pushdown="unsafe", columns="body,liteTopic")
        assert frame.filter("liteTopic = 's7'").count() == COUNT // NAMES + 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert bodies(load(path, topic="chats", liteTopics="s7")) == ["again"]


def test_the_light_queues_of_a_java_store(tmp_path, load):
    subprocess.run(["tar", "-C", tmp_path, "-xJf", GOLDEN], check=True)
    path = tmp_path / "lite-killed"
    few = load(path, topic="L3_lite", liteTopics="ra", columns="body,liteTopic")
    assert bodies(few) == [f"ra#{n}" for n in range(5)]
    every = load(path, columns="topic,commitLogOffset")
    assert every.filter("topic LIKE '%LMQ%'").count() == 0, "they are in their topic's queues, too"
    assert every.count() == every.distinct().count()


def test_a_scan_of_the_log_knows_no_lite_topics(path):
    with pytest.raises(BadOption, match="liteTopics"):
        plan(asked(path, liteTopics="s1", scan="log"))
