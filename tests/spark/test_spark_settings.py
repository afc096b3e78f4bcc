"""Stores that need settings: a log on other disks, a broker.conf."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from waiting import BOUND_S

import pystore
from spark_ext import schema, sink
from spark_ext.batch import read_part
from spark_ext.errors import BadOption, DataLoss
from spark_ext.options import parse_read
from spark_ext.plan import plan
from tests.spark.conftest import put, said

pytestmark = pytest.mark.spark

COUNT = 6000
LAYOUT = schema.ColumnLayout(("queueOffset",), (False,), "json")


@pytest.fixture
def disks(tmp_path: Path) -> str:
    return ",".join(str(tmp_path / f"disk{i}") for i in (1, 2, 3))


@pytest.fixture
def spread(store_path: Path, small: dict[str, Any], disks: str) -> Path:
    """A store whose segments lie in three folders, none of them its own."""
    more = {"mappedFileSizeCommitLog": 1 << 18, "storePathCommitLog": disks}
    with pystore.open(store_path, **(small | more)) as store:
        put(store, "t", 0, COUNT)
    assert all(any(Path(disk).iterdir()) for disk in disks.split(","))
    assert not (store_path / "commitlog").exists()
    return store_path


def conf(path: Path, **settings: object) -> Path:
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return path


def test_a_broker_conf_tells_where_the_store_lies(spark, load, spread, disks, tmp_path):
    file = conf(
        tmp_path / "broker.conf",
        storePathRootDir=spread,
        storePathCommitLog=disks,
        brokerName="broker-x",
        namesrvAddr="127.0.0.1:9876",
        flushDiskType="SYNC_FLUSH",
    )
    assert load(spread, conf=file).count() == COUNT
    assert spark.read.format("rocketmq").option("conf", str(file)).load().count() == COUNT


def test_the_conf_of_the_original_reads_its_copy(load, make, tmp_path):
    path = make({"t": [10]}, tmp_path / "original")
    file = conf(
        tmp_path / "broker.conf",
        storePathRootDir=path,
        storePathCommitLog=path / "commitlog",
    )
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    make({"t": [30]}, path)
    assert load(copy, conf=file).count() == 10


def test_a_conf_for_each_of_several_stores(load, make, spread, disks, tmp_path):
    other = make({"u": [5]}, tmp_path / "other")
    files = [
        str(conf(tmp_path / "a.conf", storePathCommitLog=disks)),
        str(conf(tmp_path / "b.conf", brokerName="b")),
    ]
    frame = load([spread, other], conf=json.dumps(files))
    assert {r.topic: r["count"] for r in frame.groupBy("topic").count().collect()} == {
        "t": COUNT,
        "u": 5,
    }
    paths = json.dumps([str(spread), str(other)])
    with pytest.raises(BadOption, match="cannot both have their log in"):
        parse_read({"path": paths, "storePathCommitLog": disks}, streaming=False)
    with pytest.raises(BadOption, match="option conf names 2 files for 1 stores"):
        parse_read({"path": str(spread), "conf": json.dumps(files)}, streaming=False)


def test_a_conf_that_is_wrong_is_told_with_its_line(load, make, tmp_path):
    path = make({"t": [1]})
    file = conf(tmp_path / "broker.conf", brokerName="b", fileReservedTim=48)
    with pytest.raises(Exception, match="the nearest name is 'fileReservedTime'") as failure:
        load(path, conf=file).count()
    assert f"{file}:2" in said(failure)


def test_tasks_get_what_is_in_the_file_not_its_name(spread, disks, tmp_path):
    file = conf(tmp_path / "broker.conf", storePathCommitLog=disks, brokerName="b", listenPort=1)
    options = parse_read({"path": str(spread), "conf": str(file)}, streaming=False)
    (part,) = plan(options)
    file.unlink()
    assert sum(b.num_rows for b in read_part(part, LAYOUT, options)) == COUNT
    assert options.settings_of(str(spread)) == (("storePathCommitLog", disks),)


def test_a_segment_cut_off_on_another_disk_is_told(spread, disks):
    given = {"path": str(spread), "storePathCommitLog": disks, "batchRows": "100"}
    options = parse_read(given, streaming=False)
    (part,) = plan(options)
    scan = read_part(part, LAYOUT, options)
    next(scan)
    segment = Path(disks.split(",")[1]) / f"{1 << 18:020d}"
    with segment.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(DataLoss, match=f"{segment} was truncated to 4096 bytes while it was read"):
        list(scan)


def test_a_stream_from_a_log_on_other_disks(spark, spread, disks, tmp_path):
    counts: list[int] = []
    query = (
        spark.readStream.format("rocketmq")
        .option("startingOffsets", "earliest")
        .option("storePathCommitLog", disks)
        .option("maxBytesPerTrigger", "400k")
        .load(str(spread))
        .writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(BOUND_S)
    assert sum(counts) == COUNT
    assert len(counts) > 1


def test_a_cut_off_commit_is_finished_with_the_settings_of_its_write(store_path, disks, small):
    from tests.spark.test_sink import spooled

    settings = json.dumps(small | {"storePathCommitLog": disks})
    from spark_ext.options import parse_write

    options = parse_write({"path": str(store_path), "topic": "t", "storeConf": settings})
    spool = spooled(options, "job", 0, ["a", "b"])
    with pystore.open(store_path, json.loads(settings)) as store:
        entry = sink.CommitEntry("job", 0, False, store.info().log_max, 2, (spool.path,))
        sink.Ledger(store.path).put(entry)
    assert sink.finish(store_path, settings) == 2
    with pystore.Reader(store_path, storePathCommitLog=disks) as reader:
        assert len(reader.read("t", 0, 0)) + len(reader.read("t", 1, 0)) == 2
