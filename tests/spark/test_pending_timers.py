"""Option timers=pending: messages that wait for their time, as rows."""

from __future__ import annotations

import contextlib
import pickle
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pystore
from broker import Broker
from broker.testing import SETTINGS
from pystore.store.timers import Timers, delete_mark

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from spark_ext import schema
from spark_ext.errors import BadOption, BadSchema, DataLoss
from spark_ext.options import parse_columns, parse_read
from spark_ext.timers import GAP, plan_timers, read_timers

HOUR_MS = 3_600_000
#: Of each topic, an hour ahead and 100 ms after one another.
COUNT = 3 * GAP


def options(path: Path, **given: str) -> Any:
    return parse_read({"path": str(path), "timers": "pending", **given}, streaming=False)


def rows(path: Path, names: str, **given: str) -> list[dict[str, Any]]:
    """What the tasks of a query of these columns give."""
    return read(plan_timers(options(path, **given)), names, options(path, **given))


def read(parts: Any, names: str, o: Any) -> list[dict[str, Any]]:
    known = schema.COLUMNS | schema.OF_TIMERS
    asked = tuple(names.split(","))
    layout = schema.ColumnLayout(asked, tuple(known[n][1] for n in asked), o.properties)
    carried = pickle.loads(pickle.dumps(parts))
    return [r for part in carried for b in read_timers(part, layout, o) for r in b.to_pylist()]


def ms(moment: Any) -> int:
    return round(moment.timestamp() * 1000)


class Waiting(NamedTuple):
    """A closed store, and what waits in it: body to topic, queue, time asked for."""

    path: Path
    wanted: dict[bytes, tuple[str, int, int]]


def fill(store: pystore.Store) -> dict[bytes, tuple[str, int, int]]:
    """Timers of two topics, of which some are delivered and some recalled."""
    now = time.time_ns() // 1_000_000
    asked = {}
    for i in range(COUNT):
        for topic, queue in (("T", 1), ("U", 0)):
            body, due = b"%s%d" % (topic.encode(), i), now + HOUR_MS + 100 * i
            properties = {"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": body.decode(), "n": str(i)}
            tags = "odd" if i % 2 else "even"
            store.put_message(topic, body, tags, properties=properties, queue=queue)
            asked[body] = topic, queue, due
    for i in range(20, 20 + GAP):  # a range of offsets in which nothing waits
        for topic in "TU":
            body = b"%s%d" % (topic.encode(), i)
            mark = delete_mark(topic, body.decode(), asked.pop(body)[2])
            store.put_message(topic, b"0", properties=mark, queue=0)
    timers = Timers(store)
    while timers.run(now_ms=now + HOUR_MS + 950).more:
        pass
    timers.close()
    return {body: place for body, place in asked.items() if place[2] > now + HOUR_MS + 950}


@pytest.fixture
def waiting(store_path: Path, small: dict[str, Any]) -> Waiting:
    with pystore.open(store_path, **small) as store:
        return Waiting(store_path, fill(store))


def test_rows_are_what_waits_with_its_time_and_its_topic(waiting):
    names = "body,topic,queueId,deliverTime,tags,queueOffset"
    found = rows(waiting.path, names)
    assert {r["body"]: (r["topic"], r["queueId"], ms(r["deliverTime"])) for r in found} == (
        waiting.wanted
    )
    assert len(found) == len(waiting.wanted) == 2 * (COUNT - 10 - GAP)
    assert all(r["tags"] == ("odd" if int(r["body"][1:]) % 2 else "even") for r in found)
    offsets = [r["queueOffset"] for r in found]
    assert offsets == sorted(offsets)
    assert rows(waiting.path, "deliverTime") == [{"deliverTime": r["deliverTime"]} for r in found]


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({"topic": "T"}, lambda b: b[:1] == b"T"),
        ({"topic": "T, U"}, lambda b: True),
        ({"subscribePattern": "[U-Z]"}, lambda b: b[:1] == b"U"),
        ({"topic": "none"}, lambda b: False),
        ({"tags": "odd"}, lambda b: int(b[1:]) % 2 == 1),
        ({"sql92": "n > 100"}, lambda b: int(b[1:]) > 100),
        ({"topic": "T", "includeProperties": "map"}, lambda b: b[:1] == b"T"),
        ({"minStoreTimestamp": "1"}, lambda b: True),
        ({"maxStoreTimestamp": "1"}, lambda b: False),
    ],
)
def test_filters_are_those_of_any_read(waiting, given, share):
    want = {body for body in waiting.wanted if share(body)}
    assert {r["body"] for r in rows(waiting.path, "body", **given)} == want
    found = rows(waiting.path, "body,properties", **given)
    assert {r["body"] for r in found} == want


def test_partitions_have_the_asked_size_and_the_same_rows(waiting):
    whole = rows(waiting.path, "body,deliverTime")
    for given, least in (
        ({"maxRecordsPerPartition": "7"}, len(whole) // 7),
        ({"minPartitions": "5"}, 5),
        ({"maxBytesPerPartition": "2k"}, 5),
        ({"batchRows": "3", "batchBytes": "400"}, 1),
    ):
        parts = plan_timers(options(waiting.path, **given))
        assert len(parts) >= least
        assert read(parts, "body,deliverTime", options(waiting.path, **given)) == whole


def test_a_plan_is_a_snapshot(waiting, small):
    """What is delivered before the tasks run is still a row; what is sent meanwhile is none."""
    o = options(waiting.path)
    parts = plan_timers(o)
    with pystore.open(waiting.path, **small) as store:
        timers = Timers(store)
        while timers.run(now_ms=max(due for _, _, due in waiting.wanted.values())).more:
            pass
        timers.close()
        later = {"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "later"}
        store.put_message("T", b"later", properties=later)
    assert {r["body"] for r in read(parts, "body", o)} == set(waiting.wanted)
    assert [r["body"] for r in rows(waiting.path, "body")] == [b"later"]


def test_a_record_that_breaks_is_an_error_or_left_out(waiting):
    o = options(waiting.path)
    parts = plan_timers(o)
    with pystore.Reader(waiting.path) as reader:
        timers = Timers(reader)
        (victim,) = timers.waiting(most=1)
        timers.close()
        size = reader.info().commitlog_file_size
    base = victim.physical - victim.physical % size
    with (waiting.path / "commitlog" / f"{base:020}").open("r+b") as file:
        file.seek(victim.physical - base + 4)
        file.write(b"\0\0\0\0")
    with pytest.raises(DataLoss, match="failOnDataLoss=false skips unreadable messages"):
        read(parts, "body", o)
    lenient = options(waiting.path, failOnDataLoss="false")
    assert len(read(parts, "body", lenient)) == len(waiting.wanted) - 1


def test_what_a_java_folder_left_waiting(golden, request):
    import json
    import lzma

    folder = Path(request.config.rootpath) / "tests" / "golden"
    with lzma.open(folder / "timer.expected.jsonl.xz", "rt", encoding="utf-8") as text:
        said = [json.loads(line) for line in text]
    wanted = {r["uniq"] for r in said if r["at"] == "pending" and not r["recalled"]}
    found = rows(golden("timer"), "properties,deliverTime", includeProperties="map")
    assert {dict(r["properties"])["UNIQ_KEY"] for r in found} == wanted
    assert len(found) == len(wanted)


def test_times_of_wide_slots_need_the_setting_of_the_store(store_path, small):
    """TIMER_OUT_MS is rounded down to it, and the exact time lies within."""
    wide = {"timerPrecisionMs": 60_000}
    due = (time.time_ns() // HOUR_MS // 1_000_000 + 2) * HOUR_MS + 59_000
    with pystore.open(store_path, **(small | wide)) as store:
        store.put_message("t", b"x", properties={"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": "k"})
    (row,) = rows(store_path, "deliverTime", timerPrecisionMs="60000")
    assert ms(row["deliverTime"]) == due


def test_a_store_without_timers_has_no_rows(store_path, small):
    with pystore.open(store_path, **small) as store:
        store.put("t", b"x")
    assert rows(store_path, "body") == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"timers": "due"}, "option timers is one of stored, pending, not 'due'"),
        *(
            ({"timers": "pending", name: value}, f"option {name} does not go with timers=pending")
            for name, value in (
                ("queues", "0"), ("scan", "log"), ("startingOffsets", "earliest"), ("keys", "k"),
                ("endingTimestamp", "5"), ("includeTransactions", "all"), ("pushdown", "unsafe"),
            )
        ),
        (
            {"timers": "pending", "fallback": "pull", "nameServer": "h:1"},
            "option fallback does not go with timers=pending",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_beside_it_is_named(given, why):
    with pytest.raises(BadOption) as failure:
        parse_read({"path": "/s", **given}, streaming=False)
    assert why in str(failure.value)


def test_a_stream_of_it_is_refused_with_the_reason():
    with pytest.raises(BadOption, match="does not apply to a stream: a stream only adds rows"):
        parse_read({"path": "/s", "timers": "pending"}, streaming=True)


def test_the_time_is_a_column_of_this_option_alone():
    names, properties, timers = parse_columns({"path": "/s", "timers": "pending"})
    assert schema.ddl(names, properties, timers=timers).endswith("deliverTime timestamp NOT NULL")
    assert "deliverTime" not in schema.ddl((), "json")
    with pytest.raises(BadSchema, match="column 'deliverTime' goes with option timers=pending"):
        schema.ddl(("deliverTime",), "json")


@pytest.mark.spark
def test_what_waits_in_a_store_goes_on_waiting_at_a_broker(spark, waiting, tmp_path):
    """A frame of it has the columns of a write: each comes at its time, from another broker."""
    reader = spark.read.format("rocketmq").option("timers", "pending")
    frame = reader.option("topic", "T").option("minPartitions", "2").load(str(waiting.path))
    assert frame.columns[-1] == "deliverTime"
    wanted = {body: due for body, (topic, _, due) in waiting.wanted.items() if topic == "T"}
    assert frame.where("deliverTime > now()").count() == len(wanted)
    with contextlib.ExitStack() as stack:
        path = tmp_path / "other"
        broker = stack.enter_context(Broker(path, listenPort=0, with_namesrv=True, **SETTINGS))
        copied = frame.select("topic", "body", "tags", "keys", "properties", "deliverTime")
        writer = copied.write.format("rocketmq").mode("append")
        writer.option("nameServer", broker.namesrv_address).save()
        there = stack.enter_context(pystore.Reader(path))
        found = Timers(there)
        stack.callback(found.close)
        waits = {bytes(there.message(t.physical).body): t.due_ms for t in found.each()}
    assert waits == wanted
